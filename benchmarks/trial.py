"""Ways of ranking a dataset, compared side by side: every query is ranked in all ways before the next, so that the machine's state is shared.

Everything fitted is fitted on the other dataset.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.experiments.cache import digest_of
from polyvoc.experiments.datasets.readers import Dataset, first_questions
from polyvoc.experiments.evaluate import Values, mean_of
from polyvoc.experiments.evaluate import gain as evaluation_gain
from polyvoc.experiments.fit.likelihood import Tally, fit_table
from polyvoc.experiments.fit.likelihood import tally as likelihood_tally
from polyvoc.experiments.measures import MEASURES, Interval, rank
from polyvoc.experiments.workbench import Quantised, QuantisedDataset, Workbench
from polyvoc.options import SearchOptions
from polyvoc.scoring.rules import groups_by_size
from polyvoc.search.pipeline import score_all
from polyvoc.types import LikelihoodTable
from polyvoc.vocabulary.vocabulary import Vocabulary

Scores = npt.NDArray[np.float32]

EDGES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)  # between bins of the cardinality ratio
FITTED = 150  # queries that a likelihood table is fitted on


@dataclass(frozen=True)
class Way:
    """A way of ranking: options, over some vocabularies with signatures of some length."""

    name: str
    options: SearchOptions
    members: tuple[int, ...] = (0, 1, 2)  # which vocabularies
    bits: int = 128
    binned: bool = False  # is the cardinality ratio in the likelihood table?


@dataclass(frozen=True)
class Outcome:
    """What one way of ranking reached on a dataset."""

    values: Values  # one per query
    seconds: list[float]  # of processor time, one per query, from words on; empty if not measured


class Comparison:
    """One dataset with vocabularies of 128 bits, and another one on which likelihood tables are fitted."""

    def __init__(
        self, workbench: Workbench, dataset: Dataset, other: Dataset, vocabularies: Sequence[Vocabulary], fitted: int = FITTED
    ) -> None:
        self.workbench, self.dataset = workbench, dataset
        self._full = workbench.bench(dataset, vocabularies)
        self._other = workbench.bench(first_questions(other, fitted), vocabularies)
        self._benches: dict[tuple[tuple[int, ...], int], QuantisedDataset] = {}

    def bench(self, members: tuple[int, ...], bits: int) -> QuantisedDataset:
        """Return the dataset with some of the vocabularies and the first bits of their signatures."""
        key = members, bits
        if key not in self._benches:
            self._benches[key] = cut(self._full, members, bits)
        return self._benches[key]

    def options(self, way: Way) -> SearchOptions:
        """Return the options of a way, with the likelihood table fitted on the other dataset."""
        if not way.bits or way.options.likelihood_table is not None:
            return way.options
        return replace(way.options, likelihood_table=self.likelihood_table(way.members, way.bits, way.binned))

    def likelihood_table(self, members: tuple[int, ...], bits: int, binned: bool = False) -> LikelihoodTable:
        """Fit a table on the other dataset; sets of equally large vocabularies are counted together."""
        other = cut(self._other, members, bits)
        stored = self.workbench.remember("tally", [EDGES, other.name], lambda: _as_dict(likelihood_tally(other, EDGES)))
        counts = np.array(stored["counts"], np.int64)
        if not binned:
            counts = counts.sum(axis=2, keepdims=True)
        tally = Tally(counts, np.array(stored["pairs"]), EDGES if binned else ())
        groups = (
            groups_by_size(len(members)) if len(set(other.sizes)) == 1 else [max(m - 1, 0) for m in range(1 << len(members))]
        )
        return fit_table(tally, groups, other.dataset.name)

    def run(self, ways: Sequence[Way]) -> dict[str, Outcome]:
        """Rank in all ways, query by query."""
        planned = [(way.name, self.bench(way.members, way.bits), self.options(way)) for way in ways]
        outcomes = {way.name: Outcome([], []) for way in ways}
        for question in range(-1, len(self.dataset.questions)):  # the first is run twice: compiling is not timed
            for name, bench, options in planned:
                scores, seconds = timed(bench, max(question, 0), options)
                if question >= 0:
                    outcomes[name].values.append(self.judge(question, scores))
                    outcomes[name].seconds.append(seconds)
        return outcomes

    def judge(self, question: int, scores: npt.ArrayLike) -> float | None:
        """Return the dataset's usual measure of the ranking of a query."""
        return MEASURES[self.dataset.measure](rank(scores), self.dataset.truths[""][question])

    @cached_property
    def scale(self) -> float:
        """Return the factor of the usual units: 100 for mAP, 4 for N-S."""
        return MEASURES[self.dataset.measure].scale

    def entry(self, one: Outcome, base: Outcome | None) -> dict[str, Any]:
        """Return a value, its difference to a base and the time, in the usual units."""
        gain = None if base is None else evaluation_gain(self.dataset, one.values, base.values)
        return {
            "value": self.scaled(mean_of(self.dataset, one.values)),
            "gain": None if gain is None else self.scaled(gain),
            "ms": round(1000 * float(np.median(one.seconds)), 2) if one.seconds else None,
            "ratio": round(float(np.median(np.divide(one.seconds, base.seconds))), 3) if base and one.seconds else None,
        }

    def scaled(self, interval: Interval) -> dict[str, float]:
        """Return an interval in the usual units."""
        return {name: round(self.scale * value, 4) for name, value in asdict(interval).items()}


def cut(bench: QuantisedDataset, members: tuple[int, ...], bits: int) -> QuantisedDataset:
    """Return a dataset of 128 bits with some of its vocabularies and 128, 64 or no bits."""
    chosen = bench.chosen(members)

    def load() -> Quantised:
        whole = chosen.load()
        assert whole.signatures is not None
        signatures = {128: whole.signatures, 64: whole.signatures[:, :, 0], 0: None}[bits]
        vocabularies = tuple(vocabulary.shortened(bits) for vocabulary in whole.vocabularies)
        return whole._replace(signatures=signatures, vocabularies=vocabularies)

    return replace(chosen, name=digest_of(chosen.name, bits), load=load)


def timed(bench: QuantisedDataset, question: int, options: SearchOptions) -> tuple[Scores, float]:
    """Return the scores of all images and the seconds of processor time from words on: other programs may use the machine."""
    query = bench.query(question, options)
    started = time.process_time()
    parts = score_all(bench.engine, query, options, coder=bench.coder)
    return np.concatenate(parts), time.process_time() - started


def _as_dict(tally: Tally) -> dict[str, Any]:
    return {"counts": tally.counts.tolist(), "pairs": tally.pairs.tolist()}
