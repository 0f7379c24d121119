"""Records that travel between the stages, and the names of array types."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc.errors import EmptyRegionError, OptionError, require

Array = npt.NDArray[Any]
Floats32 = npt.NDArray[np.float32]
Floats64 = npt.NDArray[np.float64]
Descriptors = Floats32 | npt.NDArray[np.bool_]  # [n, dimension]  rootSIFT: unit L2 norm; bool: binary features
Words = npt.NDArray[np.int32]
Signatures = npt.NDArray[np.uint64]  # shaped as the words they belong to; above 64 bits one more axis, of two
Location = Path | str  # a path, or the address of a file in a store: that is always a str
Source = Location | bytes  # where a file is, or its bytes
Region = tuple[float, float, float, float]  # x0, y0, x1, y1 in pixels of the upright photograph at its full size
ImageRef = tuple[int, int]  # segment, position: where an image is stored
Spans = tuple[tuple[int, int], ...]  # ranges of image ids, both ends included
Progress = Callable[[str, int, int], None]  # called with the stage, what is done of it, and its total

SIFT = "sift"  # the kind of feature that the shipped vocabularies were trained on


@dataclass(frozen=True)
class FeatureKind:
    """What descriptors are: those of one kind can be compared, others must not be mixed."""

    name: str = SIFT  # what made them: "sift", "orb", "superpoint", ...
    dimension: int = 128  # numbers, or bits, of a descriptor
    binary: bool = False  # bits, compared by their Hamming distance

    def __post_init__(self) -> None:
        """Raise OptionError if a value is impossible."""
        if not self.name or self.name != self.name.strip():
            raise OptionError(f"kind={self.name!r} should be a name, such as superpoint")
        if self.dimension < 1:
            raise OptionError(f"dimension={self.dimension!r} should be at least 1")

    def __str__(self) -> str:
        """Return it as text for users."""
        return f"{self.name} ({self.dimension} {'bits' if self.binary else 'numbers'})"


@dataclass(frozen=True)
class NetworkFile:
    """The file of a network that finds features, and what it makes. Where it lies is no part of what it is."""

    file: str = field(compare=False)  # absolute path
    fingerprint: str  # 16 hex digits that change with the network and its description
    name: str  # of the kind of its features
    dimension: int  # numbers of a descriptor

    @property
    def kind(self) -> FeatureKind:
        """Return what it makes."""
        return FeatureKind(self.name, self.dimension)


@dataclass(frozen=True, eq=False)
class GreyImage:
    """An upright photograph in grey, reduced, and its size before that."""

    pixels: npt.NDArray[np.uint8]  # [h, w]
    width: int  # of the upright photograph at its full size
    height: int


@dataclass(frozen=True, eq=False)
class Features:
    """The local features of one photograph, strongest first.

    Positions and scales are in pixels of the upright photograph at its full size; the centre of the first pixel is (0, 0).
    """

    xy: Floats32  # [n, 2]
    scale: Floats32  # [n]  diameter of the region
    angle: Floats32  # [n]  degrees, clockwise from the x axis; NaN: unknown
    descriptors: Descriptors
    width: int  # of the upright photograph at its full size
    height: int
    name: str = SIFT  # what made the descriptors

    def __post_init__(self) -> None:
        """Convert arrays of any number type to float32; raise OptionError if their shapes differ."""
        for name in ("xy", "scale", "angle", "descriptors"):
            given = np.asarray(getattr(self, name))
            bits = name == "descriptors" and given.dtype == np.bool_
            with np.errstate(over="ignore"):  # infinite values raise where they would do harm
                object.__setattr__(self, name, given if bits else given.astype(np.float32, copy=False))
        for name in ("width", "height"):
            object.__setattr__(self, name, int(getattr(self, name)))
        n = len(self.xy)
        if self.xy.shape != (n, 2) or self.scale.shape != (n,) or self.angle.shape != (n,):
            raise OptionError(f"features: xy {self.xy.shape}, scale {self.scale.shape}, angle {self.angle.shape} do not fit")
        if self.descriptors.ndim != 2 or len(self.descriptors) != n:
            raise OptionError(f"features: {n} positions but descriptors of shape {self.descriptors.shape}")
        _ = self.kind  # raises if it is impossible

    @property
    def kind(self) -> FeatureKind:
        """Return what the descriptors are."""
        return FeatureKind(self.name, self.descriptors.shape[1], self.descriptors.dtype == np.bool_)

    @property
    def keypoints(self) -> Keypoints:
        """Return positions, scales and angles for geometry."""
        return Keypoints(*(values.astype(np.float64) for values in (self.xy, self.scale, self.angle)))

    def __len__(self) -> int:
        """Return the number of features."""
        return len(self.xy)

    def inside(self, region: Region) -> Features:
        """Return the features strictly inside a region; coordinates and the photograph's size stay the same."""
        kept = inside_region(self.xy, region, (self.width, self.height))
        arrays = {name: getattr(self, name)[kept] for name in ("xy", "scale", "angle", "descriptors")}
        return Features(**arrays, width=self.width, height=self.height, name=self.name)


def inside_region(xy: npt.NDArray[np.floating], region: Region, size: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Return which positions [n, 2] are strictly inside a region of a photograph of (width, height); raise if none is."""
    wanted = "x0 y0 x1 y1 in pixels with x0 < x1 and y0 < y1"
    require(len(region) == 4 and all(map(math.isfinite, region)), "region", region, wanted)
    x0, y0, x1, y1 = region
    require(x0 < x1 and y0 < y1, "region", region, wanted)
    overlaps = x0 < size[0] and y0 < size[1] and x1 > 0 and y1 > 0
    require(overlaps, "region", region, f"within the photograph of {size[0]} x {size[1]} pixels")
    kept = strictly_inside(xy, region)
    if not kept.any():
        raise EmptyRegionError(f"region={region!r} holds no feature; draw a larger one")
    return kept


def strictly_inside(xy: npt.NDArray[np.floating], region: Region) -> npt.NDArray[np.bool_]:
    """Return which positions [n, 2] are within a region and not on its border (as in the Oxford protocol)."""
    positions = xy.astype(np.float64)  # a region may be larger than float32 can represent
    return np.asarray(((positions > region[:2]) & (positions < region[2:])).all(axis=1))


@dataclass(frozen=True, eq=False)
class Keypoints:
    """Positions, scales and angles of the features of one image; scale 0 means unknown."""

    xy: Floats64  # [n, 2]
    scale: Floats64  # [n]
    angle: Floats64  # [n] degrees, clockwise from the x axis; NaN: unknown

    def __post_init__(self) -> None:
        """Convert arrays of any number type; raise OptionError if shapes differ or values are impossible."""
        for name in ("xy", "scale", "angle"):
            values = np.asarray(getattr(self, name), np.float64)
            object.__setattr__(self, name, values)
            if not (np.isfinite(values) | (np.isnan(values) if name == "angle" else False)).all():
                raise OptionError(f"geometry: {name} holds values that are not finite; extract the features again")
        n = len(self.xy)
        if self.xy.shape != (n, 2) or self.scale.shape != (n,) or self.angle.shape != (n,):
            raise OptionError(f"geometry: xy {self.xy.shape}, scale {self.scale.shape}, angle {self.angle.shape} do not fit")
        if (self.scale < 0).any():
            raise OptionError("geometry: some scales are negative; extract the features again")

    def __len__(self) -> int:
        """Return the number of features."""
        return len(self.xy)


def with_planes(signatures: npt.NDArray[np.uint64], axes: int) -> npt.NDArray[np.uint64]:
    """Return signatures with an axis for their planes of 64 bits after the first `axes`."""
    return signatures[..., None] if signatures.ndim == axes else signatures


class FeatureCodes(NamedTuple):
    """The codes of features, as an index stores them (`vocabulary.codes`)."""

    words: npt.NDArray[np.uint32]  # [n] of the fine vocabulary
    codes: npt.NDArray[np.uint64]  # [n, planes of 64 bits]
    rest: npt.NDArray[np.uint8]  # [n, parts] what the code leaves of the descriptor

    def chosen(self, rows: Any) -> FeatureCodes:
        """Return the codes of some features, by their numbers, a mask or a slice."""
        return FeatureCodes(self.words[rows], self.codes[rows], self.rest[rows])


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """What an index stores of one image. May be shared by threads."""

    words: Array  # [n, K]
    signatures: Array  # [n, K] ([n, K, 2] above 64 bits), or [n, 0] without signatures
    keypoints: Keypoints
    codes: FeatureCodes | None = None


@dataclass(frozen=True)
class LikelihoodTable:
    """Log-likelihood ratio of a match, in nats, by the lists that hold it, their cardinality ratio and its Hamming distance.

    ln p(set, ratio, distance | images show the same thing) / p(... | they do not), less that of a chance match of the set: 0
    is no evidence. Fitted by `experiments.fit.likelihood`; `scoring.rules.default_table` returns the shipped ones.
    """

    groups: tuple[int, ...]  # [2^K] the group that each set of lists (mask) belongs to
    edges: tuple[float, ...]  # between the bins of the cardinality ratio; none: one bin
    rows: tuple[tuple[float, ...], ...]  # [groups * bins][bits + 1] nats, by mean Hamming distance
    source: str = ""  # what it was fitted on

    def __post_init__(self) -> None:
        """Raise OptionError if the parts do not fit."""
        size, bins, lengths = len(self.groups), len(self.edges) + 1, {len(row) for row in self.rows}
        n_rows = (max(self.groups, default=0) + 1) * bins
        wrong = None
        if size < 2 or size & (size - 1):
            wrong = f"groups={size} should be 2^K"
        elif min(self.groups) < 0:
            wrong = f"groups={min(self.groups)} should be 0 or more"
        elif not all(map(math.isfinite, self.edges)) or list(self.edges) != sorted(set(self.edges)):
            wrong = f"edges={self.edges} should be rising"
        elif len(lengths) != 1 or len(self.rows) != n_rows:
            wrong = f"rows={len(self.rows)} should be {n_rows} of one length"
        elif not all(math.isfinite(x) for row in self.rows for x in row):
            wrong = "rows should be finite"
        if wrong is not None:
            raise OptionError(f"likelihood table: {wrong}")

    @cached_property
    def n_vocabularies(self) -> int:
        """Return the number of vocabularies that it was made for."""
        return len(self.groups).bit_length() - 1

    @cached_property
    def bits(self) -> int:
        """Return the length of the signatures that it was made for."""
        return len(self.rows[0]) - 1


@dataclass(frozen=True)
class CodeTable:
    """Log-likelihood ratio of a match of codes, in nats, by the distance of the visited word and that of the code.

    ln p(row, distance | images show the same thing) / p(... | they do not), less that of a chance match of the row. Fitted by
    `experiments.fit.code_table`; `scoring.codes.default_code_table` returns the shipped one.
    """

    edges: tuple[float, ...]  # between the rows: distance of the visited word relative to that of the nearest
    rows: tuple[tuple[float, ...], ...]  # [edges + 1][columns + 1] nats, by relative asymmetric distance
    reach: int  # Hamming distance beyond which codes are passed over
    source: str = ""  # what it was fitted on

    def __post_init__(self) -> None:
        """Raise OptionError if the parts do not fit."""
        lengths = {len(row) for row in self.rows}
        wrong = None
        if not all(map(math.isfinite, self.edges)) or list(self.edges) != sorted(set(self.edges)):
            wrong = f"edges={self.edges} should be rising"
        elif len(self.rows) != len(self.edges) + 1 or len(lengths) != 1 or min(lengths) < 2:
            wrong = f"rows={len(self.rows)} should be {len(self.edges) + 1} of one length"
        elif not all(math.isfinite(x) for row in self.rows for x in row):
            wrong = "rows should be finite"
        elif self.reach < 0:
            wrong = f"reach={self.reach} should be at least 0"
        if wrong is not None:
            raise OptionError(f"likelihood table: {wrong}")


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
    moved: int = 0  # files with the content of others that are gone: nothing was extracted
    unchanged: int = 0
    features: int = 0
    problems: list[Problem] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)  # files that are no photographs by their names, by kind
    absent: dict[str, int] = field(default_factory=dict)  # folders that are not there now, and the photographs kept of each

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)
