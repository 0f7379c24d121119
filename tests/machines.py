"""Shards of an index that other machines hold, without a cluster: what is exchanged is packed and unpacked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from polyvoc.cluster.holder import pack, unpack
from polyvoc.index.segment import Segment
from polyvoc.index.statistics import Statistics
from polyvoc.scoring.engine import Join, Operation
from polyvoc.scoring.segments import HeldSegment, SegmentImages, SegmentInfo, segment_images
from polyvoc.types import Spans


class Machines:
    """Segments dealt to machines; each runs operations on its own and joins their results before they travel."""

    missing: Sequence[int] = ()
    missing_ids: Spans = ()

    def __init__(self, segments: Sequence[Segment], sizes: tuple[int, ...], count: int) -> None:
        parts = [list(segments[first::count]) for first in range(min(count, len(segments)))]
        self.statistics = sum((Statistics.of_segments(part, sizes) for part in parts), Statistics.of_segments([], sizes))
        self.infos = [SegmentInfo.of(segment) for segment in segments]
        self.held = [HeldSegment(number, segment, self.statistics) for number, segment in enumerate(segments)]
        self.machines = [self.held[first::count] for first in range(len(parts))]

    def session(self, require_all: bool) -> Self:
        return self

    def images(self, threads: int | None = None) -> list[SegmentImages]:
        return [segment_images(held) for held in self.held]

    def each(self, operation: Operation, *shared: Any, threads: int | None = None) -> list[Any]:
        return [unpack(pack(operation(held, *unpack(pack(shared))))) for held in self.held]

    def joined(self, operation: Operation, join: Join, *shared: Any, threads: int | None = None) -> Any:
        joined = []
        for machine in reversed(self.machines):
            arrived = unpack(pack(shared))
            joined.append(unpack(pack(join([operation(held, *arrived) for held in machine]))))
        return join(joined) if joined else None

    def at(self, operation: Operation, own: Sequence[tuple[int, Any]], *shared: Any, threads: int | None = None) -> list[Any]:
        return [operation(self.held[number], argument, *shared) for number, argument in own]

    def close(self) -> None:
        pass
