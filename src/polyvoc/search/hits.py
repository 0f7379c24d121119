"""What a search returns: hits, the most probable first, and the same as JSON for command line and HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from polyvoc.errors import OptionError
from polyvoc.options import SearchOptions
from polyvoc.search.display import hits_as_html
from polyvoc.search.probability import LIKELY
from polyvoc.storage.stores import redact
from polyvoc.storage.trust import Readable
from polyvoc.types import Region, Spans

if TYPE_CHECKING:
    import pandas


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
    """The hits of a search, the most probable first; where there are no probabilities, in the order of their scores.

    Also the seconds of each stage, and the images that could not be searched. A slice is of the same type, and keeps these.
    """

    missing: Spans = ()  # ids of images that could not be searched: on unavailable machines, or damaged
    damage: tuple[str, ...] = ()  # one line for each damaged part of the index that was left out
    seconds: Mapping[str, float] = MappingProxyType({})  # by stage, in their order
    trust: Readable | None = None  # which of the photographs may be read here, to show them

    @property
    def complete(self) -> bool:
        """Return whether every image of the index was searched."""
        return not self.missing

    @property
    def likely(self) -> Hits:
        """Return the hits that are more likely right than wrong: their probability is at least 0.5. They come first."""
        return self._chosen(hit for hit in self if _is_likely(hit))

    @property
    def perhaps(self) -> Hits:
        """Return the other hits: probably wrong, or without a probability."""
        return self._chosen(hit for hit in self if not _is_likely(hit))

    @property
    def found(self) -> Hits:
        """Return the likely hits; all of them where they have no probability."""
        return self._chosen(hit for hit in self if hit.probability is None or _is_likely(hit))

    @property
    def nothing_found(self) -> bool:
        """Return whether no hit is likely. Hits without probabilities are not judged: False."""
        return not self.found

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "hits": [asdict(hit) for hit in self],
            "likely": len(self.likely),
            "nothing_found": self.nothing_found,
            "complete": self.complete,
            "missing": [list(span) for span in self.missing],
            "damage": list(self.damage),
            "seconds": {stage: round(value, 6) for stage, value in self.seconds.items()},
        }

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table with one row per hit, its columns the fields of `Hit`."""
        try:
            import pandas
        except ImportError:
            raise OptionError("to_pandas needs pandas; install it: pip install pandas") from None
        names = [column.name for column in fields(Hit)]
        return pandas.DataFrame([[getattr(hit, name) for name in names] for hit in self], columns=names)

    def _repr_html_(self) -> str:
        """Return the hits with thumbnails, for notebooks; of files that may not be read, the names only."""
        return hits_as_html(self, lambda path: self.trust is not None and self.trust.allows(path))

    @overload
    def __getitem__(self, at: SupportsIndex, /) -> Hit: ...
    @overload
    def __getitem__(self, at: slice[Any, Any, Any], /) -> Hits: ...
    def __getitem__(self, at: SupportsIndex | slice[Any, Any, Any], /) -> Hit | Hits:
        """Return one hit, or some of them as `Hits`."""
        return self._chosen(super().__getitem__(at)) if isinstance(at, slice) else super().__getitem__(at)

    def _chosen(self, hits: Iterable[Hit]) -> Hits:
        """Return some of the hits with what is known of the search."""
        chosen = type(self)(hits)
        vars(chosen).update(vars(self))
        return chosen


def _is_likely(hit: Hit) -> bool:
    return hit.probability is not None and hit.probability >= LIKELY


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
            **self.hits.to_dict(),
        }


@dataclass(frozen=True)
class SearchFailure:
    """A query photograph that could not be used, and why."""

    query: str
    error: str  # one line

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"query": redact(self.query), "error": self.error}
