"""Request parameters, made from the options record, and response models of the HTTP API.

`Hit`, `Problem` and `SearchFailure` are used as they are.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model

from polyvoc.duplicates import MIN_PROBABILITY
from polyvoc.index.catalogue import ImageFilter
from polyvoc.options import Option, Preset, SearchOptions, options_of
from polyvoc.search.hits import Hit
from polyvoc.search.index import Index
from polyvoc.search.joint import JointHit
from polyvoc.search.several import Indexes
from polyvoc.types import Problem, Region

LARGEST_ID = (1 << 63) - 1  # of SQLite
# All but the likelihood table, which is a file on the server's disk.
OPTIONS = {one.name: one for one in options_of(SearchOptions) if one.name != "likelihood_table"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NO_NUL = r"^[^\x00]*$"
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

    @property
    def given(self) -> dict[str, Any]:
        """Return the preset and the given options, as keywords of a search."""
        values = {name: getattr(self, name) for name in OPTIONS}
        changes = {name: _parse(OPTIONS[name], value) for name, value in values.items() if value is not None}
        return {"preset": self.preset, **changes}

    def options(self, index: Index | Indexes) -> SearchOptions:
        """Return the options of a search: those of the preset, replaced by the given ones."""
        return index.options(**self.given)


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
    find: str = Field("", max_length=200, pattern=NO_NUL, description="Text in the path.")
    folder: str = Field("", max_length=4096, pattern=NO_NUL, description="Only photographs below this folder.")
    changed_from: date | None = Field(None, description="Only files changed on this day (UTC) or later.")
    changed_until: date | None = Field(None, description="Only files changed on this day (UTC) or earlier.")
    image: list[ImageId] = Field(default=[], max_length=200, description="Only images with these ids; repeatable.")

    def filter(self) -> ImageFilter:
        """Return which images are wanted."""
        end = None if self.changed_until is None or self.changed_until == date.max else self.changed_until + timedelta(days=1)
        return ImageFilter(self.find, self.folder, _start_of(self.changed_from), _start_of(end), tuple(self.image))


def _start_of(day: date | None) -> int | None:
    """Return the begin of a day in nanoseconds, within what SQLite stores."""
    if day is None:
        return None
    seconds = round((datetime(day.year, day.month, day.day, tzinfo=UTC) - EPOCH).total_seconds())
    return max(-(1 << 63), min(seconds * 10**9, LARGEST_ID))


class GroupParameters(BaseModel):
    """The page of a list of groups."""

    model_config = ConfigDict(extra="forbid")

    page: int = Field(0, ge=0, le=10**9)
    size: int = Field(20, ge=1, le=100)


class DuplicateParameters(GroupParameters):
    """The page of the groups of copies, and which of them."""

    min_probability: float = Field(MIN_PROBABILITY, gt=0, le=1, description="Least probability of a copy.")
    decided: bool = Field(False, description="Also groups that the user has decided on.")


class VerdictParameters(BaseModel):
    """A verdict on two images."""

    model_config = ConfigDict(extra="forbid")

    first: ImageId
    second: ImageId
    verdict: Literal["same", "copy", "different", "none"] = Field(
        description="same: the same thing in another shot; none: withdraw the verdict."
    )


class Error(BaseModel):
    """What went wrong, in one line."""

    error: str


class SearchResponse(BaseModel):
    """Result of a search, as `polyvoc search --json` lists it."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)  # of Hit: all fields are always there

    query: str
    region: tuple[float, float, float, float] | None
    options: dict[str, Any]
    # The most probable first; by score where there is no probability. Those of several indexes have parts.
    hits: list[Hit] | list[JointHit]
    likely: int  # the first so many hits are more likely right than wrong
    nothing_found: bool  # no hit is likely; False where hits have no probability
    complete: bool  # False: some images could not be searched because their machines are down, or they are damaged
    missing: list[tuple[int, int]]  # their ids, as ranges with both ends included
    damage: list[str]  # one line for each damaged part of the index that was left out
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
    changed: str | None  # when its file was last changed, in UTC: 2026-05-30T12:00:00Z; null: not known


class ImageDetails(ImageSummary):
    """An image of the index, and whether its file is there and unchanged."""

    available: bool


class ImageList(BaseModel):
    """A page of the list of images."""

    images: list[ImageSummary]
    total: int
    page: int
    pages: int


class FolderCount(BaseModel):
    """A folder, and how many photographs of the index lie below it."""

    path: str
    images: int


class FolderList(BaseModel):
    """The folders of the photographs, sorted by path; the largest if there are very many."""

    folders: list[FolderCount]
    total: int


class GroupOfImages(BaseModel):
    """Images of one thing."""

    images: list[ImageSummary]  # the first of them
    total: int
    links: int  # verified pairs among them


class GroupList(BaseModel):
    """A page of the things that were seen more than once."""

    groups: list[GroupOfImages]
    total: int
    images: int  # in all groups
    linked: bool  # false: the images were never compared with one another
    page: int
    pages: int


class DuplicateFile(BaseModel):
    """A file of a group of copies."""

    image: int | None  # null: it is identical to another file, and could not be indexed
    path: str
    name: str
    width: int
    height: int
    bytes: int
    changed: str | None


class DuplicateCopy(DuplicateFile):
    """A file of a group that is not the one to keep."""

    kind: str  # identical, or copy
    probability: float
    verdict: str | None  # of the user
    alteration: str
    transform: list[tuple[float, float, float]]  # its points to points of the file to keep


class DuplicateGroup(BaseModel):
    """Copies, and the file to keep."""

    best: DuplicateFile
    reason: str
    copies: list[DuplicateCopy]


class OtherShot(BaseModel):
    """Two photographs of the same thing that are no copies."""

    first: ImageSummary
    second: ImageSummary
    probability: float
    transform: list[tuple[float, float, float]]


class DuplicateList(BaseModel):
    """A page of the groups of copies."""

    min_probability: float
    groups: list[DuplicateGroup]
    shots: list[OtherShot]  # on the first page; the most probable ones
    n_shots: int
    total: int
    hidden: int  # groups that the user has decided on
    copies: int  # besides the files to keep
    not_compared: int  # images that were added since the last comparison
    compared: bool  # false: there was none
    manage: bool  # whether this server keeps verdicts and moves files
    undoable: int  # moves that can be undone
    page: int
    pages: int


class VerdictKept(BaseModel):
    """The verdict is stored."""

    decisions: int  # pairs with a verdict


class MovedFile(BaseModel):
    """A file that was moved."""

    from_: str = Field(alias="from")
    to: str


class Moved(BaseModel):
    """Files that were moved, and those that could not be."""

    moved: list[MovedFile]
    problems: list[Problem]
    folder: str


class JobState(BaseModel):
    """How far long work is, or how it ended."""

    job: str  # what it does; "" before the first one
    state: Literal["idle", "running", "done", "cancelled", "failed"]
    stage: str
    done: int
    total: int  # 0: not known yet
    error: str  # why it failed, in one line
    seconds: float
    problems: list[Problem]  # the first of the files that could not be used
    n_problems: int
    skipped: dict[str, int]  # files that are no photographs by their names, by kind
    photographs: int  # that the index holds then


class FolderEntry(BaseModel):
    """A folder that may be chosen."""

    path: str
    name: str


class FolderListing(BaseModel):
    """The folders in a folder of this machine."""

    path: str  # "": the list of the roots
    parent: str | None  # null: there is none that may be chosen
    folders: list[FolderEntry]
    photographs: int  # directly in it
    more: bool  # there are further folders
    index: str | None  # where the index of this folder is made
    indexed: bool  # there is one: it is brought up to date


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


class Evidence(BaseModel):
    """What the features of one index have in common."""

    score: float  # sum of the weights: before burstiness, verification and the following stages
    inliers: int
    outline: list[Point] | None
    transform: list[tuple[float, float, float]] | None
    n_vocabularies: int  # that vote; 1 for codes
    image_sets: bool  # whether the sets are of images, not of features
    n_matches: int
    matches: list[Match]


class ExplanationResponse(Evidence):
    """Why an image is a hit."""

    query: QueryInfo
    image: ImageDetails


class KindEvidence(Evidence):
    """What the features of one kind have in common."""

    index: str  # path of the index
    kind: str


class JointExplanationResponse(BaseModel):
    """Why a photograph is a hit of several indexes: one part for each kind of features."""

    query: QueryInfo
    image: ImageDetails
    parts: list[KindEvidence]


class Added(BaseModel):
    """The added images, and the photographs that could not be added."""

    added: list[ImageSummary]
    problems: list[Problem]


class Removed(BaseModel):
    """The removed image."""

    removed: int


class Health(BaseModel):
    """State of the server."""

    # stale: the last commit of the index could not be opened; damaged: only the sound part of it is searched
    status: Literal["ok", "stale", "damaged"]
    commit: int
    images: int


class SessionCreated(BaseModel):
    """The token was right; the response sets the session cookie."""

    ok: bool
