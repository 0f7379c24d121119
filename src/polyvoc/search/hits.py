"""What a search returns: hits, and the same as JSON for command line and HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from polyvoc.options import SearchOptions
from polyvoc.storage.stores import redact
from polyvoc.types import Region, Spans


@dataclass(frozen=True)
class Hit:
    """One image of the index that shows the same thing as the query."""

    image: int  # its id in the index
    path: str
    score: float  # higher is better
    inliers: int = 0  # matches that are consistent with one geometric transform; 0 if not verified, or not confirmed
    # Where the query, its region or else its whole frame, lies in this image: the corners from the upper left, clockwise; None
    # if not confirmed.
    outline: tuple[tuple[float, float], ...] | None = None
    width: int = 0  # of the photograph, upright and at its full size; 0 if unknown
    height: int = 0
    probability: float | None = None  # of showing the same thing (docs/confidence.md); None: not available


class Hits(list[Hit]):
    """The hits of a search, best first; the seconds of each stage; and the images that could not be searched."""

    def __init__(self, hits: Iterable[Hit] = (), missing: Spans = (), seconds: Mapping[str, float] | None = None) -> None:
        """Take hits, the ids of images on unavailable machines, and the seconds by stage, in their order."""
        super().__init__(hits)
        self.missing = missing
        self.seconds = dict(seconds or {})

    @property
    def complete(self) -> bool:
        """Return whether every image of the index was searched."""
        return not self.missing


@dataclass(frozen=True)
class SearchResult:
    """A query by its name, and its hits."""

    query: str
    options: SearchOptions
    hits: Hits = field(default_factory=Hits)
    region: Region | None = None  # of the query photograph, if only a part of it was searched for

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "query": redact(self.query),
            "region": None if self.region is None else list(self.region),
            "options": self.options.as_dict(),
            "hits": [asdict(hit) for hit in self.hits],
            "complete": self.hits.complete,
            "missing": [list(span) for span in self.hits.missing],
            "seconds": {stage: round(value, 6) for stage, value in self.hits.seconds.items()},
        }


@dataclass(frozen=True)
class SearchFailure:
    """A query photograph that could not be used, and why."""

    query: str
    error: str  # one line

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"query": redact(self.query), "error": self.error}
