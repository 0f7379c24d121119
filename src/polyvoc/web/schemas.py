"""Request parameters, made from the options record, and response models of the HTTP API.

`Hit`, `Problem` and `SearchFailure` are used as they are.
"""

from __future__ import annotations

from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model

from polyvoc.options import Option, Preset, SearchOptions, options_of
from polyvoc.search.hits import Hit
from polyvoc.search.index import Index
from polyvoc.types import Problem, Region

LARGEST_ID = (1 << 63) - 1  # of SQLite
# All but the likelihood table, which is a file on the server's disk.
OPTIONS = {one.name: one for one in options_of(SearchOptions) if one.name != "likelihood_table"}
NUMBER = r"-?\d+(\.\d+)?"
NO_URLS = "URLs are not fetched; upload the photograph in the field 'photo'"
ImageId = Annotated[int, Field(ge=0, le=LARGEST_ID)]
QueryName = Annotated[str, Field(min_length=1, max_length=40, description="Id of an image, or name of a stored upload.")]
Point = tuple[float, float]


def _number_list(count: int) -> str:
    """Return the pattern of `count` numbers separated by commas."""
    return f"^{NUMBER}(,{NUMBER}){{{count - 1}}}$"


def _reject_url(value: str | None) -> str | None:
    raise ValueError(NO_URLS)


class CommonParameters(BaseModel):
    """Parameters of every search besides the search options."""

    model_config = ConfigDict(extra="forbid")

    region: str | None = Field(
        None,
        description="x0,y0,x1,y1 in pixels of the upright photograph: search with the features inside it only.",
        pattern=_number_list(4),
        max_length=100,
    )
    preset: Preset = Field("default", description="Where the values of omitted options come from.")
    url: Annotated[str | None, AfterValidator(_reject_url)] = Field(None, description=f"Rejected: {NO_URLS}.")

    @property
    def box(self) -> Region | None:
        """Return the region as numbers."""
        if self.region is None:
            return None
        x0, y0, x1, y1 = map(float, self.region.split(","))
        return x0, y0, x1, y1

    def options(self, index: Index) -> SearchOptions:
        """Return the options of a search: those of the preset, replaced by the given ones."""
        given = {name: getattr(self, name) for name in OPTIONS}
        changes = {name: _parse(OPTIONS[name], value) for name, value in given.items() if value is not None}
        return index.options(preset=self.preset, **changes)


def _parse(option: Option, value: Any) -> Any:
    """Return the value of a parameter as the options record has it."""
    if get_origin(option.kind) is tuple:
        return tuple(map(float, value.split(",")))
    return None if value == "none" and option.optional else value


def _limits(option: Option) -> dict[str, Any]:
    maximum = min((limit for limit in (option.maximum, option.server_maximum) if limit is not None), default=None)
    limits = {"ge": option.minimum, "gt": option.above, "le": maximum}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _parameter(option: Option) -> Any:
    """Return the type and the field of the parameter for an option."""
    text = f"{option.help} Default: that of the preset."
    if get_origin(option.kind) is tuple:
        return str | None, Field(None, description=text, pattern=_number_list(len(get_args(option.kind))), max_length=100)
    if option.optional:
        (kind,) = (part for part in get_args(option.kind) if part is not NoneType)
        return Annotated[kind, Field(**_limits(option))] | Literal["none"] | None, Field(None, description=text)
    return option.kind | None, Field(None, description=text, **_limits(option))


_Options = create_model("_Options", __base__=CommonParameters, **{name: _parameter(option) for name, option in OPTIONS.items()})


class SearchParameters(_Options):  # type: ignore[misc, valid-type]  # its fields are those of SearchOptions
    """Options of a search, and its query unless a photograph is uploaded."""

    query: QueryName | None = None


class BatchParameters(_Options):  # type: ignore[misc, valid-type]
    """Options of several searches, and their queries besides the uploaded photographs."""

    query: list[QueryName] = Field(default=[], max_length=64)


class ExplainParameters(_Options):  # type: ignore[misc, valid-type]
    """The search and the hit to explain."""

    query: QueryName
    image: ImageId = Field(description="The hit.")
    limit: int = Field(500, ge=0, le=5000, description="Largest number of matches, heaviest first.")


class PageParameters(BaseModel):
    """The page of the list of images."""

    model_config = ConfigDict(extra="forbid")

    page: int = Field(0, ge=0, le=10**9)
    size: int = Field(60, ge=1, le=200)
    find: str = Field("", max_length=200, pattern=r"^[^\x00]*$", description="Text in the path.")


class Error(BaseModel):
    """What went wrong, in one line."""

    error: str


class SearchResponse(BaseModel):
    """Result of a search, as `polyvoc search --json` prints it."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)  # of Hit: all fields are always there

    query: str
    region: tuple[float, float, float, float] | None
    options: dict[str, Any]
    hits: list[Hit]
    complete: bool  # False: some images could not be searched because their machines are down
    missing: list[tuple[int, int]]  # their ids, as ranges with both ends included
    seconds: dict[str, float]  # by stage


class QueryInfo(BaseModel):
    """The query of an explanation."""

    name: str
    width: int
    height: int


class StoredQuery(QueryInfo):
    """An uploaded photograph that is stored for further searches."""

    query: str
    features: int


class ImageSummary(BaseModel):
    """An image of the index."""

    image: int
    path: str
    name: str
    width: int
    height: int
    features: int


class ImageDetails(ImageSummary):
    """An image of the index, and whether its file is there and unchanged."""

    available: bool


class ImageList(BaseModel):
    """A page of the list of images."""

    images: list[ImageSummary]
    total: int
    page: int
    pages: int


class Match(BaseModel):
    """Two features with common words."""

    query_xy: Point
    image_xy: Point
    words: list[int | None]  # per vocabulary, null where the words differ; by codes the fine word
    mask: int  # bit k: same word in vocabulary k + 1
    set_mask: int  # the set that decides the weight: `mask`, or with image_sets the lists that hold any feature of the image
    sets: str  # its name
    ratio: float
    weight: float
    distances: list[int | None]  # Hamming distance, per vocabulary; by codes the asymmetric distance
    inlier: bool


class ExplanationResponse(BaseModel):
    """Why an image is a hit."""

    query: QueryInfo
    image: ImageDetails
    score: float  # sum of the weights: before burstiness, verification and the following stages
    inliers: int
    outline: list[Point] | None
    transform: list[tuple[float, float, float]] | None
    n_vocabularies: int  # that vote; 1 for codes
    image_sets: bool  # whether the sets are of images, not of features
    n_matches: int
    matches: list[Match]


class Added(BaseModel):
    """The added images, and the photographs that could not be added."""

    added: list[ImageSummary]
    problems: list[Problem]


class Removed(BaseModel):
    """The removed image."""

    removed: int


class Health(BaseModel):
    """State of the server."""

    status: Literal["ok", "stale"]  # stale: the last commit of the index could not be opened
    commit: int
    images: int


class SessionCreated(BaseModel):
    """The token was right; the response sets the session cookie."""

    ok: bool
