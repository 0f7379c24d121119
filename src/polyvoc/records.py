"""The frozen records that travel between the stages, and one options record per verb."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError

Floats = npt.NDArray[np.float32]
Descriptors = Floats | npt.NDArray[np.bool_]  # [n, dimension]  rootSIFT: unit L2 norm; bool: those of a binary feature
Words = npt.NDArray[np.int32]
Region = tuple[float, float, float, float]  # x0, y0, x1, y1 in pixels of the upright photograph at its full size
Signatures = npt.NDArray[np.uint64]  # shaped as the words they belong to; more than 64 bits: one more axis, of two

Merge = Literal["likelihood", "posterior", "bayes", "b0", "b1", "b2"]
Idf = Literal["average", "plain", "none"]
Norm = Literal["tfidf", "tf", "sqrt-tf", "features", "self", "none"]
Burstiness = Literal["none", "best", "intra", "inter", "both"]
BurstinessOn = Literal["auto", "difference", "all"]
Sets = Literal["feature", "image"]
Expansion = Literal["none", "average", "hamming"]
Detector = Literal["sift", "orb", "akaze", "affine"]

SIFT = "sift"  # the kind of feature that the shipped vocabularies were trained on

# Told what is being done, how much of it is done, and how much there is in all.
Progress = Callable[[str, int, int], None]


def _require(condition: bool, name: str, value: object, wanted: str) -> None:
    if not condition:
        raise OptionError(f"{name}={value!r} should be {wanted}")


@dataclass(frozen=True)
class Kind:
    """What descriptors are: those of one kind can be compared, others must not be mixed."""

    name: str = SIFT  # what made them: "sift", "orb", "superpoint", ...
    dimension: int = 128  # numbers, or bits, of a descriptor
    binary: bool = False  # bits, compared by their Hamming distance

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        _require(bool(self.name) and self.name == self.name.strip(), "kind", self.name, "a name, such as superpoint")
        _require(self.dimension >= 1, "dimension", self.dimension, "at least 1")

    def __str__(self) -> str:
        """Say it to people."""
        return f"{self.name} ({self.dimension} {'bits' if self.binary else 'numbers'})"


# What each detector makes. An affine region is described by SIFT, too: the same words serve it.
DETECTED: Mapping[str, Kind] = {
    "sift": Kind(),
    "affine": Kind(),
    "orb": Kind("orb", 256, True),
    "akaze": Kind("akaze", 486, True),
}


@dataclass(frozen=True, eq=False)
class Features:
    """The local features of one photograph, strongest first.

    Positions and scales are in pixels of the upright photograph at its full size; the centre of the first pixel is (0, 0).
    """

    xy: Floats  # [n, 2]
    scale: Floats  # [n]  diameter of the region
    angle: Floats  # [n]  degrees, clockwise from the x axis
    descriptors: Descriptors
    width: int  # of the upright photograph at its full size
    height: int
    name: str = SIFT  # what made the descriptors

    def __post_init__(self) -> None:
        """Take arrays of any number type as float32; refuse arrays that do not belong together."""
        for name in ("xy", "scale", "angle", "descriptors"):
            given = np.asarray(getattr(self, name))
            bits = name == "descriptors" and given.dtype == np.bool_
            with np.errstate(over="ignore"):  # what becomes infinite is refused where it would do harm
                object.__setattr__(self, name, given if bits else given.astype(np.float32, copy=False))
        for name in ("width", "height"):
            object.__setattr__(self, name, int(getattr(self, name)))
        n = len(self.xy)
        if self.xy.shape != (n, 2) or self.scale.shape != (n,) or self.angle.shape != (n,):
            raise OptionError(f"features: xy {self.xy.shape}, scale {self.scale.shape}, angle {self.angle.shape} do not fit")
        if self.descriptors.ndim != 2 or len(self.descriptors) != n:
            raise OptionError(f"features: {n} positions but descriptors of shape {self.descriptors.shape}")
        _ = self.kind  # refuses what is none

    @property
    def kind(self) -> Kind:
        """Give what the descriptors are."""
        return Kind(self.name, self.descriptors.shape[1], self.descriptors.dtype == np.bool_)

    def __len__(self) -> int:
        """Count the features."""
        return len(self.xy)

    def inside(self, region: Region) -> Features:
        """Give the features strictly inside a region; places keep their meaning, and the photograph its size."""
        held = inside(self.xy, region, (self.width, self.height))
        arrays = {name: getattr(self, name)[held] for name in ("xy", "scale", "angle", "descriptors")}
        return Features(**arrays, width=self.width, height=self.height, name=self.name)


def inside(xy: npt.NDArray[np.floating], region: Region, size: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Tell which places [n, 2] lie strictly inside a region of a photograph of some width and height; one does at least."""
    wanted = "x0 y0 x1 y1 in pixels with x0 < x1 and y0 < y1"
    _require(len(region) == 4 and all(map(math.isfinite, region)), "region", region, wanted)
    x0, y0, x1, y1 = region
    _require(x0 < x1 and y0 < y1, "region", region, wanted)
    shared = x0 < size[0] and y0 < size[1] and x1 > 0 and y1 > 0
    _require(shared, "region", region, f"within the photograph of {size[0]} x {size[1]} pixels")
    held = strictly_inside(xy, region)
    if not held.any():
        raise OptionError(f"region={region!r} holds no feature; draw a larger one")
    return held


def strictly_inside(xy: npt.NDArray[np.floating], region: Region) -> npt.NDArray[np.bool_]:
    """Tell which places [n, 2] lie within a region and not on its border (as in the Oxford protocol)."""
    places = xy.astype(np.float64)  # a region may be larger than float32 can tell
    return np.asarray(((places > region[:2]) & (places < region[2:])).all(axis=1))


@dataclass(frozen=True)
class FeatureOptions:
    """How photographs become features."""

    long_side: int = 1024  # larger photographs are reduced to this many pixels on their long side
    max_features: int = 3000  # the strongest are kept
    detector: Detector = "sift"  # affine: regions in the shape of what they show, not round; needs pycolmap

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        _require(self.detector in get_args(Detector), "detector", self.detector, "one of " + ", ".join(get_args(Detector)))
        _require(self.long_side >= 32, "long_side", self.long_side, "at least 32")
        _require(self.max_features >= 1, "max_features", self.max_features, "at least 1")

    @property
    def kind(self) -> Kind:
        """Give what the detector makes."""
        return DETECTED[self.detector]


@dataclass(frozen=True)
class Evidence:
    """How much a match says for "the same thing", in nats, by the lists that hold it, their ratio and its Hamming distance.

    ln p(set, ratio, distance | images show the same thing) / p(... | they do not), less what a chance match of the set gets:
    0 is no evidence. Fitted (`lab/likelihood.py`); `evidence.py` gives the tables that come with the package.
    """

    groups: tuple[int, ...]  # [2^K] the group that each set of lists (mask) belongs to
    edges: tuple[float, ...]  # between the bins of the cardinality ratio; none: one bin
    rows: tuple[tuple[float, ...], ...]  # [groups * bins][bits + 1] nats, by mean Hamming distance
    source: str = ""  # what it was fitted on

    def __post_init__(self) -> None:
        """Refuse a table whose parts do not fit."""
        size, bins = len(self.groups), len(self.edges) + 1
        _require(size >= 2 and size & (size - 1) == 0, "evidence groups", size, "2^K")
        _require(min(self.groups) >= 0, "evidence groups", min(self.groups), "0 or more")
        rising = all(math.isfinite(edge) for edge in self.edges) and list(self.edges) == sorted(set(self.edges))
        _require(rising, "evidence edges", self.edges, "rising")
        fits = bool(self.rows) and len({len(row) for row in self.rows}) == 1 and len(self.rows) == (max(self.groups) + 1) * bins
        _require(fits, "evidence rows", len(self.rows), f"{max(self.groups) + 1} groups of {bins} bins, all of one length")
        _require(all(math.isfinite(x) for row in self.rows for x in row), "evidence rows", "nan or inf", "finite")

    @property
    def n_vocabularies(self) -> int:
        """Count the vocabularies that it was made for."""
        return len(self.groups).bit_length() - 1

    @property
    def bits(self) -> int:
        """Give the length of the signatures that it was made for."""
        return len(self.rows[0]) - 1


@dataclass(frozen=True)
class SearchOptions:
    """How a query is scored. The defaults are those of the paper's system, completed by the posterior rule."""

    top: int = 10  # how many hits
    merge: Merge = "posterior"  # rule that merges the vocabularies
    idf: Idf = "average"  # ln(N / occurrences), ln(N / images), or 1; squared in the score
    norm: Norm = "tfidf"  # what an image's votes are divided by
    # (a, b) of term 2: p(intersection | true match) = a r + b. a + b = 1: two equal lists share every match. Fits with it give
    # b = 0.23 to 0.33; without signatures rankings gain a little up to b = 0.5 (docs/findings.md).
    line: tuple[float, float] = (0.6, 0.4)
    c: float = 30.0  # term 3 = ln(N c); the paper's Table 2
    hamming: int | None = None  # largest Hamming distance that still votes; None ignores signatures
    sigma: float = 16.0  # a vote at distance h counts exp(-h^2 / sigma^2)
    burstiness: Burstiness = "none"  # of repeated structure: keep the best match, or damp within an image, across images, both
    burstiness_on: BurstinessOn = "auto"  # "auto": the difference set for `bayes` (as the paper), else all
    sets: Sets = "feature"  # are the sets of the rules sets of features or of images?
    assignments: int = 1  # words per query feature and vocabulary
    evidence: Evidence | None = None  # for `likelihood`; None: the table that comes with the package
    verify: int = 0  # candidates whose arrangement is verified, and which are then ranked anew
    expansion: Expansion = "none"  # verified hits ask along with the query: their features join it, or change its signatures
    expand: int = 5  # verified hits that do, at most
    smooth: float = 0.0  # weight of an image's verified neighbours in its score: of an index that was linked
    fuse: bool = False  # hear the global embedding, too, of an index that was made with one
    sure: float = 0.0  # hits less probable than this are left out: at 0.9, perhaps all of them
    whole: bool = False  # of an index on a cluster: rather fail than answer without the images of machines that are down

    def __post_init__(self) -> None:
        """Refuse values that make no sense, naming the choices."""
        for name, kind in (("merge", Merge), ("idf", Idf), ("norm", Norm), ("burstiness", Burstiness),
                           ("burstiness_on", BurstinessOn), ("sets", Sets), ("expansion", Expansion)):  # fmt: skip
            value = getattr(self, name)
            _require(value in get_args(kind), name, value, "one of " + ", ".join(get_args(kind)))
        _require(self.top >= 1, "top", self.top, "at least 1")
        _require(0 < self.c < math.inf, "c", self.c, "positive")
        _require(self.hamming is None or self.hamming >= 0, "hamming", self.hamming, "0 or more, or None")
        _require(0 < self.sigma < math.inf, "sigma", self.sigma, "positive")
        _require(self.assignments >= 1, "assignments", self.assignments, "at least 1")
        _require(self.verify >= 0, "verify", self.verify, "0 or more")
        _require(self.expand >= 1, "expand", self.expand, "at least 1")
        _require(0 <= self.smooth < math.inf, "smooth", self.smooth, "0 or more")
        _require(0 <= self.sure <= 1, "sure", self.sure, "a probability, from 0 to 1")
        possible = self.expansion == "none" or self.verify > 0
        _require(possible, "expansion", self.expansion, "none unless hits are verified: give verify, such as 100")
        pair = len(self.line) == 2 and all(map(math.isfinite, self.line))
        _require(pair, "line", self.line, "a pair (a, b) of numbers")

    @property
    def signed(self) -> bool:
        """Tell whether Hamming signatures are compared."""
        return self.hamming is not None or self.merge == "likelihood"


@dataclass(frozen=True)
class PairOptions:
    """Which pairs of images are worth matching."""

    top: int = 20  # best other images of each one
    mutual: bool = False  # keep a pair only if each is among the best of the other
    least: float = 0.0  # score that a pair has at least
    verify: bool = False  # keep a pair only if matches agree on one arrangement
    inliers: int = 6  # matches that do, at least

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        _require(self.top >= 1, "top", self.top, "at least 1")
        _require(0 <= self.least < math.inf, "least", self.least, "0 or more")
        _require(self.inliers >= 1, "inliers", self.inliers, "at least 1")


@dataclass(frozen=True)
class TrainOptions:
    """How a vocabulary is trained."""

    size: int = 20_000  # words
    seed: int = 0  # of the sample and of the first words; give each vocabulary its own
    rounds: int = 20  # of k-means, at most
    bits: int = 128  # of a Hamming signature, at most, and no more than descriptors have numbers; 0 = none
    max_descriptors: int = 2_000_000  # drawn for k-means; the medians use all that are given

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        for name, least in (("size", 1), ("seed", 0), ("rounds", 1), ("bits", 0), ("max_descriptors", 1)):
            _require(getattr(self, name) >= least, name, getattr(self, name), f"at least {least}")
        _require(self.bits <= 128, "bits", self.bits, "at most 128")  # a signature is one or two uint64


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


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why a photograph answered: one row per pair of matching features, heaviest first."""

    hit: Hit
    query: npt.NDArray[np.int32]  # [m] feature number in the query
    feature: npt.NDArray[np.int32]  # [m] feature number in the photograph of the collection
    mask: npt.NDArray[np.int32]  # [m] bit k is set if vocabulary k gives both the same word
    words: Words  # [m, K] the word that vocabulary k gives both, -1 where their words differ
    weight: Floats  # [m] share of the score before burstiness
    ratio: Floats  # [m] cardinality ratio of the match's lists; of all K where only one holds it
    distance: npt.NDArray[np.int32]  # [m, K] Hamming distance, -1 where the words differ or there are no signatures
    query_xy: Floats  # [m, 2]
    feature_xy: Floats  # [m, 2]
    inlier: npt.NDArray[np.bool_]  # [m] does it agree with the arrangement of the others?
    transform: npt.NDArray[np.float64] | None  # [2, 3] places of the query to places of the photograph; None: no arrangement


Spans = tuple[tuple[int, int], ...]  # ranges of image ids, both ends included


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
class ClusterOptions:
    """Where on a cluster an index is held."""

    address: str = "auto"  # of a Ray cluster; "auto": the one that runs here; "local": one of this machine alone
    shards: int = 0  # parts that the segments are spread over, each held by a process; 0: one per core
    replicas: int = 1  # processes that hold the same part
    patience: float = 10.0  # seconds that a question waits for a part

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        _require(bool(self.address), "address", self.address, "that of a Ray cluster, auto or local")
        _require(self.shards >= 0, "shards", self.shards, "0 or more")
        _require(self.replicas >= 1, "replicas", self.replicas, "at least 1")
        _require(0 < self.patience < math.inf, "patience", self.patience, "positive")


@dataclass(frozen=True)
class Problem:
    """A file that could not be indexed, and why."""

    path: str
    reason: str


@dataclass
class IndexReport:
    """What a run of indexing did."""

    added: int = 0
    replaced: int = 0
    removed: int = 0
    unchanged: int = 0
    features: int = 0
    problems: list[Problem] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["problems"] = [{"path": p.path, "reason": p.reason} for p in self.problems]
        return values
