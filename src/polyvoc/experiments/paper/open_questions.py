"""Experiments on what the paper leaves open, and ablations that show why a rule is better."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from polyvoc.experiments.evaluate import HAMMING, Values, scoring_options
from polyvoc.experiments.fit.line import fit_line
from polyvoc.experiments.fit.true_matches import Criterion, observe
from polyvoc.experiments.match_table import Matcher, MatchTable, hamming_weights
from polyvoc.experiments.paper.cells import Cells, cell, dataset_title, equation, gain_cell, measure_title, repeated
from polyvoc.experiments.paper.setup import Line, Setup, mean_values
from polyvoc.experiments.report.report import Section, Table
from polyvoc.experiments.workbench import QuantisedDataset
from polyvoc.options import Idf, Merge, Norm, ScoringOptions, Sets
from polyvoc.scoring.rules import BayesModel
from polyvoc.types import Floats64

Weights = dict[str, Floats64]  # [m] by name
Weigh = Callable[[Matcher, MatchTable, Line], Weights]
VERSION = 1
MERGES: tuple[Merge, ...] = ("b1", "bayes", "posterior")
BAYESIAN: tuple[Merge, ...] = ("bayes", "posterior")


def ablations(setup: Setup) -> Section:
    """Ablations of the complete rule: constant weights, no intersection, shuffled ratios."""
    text = (
        "`posterior` = d(r) * (w(r) / d(r) in the intersection, 1 outside): a weight of the query feature, d(r), and a "
        "contrast of the two sets, w / d. With a + b = 1 d does not depend on r, so the first alone is `b1` and the second "
        "alone is `posterior`: these rows are a check. Shuffled: every query feature has the ratio of another; median: all "
        "have the same. Two vocabularies, words alone."
    )
    return _tried(setup, 2, ablated, "b1", Section("ablations", "Ablations of the weights", [text]))


def ablated(matcher: Matcher, table: MatchTable, line: Line) -> Weights:
    """Return the weights of every ablation."""
    model = BayesModel.of(ScoringOptions(line=line), table.n_images)
    plain, shared = matcher.idf_squared(table).sum(axis=1), table.order >= 2
    r = table.joint_ratio
    w, d = model.intersection(r), model.difference(r)
    shuffled = np.random.default_rng(0).permutation(len(table.words))[table.query]
    other = table.ratios[shuffled, -1]
    w_other, d_other = model.intersection(other), model.difference(other)
    middle = np.full(1, np.median(table.ratios[:, -1]) if len(table.words) else 0.0)
    w_middle, d_middle = float(model.intersection(middle)[0]), float(model.difference(middle)[0])
    factors = {
        "b1": np.ones(len(r)),
        "bayes (the paper)": np.where(shared, w, 1.0),
        "bayes, r shuffled": np.where(shared, w_other, 1.0),
        "posterior (complete)": np.where(shared, w, d),
        "posterior, r shuffled": np.where(shared, w_other, d_other),
        "posterior, r = its median": np.where(shared, w_middle, d_middle),
        "d(r) on both sets: the query feature's weight alone": d,
        "w / d: the contrast of the sets alone": np.where(shared, w / d, 1.0),
        "w / d, r shuffled": np.where(shared, w_other / d_other, 1.0),
        "w(r) on both sets": w,
        **{f"constant {c:g} in the intersection, 1 outside": np.where(shared, c, 1.0) for c in (0, 0.5, 2, 3, 5, 10)},
    }
    return {name: factor * plain for name, factor in factors.items()}


def three(setup: Setup) -> Section:
    """K = 3: exclusive or inclusive sets, and the choice of w_diff."""
    text = (
        "Inclusive: features of further lists count in a pair's ratio (our reading of section 4.4 of the paper). "
        'Exclusive: "k, and only k" taken literally. The difference set is weighted by the ratio of all three lists, by '
        "the mean or the largest ratio of the pairs that its list is in, or by the pooled ratio (features in two or more "
        "lists over the union). With a + b = 1 these are equal: w_diff = 1 / (1 + ln(N c) / (1 - b)) for every "
        "ratio. The last tables therefore repeat them with the free line, and try multiples of w_diff."
    )
    heading = "Three vocabularies: which sets, and which weight for the difference set"
    section = _tried(setup, 3, three_readings, "posterior", Section("three", heading, [text]))
    free = _tried(setup, 3, three_differences, "posterior, free line", section, "free")
    return replace(section, tables=[*section.tables, *free.tables])


def three_readings(matcher: Matcher, table: MatchTable, line: Line) -> Weights:
    """Return the weights of every reading for three vocabularies."""
    model = BayesModel.of(ScoringOptions(line=line), table.n_images)
    plain, shared = matcher.idf_squared(table).sum(axis=1), table.order >= 2
    w, d = model.intersection(table.ratio), model.difference(table.joint_ratio)
    exclusive = model.intersection(exclusive_ratios(table.counts)[table.query, table.mask])
    pairs = _pair_ratios(table)  # [m, K - 1] of the pairs with the list that holds a match of the difference set
    orders = np.array([mask.bit_count() for mask in range(table.counts.shape[1])])
    pooled = (table.counts[:, orders >= 2].sum(axis=1) / np.maximum(table.counts.sum(axis=1), 1))[table.query]
    factors = {
        "b1": np.ones(len(w)),
        "bayes, inclusive": np.where(shared, w, 1.0),
        "bayes, exclusive": np.where(shared, exclusive, 1.0),
        "posterior": np.where(shared, w, d),
        "posterior, exclusive": np.where(shared, exclusive, d),
        "posterior, w_diff by the mean pair ratio": np.where(shared, w, model.difference(pairs.mean(axis=1))),
        "posterior, w_diff by the largest pair ratio": np.where(shared, w, model.difference(pairs.max(axis=1))),
        "posterior, w_diff by the pooled ratio": np.where(shared, w, model.difference(pooled)),
        "posterior, both by the pooled ratio": np.where(shared, model.intersection(pooled), model.difference(pooled)),
        "posterior, both by the ratio of all lists": np.where(shared, model.intersection(table.joint_ratio), d),
    }
    return {name: factor * plain for name, factor in factors.items()}


def three_differences(matcher: Matcher, table: MatchTable, line: Line) -> Weights:
    """Return the weights of every choice of w_diff for three vocabularies."""
    model = BayesModel.of(ScoringOptions(line=line), table.n_images)
    plain, shared = matcher.idf_squared(table).sum(axis=1), table.order >= 2
    w, d = model.intersection(table.ratio), model.difference(table.joint_ratio)
    pairs = _pair_ratios(table)
    differences = {
        "posterior, free line": d,
        "w_diff by the mean pair ratio": model.difference(pairs.mean(axis=1)),
        "w_diff by the largest pair ratio": model.difference(pairs.max(axis=1)),
        "w_diff at ratio 0": model.difference(np.zeros(len(d))),
        **{f"w_diff at ratio 0, times {times:g}": times * model.difference(np.zeros(len(d))) for times in (0.25, 0.5, 2, 4)},
    }
    return {name: np.where(shared, w, difference) * plain for name, difference in differences.items()}


def exclusive_ratios(counts: npt.NDArray[np.int64]) -> Floats64:
    """Return |in these lists and no other| / |in some of these lists and no other| of every set [Q, 2^K] (reading R1)."""
    below = counts.astype(np.float64)
    masks = np.arange(counts.shape[1])
    below[:, 0] = 0
    for bit in (1 << k for k in range(counts.shape[1].bit_length() - 1)):
        above = masks[masks & bit != 0]
        below[:, above] += below[:, above ^ bit]
    result: Floats64 = np.divide(counts, below, out=np.zeros(counts.shape), where=below > 0)
    return result


def _pair_ratios(table: MatchTable) -> Floats64:
    """Return the ratios of the pairs of lists that hold a match's first list [m, K - 1]."""
    first = np.argmax(table.shared, axis=1)
    every = np.arange(table.n_vocabularies)
    partners = np.stack([np.delete(every, k) for k in every])[first]  # [m, K - 1]
    return np.asarray(table.ratios[table.query[:, None], (1 << first)[:, None] | 1 << partners])


SETTINGS = ((20, 16.0), (22, 16.0), (24, 12.0), (24, 16.0), (24, 20.0), (28, 20.0), (32, 24.0))  # threshold, sigma


def hamming(setup: Setup) -> Section:
    """HE: before or after the sets are formed; its threshold and width."""
    text = (
        "Sets before the test: lists as the words give them (ours; the ratio can then be stored). After: only features within "
        'the threshold are in a list. The paper uses "default parameters"; 64 bits, threshold 24, sigma 16 are those of '
        "Hamming Embedding. The line of term 2 is the same in all rows: fitted before the test."
    )
    heading = "Hamming Embedding: its parameters, and sets before or after the test"
    section = _tried(setup, 2, hamming_sets, "b1 + HE", Section("hamming", heading, [text]))
    tables = []
    for name in setup.datasets:
        named = {
            f"{merge}, {threshold}, {sigma:g}": scoring_options(
                merge=merge, hamming=threshold, sigma=sigma, line=setup.line(name)
            )
            for merge in MERGES
            for threshold, sigma in SETTINGS
        }
        found = repeated(setup, name, 2, named)
        rows = [[f"`{merge}`", *(cell(setup, name, found[f"{merge}, {t}, {s:g}"]) for t, s in SETTINGS)] for merge in MERGES]
        head = ["rule", *(f"{threshold}, {sigma:g}" for threshold, sigma in SETTINGS)]
        tables.append(Table(f"{measure_title(setup, name)}: threshold and sigma, 64 bits", head, rows))
    return replace(section, tables=[*section.tables, *tables])


def hamming_sets(matcher: Matcher, table: MatchTable, line: Line) -> Weights:
    """Return the weights with the sets formed before and after the Hamming test."""
    model = BayesModel.of(ScoringOptions(line=line), table.n_images)
    near = hamming_weights(table)
    terms = matcher.idf_squared(table)
    total = (terms * near).sum(axis=1)
    kept = np.flatnonzero(near.any(axis=1))
    left = {name: getattr(table, name)[kept] for name in ("query", "feature", "image")}
    after = replace(table, **left, shared=near[kept] > 0, distance=None)
    w, d = model.intersection(table.ratio), model.difference(table.joint_ratio)
    w_after, d_after = np.ones(len(total)), np.ones(len(total))
    several = np.zeros(len(total), bool)
    several[kept] = after.order >= 2
    w_after[kept], d_after[kept] = model.intersection(after.ratio), model.difference(after.joint_ratio)
    shared = table.order >= 2
    factors = {
        "b1 + HE": np.ones(len(total)),
        "bayes + HE, sets before the test": np.where(shared, w, 1.0),
        "bayes + HE, sets after the test": np.where(several, w_after, 1.0),
        "posterior + HE, sets before the test": np.where(shared, w, d),
        "posterior + HE, sets after the test": np.where(several, w_after, d_after),
        **{f"constant {c:g} in the intersection + HE": np.where(shared, c, 1.0) for c in (0.5, 0.75, 1.5, 2, 3)},
    }
    return {name: factor * total for name, factor in factors.items()}


def weights(setup: Setup) -> Section:
    """Idf and norm variants, and the idf of B2's pairs of words."""
    text = "`b2` may take the idf of a pair of words, ln(N / features that hold both), instead of the sum over both words."
    section = _tried(setup, 2, joint_idf, "b2", Section("weights", "Idf and norm", [text]))
    tables = []
    for name in setup.datasets:
        kinds = [(idf, norm) for idf in get_args(Idf) for norm in get_args(Norm)]
        named = {
            f"{merge} {idf} {norm}": scoring_options(merge=merge, idf=idf, norm=norm, line=setup.line(name))
            for merge in MERGES
            for idf, norm in kinds
        }
        found = repeated(setup, name, 2, named)
        rows: list[Cells] = []
        for idf, norm in kinds:
            values = [found[f"{merge} {idf} {norm}"] for merge in MERGES]
            difference = gain_cell(setup, name, values[2], values[0])
            rows.append([f"idf {idf}, norm {norm}", *(cell(setup, name, one) for one in values), difference])
        tables.append(Table(measure_title(setup, name), ["", "`b1`", "`bayes`", "`posterior`", "`posterior` - `b1`"], rows))
    return replace(section, tables=[*section.tables, *tables])


def joint_idf(matcher: Matcher, table: MatchTable, line: Line) -> Weights:
    """Return the weights of B2 with the idf of single words and of pairs."""
    full = table.order == table.n_vocabularies
    holders = np.maximum(table.counts[:, -1], 1)
    joint = np.maximum(np.log(table.n_images / holders), 0.0)[table.query] ** 2
    single = matcher.idf_squared(table).sum(axis=1)
    return {"b2": np.where(full, single, 0.0), "b2, idf of the pair": np.where(full, joint, 0.0)}


def lines(setup: Setup) -> Section:
    """The line of term 2 and the base of the logarithm."""
    tables = []
    for name in setup.datasets:
        columns = _lines_tried(setup, name)
        named = {
            f"{merge} {threshold} {label}": scoring_options(merge=merge, hamming=threshold, **values)
            for merge in BAYESIAN
            for threshold in (None, HAMMING)
            for label, values in columns.items()
        }
        found = repeated(setup, name, 2, named)
        rows: list[Cells] = []
        for merge in BAYESIAN:
            for threshold, suffix in ((None, ""), (HAMMING, " + HE")):
                values = (found[f"{merge} {threshold} {label}"] for label in columns)
                rows.append([f"`{merge}`{suffix}", *(cell(setup, name, one) for one in values)])
        tables.append(Table(measure_title(setup, name), ["rule", *columns], rows))
    text = (
        "a = 1 - b unless fitted. In base 10 the prior is 2.3 times weaker. Last table: which Hamming distance decides that a "
        "match of both vocabularies is true."
    )
    return Section("lines", "The line of term 2, and the base of the logarithm", [text], [*tables, _criteria(setup)])


def _lines_tried(setup: Setup, name: str) -> dict[str, dict[str, Any]]:
    """Return the options of each line and prior that are tried, by name."""
    n = len(setup.datasets[name].images)
    tried: dict[str, dict[str, Any]] = {f"b = {b:g}": {"line": (1 - b, b)} for b in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7)}
    # log10(N c) = ln(N c'): the base is a choice of c
    tried["fitted, log base 10"] = {"line": setup.line(name), "c": float(np.exp(np.log10(n * 30)) / n)}
    tried["fitted (other dataset)"] = {"line": setup.line(name)}
    return tried


def _criteria(setup: Setup) -> Table:
    """Return the fits of term 2 by the definition of a true match."""
    rows = []
    for name in setup.datasets:
        bench = setup.equal(name, (0, 1))
        for criterion in get_args(Criterion):
            fit = setup.remembered(f"criterion {criterion}", bench, partial(_fitted, bench, criterion))
            rows.append([dataset_title(name), criterion, equation(fit["free"]), equation(fit["tied"])])
    head = ["dataset", "a match of both is true if the distance is below 20 in", "free", "a + b = 1"]
    return Table("Fits of term 2", head, rows)


def _fitted(bench: QuantisedDataset, criterion: Criterion) -> dict[str, Any]:
    return fit_line(observe(bench, criterion=criterion)).as_dict()


def sets(setup: Setup) -> Section:
    """Sets of features or of images."""
    text = (
        "An image is in the intersection if it has a feature in each list, not necessarily the same one. The line of term 2 is "
        "that of sets of features in both cases."
    )

    tried: list[tuple[Merge, Sets]] = [("b1", "feature"), *itertools.product(BAYESIAN, get_args(Sets))]
    tables = []
    for name in setup.datasets:
        rows: list[Cells] = []
        for suffix, threshold in (("", None), (" + HE", HAMMING)):
            options = scoring_options(hamming=threshold, line=setup.line(name))
            named = {f"{merge}{suffix}, {kind} sets": replace(options, merge=merge, sets=kind) for merge, kind in tried}
            found = repeated(setup, name, 2, named)
            rows += [_row(setup, name, rule, values, found[f"b1{suffix}, feature sets"]) for rule, values in found.items()]
        tables.append(Table(measure_title(setup, name), ["rule", "value", "difference to b1"], rows))
    return Section("sets", "Sets of features or of images", [text], tables)


def _tried(setup: Setup, count: int, weigh: Weigh, base: str, section: Section, line: str = "tied") -> Section:
    """Return a section with the values of weights on match tables, averaged over sets of seeds, and differences to a base."""
    tables = []
    for name in setup.datasets:
        runs = [_values(setup, setup.equal(name, seeds), weigh, setup.line(name, line)) for seeds in setup.repeats(count)]
        found = {rule: mean_values([run[rule] for run in runs]) for rule in runs[0]}
        rows = [_row(setup, name, rule, values, found[base]) for rule, values in found.items()]
        caption = f"{measure_title(setup, name)}, {len(runs)} set{'s' * (len(runs) > 1)} of {count} seeds"
        tables.append(Table(caption, ["weight", "value", f"difference to {base}"], rows))
    return replace(section, tables=tables)


def _values(setup: Setup, bench: QuantisedDataset, weigh: Weigh, line: Line) -> dict[str, Values]:
    @cache
    def matcher() -> Matcher:
        return Matcher(bench)

    def score(question: int) -> dict[str, Any]:
        table = matcher().table(question)
        return {name: matcher().scores(table, values) for name, values in weigh(matcher(), table, line).items()}

    return setup.values_of(f"{weigh.__name__} {VERSION} {line}", bench, score)


def _row(setup: Setup, name: str, rule: str, values: Values, base: Values) -> Cells:
    return [rule, cell(setup, name, values), "" if values == base else gain_cell(setup, name, values, base)]
