"""Figures 2 to 7 of the paper, redone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from polyvoc import scoring
from polyvoc.lab import paper
from polyvoc.lab.cells import TITLES, cell, gain_cell, line, repeated, short, title
from polyvoc.lab.evaluation import HAMMING, Values
from polyvoc.lab.figures import Figure, Panel, Series
from polyvoc.lab.laboratory import Laboratory
from polyvoc.lab.report import Cell, Section, Table
from polyvoc.lab.workbench import Bench, digest
from polyvoc.merging import Model
from polyvoc.records import Merge, SearchOptions

ASKED = 60  # questions whose features' ratios are drawn
SIZED: dict[int, tuple[Merge, ...]] = {2: ("b0", "b1", "b2", "bayes", "posterior"), 3: ("bayes", "posterior")}  # by the number of vocabularies
DATABASES = (5_000, 10_000, 100_000, 1_000_000)  # N of Fig. 4


def figure2(lab: Laboratory) -> Section:
    """Fig. 2: how are the cardinality ratios distributed, and how does that change with the collection?"""
    name = next(iter(lab.datasets))
    edges = np.concatenate([[0, 1e-9], np.arange(0.01, 0.51, 0.01)])
    series, rows = [], []
    for step in steps(lab):
        bench = lab.bench(name, [(lab.plan.size, 0), (lab.plan.size, 1)], step)
        ratios = np.array(lab.workbench.remember(digest("ratios", ASKED, bench.name), partial(sampled_ratios, bench)))
        shares = np.histogram(ratios, edges)[0] / len(ratios)
        label = f"{bench.n_images:,} images"
        series.append(Series(label, list(edges[2:] - 0.005), list(100 * shares[1:])))
        quartiles = np.percentile(ratios, [25, 50, 75, 95])
        rows.append([label, f"{bench.n_features:,}", f"{100 * shares[0]:.1f} %", *(f"{q:.3f}" for q in quartiles)])
    figure = Figure("Distribution of the cardinality ratio", [Panel("|A n B| / |A u B|", "share of query features, %", series)],
                    "Bins of 0.01; features whose lists share nothing (r = 0) are in the table only.")  # fmt: skip
    head = ["database", "features", "r = 0", "first quartile", "median", "third quartile", "95 %"]
    medians = [float(row[4]) for row in rows]
    shrinks = len(medians) > 1 and medians[-1] < medians[0]
    told = (f"The ratio gets smaller as the database grows: the median goes from {medians[0]:.3f} to {medians[-1]:.3f}." if shrinks else
            f"The medians, from the smallest database to the largest: {', '.join(f'{m:.3f}' for m in medians)}.")  # fmt: skip
    return Section("figure2", "Fig. 2: distribution of the cardinality ratio",
                   [f"Query features of {TITLES.get(name, name)} in databases of real photographs; the paper draws 10K, 100K and 1000K."],
                   [Table("Quantiles", head, rows)], [figure], verdict="reproduces" if shrinks else "does not", verdict_text=told)  # fmt: skip


def sampled_ratios(bench: Bench) -> list[float]:
    """Give the cardinality ratio of every feature of some questions, over the whole database."""
    options = SearchOptions(merge="bayes")
    found: list[npt.NDArray[np.float64]] = []
    for question in range(0, len(bench.dataset.questions), -(-len(bench.dataset.questions) // ASKED)):
        query = bench.engine.query(bench.words[bench.rows(question)], None, options)
        counts = scoring.count_sets(bench.engine.segments, query, bench.engine.statistics, options, map)
        found.append(counts[:, 3] / np.maximum(counts[:, 1:].sum(axis=1), 1))
    return [round(float(ratio), 5) for ratio in np.concatenate(found)]


def figure3(lab: Laboratory) -> Section:
    """Fig. 3: term 2 as a function of the ratio, with both fitted lines; fitted on one set, tested on the others."""
    panels, rows = [], []
    for name in lab.datasets:
        fit = lab.fitted(name)
        r = np.linspace(0, 1, 21)
        lines = [Series(f"free: {fit['free'][0]:.2f} r + {fit['free'][1]:.2f}", r, np.clip(fit["free"][0] * r + fit["free"][1], 0, 1)),
                 Series(f"a + b = 1: b = {fit['tied'][1]:.2f}", r, fit["tied"][0] * r + fit["tied"][1])]  # fmt: skip
        points = Series("measured, by bins", fit["bins"]["ratio"], fit["bins"]["share"], style="points")
        panels.append(Panel("|A n B| / |A u B|", "share of true matches in A n B", [points, *lines], TITLES.get(name, name)))
        rows.append([TITLES.get(name, name), f"{fit['true_matches']:,.0f}", *(f"{fit[kind][0]:.3f} r + {fit[kind][1]:.3f}" for kind in ("free", "tied"))])
    figure = Figure("Term 2: p(in the intersection | true match)", panels)
    crossed = lines_tested(lab)
    told = ("The share grows with the ratio and begins above zero, as in the paper. It rises faster than a line at small ratios and reaches 1 "
            "before r = 1, so the free line leaves [0, 1] and is cut.")  # fmt: skip
    return Section("figure3", "Fig. 3: term 2",
                   ["True matches: Hamming distance below 20 in a relevant image (the smaller distance where both vocabularies agree). Pooled in "
                    "bins of 0.025, least squares of degree 1, weighted by true matches."],
                   [Table("Lines", ["dataset", "true matches", "free fit", "a + b = 1"], rows), *crossed], [figure],
                   verdict="partly", verdict_text=told)  # fmt: skip


def lines_tested(lab: Laboratory) -> list[Table]:
    """Rank each dataset with lines fitted on every dataset, its own included."""
    tables = []
    for name in lab.datasets:
        bench = lab.equal(name, (0, 1))
        rows: list[list[str | Cell]] = []
        for source in lab.datasets:
            for kind in ("tied", "free"):
                a, b = lab.fitted(source)[kind]
                found = lab.outcomes(bench, {merge: SearchOptions(merge=merge, line=(a, b)) for merge in ("bayes", "posterior")})
                own = " (its own answers: optimistic)" if source == name else ""
                rows.append([f"{TITLES.get(source, source)}, {kind}{own}", *(cell(lab, name, values) for values in found.values())])
        tables.append(Table(f"{title(lab, name)}, by the line's origin", ["line fitted on", "`bayes`", "`posterior`"], rows))
    return tables


def figure4(lab: Laboratory) -> Section:
    """Fig. 4: the weight w of the intersection as a function of the ratio, c = 1."""
    name = next(iter(lab.datasets))
    a, b = lab.fitted(name)["tied"]
    ratio = np.linspace(0, 1, 101)
    panels = []
    for heading, weigh in (("in the intersection (the paper's w)", Model.intersection), ("in one list only (ours)", Model.difference)):
        curves = []
        for images in DATABASES:
            model = Model.of(SearchOptions(line=(a, b), c=1.0), images)
            curves.append(Series(f"N = {short(images) if images < 1e6 else '1M'}", ratio, weigh(model, ratio)))
        panels.append(Panel("|A n B| / |A u B|", "p(true match)", curves, heading))
    first = Model.of(SearchOptions(line=(a, b), c=1.0), DATABASES[0])
    half = float(b / (first.term3 - 1 + b))
    told = (f"As in the paper w falls from 1 at r = 0, and leans towards the origin as N grows. With the line fitted here w is below 1/2 from "
            f"r = {half:.3f} on (N = 5K): for most query features a match that two vocabularies share then counts less than two of "
            "one. That is why the literal rule loses to `b1` without signatures.")  # fmt: skip
    return Section("figure4", "Fig. 4: the weight w", [f"c = 1 as in the paper; term 2 = {a:.3f} r + {b:.3f} ({TITLES.get(name, name)}, a + b = 1)."],
                   [], [Figure("w as a function of the ratio", panels)], verdict="reproduces", verdict_text=told)  # fmt: skip


def figure5(lab: Laboratory) -> Section:
    """Fig. 5: accuracy against the number of vocabularies, with and without Hamming Embedding."""
    tables, figures = [], []
    merges: tuple[Merge, ...] = ("b0", "b1", "b2", "bayes", "posterior")
    for name in lab.datasets:
        panels = []
        for hamming, heading in ((None, "words alone"), (HAMMING, "with Hamming Embedding")):
            named: dict[str, SearchOptions] = {}
            for merge in merges:
                named[merge] = SearchOptions(merge=merge, hamming=hamming, line=lab.line(name))
            whole = lab.equal(name, range(lab.plan.most))
            found = {count: lab.outcomes(whole.first(count), named) for count in range(2, lab.plan.most + 1)}
            panels.append(Panel("vocabularies", title(lab, name), [line(lab, name, merge, [(k, found[k][merge]) for k in found])
                                                                   for merge in merges], heading))  # fmt: skip
            known = paper.TABLE3.get(name, {})
            suffix = " + HE" if hamming else ""
            rows = [[f"`{merge}{suffix}`", *(cell(lab, name, found[k][merge], known.get(merge + suffix, {}).get(f"{k}x20K"))
                                             for k in found)] for merge in merges]  # fmt: skip
            tables.append(Table(f"{title(lab, name)}, {heading}", ["rule", *(f"K = {k}" for k in found)], rows))
        figures.append(Figure(f"{TITLES.get(name, name)}: number of vocabularies of {lab.plan.words(lab.plan.size):,} words", panels))
    told = ("As in the paper B2 falls with every further vocabulary and B1 gains little. Bayes merging gains from more vocabularies when the "
            "difference set is weighed as well (`posterior`).")  # fmt: skip
    return Section("figure5", "Fig. 5: the number of vocabularies", ["One chain of seeds: each K adds a vocabulary to those before."], tables,
                   figures, verdict="partly", verdict_text=told)  # fmt: skip


def figure6(lab: Laboratory) -> Section:
    """Fig. 6: accuracy against the size of the vocabularies."""
    tables, panels = [], []
    left_out = [short(lab.plan.words(size)) for size in lab.plan.sizes if size not in lab.sizes]
    for name in lab.datasets:
        curves: dict[str, list[tuple[float, Values]]] = {}
        for size in lab.sizes:
            for count, merges in SIZED.items():
                named = {f"{merge}" + (f"({count})" if merge in ("bayes", "posterior") else ""): merge for merge in merges}
                options = {label: SearchOptions(merge=merge, line=lab.line(name)) for label, merge in named.items()}
                for label, values in repeated(lab, name, count, options, size).items():
                    curves.setdefault(label, []).append((lab.plan.words(size), values))
        drawn = [line(lab, name, label, points) for label, points in curves.items()]
        panels.append(Panel("words per vocabulary", title(lab, name), drawn, TITLES.get(name, name), xscale="log"))
        rows = [[f"`{label}`", *(cell(lab, name, values) for _, values in points)] for label, points in curves.items()]
        tables.append(Table(title(lab, name), ["method", *(short(lab.plan.words(size)) for size in lab.sizes)], rows))
    notes = [f"Left out for want of training descriptors: {', '.join(left_out)} words."] if left_out else []
    told = "B1 stays close to B0 at every size; the complete rule is ahead where vocabularies are small, and the gain shrinks as lists get short."
    return Section("figure6", "Fig. 6: the size of the vocabularies", notes, tables,
                   [Figure("Size of the vocabularies", panels)], verdict="partly", verdict_text=told)  # fmt: skip


def figure7(lab: Laboratory) -> Section:
    """Fig. 7: accuracy against the size of the database."""
    tables, panels = [], []
    for name in lab.datasets:
        for hamming, suffix in ((None, ""), (HAMMING, " + HE")):
            merges: tuple[Merge, ...] = ("b0", "b1", "bayes", "posterior")
            named = {merge + suffix: SearchOptions(merge=merge, hamming=hamming, line=lab.line(name)) for merge in merges}
            points: dict[str, list[tuple[float, Values]]] = {label: [] for label in named}
            for step in steps(lab):
                bench = lab.bench(name, [(lab.plan.size, 0), (lab.plan.size, 1)], step)
                for label, values in lab.outcomes(bench, named).items():
                    points[label].append((bench.n_images, values))
            drawn = [line(lab, name, label, values) for label, values in points.items()]
            panels.append(Panel("images", title(lab, name), drawn, TITLES.get(name, name) + suffix, xscale="log"))
            rows = [[f"`{label}`", *(cell(lab, name, values) for _, values in of_rule)] for label, of_rule in points.items()]
            rows += [[f"`{label}` - `b1{suffix}`", *(gain_cell(lab, name, mine[1], base[1]) for mine, base in zip(points[label], points[f"b1{suffix}"], strict=True))]
                     for label in points if not label.startswith(("b0", "b1"))]  # fmt: skip
            tables.append(Table(title(lab, name) + suffix, ["images", *(f"{n:,}" for n, _ in points[f"b1{suffix}"])], rows))
    known = Table("The paper, Holidays with one million distractors, mAP", ["`b0`", "`b1`", "`bayes`"],
                  [[Cell(None, 2, paper=paper.MILLION[merge]) for merge in ("b0", "b1", "bayes")]])  # fmt: skip
    text = [f"Distractors: {len(lab.distractors):,} photographs that no vocabulary was trained on. Larger databases were not at hand."]
    return Section("figure7", "Fig. 7: the size of the database", text, [*tables, known], [Figure("Size of the database", panels)],
                   verdict="partly", verdict_text="Two vocabularies; read the rows of differences.")  # fmt: skip




def steps(lab: Laboratory) -> Sequence[int]:
    """Give the numbers of distractors that there are photographs for, the last one being all of them."""
    there = len(lab.distractors)
    return sorted({min(step, there) for step in lab.plan.distractors})
