"""Ways of ranking, tried side by side: every question is asked in every way before the next, so that all see the same machine.

Whatever is fitted is fitted on the other dataset.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
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
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.options import SearchOptions
from polyvoc.scoring.rules import groups_by_size
from polyvoc.search.pipeline import score_all
from polyvoc.types import LikelihoodTable
from polyvoc.vocabulary.vocabulary import Vocabulary

Scores = npt.NDArray[np.float32]

EDGES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)  # between bins of the cardinality ratio
FITTED = 150  # questions that a table of evidence is fitted on, unless told


@dataclass(frozen=True)
class Way:
    """A way of ranking: options, over some vocabularies with signatures of some length."""

    name: str
    options: SearchOptions
    members: tuple[int, ...] = (0, 1, 2)  # which vocabularies
    bits: int = 128
    binned: bool = False  # is the cardinality ratio in the table of evidence?
    constants: Mapping[str, float] = field(default_factory=dict)  # of searching.py, where they are not as they come


@dataclass(frozen=True)
class Tried:
    """What one way of ranking reached on a dataset."""

    values: Values  # one per question
    seconds: list[float]  # of processor time, one per question, without what comes before the words; none if nobody looked


class Ground:
    """One dataset with vocabularies of 128 bits, and another one on which evidence is fitted."""

    def __init__(
        self, workbench: Workbench, dataset: Dataset, other: Dataset, vocabularies: Sequence[Vocabulary], fitted: int = FITTED
    ) -> None:
        self.workbench, self.dataset = workbench, dataset
        self._full = workbench.bench(dataset, vocabularies)
        self._teacher = workbench.bench(first_questions(other, fitted), vocabularies)
        self._benches: dict[tuple[tuple[int, ...], int], QuantisedDataset] = {}

    def bench(self, members: tuple[int, ...], bits: int) -> QuantisedDataset:
        """Give the dataset with some of the vocabularies and the first bits of their signatures."""
        key = members, bits
        if key not in self._benches:
            self._benches[key] = cut(self._full, members, bits)
        return self._benches[key]

    def settled(self, way: Way) -> SearchOptions:
        """Give the options of a way with the table of evidence that the other dataset gives."""
        if not way.bits or way.options.evidence is not None:
            return way.options
        return replace(way.options, evidence=self.evidence(way.members, way.bits, way.binned))

    def evidence(self, members: tuple[int, ...], bits: int, binned: bool = False) -> LikelihoodTable:
        """Fit a table on the other dataset; sets of equally large vocabularies are counted together."""
        teacher = cut(self._teacher, members, bits)
        told = self.workbench.remember(digest_of("tally", EDGES, teacher.name), lambda: _told(likelihood_tally(teacher, EDGES)))
        counts = np.array(told["counts"], np.int64)
        if not binned:
            counts = counts.sum(axis=2, keepdims=True)
        tally = Tally(counts, np.array(told["pairs"]), EDGES if binned else ())
        groups = (
            groups_by_size(len(members)) if len(set(teacher.sizes)) == 1 else [max(m - 1, 0) for m in range(1 << len(members))]
        )
        return fit_table(tally, groups, teacher.dataset.name)

    def tried(self, ways: Sequence[Way]) -> dict[str, Tried]:
        """Rank in all ways, question by question."""
        settled = [(way, self.bench(way.members, way.bits), self.settled(way)) for way in ways]
        found = {way.name: Tried([], []) for way in ways}
        for question in range(-1, len(self.dataset.questions)):  # the first is asked twice: compiling is not timed
            for way, bench, options in settled:
                scores, seconds = timed(bench, max(question, 0), way, options)
                if question >= 0:
                    found[way.name].values.append(self.judged(question, scores))
                    found[way.name].seconds.append(seconds)
        return found

    def judged(self, question: int, scores: npt.ArrayLike) -> float | None:
        """Judge the ranking of a question by the measure that the dataset is known for."""
        return MEASURES[self.dataset.measure](rank(scores), self.dataset.truths[""][question])

    @cached_property
    def scale(self) -> float:
        """Give what people multiply the measure with."""
        return MEASURES[self.dataset.measure].scale

    def entry(self, one: Tried, base: Tried | None) -> dict[str, Any]:
        """Tell a value, its difference to a base and the time, each as people read it."""
        gain = None if base is None else evaluation_gain(self.dataset, one.values, base.values)
        return {
            "value": self.told(mean_of(self.dataset, one.values)),
            "gain": None if gain is None else self.told(gain),
            "ms": round(1000 * float(np.median(one.seconds)), 2) if one.seconds else None,
            "ratio": round(float(np.median(np.divide(one.seconds, base.seconds))), 3) if base and one.seconds else None,
        }

    def told(self, interval: Interval) -> dict[str, float]:
        """Give an interval in the units that people read."""
        return {name: round(self.scale * value, 4) for name, value in asdict(interval).items()}


def cut(bench: QuantisedDataset, members: tuple[int, ...], bits: int) -> QuantisedDataset:
    """Give a bench of 128 bits with some of its vocabularies and 128, 64 or no bits."""
    chosen = bench.chosen(members)
    assert chosen.signatures is not None
    signatures = {128: chosen.signatures, 64: chosen.signatures[:, :, 0], 0: None}[bits]
    vocabularies = tuple(vocabulary.shortened(bits) for vocabulary in chosen.vocabularies)
    return replace(chosen, signatures=signatures, vocabularies=vocabularies, name=digest_of(chosen.name, bits))


def timed(bench: QuantisedDataset, question: int, way: Way, options: SearchOptions) -> tuple[Scores, float]:
    """Give the scores of all images and the seconds of processor time that they took, from words on: others may use the machine."""
    asked = bench.query(question, options.assignments)
    with constants(way.constants):
        started = time.process_time()
        parts, _ = score_all(bench.engine, asked, options)
        return np.concatenate(parts), time.process_time() - started


@contextmanager
def constants(other: Mapping[str, float]) -> Iterator[None]:
    """Let `searching` have other constants for a while."""
    before = {name: getattr(searching, name) for name in other}
    try:
        for name, value in other.items():
            setattr(searching, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(searching, name, value)


def _told(tally: Tally) -> dict[str, Any]:
    return {"counts": tally.counts.tolist(), "pairs": tally.pairs.tolist()}
