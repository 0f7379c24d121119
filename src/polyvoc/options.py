"""One options record per verb, each field with its help text; presets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from polyvoc.errors import OptionError, require
from polyvoc.types import FeatureKind, LikelihoodTable

Merge = Literal["likelihood", "posterior", "bayes", "b0", "b1", "b2"]
Idf = Literal["average", "plain", "none"]
Norm = Literal["tfidf", "tf", "sqrt-tf", "features", "self", "none"]
Burstiness = Literal["none", "best", "intra", "inter", "both"]
BurstinessOn = Literal["auto", "difference", "all"]
Sets = Literal["feature", "image"]
Expansion = Literal["none", "average", "hamming"]
Detector = Literal["sift", "orb", "akaze", "affine"]
# What each detector makes. An affine region is described by SIFT, too: the same words serve it.
DETECTOR_KINDS: Mapping[str, FeatureKind] = {
    "sift": FeatureKind(),
    "affine": FeatureKind(),
    "orb": FeatureKind("orb", 256, True),
    "akaze": FeatureKind("akaze", 486, True),
}


@dataclass(frozen=True)
class FeatureOptions:
    """How photographs become features."""

    long_side: int = 1024  # larger photographs are reduced to this many pixels on their long side
    max_features: int = 3000  # the strongest are kept
    detector: Detector = "sift"  # affine: regions in the shape of what they show, not round; needs pycolmap

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        require(self.detector in get_args(Detector), "detector", self.detector, "one of " + ", ".join(get_args(Detector)))
        require(self.long_side >= 32, "long_side", self.long_side, "at least 32")
        require(self.max_features >= 1, "max_features", self.max_features, "at least 1")

    @property
    def kind(self) -> FeatureKind:
        """Give what the detector makes."""
        return DETECTOR_KINDS[self.detector]


@dataclass(frozen=True)
class SearchOptions:
    """How a query is scored. The defaults are those of the paper's system, completed by the posterior rule."""

    top: int = 10  # how many hits
    merge: Merge = "posterior"  # rule that merges the vocabularies
    idf: Idf = "average"  # ln(N / occurrences), ln(N / images), or 1; squared in the score
    norm: Norm = "tfidf"  # what an image's votes are divided by
    # (a, b) of term 2: p(intersection | true match) = a r + b. a + b = 1: two equal lists share every match. Fits with it give
    # b = 0.23 to 0.33; without signatures rankings gain a little up to b = 0.5 (docs/findings.md).
    line: tuple[float, float] = (0.6, 0.4)
    c: float = 30.0  # term 3 = ln(N c); the paper's Table 2
    hamming: int | None = None  # largest Hamming distance that still votes; None ignores signatures
    sigma: float = 16.0  # a vote at distance h counts exp(-h^2 / sigma^2)
    burstiness: Burstiness = "none"  # of repeated structure: keep the best match, or damp within an image, across images, both
    burstiness_on: BurstinessOn = "auto"  # "auto": the difference set for `bayes` (as the paper), else all
    sets: Sets = "feature"  # are the sets of the rules sets of features or of images?
    assignments: int = 1  # words per query feature and vocabulary
    evidence: LikelihoodTable | None = None  # for `likelihood`; None: the table that comes with the package
    verify: int = 0  # candidates whose arrangement is verified, and which are then ranked anew
    expansion: Expansion = "none"  # verified hits ask along with the query: their features join it, or change its signatures
    expand: int = 5  # verified hits that do, at most
    smooth: float = 0.0  # weight of an image's verified neighbours in its score: of an index that was linked
    fuse: bool = False  # hear the global embedding, too, of an index that was made with one
    sure: float = 0.0  # hits less probable than this are left out: at 0.9, perhaps all of them
    whole: bool = False  # of an index on a cluster: rather fail than answer without the images of machines that are down

    def __post_init__(self) -> None:
        """Refuse values that make no sense, naming the choices."""
        for name, kind in (("merge", Merge), ("idf", Idf), ("norm", Norm), ("burstiness", Burstiness),
                           ("burstiness_on", BurstinessOn), ("sets", Sets), ("expansion", Expansion)):  # fmt: skip
            value = getattr(self, name)
            require(value in get_args(kind), name, value, "one of " + ", ".join(get_args(kind)))
        require(self.top >= 1, "top", self.top, "at least 1")
        require(0 < self.c < math.inf, "c", self.c, "positive")
        require(self.hamming is None or self.hamming >= 0, "hamming", self.hamming, "0 or more, or None")
        require(0 < self.sigma < math.inf, "sigma", self.sigma, "positive")
        require(self.assignments >= 1, "assignments", self.assignments, "at least 1")
        require(self.verify >= 0, "verify", self.verify, "0 or more")
        require(self.expand >= 1, "expand", self.expand, "at least 1")
        require(0 <= self.smooth < math.inf, "smooth", self.smooth, "0 or more")
        require(0 <= self.sure <= 1, "sure", self.sure, "a probability, from 0 to 1")
        possible = self.expansion == "none" or self.verify > 0
        require(possible, "expansion", self.expansion, "none unless hits are verified: give verify, such as 100")
        pair = len(self.line) == 2 and all(map(math.isfinite, self.line))
        require(pair, "line", self.line, "a pair (a, b) of numbers")

    @property
    def signed(self) -> bool:
        """Tell whether Hamming signatures are compared."""
        return self.hamming is not None or self.merge == "likelihood"


@dataclass(frozen=True)
class PairOptions:
    """Which pairs of images are worth matching."""

    top: int = 20  # best other images of each one
    mutual: bool = False  # keep a pair only if each is among the best of the other
    least: float = 0.0  # score that a pair has at least
    verify: bool = False  # keep a pair only if matches agree on one arrangement
    inliers: int = 6  # matches that do, at least

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        require(self.top >= 1, "top", self.top, "at least 1")
        require(0 <= self.least < math.inf, "least", self.least, "0 or more")
        require(self.inliers >= 1, "inliers", self.inliers, "at least 1")


@dataclass(frozen=True)
class TrainOptions:
    """How a vocabulary is trained."""

    size: int = 20_000  # words
    seed: int = 0  # of the sample and of the first words; give each vocabulary its own
    rounds: int = 20  # of k-means, at most
    bits: int = 128  # of a Hamming signature, at most, and no more than descriptors have numbers; 0 = none
    max_descriptors: int = 2_000_000  # drawn for k-means; the medians use all that are given

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        for name, least in (("size", 1), ("seed", 0), ("rounds", 1), ("bits", 0), ("max_descriptors", 1)):
            require(getattr(self, name) >= least, name, getattr(self, name), f"at least {least}")
        require(self.bits <= 128, "bits", self.bits, "at most 128")  # a signature is one or two uint64


@dataclass(frozen=True)
class ClusterOptions:
    """Where on a cluster an index is held."""

    address: str = "auto"  # of a Ray cluster; "auto": the one that runs here; "local": one of this machine alone
    shards: int = 0  # parts that the segments are spread over, each held by a process; 0: one per core
    replicas: int = 1  # processes that hold the same part
    patience: float = 10.0  # seconds that a question waits for a part

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        require(bool(self.address), "address", self.address, "that of a Ray cluster, auto or local")
        require(self.shards >= 0, "shards", self.shards, "0 or more")
        require(self.replicas >= 1, "replicas", self.replicas, "at least 1")
        require(0 < self.patience < math.inf, "patience", self.patience, "positive")


def options_as_dict(options: SearchOptions) -> dict[str, Any]:
    """Give search options as plain values for JSON; a table by what it was fitted on, None for the one that is shipped."""
    held = options.evidence
    return {**asdict(replace(options, evidence=None)), "evidence": None if held is None else held.source}


NONE = "none"  # what is typed for None
SEARCH_TEXTS = {
    "top": "How many hits.",
    "merge": "Rule that merges the vocabularies.",
    "idf": "Weight of a word: ln(N / occurrences), ln(N / images), or 1; squared in the score.",
    "norm": "What an image's votes are divided by.",
    "line": "(a, b) of the probability a r + b that a true match is in the intersection.",
    "c": "Constant of the prior, ln(N c).",
    "hamming": "Largest Hamming distance that still votes; 'none' ignores signatures.",
    "sigma": "A vote at Hamming distance h counts exp(-h^2 / sigma^2).",
    "burstiness": "Of repeated structure: keep the best match, or damp within an image, across images, both.",
    "burstiness_on": "Which matches are damped; 'auto': the difference set for bayes, else all.",
    "sets": "Are the sets of the rules sets of features or of images?",
    "assignments": "Words per query feature and vocabulary.",
    "evidence": "Table for 'likelihood', as 'polyvoc calibrate --table' writes it; 'none': the one that comes with polyvoc.",
    "verify": "Candidates whose arrangement is verified, and which are then ranked anew.",
    "expansion": "Verified hits ask along: their features join the query, or change its signatures.",
    "expand": "Verified hits that ask along, at most.",
    "smooth": "Weight of an image's verified neighbours in its score; needs 'polyvoc link'.",
    "fuse": "Hear the global embedding, too, of an index made with --embedding.",
    "sure": "Leave out hits that are less probable than this, from 0 to 1: 0.9 keeps those that are right nine times in ten.",
    "whole": "Of an index on a cluster: rather fail than answer without the images of machines that are down.",
}
FEATURE_TEXTS = {
    "long_side": "Larger photographs are reduced to this many pixels on their long side.",
    "max_features": "Strongest features kept of each photograph.",
    "detector": "What finds features: all but sift and affine need vocabularies of their own, affine needs pycolmap.",
}
PAIR_TEXTS = {
    "top": "Other photographs that each one is paired with, at most.",
    "mutual": "Keep a pair only if each is among the best of the other.",
    "least": "Score that a pair has at least.",
    "verify": "Keep a pair only if matches agree on one arrangement.",
    "inliers": "With --verify: matches that agree, at least.",
}
TRAIN_TEXTS = {
    "size": "Words of the vocabulary.",
    "seed": "Of the random choices; give each of several vocabularies its own.",
    "rounds": "Rounds of k-means, at most.",
    "bits": "Bits of a Hamming signature, at most 128 and at most the numbers of a descriptor; 0 for none.",
    "max_descriptors": "Descriptors drawn from the photographs.",
}
Preset = Literal["fast", "default", "best"]
FAST = SearchOptions(merge="likelihood", burstiness="best")  # scores alone
DEFAULT = replace(FAST, verify=100)
BEST = replace(FAST, verify=200, expansion="average")


def preset(name: str, bits: int = 128) -> SearchOptions:
    """Give the options of a preset for signatures of a length.

    There are tables of evidence for 64 and 128 bits. They were fitted on SIFT, and serve other kinds of features, too: what a
    match says depends on lists and Hamming distances, whatever the signatures were made of. With ORB `fast` has mAP 76.6 and
    N-S 3.758 by the table of SIFT, 77.1 and 3.734 by one that ORB of the other set learnt from itself, 72.7 and 3.452 without a
    table, by `posterior` with signatures (docs/features.md). `polyvoc calibrate --save` gives an index its own.

    Signatures of other lengths are weighed as Hamming Embedding does, and without any the complete Bayes rule stands in.
    """
    if name not in get_args(Preset):
        raise OptionError(f"preset={name!r} should be one of {', '.join(get_args(Preset))}")
    chosen = {"fast": FAST, "default": DEFAULT, "best": BEST}[name]
    if bits in (64, 128):
        return chosen
    if bits == 0:
        return replace(chosen, merge="posterior", burstiness="none")
    return replace(chosen, merge="b1", hamming=3 * bits // 8, sigma=bits / 4)
