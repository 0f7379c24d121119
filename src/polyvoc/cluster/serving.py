"""An index whose segments are held by a fleet: the engine is the same, its shards are on other machines."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.cluster import holder, placement
from polyvoc.cluster.fleet import Fleet, Generation
from polyvoc.cluster.holder import Charge, Holding, Inventory, Task
from polyvoc.cluster.packing import pack
from polyvoc.engine import Engine
from polyvoc.errors import ClusterError
from polyvoc.home import Home, Layout
from polyvoc.records import Spans
from polyvoc.shards import Census, Join, Operation
from polyvoc.weighting import Statistics


def open_engine(home: Home, fleet: Fleet) -> Engine:
    """Let a fleet hold the segments of the last commit, each by one shard."""
    layout = home.read_layout()
    return Engine(RayShards.open(home, layout, fleet), layout.sizes, neighbours=home.read_neighbours(layout))


class RayShards:
    """The segments of one commit, held by the actors of a fleet.

    Asked directly they are whole: ClusterError if one does not answer in time. An `attempt` notes which are missing.
    """

    def __init__(self, fleet: Fleet, generation: Generation, held: Sequence[Sequence[int]], found: Sequence[Inventory]) -> None:
        """Join what the shards found in the segments that they hold."""
        self.fleet = fleet
        self._generation = generation
        self._held = held  # the segments of each shard
        by_number: dict[int, tuple[Census, npt.NDArray[np.int64]]] = {}
        for numbers, part in zip(held, found, strict=True):
            by_number |= dict(zip(numbers, zip(part.census, part.spans, strict=True), strict=True))
        self.census: Sequence[Census] = [by_number[number][0] for number in sorted(by_number)]
        self._spans = [by_number[number][1] for number in sorted(by_number)]
        self.statistics: Statistics = reduce(add, (part.statistics for part in found))
        self._shard_of = {number: shard for shard, numbers in enumerate(held) for number in numbers}
        self._whole, self._absent = True, set[int]()

    @classmethod
    def open(cls, home: Home, layout: Layout, fleet: Fleet) -> RayShards:
        """Spread the segments of an index over a fleet, by their size."""
        sizes = {part.segment: part.n_features + part.n_images for part in layout.parts}
        spread = placement.spread(sizes, fleet.count, fleet.kept)
        fleet.kept = {segment: shard for shard, segments in enumerate(spread) for segment in segments}
        numbers = {part.segment: number for number, part in enumerate(layout.parts)}
        held = [sorted(numbers[segment] for segment in segments) for segments in spread]
        loads = [sum(sizes[segment] for segment in segments) for segments in spread]
        generation, found = fleet.open([_charge(home, layout, numbers) for numbers in held], loads)
        made = cls(fleet, generation, held, found)
        for idf in holder.WEIGHED:
            made.statistics.squares_of(idf)  # logarithms are taken once: machines might differ in the last bit
        fleet.teach(generation, made.statistics)
        return made

    def attempt(self, whole: bool) -> RayShards:
        """Give the same shards with a clean slate for what is missing."""
        again = copy(self)
        again._whole, again._absent = whole, set()
        return again

    @property
    def missing(self) -> Sequence[int]:
        """Give the segments that did not answer since this attempt began, in order."""
        return sorted(self._absent)

    @property
    def missing_ids(self) -> Spans:
        """Give the ids of the images in those segments."""
        rows = [self._spans[number] for number in self.missing]
        return tuple((int(first), int(last)) for first, last in sorted(map(tuple, np.concatenate(rows)))) if rows else ()

    # -- asking

    def each(self, operation: Operation, *shared: Any, threads: int | None = None) -> list[Any]:
        """Give operation(held, *shared) of every segment, in order; None of those that do not answer."""
        answers = self._gather(Task(operation, None, shared), self._everybody())
        found: list[Any] = [None] * len(self.census)
        for shard, results in answers.items():
            for number, result in zip(self._held[shard], results, strict=True):
                found[number] = result
        return found

    def joined(self, operation: Operation, join: Join, *shared: Any, threads: int | None = None) -> Any:
        """Join what `each` gives to one: in every shard, then here. None if nobody answers."""
        answers = self._gather(Task(operation, join, shared), self._everybody())
        return join([answers[shard] for shard in sorted(answers)]) if answers else None

    def at(self, operation: Operation, own: Sequence[tuple[int, Any]], *shared: Any, threads: int | None = None) -> list[Any]:
        """Give operation(held, argument, *shared) for every (segment, argument); None of those that do not answer."""
        mine: dict[int, list[int]] = {}
        for at, (number, _) in enumerate(own):
            mine.setdefault(self._shard_of[number], []).append(at)
        answers = self._gather(Task(operation, None, shared), {s: pack([own[at] for at in ats]) for s, ats in mine.items()})
        found: list[Any] = [None] * len(own)
        for shard, results in answers.items():
            for at, result in zip(mine[shard], results, strict=True):
                found[at] = result
        return found

    def close(self) -> None:
        """Let the holders forget this commit; with the last one that they hold they end."""
        self.fleet.release(self._generation.number)

    def _everybody(self) -> dict[int, bytes | None]:
        return {shard: None for shard, numbers in enumerate(self._held) if numbers}

    def _gather(self, task: Task, calls: dict[int, bytes | None]) -> dict[int, Any]:
        if not calls:
            return {}
        answers = self.fleet.gather(self._generation, calls, self.fleet.pieces(task), self._whole)
        absent = calls.keys() - answers.keys()
        if absent and self._whole:
            seconds = f"{self.fleet.options.patience:g} s"
            raise ClusterError(f"{len(absent)} of {len(self._held)} shards did not answer within {seconds}; ask again when "
                               "they are restarted, or leave out 'whole'")  # fmt: skip
        self._absent.update(number for shard in absent for number in self._held[shard])
        return answers


def _charge(home: Home, layout: Layout, numbers: Sequence[int]) -> Charge:
    firsts = np.cumsum([0, *(part.n_images for part in layout.parts)]).tolist()
    chosen = [(number, layout.parts[number]) for number in numbers]
    holdings = tuple(Holding(number, part.segment, tuple(part.deleted), firsts[number]) for number, part in chosen)
    norms = None if layout.norms is None else layout.norms.absolute()
    return Charge(home.path.absolute(), layout.sizes, holdings, norms, firsts[-1])
