"""Graph of images that show the same thing; smoothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.index.folder import record_of
from polyvoc.options import SearchOptions
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.segments import SegmentImages
from polyvoc.search.pairs import Candidates, Places, pair_candidates
from polyvoc.search.verify import verify
from polyvoc.storage.files import map_array
from polyvoc.threads import count_threads, ordered_map
from polyvoc.types import Floats32, Floats64, Progress

LINK_CANDIDATES = 20  # images that each one verifies
LINK = np.dtype([("first", np.int64), ("second", np.int64), ("weight", np.float32)])  # two ids, first < second; ln(1 + inliers)
Links = npt.NDArray[np.void]  # [P] of PAIR, by their ids


class Edges(NamedTuple):
    """Image and neighbour of every pair, both ways [2 P], as places in all segments joined; weights; their sums [N]."""

    images: npt.NDArray[np.int64]
    neighbours: npt.NDArray[np.int64]
    weights: Floats64
    totals: Floats64


@dataclass(eq=False)
class LinkGraph:
    """A graph of images. Those that stand in no segment are ignored."""

    pairs: Links
    _edges: tuple[Sequence[SegmentImages], Edges] | None = None  # of the images that stood when it was asked last

    def smoothed(self, standing: Sequence[SegmentImages], scores: Sequence[Floats32], share: float) -> list[Floats32]:
        """Give the mean of each score and those of its neighbours, these together with the weight `share`.

        One array per segment, as `scores` are. An image without neighbours keeps its score.
        """
        if not scores:
            return []
        known = self._edges
        if known is None or known[0] is not standing:
            known = self._edges = standing, _edges(self.pairs, standing)
        own = np.concatenate(scores).astype(np.float64)
        images, neighbours, weights, totals = known[1]
        theirs = np.bincount(images, weights * own[neighbours], len(own))
        theirs = np.divide(theirs, totals, out=own.copy(), where=totals > 0)
        mean = ((own + share * theirs) / (1 + share)).astype(np.float32)
        return np.split(mean, np.cumsum([len(part) for part in scores])[:-1])


def _edges(pairs: Links, standing: Sequence[SegmentImages]) -> Edges:
    ids = np.concatenate([np.empty(0, np.int64), *(part.ids for part in standing)])
    starts = np.cumsum([0, *(len(part.ids) for part in standing)])
    live = [first + part.live for first, part in zip(starts, standing, strict=False)]
    places = np.concatenate([np.empty(0, np.int64), *live])
    places = places[np.argsort(ids[places])]
    known = pairs[np.isin(pairs["first"], ids[places]) & np.isin(pairs["second"], ids[places])]
    first, second = (places[np.searchsorted(ids[places], known[name])] for name in ("first", "second"))
    images, weights = np.concatenate([first, second]), np.tile(known["weight"].astype(np.float64), 2)
    totals = np.asarray(np.bincount(images, weights, len(ids)), np.float64)
    return Edges(images, np.concatenate([second, first]), weights, totals)


def find_links(
    engine: Engine, options: SearchOptions, candidates: int = LINK_CANDIDATES, progress: Progress | None = None
) -> Links:
    """Let every image search for the others, and give the pairs that verification confirms either way."""
    if candidates < 1:
        raise OptionError(f"candidates={candidates!r} should be at least 1")
    best, places = pair_candidates(engine, options, candidates, progress=progress), Places.of(engine)
    rows = range(len(best.images))
    work = ordered_map(lambda row: _confirmed(engine, places, best, row, options), rows, count_threads(None), "polyvoc-link")
    inliers: dict[tuple[int, int], int] = {}
    with closing(work) as results:
        for row, confirmed in results:
            image = int(best.images[row])
            for other, count in confirmed.items():
                pair = min(image, other), max(image, other)
                inliers[pair] = max(count, inliers.get(pair, 0))
            if progress is not None:
                progress("linking", row + 1, len(rows))
    return np.array([(*pair, np.log1p(count)) for pair, count in sorted(inliers.items())], LINK)


def _confirmed(engine: Engine, places: Places, best: Candidates, row: int, options: SearchOptions) -> dict[int, int]:
    """Give those of an image's candidates that show what it shows, and the inliers of each."""
    others = best.others[row][best.others[row] >= 0]
    (sketch,) = engine.sketches(places.at(best.images[[row]]))
    seen = verify(engine, sketch, places.at(others), options, threads=1).values()
    return {one.image: one.inliers for one in seen if one.trusted}


@dataclass(frozen=True)
class LinksRecord:
    """What the catalogue of an index holds of its graph: the fact "neighbours"."""

    commit: int  # that made it; its file is named after it
    pairs: int
    checksum: str

    @classmethod
    def of(cls, fact: Any, source: Path) -> Self | None:
        """Read it from a catalogue's fact; None if nobody made a graph."""
        return record_of(cls, fact, "neighbours", source)

    @property
    def plausible(self) -> bool:
        """Tell whether it may be one."""
        return isinstance(self.commit, int) and isinstance(self.pairs, int) and self.pairs >= 0

    def read(self, path: Path) -> Links:
        """Map the pairs from their file."""
        return map_array(path, LINK, (self.pairs,))


def links_errors(pairs: Links) -> str | None:
    """Say what is wrong with pairs, None if nothing is."""
    sound = np.isfinite(pairs["weight"]) & (pairs["weight"] > 0) & (pairs["first"] < pairs["second"])
    return None if sound.all() else "holds pairs that are out of order or have no weight"
