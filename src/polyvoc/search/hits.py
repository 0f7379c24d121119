"""The frozen records that travel between the stages, and one options record per verb."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from polyvoc.options import SearchOptions, options_as_dict
from polyvoc.storage.stores import redact
from polyvoc.types import Region, Spans


@dataclass(frozen=True)
class Hit:
    """One photograph of the collection that answers a query."""

    image: int  # its id in the index
    path: str
    score: float  # higher is better
    inliers: int = 0  # matches that agree on one arrangement; 0 if it was not verified, or not confirmed
    # Where the query, its region or else its whole frame, lies in this photograph: the corners from the upper left,
    # clockwise; None if not confirmed.
    outline: tuple[tuple[float, float], ...] | None = None
    width: int = 0  # of the photograph, upright and at its full size; 0 if that is not known
    height: int = 0
    probability: float | None = None  # of showing the same thing (docs/confidence.md); None: nobody knows


class Hits(list[Hit]):
    """What a search found, best first; and which images could not be asked because their machines do not answer."""

    def __init__(self, hits: Iterable[Hit] = (), missing: Spans = ()) -> None:
        """Take hits, and the ids of the images that are missing."""
        super().__init__(hits)
        self.missing = missing

    @property
    def complete(self) -> bool:
        """Tell whether every image of the collection was asked."""
        return not self.missing


@dataclass(frozen=True)
class SearchResult:
    """What an index says to a photograph, and how long each stage took."""

    query: str
    options: SearchOptions
    hits: Hits
    seconds: dict[str, float]  # by stage, in their order
    region: Region | None = None  # of the photograph, if only a part of it asked

    @property
    def missing(self) -> Spans:
        """Give the ids of images that could not be asked, because their machines do not answer."""
        return self.hits.missing

    def as_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        hits = [asdict(hit) for hit in self.hits]
        seconds = {stage: round(value, 6) for stage, value in self.seconds.items()}
        region = None if self.region is None else list(self.region)
        options = options_as_dict(self.options)
        found = {"hits": hits, "complete": self.hits.complete, "missing": [list(span) for span in self.missing]}
        return {"query": redact(self.query), "region": region, "options": options, **found, "seconds": seconds}


@dataclass(frozen=True)
class SearchFailure:
    """A photograph that could not be asked, and why."""

    query: str
    error: str  # one line

    def as_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {"query": redact(self.query), "error": self.error}
