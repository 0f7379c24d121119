"""Measures of the rules on a dataset: the value of every question, means and differences with their intervals."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, get_args

from polyvoc.experiments.datasets.readers import Dataset
from polyvoc.experiments.measures import MEASURES, Interval, bootstrap, difference, rank
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.options import CODES, USUAL_HAMMING, Burstiness, Line, Merge, Preset, SearchOptions, SetKind, preset
from polyvoc.types import Array, CodeTable, LikelihoodTable

Values = list[float | None]  # one per question; None: the question has no right answer at this level
EVALUATION_VERSION = 1  # raise it when features, training, a score or a measure change: stored results count no longer
MERGES: tuple[Merge, ...] = ("b0", "b1", "b2", "bayes", "posterior")
BASE: Merge = "b1"  # what the others are compared with
CONDITIONS = ("hamming", "sigma", "burstiness", "vocabularies", "idf", "idf_power", "norm", "assignments", "verify", "expand")
HAMMING = USUAL_HAMMING[64][0]


@dataclass(frozen=True)
class Outcome:
    """The values of one way of ranking."""

    name: str
    options: Mapping[str, Any]
    values: Mapping[str, Values]  # by measure, such as "mAP" or "mAP medium"
    seconds: float  # per question, on this machine, when it was measured

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def evaluation_rules(
    merges: Sequence[Merge] = MERGES,
    hamming: Sequence[int | None] | None = None,
    burstiness: Sequence[Burstiness] = ("none", "intra"),
    bits: int = 64,
    lines: Mapping[SetKind, Line] | None = None,
    **fixed: Any,
) -> dict[str, SearchOptions]:
    """Return the options of every combination, by name: the merge rule, "HE", "burstiness"; codes have neither of these.

    `bits`: of the signatures; `lines`: of term 2, by what the lists of a rule are sets of.
    """
    named = {}
    usual, sigma = USUAL_HAMMING[bits]
    fixed = {"sigma": sigma, **fixed}
    hamming = (None, usual) if hamming is None else hamming
    several = len(set(hamming) - {None}) > 1
    for threshold, burst, merge in itertools.product(hamming, burstiness, merges):
        of_words = {} if merge == CODES else {"hamming": threshold, "burstiness": burst}
        options = with_line(scoring_options(merge=merge, **of_words, **fixed), lines)
        named[rule_name(options, several)] = options
    return named


def scoring_options(**chosen: Any) -> SearchOptions:
    """Return options that score by words alone, without burstiness and re-ranking, unless chosen."""
    return SearchOptions(**{"merge": "posterior", "hamming": None, "burstiness": "none", "verify": 0, **chosen})


def with_line(options: SearchOptions, lines: Mapping[SetKind, Line] | None) -> SearchOptions:
    """Return options with the line of their kind of sets, if lines are given."""
    return options if lines is None else replace(options, line=lines[options.set_kind])


def recommended(
    table: LikelihoodTable | None, bits: tuple[int, int], lines: Mapping[SetKind, Line] | None = None,
    code_table: CodeTable | None = None,
) -> dict[str, SearchOptions]:  # fmt: skip
    """Return the presets, by name, for signatures and codes of some bits.

    `table`, `lines`, `code_table`: fitted on other photographs than those of the dataset.
    """
    presets = {
        f"preset {name}": replace(preset(name, *bits), likelihood_table=table, code_table=code_table)
        for name in get_args(Preset)
    }
    return {name: with_line(options, lines) for name, options in presets.items()}


def rule_name(options: SearchOptions, threshold: bool = False) -> str:
    """Return a short name of a rule; with the Hamming threshold only if there are several."""
    name: str = options.merge
    if options.hamming is not None:
        name += f" + HE {options.hamming}" if threshold else " + HE"
    if options.burstiness != "none":
        name += " + burstiness" if options.burstiness == "intra" else f" + {options.burstiness} burstiness"
    return name


def _identity(options: SearchOptions) -> dict[str, Any]:
    """Return what a stored result is identified by; without what the rules of words do not have."""
    values = asdict(options)
    if options.merge != CODES:
        del values["code_table"]
    return {**values, "assignments": options.n_assignments}


def evaluate(workbench: Workbench, bench: QuantisedDataset, named: Mapping[str, SearchOptions]) -> list[Outcome]:
    """Measure every rule on a dataset; earlier results are taken from the cache."""
    outcomes = []
    for number, (name, options) in enumerate(named.items()):
        workbench.progress(f"rules: {name}", number, len(named))
        inputs = ("rule", EVALUATION_VERSION, bench.name, _identity(options))
        result = workbench.remember(f"{bench.dataset.name} {name}", inputs, partial(_timed, bench, options))
        outcomes.append(Outcome(name, options.as_dict(), result["values"], result["seconds"]))
        workbench.progress(f"rules: {name}", number + 1, len(named))
    return outcomes


def _timed(bench: QuantisedDataset, options: SearchOptions) -> dict[str, Any]:
    bench.scores(0, options)  # the first search compiles, and builds what all share
    started = time.perf_counter()
    values = measure_ranking(bench.dataset, lambda question: bench.scores(question, options))
    return {"values": values, "seconds": (time.perf_counter() - started) / len(bench.dataset.questions)}


def measure_ranking(dataset: Dataset, score: Callable[[int], Array]) -> dict[str, Values]:
    """Measure the ranking by `score` of each question, by all measures of the dataset."""
    measured = (measure_one(dataset, question, score(question)) for question in range(len(dataset.questions)))
    return _by_measure(list(measured))


def measure_one(dataset: Dataset, question: int, scores: Array) -> dict[str, float | None]:
    """Measure the ranking of one question, by all measures of the dataset."""
    ranking = rank(scores)
    return {
        f"{measure} {level}".strip(): MEASURES[measure](ranking, truths[question])
        for level, truths in dataset.truths.items()
        for measure in measures_of(dataset)
    }


def measure_main(dataset: Dataset, question: int, scores: Array) -> float | None:
    """Measure the ranking of one question by the main measure of the dataset."""
    return MEASURES[dataset.measure](rank(scores), dataset.truths[dataset.main_level][question])


def _by_measure(measured: Sequence[Mapping[str, float | None]]) -> dict[str, Values]:
    return {measure: [one[measure] for one in measured] for measure in measured[0]} if measured else {}


def measures_of(dataset: Dataset) -> tuple[str, ...]:
    """Return the names of the measures of a dataset, its usual one first."""
    if len(dataset.truths) > 1:
        return dataset.measure, "mP@1", "mP@5", "mP@10"
    return dataset.measure, "R@1", "R@10"


def main_measure(dataset: Dataset) -> str:
    """Return the name of the measure of the tables: for the revisited sets that of the medium level."""
    return f"{dataset.measure} {dataset.main_level}".strip()


def groups_of(dataset: Dataset) -> list[str]:
    """Return the group of each question: questions of one group are not independent."""
    return [question.group for question in dataset.questions]


def mean_of(dataset: Dataset, values: Values) -> Interval:
    """Return the mean of a measure with its 95 % bootstrap interval."""
    return bootstrap(values, groups_of(dataset))


def gain(dataset: Dataset, values: Values, base: Values) -> Interval:
    """Return the mean difference to another ranking of the same questions with its 95 % bootstrap interval."""
    return difference(values, base, groups_of(dataset))


@dataclass(frozen=True)
class RuleResult:
    """The result of one rule: a row of the table of an evaluation."""

    rule: str
    measure: str
    value: Interval
    gain: Interval | None  # over `b1` with the same signatures and burstiness; None for that rule itself
    seconds: float


def results_table(dataset: Dataset, outcomes: Sequence[Outcome], measure: str | None = None) -> list[RuleResult]:
    """Return one row per rule, each beside `b1` under the same conditions."""
    measure = measure or main_measure(dataset)
    bases = {_conditions(outcome): outcome.values[measure] for outcome in outcomes if outcome.options["merge"] == BASE}
    rows = []
    for outcome in outcomes:
        values = outcome.values[measure]
        base = bases.get(_conditions(outcome))
        other = base if outcome.options["merge"] != BASE else None
        difference = None if other is None else gain(dataset, values, other)
        rows.append(RuleResult(outcome.name, measure, mean_of(dataset, values), difference, outcome.seconds))
    return rows


def _conditions(outcome: Outcome) -> tuple[Any, ...]:
    return tuple(outcome.options[name] for name in CONDITIONS)
