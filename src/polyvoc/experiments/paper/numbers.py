"""Figures of the paper: Zheng, Wang, Zhou, Tian, "Bayes Merging of Multiple Vocabularies", CVPR 2014."""

from __future__ import annotations

from typing import Final

Figures = dict[str, dict[str, float]]
# Table 2: c of term 3 = log(N c)
TABLE2: Final[Figures] = {
    "oxford": {"10": 46.72, "20": 46.80, "30": 46.77, "40": 46.73, "50": 46.73},
    "holidays": {"10": 58.35, "20": 58.47, "30": 58.51, "40": 58.50, "50": 58.36},
}
# Table 3: method -> vocabularies -> value. B0 + HE is given in the text of section 5.2, B2 by its distance to Bayes.
TABLE3: Final[dict[str, Figures]] = {
    "holidays": {
        "b0": {"2x20K": 49.23, "3x20K": 49.23, "2x50K": 54.17},
        "b1": {"2x20K": 49.87, "3x20K": 50.49, "2x50K": 56.64},
        "b2": {"2x20K": 37.30},
        "bayes": {"2x20K": 58.51, "3x20K": 60.40, "2x50K": 59.22},
        "b0 + HE": {"2x20K": 76.24, "3x20K": 76.24},
        "b1 + HE": {"2x20K": 77.61, "3x20K": 78.08, "2x50K": 77.48},
        "bayes + HE": {"2x20K": 81.20, "3x20K": 81.56, "2x50K": 80.60},
        "bayes + HE + burstiness": {"2x20K": 81.53, "3x20K": 81.92, "2x50K": 81.08},
    },
    "oxford": {
        "b0": {"2x20K": 37.80, "3x20K": 37.80, "2x100K": 38.80},
        "b1": {"2x20K": 39.78, "3x20K": 39.97, "2x100K": 41.28},
        "bayes": {"2x20K": 46.77, "3x20K": 49.36, "2x100K": 49.72},
        "b0 + HE": {"2x20K": 56.65, "3x20K": 56.65},
        "b1 + HE": {"2x20K": 58.97, "3x20K": 59.52, "2x100K": 60.08},
        "bayes + HE": {"2x20K": 63.32, "3x20K": 63.53, "2x100K": 63.96},
        "bayes + HE + burstiness": {"2x20K": 65.01, "3x20K": 64.82, "2x100K": 64.73},
    },
    "ukbench": {
        "b0": {"2x20K": 3.11, "3x20K": 3.11, "2x100K": 3.17},
        "b1": {"2x20K": 3.15, "3x20K": 3.16, "2x100K": 3.22},
        "bayes": {"2x20K": 3.31, "3x20K": 3.30, "2x100K": 3.35},
        "b0 + HE": {"2x20K": 3.49, "3x20K": 3.49},
        "b1 + HE": {"2x20K": 3.51, "3x20K": 3.51, "2x100K": 3.48},
        "bayes + HE": {"2x20K": 3.61, "3x20K": 3.62, "2x100K": 3.57},
        "bayes + HE + burstiness": {"2x20K": 3.62, "3x20K": 3.62, "2x100K": 3.59},
    },
}
# Table 4: vocabularies of different sizes, on Oxford; equal sizes from its caption
TABLE4: Final[Figures] = {
    "10K + 20K": {"b1": 40.89, "b2": 32.85, "bayes": 47.11},
    "20K + 50K": {"b1": 41.20, "b2": 34.70, "bayes": 48.85},
    "10K + 20K + 50K": {"b1": 42.31, "b2": 35.82, "bayes": 49.05},
    "10K + 10K": {"bayes": 46.04},
    "20K + 20K": {"b1": 39.78, "bayes": 46.77},
    "50K + 50K": {"bayes": 47.79},
}
# Table 5: rank aggregation by the median rank
TABLE5: Final[Figures] = {
    "holidays": {"bayes, 2": 58.5, "bayes, 3": 60.4, "RA, 3": 49.9, "RA, 5": 50.7, "RA, 7": 51.0, "RA, 9": 51.0},
    "oxford": {"bayes, 2": 46.8, "bayes, 3": 49.4, "RA, 3": 39.5, "RA, 5": 40.8, "RA, 7": 41.2, "RA, 9": 41.4},
}
# Table 6: the state of the art of its day
TABLE6: Final[Figures] = {
    "Bayes merging (the paper)": {"holidays": 81.9, "oxford": 65.0, "ukbench": 3.62},
    "co-indexing (Zhang et al. 2013)": {"holidays": 80.9, "oxford": 68.7, "ukbench": 3.60},
    "improving bag-of-features (Jegou et al. 2010)": {"holidays": 81.3, "oxford": 61.5, "ukbench": 3.42},
    "burstiness (Jegou et al. 2009)": {"holidays": 83.9, "oxford": 64.7, "ukbench": 3.54},
    "contextual weighting (Wang et al. 2011)": {"holidays": 78.1, "ukbench": 3.56},
    "fast approximate k-means (Wang et al. 2012)": {"oxford": 66.4, "ukbench": 3.50},
}
# Section 5.2: Jegou & Chum 2012 on Holidays, as the paper quotes them
JOINT_PCA: Final[dict[str, float]] = {"4 x 16K": 55.8, "8 x 8K": 56.7, "several sizes, best": 58.8}
# Fig. 7 and section 5.2: Holidays with one million distractors
MILLION: Final[dict[str, float]] = {"b0": 28.19, "b1": 29.26, "bayes": 39.60}
# Section 5.2: seconds per query at one million images (3.46 GHz server), bytes per feature
SECONDS: Final[dict[str, float]] = {"b0": 2.52, "b1": 4.87, "bayes": 5.12}
BYTES: Final[dict[str, float]] = {"b0": 4.0, "b1": 8.0, "bayes": 8.0}
