"""Parameters and response models."""

from __future__ import annotations

from dataclasses import fields, replace
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model

from polyvoc.options import NONE, SEARCH_TEXTS, Preset, SearchOptions
from polyvoc.search.index import Index
from polyvoc.types import Region

LARGEST_ID = (1 << 63) - 1  # of SQLite
# Of each option: beyond what helps a ranking, but within what a server can bear.
LIMITS: dict[str, dict[str, float]] = {
    "top": {"ge": 1, "le": 1000},
    "verify": {"ge": 0, "le": 1000},
    "expand": {"ge": 1, "le": 50},
    "assignments": {"ge": 1, "le": 10},
    "hamming": {"ge": 0, "le": 128},
    "c": {"gt": 0, "le": 1e9},
    "sigma": {"ge": 1e-3, "le": 1e4},
    "smooth": {"ge": 0, "le": 100},
    "sure": {"ge": 0, "le": 1},
}
_kinds = get_type_hints(SearchOptions)
# All but the table of evidence: that is a file on the server's disk, and not for strangers.
OPTIONS = {field.name: _kinds[field.name] for field in fields(SearchOptions) if field.name != "evidence"}
NUMBER = r"-?\d+(\.\d+)?"
NO_ADDRESSES = "addresses are not fetched; upload the photograph in the field 'photo'"
ImageId = Annotated[int, Field(ge=0, le=LARGEST_ID)]
QueryName = Annotated[str, Field(min_length=1, max_length=40, description="An image of the collection, or a kept upload.")]


def numbers(count: int) -> str:
    """Give the pattern of so many numbers with commas between them."""
    return f"^{NUMBER}(,{NUMBER}){{{count - 1}}}$"


def _refuse(value: str | None) -> str | None:
    raise ValueError(NO_ADDRESSES)


class Common(BaseModel):
    """What every question may say besides the options of the search."""

    model_config = ConfigDict(extra="forbid")

    region: str | None = Field(
        None,
        description="x0,y0,x1,y1 in pixels of the upright photograph: only the features inside it ask.",
        pattern=numbers(4),
        max_length=100,
    )
    preset: Preset = Field("default", description="What stands for the options that are left out.")
    url: Annotated[str | None, AfterValidator(_refuse)] = Field(None, description=f"Refused: {NO_ADDRESSES}.")

    @property
    def box(self) -> Region | None:
        """Give the region."""
        if self.region is None:
            return None
        x0, y0, x1, y1 = map(float, self.region.split(","))
        return x0, y0, x1, y1

    def options(self, index: Index) -> SearchOptions:
        """Give the options of the search on an index."""
        given = {name: getattr(self, name) for name in OPTIONS}
        chosen = {name: _value(OPTIONS[name], value) for name, value in given.items() if value is not None}
        return replace(index.preset(self.preset), **chosen)


def _value(kind: Any, given: Any) -> Any:
    """Give what was said for an option as the record wants it."""
    if get_origin(kind) is tuple:
        return tuple(map(float, given.split(",")))
    return None if given == NONE and NoneType in get_args(kind) else given


def _parameter(name: str, kind: Any) -> Any:
    """Give an option as pydantic wants it: its type, and what is to be known of it."""
    limits: dict[str, Any] = LIMITS.get(name, {})
    text = f"{SEARCH_TEXTS[name]} Left out: as the preset has it."
    if get_origin(kind) is tuple:
        return str | None, Field(None, description=text, pattern=numbers(len(get_args(kind))), max_length=100)
    if NoneType in get_args(kind):
        (wanted,) = (part for part in get_args(kind) if part is not NoneType)
        return Annotated[wanted, Field(**limits)] | Literal["none"] | None, Field(None, description=text)
    return kind | None, Field(None, description=text, **limits)


_Options = create_model("_Options", __base__=Common, **{name: _parameter(name, kind) for name, kind in OPTIONS.items()})


class SearchParameters(_Options):  # type: ignore[misc, valid-type]  # its fields are those of SearchOptions
    """How to search, and what with unless a photograph is sent."""

    query: QueryName | None = None


class BatchParameters(_Options):  # type: ignore[misc, valid-type]
    """How to search for several, and what with besides the photographs that are sent."""

    query: list[QueryName] = Field(default=[], max_length=64)


class ExplainParameters(_Options):  # type: ignore[misc, valid-type]
    """Which hit to explain, of which question."""

    query: QueryName
    image: ImageId = Field(description="The hit.")
    limit: int = Field(500, ge=0, le=5000, description="Matches told of, the heaviest first.")


class PageParameters(BaseModel):
    """Which part of the collection to list."""

    model_config = ConfigDict(extra="forbid")

    page: int = Field(0, ge=0, le=10**9)
    size: int = Field(60, ge=1, le=200)
    find: str = Field("", max_length=200, pattern=r"^[^\x00]*$", description="A text in the path.")


Point = tuple[float, float]


class Error(BaseModel):
    """What went wrong, in one line."""

    error: str


class HitResponse(BaseModel):
    """A photograph that shows the same thing."""

    image: int
    path: str
    score: float
    inliers: int
    outline: list[Point] | None  # corners of the query's frame, or of its region, in this photograph
    width: int
    height: int
    probability: float | None  # of showing the same thing; null: nobody knows


class SearchResponse(BaseModel):
    """What the index says to a photograph; as `polyvoc search --json` prints it."""

    query: str
    region: tuple[float, float, float, float] | None
    options: dict[str, Any]
    hits: list[HitResponse]
    complete: bool  # was every photograph of the collection asked?
    missing: list[tuple[int, int]]  # if not: ranges of ids, both ends included; their machines do not answer now
    seconds: dict[str, float]


class FailureResponse(BaseModel):
    """A photograph of a batch that could not ask."""

    query: str
    error: str


class StoredQuery(BaseModel):
    """A photograph that was sent and is kept for a while."""

    query: str
    name: str
    width: int
    height: int
    features: int


class ImageSummary(BaseModel):
    """A photograph of the collection."""

    image: int
    path: str
    name: str
    width: int
    height: int
    features: int


class ImageDetails(ImageSummary):
    """One of which it is known whether its file is still there."""

    available: bool


class Listing(BaseModel):
    """A page of the collection."""

    images: list[ImageSummary]
    total: int
    page: int
    pages: int


class QueryInfo(BaseModel):
    """The photograph that asked."""

    name: str
    width: int
    height: int


class MatchResponse(BaseModel):
    """Two features that share words."""

    query_xy: Point
    image_xy: Point
    words: list[int | None]  # per vocabulary, null where they differ
    mask: int  # bit k: vocabulary k + 1 gives both the same word
    sets: str
    ratio: float
    weight: float
    distances: list[int | None]  # of Hamming, per vocabulary
    inlier: bool


class ExplanationResponse(BaseModel):
    """Why a photograph answered."""

    query: QueryInfo
    image: ImageDetails
    score: float  # sum of the weights: before burstiness, verification and what follows
    inliers: int
    outline: list[Point] | None
    transform: list[tuple[float, float, float]] | None
    n_vocabularies: int
    n_matches: int
    matches: list[MatchResponse]


class ProblemResponse(BaseModel):
    """A photograph that could not be added."""

    path: str
    reason: str


class Added(BaseModel):
    """What became of photographs that were sent."""

    added: list[ImageSummary]
    problems: list[ProblemResponse]


class Removed(BaseModel):
    """The photograph that was removed."""

    removed: int


class Health(BaseModel):
    """Whether the server is well."""

    status: Literal["ok", "stale"]  # stale: the index has changed and could not be opened anew
    commit: int
    images: int


class SessionCreated(BaseModel):
    """The token was right."""

    ok: bool
