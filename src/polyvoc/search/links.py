"""The graph of images that show the same thing: built by `link`, used by the option `smooth`.

Every image is compared with its best candidates (`search.pairs`); those that verification confirms are linked with it, with
the weight ln(1 + inliers). Images added after the graph was built have no links until it is built again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.index.catalogue import IndexSettings
from polyvoc.index.folder import LINKS, IndexFolder, SideFile
from polyvoc.index.writer import IndexWriter
from polyvoc.scoring.segments import SegmentImages
from polyvoc.search.pairs import Candidates, ImageRefs, StoredQueries, find_candidates
from polyvoc.search.verify import is_reliable, verify
from polyvoc.threads import count_threads, ordered_map
from polyvoc.types import Floats32, Floats64, Progress

CANDIDATES = 20  # images that each one is verified with
LINK = np.dtype([("first", np.int64), ("second", np.int64), ("weight", np.float32)])  # two ids, first < second; ln(1 + inliers)
Links = npt.NDArray[np.void]  # [P] of LINK, by their ids


class Edges(NamedTuple):
    """Image and linked image of every pair, both ways [2 P], by their places in all segments joined; weights; sums [N]."""

    images: npt.NDArray[np.int64]
    linked: npt.NDArray[np.int64]
    weights: Floats64
    totals: Floats64


class LinkGraph:
    """The links between the images of one snapshot. Links of images that it does not hold are ignored."""

    def __init__(self, links: Links) -> None:
        """Take links by the ids of their images."""
        self.links = links
        self._edges: Edges | None = None  # of the whole snapshot, once all its images are known

    def smooth(self, images: Sequence[SegmentImages], scores: Sequence[Floats32], share: float) -> list[Floats32]:
        """Return the mean of each score and those of its linked images, these together with the weight `share`.

        One array per segment, as `scores` are. An image without links keeps its score.
        """
        if not scores:
            return []
        edges = self._edges or _edges(self.links, images)
        if all((part.ids >= 0).all() for part in images):  # -1: of a segment that is unavailable
            self._edges = edges
        own = np.concatenate(scores).astype(np.float64)
        sums = np.bincount(edges.images, edges.weights * own[edges.linked], len(own))
        others = np.divide(sums, edges.totals, out=own.copy(), where=edges.totals > 0)
        mean = ((own + share * others) / (1 + share)).astype(np.float32)
        return np.split(mean, np.cumsum([len(part) for part in scores])[:-1])


def _edges(links: Links, images: Sequence[SegmentImages]) -> Edges:
    ids = np.concatenate([np.empty(0, np.int64), *(part.ids for part in images)])
    starts = np.cumsum([0, *(len(part.ids) for part in images)])
    live = [first + part.live for first, part in zip(starts, images, strict=False)]
    places = np.concatenate([np.empty(0, np.int64), *live])
    places = places[np.argsort(ids[places])]
    known = links[np.isin(links["first"], ids[places]) & np.isin(links["second"], ids[places])]
    first, second = (places[np.searchsorted(ids[places], known[name])] for name in ("first", "second"))
    ends, weights = np.concatenate([first, second]), np.tile(known["weight"].astype(np.float64), 2)
    totals = np.asarray(np.bincount(ends, weights, len(ids)), np.float64)
    return Edges(ends, np.concatenate([second, first]), weights, totals)


def link(writer: IndexWriter, source: StoredQueries, candidates: int = CANDIDATES, progress: Progress | None = None) -> int:
    """Find which images of an index show the same thing and store the links; return their number.

    source: of the index as the writer last committed it.
    """
    links = find_links(source, candidates, progress)
    writer.save_side_file(LINKS, links, new_snapshot=True)
    return len(links)


def find_links(source: StoredQueries, candidates: int = CANDIDATES, progress: Progress | None = None) -> Links:
    """Compare every image with its best candidates, and return the pairs that verification confirms either way."""
    if candidates < 1:
        raise OptionError(f"candidates={candidates!r} should be at least 1")
    best, refs = find_candidates(source, candidates, progress=progress), ImageRefs.of(source.engine)
    rows = range(len(best.images))
    work = ordered_map(lambda row: _confirmed(source, refs, best, row), rows, count_threads(None), "polyvoc-link")
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


def _confirmed(source: StoredQueries, refs: ImageRefs, best: Candidates, row: int) -> dict[int, int]:
    """Return those of an image's candidates that show the same thing, and the inliers of each."""
    others = best.others[row][best.others[row] >= 0]
    (ref,) = refs.at(best.images[[row]])
    verified = verify(source.engine, source.verification(ref), refs.at(others), threads=1).values()
    return {one.image: one.inliers for one in verified if is_reliable(one)}


def read_links(folder: IndexFolder, settings: IndexSettings) -> LinkGraph | None:
    """Map the links of a commit by its settings, None if it has none."""
    side = SideFile.of(LINKS, settings)
    return None if side is None else LinkGraph(folder.map_side_file(side, LINK))


def check_links(folder: IndexFolder) -> Iterator[str]:
    """Yield one line if stored links are impossible: a check for `index.check`."""
    side = folder.side_file(LINKS)
    if side is None:
        return
    links = folder.map_side_file(side, LINK)
    valid = np.isfinite(links["weight"]) & (links["weight"] > 0) & (links["first"] < links["second"])
    if not valid.all():
        yield f"{folder.side_path(side)} holds links that are out of order or have no weight"
