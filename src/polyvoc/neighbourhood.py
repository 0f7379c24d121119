"""Who shows the same thing as whom? A graph of the images of an index, found without any query, for searches that `smooth`.

Every image is compared with its best candidates (`pairing.py`); those that verification confirms are its neighbours, weighed
by ln(1 + inliers). What an image's neighbours say for it is the mean of their scores. Images added after the graph was made are
alone until the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from polyvoc import pairing, searching, storage
from polyvoc.catalogue import record_of
from polyvoc.engine import Engine
from polyvoc.errors import OptionError
from polyvoc.lookahead import count_threads, in_order
from polyvoc.pairing import Candidates, Places
from polyvoc.records import Progress, SearchOptions
from polyvoc.shards import Scores, Standing

CANDIDATES = 20  # images that each one verifies
PAIR = np.dtype([("first", np.int64), ("second", np.int64), ("weight", np.float32)])  # two ids, first < second; ln(1 + inliers)

Pairs = npt.NDArray[np.void]  # [P] of PAIR, by their ids
Floats = npt.NDArray[np.float64]


class Edges(NamedTuple):
    """Image and neighbour of every pair, both ways [2 P], as places in all segments joined; weights; their sums [N]."""

    images: npt.NDArray[np.int64]
    neighbours: npt.NDArray[np.int64]
    weights: Floats
    totals: Floats


# --- what neighbours say ------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Neighbourhood:
    """A graph of images. Those that stand in no segment are ignored."""

    pairs: Pairs
    _edges: tuple[Sequence[Standing], Edges] | None = None  # of the images that stood when it was asked last

    def smoothed(self, standing: Sequence[Standing], scores: Sequence[Scores], share: float) -> list[Scores]:
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


def _edges(pairs: Pairs, standing: Sequence[Standing]) -> Edges:
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


# --- who they are -------------------------------------------------------------------------------------------------------------


def find(engine: Engine, options: SearchOptions, candidates: int = CANDIDATES, progress: Progress | None = None) -> Pairs:
    """Let every image search for the others, and give the pairs that verification confirms either way."""
    if candidates < 1:
        raise OptionError(f"candidates={candidates!r} should be at least 1")
    best, places = pairing.candidates(engine, options, candidates, progress=progress), Places.of(engine)
    rows = range(len(best.images))
    work = in_order(lambda row: _confirmed(engine, places, best, row, options), rows, count_threads(None), "polyvoc-link")
    inliers: dict[tuple[int, int], int] = {}
    with closing(work) as results:
        for row, confirmed in results:
            image = int(best.images[row])
            for other, count in confirmed.items():
                pair = min(image, other), max(image, other)
                inliers[pair] = max(count, inliers.get(pair, 0))
            if progress is not None:
                progress("linking", row + 1, len(rows))
    return np.array([(*pair, np.log1p(count)) for pair, count in sorted(inliers.items())], PAIR)


def _confirmed(engine: Engine, places: Places, best: Candidates, row: int, options: SearchOptions) -> dict[int, int]:
    """Give those of an image's candidates that show what it shows, and the inliers of each."""
    others = best.others[row][best.others[row] >= 0]
    (sketch,) = engine.sketches(places.at(best.images[[row]]))
    seen = searching.verify(engine, sketch, places.at(others), options, threads=1).values()
    return {one.image: one.inliers for one in seen if one.trusted}


# --- where they are kept ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
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

    def read(self, path: Path) -> Pairs:
        """Map the pairs from their file."""
        return storage.map_array(path, PAIR, (self.pairs,))


def damage(pairs: Pairs) -> str | None:
    """Say what is wrong with pairs, None if nothing is."""
    sound = np.isfinite(pairs["weight"]) & (pairs["weight"] > 0) & (pairs["first"] < pairs["second"])
    return None if sound.all() else "holds pairs that are out of order or have no weight"
