"""What is answered over HTTP, for the description of the interface: the answers themselves are plain values of the library."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

Point = tuple[float, float]


class Error(BaseModel):
    """What went wrong, in one line."""

    error: str


class Hit(BaseModel):
    """A photograph that shows the same thing."""

    image: int
    path: str
    score: float
    inliers: int
    outline: list[Point] | None  # corners of the query's frame, or of its region, in this photograph
    width: int
    height: int
    probability: float | None  # of showing the same thing; null: nobody knows


class Answer(BaseModel):
    """What the index says to a photograph; as `polyvoc search --json` prints it."""

    query: str
    region: tuple[float, float, float, float] | None
    options: dict[str, Any]
    hits: list[Hit]
    complete: bool  # was every photograph of the collection asked?
    missing: list[tuple[int, int]]  # if not: ranges of ids, both ends included; their machines do not answer now
    seconds: dict[str, float]


class Failure(BaseModel):
    """A photograph of a batch that could not ask."""

    query: str
    error: str


class Kept(BaseModel):
    """A photograph that was sent and is kept for a while."""

    query: str
    name: str
    width: int
    height: int
    features: int


class Photograph(BaseModel):
    """A photograph of the collection."""

    image: int
    path: str
    name: str
    width: int
    height: int
    features: int


class ShownPhotograph(Photograph):
    """One of which it is known whether its file is still there."""

    available: bool


class Listing(BaseModel):
    """A page of the collection."""

    images: list[Photograph]
    total: int
    page: int
    pages: int


class Asking(BaseModel):
    """The photograph that asked."""

    name: str
    width: int
    height: int


class Match(BaseModel):
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


class Explanation(BaseModel):
    """Why a photograph answered."""

    query: Asking
    image: ShownPhotograph
    score: float  # sum of the weights: before burstiness, verification and what follows
    inliers: int
    outline: list[Point] | None
    transform: list[tuple[float, float, float]] | None
    n_vocabularies: int
    n_matches: int
    matches: list[Match]


class Problem(BaseModel):
    """A photograph that could not be added."""

    path: str
    reason: str


class Added(BaseModel):
    """What became of photographs that were sent."""

    added: list[Photograph]
    problems: list[Problem]


class Removed(BaseModel):
    """The photograph that was removed."""

    removed: int


class Health(BaseModel):
    """Whether the server is well."""

    status: Literal["ok", "stale"]  # stale: the index has changed and could not be opened anew
    commit: int
    images: int


class Entered(BaseModel):
    """The token was right."""

    ok: bool
