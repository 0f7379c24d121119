"""Figures 2 to 7 of the paper, redone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.experiments.cache import digest_of
from polyvoc.experiments.evaluate import HAMMING, Values, scoring_options
from polyvoc.experiments.paper.cells import (
    Cells,
    above_zero,
    cell,
    dataset_title,
    difference_text,
    equation,
    gain_cell,
    measure_title,
    repeated,
    series_of,
    size_text,
    verdict_on,
)
from polyvoc.experiments.paper.numbers import MILLION, TABLE3
from polyvoc.experiments.paper.setup import Setup
from polyvoc.experiments.report.figures import Figure, Panel, Series
from polyvoc.experiments.report.report import Section, Table, TableCell
from polyvoc.experiments.workbench import QuantisedDataset
from polyvoc.options import Merge, ScoringOptions, SearchOptions
from polyvoc.scoring.rules import BayesModel

Points = Mapping[str, Sequence[tuple[float, Values]]]  # of each rule: x, and the values of all questions there
QUESTIONS = 60  # whose features' ratios are plotted
RATIO = "|A n B| / |A u B|"
MERGES: tuple[Merge, ...] = ("b0", "b1", "b2", "bayes", "posterior")
SIZED: dict[int, tuple[Merge, ...]] = {2: MERGES, 3: ("bayes", "posterior")}  # Fig. 6, by the number of vocabularies
GROWN: tuple[Merge, ...] = ("b0", "b1", "bayes", "posterior")  # Fig. 7
DATABASES = (5_000, 10_000, 100_000, 1_000_000)  # N of Fig. 4


def figure2(setup: Setup) -> Section:
    """Fig. 2: distribution of the cardinality ratio, by the size of the collection."""
    name = next(iter(setup.datasets))
    edges = np.concatenate([[0, 1e-9], np.arange(0.01, 0.51, 0.01)])
    series, rows, medians = [], [], []
    for step in steps(setup):
        bench = setup.bench(name, [(setup.plan.size, 0), (setup.plan.size, 1)], step)
        ratios = np.array(setup.workbench.remember(digest_of("ratios", QUESTIONS, bench.name), partial(sampled_ratios, bench)))
        shares = np.histogram(ratios, edges)[0] / len(ratios)
        label = f"{bench.n_images:,} images"
        series.append(Series(label, list(edges[2:] - 0.005), list(100 * shares[1:])))
        quartiles = [f"{quantile:.3f}" for quantile in np.percentile(ratios, [25, 50, 75, 95])]
        rows.append([label, f"{bench.n_features:,}", f"{100 * shares[0]:.1f} %", *quartiles])
        medians.append(quartiles[1])
    shrinks = float(medians[-1]) < float(medians[0])
    summary = (
        f"The ratio gets smaller as the database grows: the median goes from {medians[0]} to {medians[-1]}."
        if shrinks
        else f"The medians, from the smallest database to the largest: {', '.join(medians)}."
    )
    note = "Bins of 0.01; features whose lists share nothing (r = 0) are in the table only."
    panel = Panel(RATIO, "share of query features, %", series)
    head = ["database", "features", "r = 0", "first quartile", "median", "third quartile", "95 %"]
    return Section(
        "figure2",
        "Fig. 2: distribution of the cardinality ratio",
        [f"Query features of {dataset_title(name)} in databases of real photographs; the paper draws 10K, 100K and 1000K."],
        [Table("Quantiles", head, rows)],
        [Figure("Distribution of the cardinality ratio", [panel], note)],
        verdict="reproduces" if shrinks else "does not",
        verdict_text=summary,
    )


def sampled_ratios(bench: QuantisedDataset) -> list[float]:
    """Return the cardinality ratio of every feature of some questions, over the database."""
    plan = bench.engine.plan(scoring_options(merge="bayes"))
    ratios: list[npt.NDArray[np.float64]] = []
    for question in range(0, len(bench.dataset.questions), -(-len(bench.dataset.questions) // QUESTIONS)):
        query = bench.engine.query(bench.words[bench.rows(question)], None, plan)
        counts = bench.engine.counts(query, plan, threads=1)
        ratios.append(counts[:, 3] / np.maximum(counts[:, 1:].sum(axis=1), 1))
    return [round(float(ratio), 5) for ratio in np.concatenate(ratios)]


def figure3(setup: Setup) -> Section:
    """Fig. 3: term 2 as a function of the ratio, with both fitted lines; fitted on one set, tested on the others."""
    fits = {name: setup.fitted(name) for name in setup.datasets}
    rows = [
        [dataset_title(name), f"{fit['true_matches']:,.0f}", *(equation(fit[kind]) for kind in ("free", "tied"))]
        for name, fit in fits.items()
    ]
    free = [fit["free"] for fit in fits.values()]
    grows, cut = all(a > 0 and b > 0 for a, b in free), any(a + b > 1 for a, b in free)
    summary = [
        "The share grows with the ratio and begins above zero, as in the paper."
        if grows
        else "The share does not grow with the ratio from a start above zero on every dataset.",
        "It rises faster than a line at small ratios and nears 1 before r = 1: a free line leaves [0, 1] and is cut."
        if cut
        else "",
    ]
    text = (
        "True matches: Hamming distance below 20 in a relevant image (the smaller distance where both vocabularies agree). "
        "Pooled in bins of 0.025, least squares of degree 1, weighted by true matches."
    )
    return Section(
        "figure3",
        "Fig. 3: term 2",
        [text],
        [Table("Lines", ["dataset", "true matches", "free fit", "a + b = 1"], rows), *lines_tested(setup)],
        [Figure("Term 2: p(in the intersection | true match)", [_fitted_panel(name, fit) for name, fit in fits.items()])],
        verdict="does not" if not grows else "partly" if cut else "reproduces",
        verdict_text=" ".join(summary).strip(),
    )


def _fitted_panel(name: str, fit: Mapping[str, Any]) -> Panel:
    """Return a panel of the measured shares of a dataset and both lines."""
    (a, b), (tied_a, tied_b) = fit["free"], fit["tied"]
    r = np.linspace(0, 1, 21)
    series = [
        Series("measured, by bins", fit["bins"]["ratio"], fit["bins"]["share"], style="points"),
        Series(f"free: {a:.2f} r + {b:.2f}", r, np.clip(a * r + b, 0, 1)),
        Series(f"a + b = 1: b = {tied_b:.2f}", r, tied_a * r + tied_b),
    ]
    return Panel(RATIO, "share of true matches in A n B", series, dataset_title(name))


def lines_tested(setup: Setup) -> list[Table]:
    """Return the values of each dataset with lines fitted on every dataset, its own included."""
    merges: tuple[Merge, ...] = ("bayes", "posterior")
    tables = []
    for name in setup.datasets:
        bench = setup.equal(name, (0, 1))
        rows: list[Cells] = []
        for source in setup.datasets:
            own = " (its own answers: optimistic)" if source == name else ""
            for kind in ("tied", "free"):
                a, b = setup.fitted(source)[kind]
                found = setup.outcomes(bench, {merge: scoring_options(merge=merge, line=(a, b)) for merge in merges})
                rows.append([f"{dataset_title(source)}, {kind}{own}", *(cell(setup, name, found[merge]) for merge in merges)])
        tables.append(
            Table(f"{measure_title(setup, name)}, by the line's origin", ["line fitted on", "`bayes`", "`posterior`"], rows)
        )
    return tables


def figure4(setup: Setup) -> Section:
    """Fig. 4: the weight w of the intersection as a function of the ratio, c = 1."""
    name = next(iter(setup.datasets))
    a, b = setup.fitted(name)["tied"]
    ratio = np.linspace(0, 1, 101)
    models = {images: BayesModel.of(ScoringOptions(line=(a, b), c=1.0), images) for images in DATABASES}
    names = {images: f"N = {size_text(images) if images < 1e6 else '1M'}" for images in DATABASES}
    panels = [
        Panel(RATIO, "p(true match)", [Series(names[n], ratio, weigh(model, ratio)) for n, model in models.items()], heading)
        for heading, weigh in (
            ("in the intersection (the paper's w)", BayesModel.intersection),
            ("in one list only (ours)", BayesModel.difference),
        )
    ]
    half = float(b / (models[DATABASES[0]].term3 - 1 + b))
    summary = (
        "As in the paper w falls from 1 at r = 0, and faster for larger N. With the line fitted here w is below 1/2 from "
        f"r = {half:.3f} on (N = 5K): a match in both vocabularies then counts less than a match in one of them. Hence the "
        "literal rule can be worse than `b1` without signatures."
    )
    return Section(
        "figure4",
        "Fig. 4: the weight w",
        [f"c = 1 as in the paper; term 2 = {equation((a, b))} ({dataset_title(name)}, a + b = 1)."],
        [],
        [Figure("w as a function of the ratio", panels)],
        verdict="reproduces",
        verdict_text=summary,
    )


def figure5(setup: Setup) -> Section:
    """Fig. 5: accuracy against the number of vocabularies, with and without Hamming Embedding."""
    tables, figures = [], []
    growth: dict[str, dict[Merge, TableCell]] = {}
    for name in setup.datasets:
        panels = []
        known = TABLE3.get(name, {})
        for hamming, heading, suffix in ((None, "words alone", ""), (HAMMING, "with Hamming Embedding", " + HE")):
            points = _by_count(setup, name, hamming)
            drawn = [series_of(setup, name, merge, points[merge]) for merge in MERGES]
            panels.append(Panel("vocabularies", measure_title(setup, name), drawn, heading))
            rows: list[Cells] = []
            for merge in MERGES:
                papers = known.get(merge + suffix, {})
                cells = (cell(setup, name, values, papers.get(f"{count:g}x20K")) for count, values in points[merge])
                rows.append([f"`{merge}{suffix}`", *cells])
            head = ["rule", *(f"K = {count:g}" for count, _ in points["b1"])]
            tables.append(Table(f"{measure_title(setup, name)}, {heading}", head, rows))
            growth.setdefault(name, {m: gain_cell(setup, name, points[m][-1][1], points[m][0][1]) for m in MERGES[1:]})
        words = f"{setup.plan.words(setup.plan.size):,} words"
        figures.append(Figure(f"{dataset_title(name)}: number of vocabularies of {words}", panels))
    grown = (
        f"{dataset_title(name)} " + ", ".join(f"`{m}` {difference_text(c)}" for m, c in own.items())
        for name, own in growth.items()
    )
    summary = (
        "The paper: with more vocabularies B2 falls, B1 gains little, Bayes merging gains. "
        f"Here, from 2 to {setup.plan.most} and words alone: {'; '.join(grown)}."
    )
    falls = [(own["b2"].value or 0) < 0 for own in growth.values()]
    gains = [(own["bayes"].value or 0) > 0 for own in growth.values()]
    text = "One chain of seeds: each K adds a vocabulary to those before."
    heading = "Fig. 5: the number of vocabularies"
    return Section("figure5", heading, [text], tables, figures, verdict=verdict_on(falls + gains), verdict_text=summary)


def _by_count(setup: Setup, name: str, hamming: int | None) -> Points:
    """Return the values of every rule with 2, 3, ... vocabularies."""
    line = setup.line(name)
    named: dict[str, SearchOptions] = {m: scoring_options(merge=m, hamming=hamming, line=line) for m in MERGES}
    bench = setup.equal(name, range(setup.plan.most))
    found = {count: setup.outcomes(bench.first(count), named) for count in range(2, setup.plan.most + 1)}
    return {merge: [(count, values[merge]) for count, values in found.items()] for merge in MERGES}


def figure6(setup: Setup) -> Section:
    """Fig. 6: accuracy against the size of the vocabularies."""
    tables, panels = [], []
    gains: dict[str, list[TableCell]] = {}
    for name in setup.datasets:
        points = _by_size(setup, name)
        drawn = [series_of(setup, name, label, of_rule) for label, of_rule in points.items()]
        panels.append(Panel("words per vocabulary", measure_title(setup, name), drawn, dataset_title(name), xscale="log"))
        rows = [[f"`{label}`", *(cell(setup, name, values) for _, values in of_rule)] for label, of_rule in points.items()]
        tables.append(
            Table(measure_title(setup, name), ["method", *(size_text(setup.plan.words(size)) for size in setup.sizes)], rows)
        )
        pairs = zip(points.get("posterior(2)", ()), points.get("b1", ()), strict=True)
        gains[name] = [gain_cell(setup, name, mine, base) for (_, mine), (_, base) in pairs]
    left_out = [size_text(setup.plan.words(size)) for size in setup.plan.sizes if size not in setup.sizes]
    notes = [f"Left out, too few training descriptors: {', '.join(left_out)} words."] if left_out else []
    ends = [size_text(setup.plan.words(size)) for size in (setup.sizes or setup.plan.sizes)]
    ahead = "; ".join(
        f"{dataset_title(name)} {difference_text(own[0])} and {difference_text(own[-1])}" for name, own in gains.items() if own
    )
    summary = (
        "The paper: Bayes merging is ahead of B1 at every size. Here `posterior` with two vocabularies minus `b1`, at "
        f"{ends[0]} and at {ends[-1]} words: {ahead or 'not measured'}."
    )
    wins = above_zero(difference for own in gains.values() for difference in own)
    figure = Figure("Size of the vocabularies", panels)
    heading = "Fig. 6: the size of the vocabularies"
    return Section("figure6", heading, notes, tables, [figure], verdict=verdict_on(wins), verdict_text=summary)


def _by_size(setup: Setup, name: str) -> Points:
    """Return the values of every rule with vocabularies of every size."""
    points: dict[str, list[tuple[float, Values]]] = {}
    for size in setup.sizes:
        for count, merges in SIZED.items():
            named = {f"{merge}({count})" if merge in ("bayes", "posterior") else merge: merge for merge in merges}
            options = {label: scoring_options(merge=merge, line=setup.line(name)) for label, merge in named.items()}
            for label, values in repeated(setup, name, count, options, size).items():
                points.setdefault(label, []).append((setup.plan.words(size), values))
    return points


def figure7(setup: Setup) -> Section:
    """Fig. 7: accuracy against the size of the database."""
    tables, panels = [], []
    last: list[TableCell] = []  # differences in the largest database
    for name in setup.datasets:
        for hamming, suffix in ((None, ""), (HAMMING, " + HE")):
            points = _by_database(setup, name, hamming, suffix)
            drawn = [series_of(setup, name, label, of_rule) for label, of_rule in points.items()]
            panels.append(Panel("images", measure_title(setup, name), drawn, dataset_title(name) + suffix, xscale="log"))
            base = points[f"b1{suffix}"]
            rows: list[Cells] = []
            for label, of_rule in points.items():
                rows.append([f"`{label}`", *(cell(setup, name, values) for _, values in of_rule)])
            for label in (merge + suffix for merge in GROWN if merge not in ("b0", "b1")):
                pairs = zip(points[label], base, strict=True)
                gains = [gain_cell(setup, name, mine, theirs) for (_, mine), (_, theirs) in pairs]
                rows.append([f"`{label}` - `b1{suffix}`", *gains])
                if label == "posterior":
                    last.append(gains[-1])
            tables.append(Table(measure_title(setup, name) + suffix, ["images", *(f"{n:,}" for n, _ in base)], rows))
    published = [TableCell(None, 2, paper=MILLION[merge]) for merge in ("b0", "b1", "bayes")]
    known = Table("The paper, Holidays with one million distractors, mAP", ["`b0`", "`b1`", "`bayes`"], [published])
    return Section(
        "figure7",
        "Fig. 7: the size of the database",
        [
            f"Distractors: {len(setup.distractors):,} photographs that no vocabulary was trained on. "
            "Larger databases were not available."
        ],
        [*tables, known],
        [Figure("Size of the database", panels)],
        verdict=verdict_on(above_zero(last)),
        verdict_text=(
            "`posterior` against `b1` without signatures in the largest database: "
            + "; ".join(
                f"{dataset_title(name)} {difference_text(gain)}" for name, gain in zip(setup.datasets, last, strict=True)
            )
            + "."
        ),
    )


def _by_database(setup: Setup, name: str, hamming: int | None, suffix: str) -> Points:
    """Return the values of every rule in databases of every size."""
    named = {merge + suffix: scoring_options(merge=merge, hamming=hamming, line=setup.line(name)) for merge in GROWN}
    points: dict[str, list[tuple[float, Values]]] = {label: [] for label in named}
    for step in steps(setup):
        bench = setup.bench(name, [(setup.plan.size, 0), (setup.plan.size, 1)], step)
        for label, values in setup.outcomes(bench, named).items():
            points[label].append((bench.n_images, values))
    return points


def steps(setup: Setup) -> Sequence[int]:
    """Return the numbers of distractors of the plan, up to the available photographs."""
    available = min(len(setup.distractors), max(setup.plan.distractors))
    return [*(step for step in setup.plan.distractors if step < 0.9 * available), available]
