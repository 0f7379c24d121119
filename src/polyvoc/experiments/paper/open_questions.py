"""Experiments on what the paper leaves open, and controls that show why a rule gains."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from polyvoc.experiments.evaluate import Values
from polyvoc.experiments.match_table import Matcher
from polyvoc.experiments.paper.cells import Runs, measure_title
from polyvoc.experiments.paper.readings import (
    Weigh,
    after_test,
    constant,
    differences,
    exclusive,
    median,
    once,
    pair_idf,
    parts,
    rules,
    shuffled,
)
from polyvoc.experiments.paper.setup import HAMMING, OURS, Reading, Setup
from polyvoc.experiments.report.report import Section, Table
from polyvoc.experiments.workbench import QuantisedDataset
from polyvoc.options import Merge, SearchOptions
from polyvoc.types import Floats64

VERSION = 2  # raise it when a weight changes its meaning
MERGES: tuple[Merge, ...] = ("b1", "bayes", "posterior")
READINGS = (Reading(sets="image"), OURS)
SETTINGS = ((20, 16.0), (22, 16.0), (24, 12.0), (24, 16.0), (24, 20.0), (28, 20.0), (32, 24.0))  # threshold, sigma


def ablations(setup: Setup) -> Section:
    """Controls: one vote per image and list, the idf of the pair, shuffled ratios, the median ratio, constant weights."""
    text = (
        "Once: one vote per image and list, in place of one per posting. Idf of the pair: ln(N / features or images in both "
        "lists). Shuffled: every query feature has the ratios of another; median: all have the same. Constant: in the "
        "intersection, 1 outside. `posterior` = d(r) * (w(r) / d(r) in the intersection, 1 outside): a weight of the query "
        "feature, d(r), and a contrast of the two sets, w / d. With a + b = 1 d does not depend on r, so the first alone is "
        "`b1` and the second alone is `posterior`: these rows are a check. Two vocabularies, words alone."
    )
    tried = (rules, once, pair_idf, shuffled, median, constant, parts)
    return Section("ablations", "Controls of the weights", [text], _tried(setup, 2, tried, "b1"))


def three(setup: Setup) -> Section:
    """K = 3: exclusive or inclusive sets, and the choice of w_diff."""
    text = (
        "Inclusive: elements of further lists count in a pair's ratio (our reading of section 4.4 of the paper). "
        'Exclusive: "k, and only k" taken literally. The difference set of `posterior` is weighted by the ratio of all three '
        "lists, by the mean or the largest ratio of the pairs that its list is in, or by the pooled ratio (elements in two or "
        "more lists over the union). With a + b = 1 these are equal: w_diff = 1 / (1 + ln(N c) / (1 - b)) for every ratio. The "
        "last tables therefore repeat them with the free line, and try multiples of w_diff."
    )
    heading = "Three vocabularies: which sets, and which weight for the difference set"
    tables = _tried(setup, 3, (rules, exclusive), "b1")
    return Section("three", heading, [text], [*tables, *_tried(setup, 3, (rules, differences), "posterior", line="free")])


def hamming(setup: Setup) -> Section:
    """HE: before or after the sets are formed; its threshold and width."""
    text = (
        "Sets before the test: lists as the words give them (ours; the ratio can then be stored). After: only features within "
        'the threshold are in a list. The paper uses "default parameters"; 64 bits, threshold 24, sigma 16 are those of '
        "Hamming Embedding. The line of term 2 is the same in all rows: fitted before the test."
    )
    heading = "Hamming Embedding: its parameters, and sets before or after the test"
    tables = _tried(setup, 2, (rules, after_test, constant), "b1", hamming=HAMMING)
    head = ["rule", *(f"{threshold}, {sigma:g}" for threshold, sigma in SETTINGS)]
    for name in setup.datasets:
        named = {
            f"{merge}, {threshold}, {sigma:g}": setup.rule(name, merge, hamming=threshold, sigma=sigma)
            for merge in MERGES
            for threshold, sigma in SETTINGS
        }
        runs = Runs.of(setup, name, 2, named)
        rows = [[f"`{merge}`", *(runs.cell(f"{merge}, {t}, {s:g}") for t, s in SETTINGS)] for merge in MERGES]
        tables.append(Table(f"{measure_title(setup, name)}: threshold and sigma, 64 bits", head, rows))
    return Section("hamming", heading, [text], tables)


def _tried(setup: Setup, count: int, tried: Sequence[Weigh], base: str, line: str = "tied", **chosen: Any) -> list[Table]:
    """Return a table of weights for each reading and dataset: means over sets of seeds, and differences to a base."""
    tables = []
    for reading, name in itertools.product(READINGS, setup.datasets):
        fitted = setup.line(name, reading.sets == "image", line)
        options = setup.rule(name, "bayes", reading, line=fitted, **chosen)
        runs = Runs.over(setup, name, count, partial(_values, setup, tried, options))
        rows = [[rule, runs.cell(rule), "" if rule == base else runs.gain(rule, base)] for rule in runs.runs[0]]
        caption = f"{measure_title(setup, name)}, {count} vocabularies: {reading}"
        tables.append(Table(caption, ["weight", "value", f"difference to {base}"], rows))
    return tables


def _values(setup: Setup, tried: Sequence[Weigh], options: SearchOptions, bench: QuantisedDataset) -> dict[str, Values]:
    @cache
    def matcher() -> Matcher:
        return Matcher(bench)

    def score(question: int) -> dict[str, Floats64]:
        table = matcher().table(question)
        named = (weights for weigh in tried for weights in weigh(matcher(), table, options).items())
        return {name: matcher().scores(table, weights, options) for name, weights in named}

    key = f"weights {' '.join(weigh.__name__ for weigh in tried)}"
    return setup.values_of(key, bench, score, [VERSION, options.as_dict()])
