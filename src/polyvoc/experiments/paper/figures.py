"""Figures 2 to 7 of the paper, redone in the reading that gives its differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.experiments.evaluate import Values
from polyvoc.experiments.fit.line import line_panel
from polyvoc.experiments.measures import Interval, bootstrap
from polyvoc.experiments.paper.cells import (
    Cells,
    Points,
    SeedRuns,
    cell,
    dataset_title,
    equation,
    gain_cell,
    gain_claim,
    measure_title,
    series_of,
    size_text,
)
from polyvoc.experiments.paper.claims import Claim, difference_text, summary, verdict
from polyvoc.experiments.paper.numbers import MILLION, TABLE3
from polyvoc.experiments.paper.setup import Setup
from polyvoc.experiments.paper.true_share import shares_by_ratio
from polyvoc.experiments.report.figures import Figure, Panel, Series
from polyvoc.experiments.report.report import Section, Table, TableCell
from polyvoc.experiments.workbench import QuantisedDataset
from polyvoc.options import Merge, ScoringOptions
from polyvoc.scoring.rules import BayesModel

QUESTIONS = 60  # whose features' ratios are plotted
RATIO = "|A n B| / |A u B|, images"
EDGES = np.concatenate([[0, 1e-9], np.arange(0.02, 1.01, 0.02)])
QUANTILES = (25, 50, 75, 95)
MERGES: tuple[Merge, ...] = ("b0", "b1", "b2", "bayes")
GROWN: tuple[Merge, ...] = ("b0", "b1", "bayes")  # Fig. 7
DATABASES = (5_000, 10_000, 100_000, 1_000_000)  # N of Fig. 4
LARGE = 200_000  # words of vocabularies that are trained on all photographs as well


def figure2(setup: Setup) -> Section:
    """Fig. 2: distribution of the cardinality ratio, by the size of the collection, without the query's own photograph."""
    name = next(iter(setup.datasets))
    series, rows = [], []
    medians: list[list[float]] = []
    for step in steps(setup, name):
        bench = setup.bench(name, [(setup.plan.size, 0), (setup.plan.size, 1)], step)
        found = setup.remembered("ratios of image sets", bench, partial(sampled_ratios, bench))
        shares = np.array(found["histogram"]) / sum(found["histogram"])
        label = f"{bench.n_images:,} images"
        series.append(Series(label, list(EDGES[2:] - 0.01), list(100 * shares[1:])))
        quantiles = np.mean(found["quantiles"], axis=0)
        rows.append([label, f"{found['features']:,}", f"{100 * shares[0]:.1f} %", *(f"{value:.3f}" for value in quantiles)])
        medians.append([one[1] for one in found["quantiles"]])
    change = _interval_cell(bootstrap(np.subtract(medians[-1], medians[0])))
    claims = [Claim(f"median of {rows[-1][0]} less that of {rows[0][0]}", change, -1)]
    panel = Panel(RATIO, "share of query features, %", series)
    head = ["database", "features", "r = 0", "first quartile", "median", "third quartile", "95 %"]
    note = "Bins of 0.02; features whose lists share nothing (r = 0) are in the table only."
    text = (
        f"Query features of {dataset_title(name)} in databases of real photographs; the paper draws 10K, 100K and 1000K. The "
        "query's own photograph is not in the lists: with it every ratio is above zero and falls as 1 / N. Quantiles are "
        f"means over {len(medians[0])} queries. Change of the median: {difference_text(change)}."
    )
    return Section(
        "figure2",
        "Fig. 2: distribution of the cardinality ratio",
        [text],
        [Table("Quantiles", head, rows)],
        [Figure("Distribution of the cardinality ratio", [panel], note)],
        verdict=verdict(claims),
        verdict_text=summary(claims),
    )


def _interval_cell(interval: Interval, digits: int = 3) -> TableCell:
    return TableCell(interval.mean, digits, interval.low, interval.high, difference=True)


def sampled_ratios(bench: QuantisedDataset) -> dict[str, Any]:
    """Return the ratios of image sets for the features of some questions: a histogram, and the quantiles of each question."""
    plan = bench.engine.plan(ScoringOptions(merge="bayes", burstiness="none"))
    ratios: list[npt.NDArray[np.float64]] = []
    for question in range(0, len(bench.dataset.questions), -(-len(bench.dataset.questions) // QUESTIONS)):
        query = bench.engine.query(bench.words[bench.rows(question)], None, plan)
        counts = bench.engine.counts(query, plan, threads=1)
        if bench.dataset.questions[question].image is not None:
            counts[:, 3] -= 1  # the query itself holds both words of every feature
        ratios.append(counts[:, 3] / np.maximum(counts[:, 1:].sum(axis=1), 1))
    histogram = np.histogram(np.concatenate(ratios), EDGES)[0]
    quantiles = [np.percentile(own, QUANTILES).round(5).tolist() for own in ratios if len(own)]
    return {"features": bench.n_features, "histogram": histogram.tolist(), "quantiles": quantiles}


def figure3(setup: Setup) -> Section:
    """Fig. 3: term 2 as a function of the ratio, with both fitted lines; fitted on one set, tested on the others."""
    rows, claims, panels = [], [], []
    for kind in setup.kinds:
        for name in kind.datasets:
            for sets in ("image", "feature"):
                fit, title = kind.fitted(name, sets), f"{dataset_title(name)}, {kind.features}"
                lines = (equation(fit[line]) for line in ("free", "tied"))
                rows.append([title, f"{sets}s", f"{fit['true_matches']:,.0f}", *lines, _parameter_cell(fit, "power")])
                if sets == "image":
                    panels.append(line_panel(title, fit))
                    claims += [Claim(f"{title}, {part}", _parameter_cell(fit, part)) for part in ("a", "b")]
    text = [
        "True matches: Hamming distance below 20 in a relevant image (the smaller distance where both vocabularies agree). "
        "Pooled in bins of 0.025, least squares of degree 1, weighted by true matches. The query's own photograph is not in "
        "the lists. The paper fits its line on Oxford and uses it on all datasets; here the line of a dataset is fitted on "
        "another one, and that of Oxford is shown, not used.",
        "The claims: the share grows with the ratio (a > 0) from a start above zero (b > 0). The last column tests the line: "
        "the power of 1 - (1 - b) (1 - r)^power is 1 for a line with a + b = 1, above 1 for a concave curve.",
    ]
    table = Table("Lines", ["dataset", "sets of", "true matches", "free fit", "a + b = 1", "power of the curve"], rows)
    figure = Figure("Term 2: p(in the intersection | true match), image sets", panels)
    tables = [table, *lines_tested(setup)]
    return Section("figure3", "Fig. 3: term 2", text, tables, [figure], verdict=verdict(claims), verdict_text=summary(claims))


def _parameter_cell(fit: Mapping[str, Any], part: str) -> TableCell:
    """Return a or b of the free line, or the power of the curve, with its interval."""
    low, high = fit["intervals"][part]
    value = fit["curve"][part] if part == "power" else fit["free"]["ab".index(part)]
    return TableCell(value, 2 if part == "power" else 3, low, high)


def lines_tested(setup: Setup) -> list[Table]:
    """Return the values of each dataset with lines fitted on every dataset, its own included."""
    tables = []
    for name in setup.datasets:
        named = {}
        for source in setup.datasets:
            own = " (its own answers: optimistic)" if source == name else ""
            for kind in ("tied", "free"):
                a, b = setup.fitted(source)[kind]
                named[f"{dataset_title(source)}, {kind}{own}"] = setup.rule(name, "bayes", line=(a, b))
        named |= {f"b = {b:g}": setup.rule(name, "bayes", line=(1 - b, b)) for b in (0.1, 0.2, 0.4, 0.7)}
        named["b1"] = setup.rule(name, "b1")
        runs = SeedRuns.of(setup, name, 2, named)
        rows: list[Cells] = [[label, runs.cell(label), runs.gain(label, "b1")] for label in named if label != "b1"]
        tables.append(
            Table(f"{measure_title(setup, name)}, by the line", ["line fitted on", "`bayes`", "`bayes` - `b1`"], rows)
        )
    return tables


def figure4(setup: Setup) -> Section:
    """Fig. 4: the weight w of the intersection as a function of the ratio, and the measured share of true matches."""
    name = next(iter(setup.datasets))
    a, b = setup.fitted(name)["tied"]
    ratio = np.linspace(0, 1, 101)
    models = {images: BayesModel.of(ScoringOptions(line=(a, b), c=1.0), images) for images in DATABASES}
    drawn = [
        Series(f"N = {size_text(n) if n < 1e6 else '1M'}", ratio, model.intersection(ratio)) for n, model in models.items()
    ]
    panels = [Panel(RATIO, "w(r)", drawn, f"the model, c = 1, line of {dataset_title(name)}")]
    claims = []
    for one in setup.datasets:
        bench = setup.equal(one, (0, 1))
        found = setup.remembered("true matches in the intersection", bench, partial(shares_by_ratio, bench))
        series = Series("measured", found["ratio"], found["share"], found["low"], found["high"], style="points")
        panels.append(Panel(RATIO, "share of true matches", [series], f"measured in A n B: {dataset_title(one)}", xscale="log"))
        fall = TableCell(100 * found["fall"][0], 3, 100 * found["fall"][1], 100 * found["fall"][2], difference=True)
        claims.append(
            gain_claim(setup, one, fall, "share of true matches (%) in A n B above the median ratio less below it", -1)
        )
    text = (
        f"The model: c = 1 as in the paper, term 2 = {equation((a, b))}. The claim behind it is measured: of the matches whose "
        "image is in both lists, the share that is true (near, in a relevant image) falls as the ratio grows."
    )
    heading = "Fig. 4: the weight w"
    figure = Figure("w as a function of the ratio", panels)
    return Section("figure4", heading, [text], [], [figure], verdict=verdict(claims), verdict_text=summary(claims))


def figure5(setup: Setup) -> Section:
    """Fig. 5: accuracy against the number of vocabularies, with and without Hamming Embedding."""
    tables, figures, claims = [], [], []
    for name in setup.datasets:
        panels = []
        known = TABLE3.get(name, {})
        for suffix, heading in (("", "words alone"), (" + HE", "with Hamming Embedding")):
            points = _by_count(setup, name, suffix)
            drawn = [series_of(setup, name, rule, own) for rule, own in points.items()]
            panels.append(Panel("vocabularies", measure_title(setup, name), drawn, heading))
            rows: list[Cells] = []
            for rule, own in points.items():
                papers = known.get(rule, {})
                cells = (cell(setup, name, values, papers.get(f"{count:g}x20K")) for count, values in own)
                rows.append([f"`{rule}`", *cells])
            head = ["rule", *(f"K = {count:g}" for count, _ in points["b1" + suffix])]
            tables.append(Table(f"{measure_title(setup, name)}, {heading}", head, rows))
            if not suffix:
                claims += _count_claims(setup, name, points)
        words = f"{setup.plan.words(setup.plan.size):,} words"
        figures.append(Figure(f"{dataset_title(name)}: number of vocabularies of {words}", panels))
    text = (
        "One chain of seeds: each K adds a vocabulary to those before. The paper: with more vocabularies Bayes merging gains "
        "and stays ahead of B1, B2 falls."
    )
    heading = "Fig. 5: the number of vocabularies"
    return Section("figure5", heading, [text], tables, figures, verdict=verdict(claims), verdict_text=summary(claims))


def _count_claims(setup: Setup, name: str, points: Points) -> list[Claim]:
    """Return the claims on a growing number of vocabularies, words alone."""
    last = len(points["b1"]) - 1
    pairs = {
        "`bayes` of 3 against 2": (points["bayes"][1], points["bayes"][0], 1),
        f"`b2` of {points['b2'][last][0]:g} against 2": (points["b2"][last], points["b2"][0], -1),
        f"`bayes` - `b1` with {points['b1'][last][0]:g}": (points["bayes"][last], points["b1"][last], 1),
    }
    return [
        gain_claim(setup, name, gain_cell(setup, name, mine[1], base[1]), text, sign)
        for text, (mine, base, sign) in pairs.items()
    ]


def _by_count(setup: Setup, name: str, suffix: str) -> Points:
    """Return the values of every rule with 2, 3, ... vocabularies."""
    named = setup.rules(name, MERGES, [suffix])
    bench = setup.equal(name, range(setup.plan.most))
    found = {count: setup.outcomes(bench.first(count), named) for count in range(2, setup.plan.most + 1)}
    return {rule: [(count, values[rule]) for count, values in found.items()] for rule in named}


def figure6(setup: Setup) -> Section:
    """Fig. 6: accuracy against the size of the vocabularies."""
    tables, panels, claims = [], [], []
    for name in setup.datasets:
        points = _by_size(setup, name)
        drawn = [series_of(setup, name, label, own) for label, own in points.items()]
        panels.append(Panel("words per vocabulary", measure_title(setup, name), drawn, dataset_title(name), xscale="log"))
        heads = [size_text(setup.plan.words(size)) for size in setup.sizes]
        rows: list[Cells] = [[f"`{label}`", *(cell(setup, name, values) for _, values in own)] for label, own in points.items()]
        for count in (2, 3):
            pairs = zip(points[f"bayes({count})"], points[f"b1({count})"], strict=True)
            gains = [gain_cell(setup, name, mine, base) for (_, mine), (_, base) in pairs]
            rows.append([f"`bayes({count})` - `b1({count})`", *gains])
            claims += [
                gain_claim(setup, name, gain, f"{count}x{size}") for size, gain in zip(heads, gains, strict=True) if count == 2
            ]
        tables.append(Table(measure_title(setup, name), ["rule (vocabularies)", *heads], rows))
    text = _size_notes(setup)
    if setup.distractors and LARGE in setup.sizes and setup.plan.scale == 1:
        tables.append(_trained_on_all(setup))
    figure = Figure("Size of the vocabularies", panels)
    heading = "Fig. 6: the size of the vocabularies"
    return Section("figure6", heading, text, tables, [figure], verdict=verdict(claims), verdict_text=summary(claims))


def _size_notes(setup: Setup) -> list[str]:
    left_out = [size_text(setup.plan.words(size)) for size in setup.plan.sizes if size not in setup.sizes]
    notes = [f"Left out, too few training descriptors: {', '.join(left_out)} words."] if left_out else []
    return [
        "The paper: Bayes merging is ahead of B1 at every size, by +2.58 mAP at 2x50K on Holidays, +8.44 at 2x100K on Oxford.",
        *notes,
    ]


def _by_size(setup: Setup, name: str) -> Points:
    """Return the values of every rule with two and three vocabularies of every size."""
    points: dict[str, list[tuple[float, Values]]] = {}
    for size in setup.sizes:
        for count in (2, 3):
            runs = SeedRuns.of(setup, name, count, setup.rules(name, MERGES if count == 2 else ("b1", "bayes")), size)
            for rule in runs.runs[0]:
                points.setdefault(f"{rule}({count})", []).append((setup.plan.words(size), runs.mean(rule)))
    return points


def _trained_on_all(setup: Setup) -> Table:
    """Return the largest vocabularies, trained on half and on all of the photographs."""
    whole = replace(setup, everything=True, affine=None)
    rows: list[Cells] = []
    for name in setup.datasets:
        for label, own in (("half", setup), ("all", whole)):
            named = own.rules(name, ("b1", "bayes"), line=setup.line(name))
            found = own.outcomes(own.equal(name, (0, 1), LARGE), named)
            cells = [cell(setup, name, found[rule]) for rule in named]
            gain = gain_cell(setup, name, found["bayes"], found["b1"])
            rows.append([f"{measure_title(setup, name)}: {label}, {own.n_descriptors:,} descriptors", *cells, gain])
    return Table(f"2x{size_text(LARGE)}, by the training photographs", ["", "`b1`", "`bayes`", "`bayes` - `b1`"], rows)


def figure7(setup: Setup) -> Section:
    """Fig. 7: accuracy against the size of the database."""
    tables, panels, claims = [], [], []
    for name in setup.datasets:
        for suffix in ("", " + HE"):
            points = _by_database(setup, name, suffix)
            drawn = [series_of(setup, name, label, own) for label, own in points.items()]
            panels.append(Panel("images", measure_title(setup, name), drawn, dataset_title(name) + suffix, xscale="log"))
            base = points[f"b1{suffix}"]
            rows: list[Cells] = [
                [f"`{rule}`", *(cell(setup, name, values) for _, values in own)] for rule, own in points.items()
            ]
            pairs = zip(points[f"bayes{suffix}"], base, strict=True)
            gains = [gain_cell(setup, name, mine, theirs) for (_, mine), (_, theirs) in pairs]
            rows.append([f"`bayes{suffix}` - `b1{suffix}`", *gains])
            claims.append(gain_claim(setup, name, gains[-1], f"`bayes{suffix}` - `b1{suffix}`, {base[-1][0]:,.0f} images"))
            tables.append(Table(measure_title(setup, name) + suffix, ["images", *(f"{n:,}" for n, _ in base)], rows))
    published = [TableCell(None, 2, paper=MILLION[merge]) for merge in GROWN]
    known = Table("The paper, Holidays with one million distractors, mAP", [f"`{merge}`" for merge in GROWN], [published])
    text = (
        f"Distractors: {len(setup.distractors):,} photographs that no vocabulary was trained on, then the other datasets. "
        "Databases of a million real photographs were not available; the section on efficiency uses synthetic words."
    )
    heading = "Fig. 7: the size of the database"
    figure = Figure("Size of the database", panels)
    return Section(
        "figure7", heading, [text], [*tables, known], [figure], verdict=verdict(claims), verdict_text=summary(claims)
    )


def _by_database(setup: Setup, name: str, suffix: str) -> Points:
    """Return the values of every rule in databases of every size."""
    named = setup.rules(name, GROWN, [suffix])
    points: dict[str, list[tuple[float, Values]]] = {rule: [] for rule in named}
    for step in steps(setup, name):
        bench = setup.bench(name, [(setup.plan.size, 0), (setup.plan.size, 1)], step)
        for rule, values in setup.outcomes(bench, named).items():
            points[rule].append((bench.n_images, values))
    return points


def steps(setup: Setup, name: str) -> list[int]:
    """Return the numbers of distractors of the plan, up to the available photographs."""
    available = min(len(setup.distractors_of(name)), max(setup.plan.distractors))
    return [*(step for step in setup.plan.distractors if step < 0.9 * available), available]
