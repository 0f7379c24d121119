"""Records that travel between stages."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError, require

Array = npt.NDArray[Any]
Floats32 = npt.NDArray[np.float32]
Floats64 = npt.NDArray[np.float64]
Descriptors = Floats32 | npt.NDArray[np.bool_]  # [n, dimension]  rootSIFT: unit L2 norm; bool: those of a binary feature
Words = npt.NDArray[np.int32]
Region = tuple[float, float, float, float]  # x0, y0, x1, y1 in pixels of the upright photograph at its full size
Signatures = npt.NDArray[np.uint64]  # shaped as the words they belong to; more than 64 bits: one more axis, of two
SIFT = "sift"  # the kind of feature that the shipped vocabularies were trained on
# Told what is being done, how much of it is done, and how much there is in all.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class FeatureKind:
    """What descriptors are: those of one kind can be compared, others must not be mixed."""

    name: str = SIFT  # what made them: "sift", "orb", "superpoint", ...
    dimension: int = 128  # numbers, or bits, of a descriptor
    binary: bool = False  # bits, compared by their Hamming distance

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        require(bool(self.name) and self.name == self.name.strip(), "kind", self.name, "a name, such as superpoint")
        require(self.dimension >= 1, "dimension", self.dimension, "at least 1")

    def __str__(self) -> str:
        """Say it to people."""
        return f"{self.name} ({self.dimension} {'bits' if self.binary else 'numbers'})"


@dataclass(frozen=True, eq=False)
class Features:
    """The local features of one photograph, strongest first.

    Positions and scales are in pixels of the upright photograph at its full size; the centre of the first pixel is (0, 0).
    """

    xy: Floats32  # [n, 2]
    scale: Floats32  # [n]  diameter of the region
    angle: Floats32  # [n]  degrees, clockwise from the x axis
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
    def kind(self) -> FeatureKind:
        """Give what the descriptors are."""
        return FeatureKind(self.name, self.descriptors.shape[1], self.descriptors.dtype == np.bool_)

    def __len__(self) -> int:
        """Count the features."""
        return len(self.xy)

    def inside(self, region: Region) -> Features:
        """Give the features strictly inside a region; places keep their meaning, and the photograph its size."""
        held = inside_region(self.xy, region, (self.width, self.height))
        arrays = {name: getattr(self, name)[held] for name in ("xy", "scale", "angle", "descriptors")}
        return Features(**arrays, width=self.width, height=self.height, name=self.name)


def inside_region(xy: npt.NDArray[np.floating], region: Region, size: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Tell which places [n, 2] lie strictly inside a region of a photograph of some width and height; one does at least."""
    wanted = "x0 y0 x1 y1 in pixels with x0 < x1 and y0 < y1"
    require(len(region) == 4 and all(map(math.isfinite, region)), "region", region, wanted)
    x0, y0, x1, y1 = region
    require(x0 < x1 and y0 < y1, "region", region, wanted)
    shared = x0 < size[0] and y0 < size[1] and x1 > 0 and y1 > 0
    require(shared, "region", region, f"within the photograph of {size[0]} x {size[1]} pixels")
    held = strictly_inside(xy, region)
    if not held.any():
        raise OptionError(f"region={region!r} holds no feature; draw a larger one")
    return held


def strictly_inside(xy: npt.NDArray[np.floating], region: Region) -> npt.NDArray[np.bool_]:
    """Tell which places [n, 2] lie within a region and not on its border (as in the Oxford protocol)."""
    places = xy.astype(np.float64)  # a region may be larger than float32 can tell
    return np.asarray(((places > region[:2]) & (places < region[2:])).all(axis=1))


@dataclass(frozen=True)
class LikelihoodTable:
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
        require(size >= 2 and size & (size - 1) == 0, "evidence groups", size, "2^K")
        require(min(self.groups) >= 0, "evidence groups", min(self.groups), "0 or more")
        rising = all(math.isfinite(edge) for edge in self.edges) and list(self.edges) == sorted(set(self.edges))
        require(rising, "evidence edges", self.edges, "rising")
        fits = bool(self.rows) and len({len(row) for row in self.rows}) == 1 and len(self.rows) == (max(self.groups) + 1) * bins
        require(fits, "evidence rows", len(self.rows), f"{max(self.groups) + 1} groups of {bins} bins, all of one length")
        require(all(math.isfinite(x) for row in self.rows for x in row), "evidence rows", "nan or inf", "finite")

    @property
    def n_vocabularies(self) -> int:
        """Count the vocabularies that it was made for."""
        return len(self.groups).bit_length() - 1

    @property
    def bits(self) -> int:
        """Give the length of the signatures that it was made for."""
        return len(self.rows[0]) - 1


Spans = tuple[tuple[int, int], ...]  # ranges of image ids, both ends included


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


Location = Path | str  # a path, or an address in a store: that is always a str
Source = Location | bytes  # where a file is, or its bytes


@dataclass(frozen=True, eq=False)
class GreyImage:
    """An upright photograph in grey, reduced, and its size before that."""

    pixels: npt.NDArray[np.uint8]  # [h, w]
    width: int  # of the upright photograph at its full size
    height: int


@dataclass(frozen=True, eq=False)
class Keypoints:
    """Where the features of one image lie, how large they are and how they are turned; scale 0 means not known."""

    xy: Floats64  # [n, 2]
    scale: Floats64  # [n]
    angle: Floats64  # [n] degrees, clockwise from the x axis

    def __post_init__(self) -> None:
        """Take numbers of any type; refuse arrays that do not belong together or hold no numbers."""
        for name in ("xy", "scale", "angle"):
            values = np.asarray(getattr(self, name), np.float64)
            object.__setattr__(self, name, values)
            if not np.isfinite(values).all():
                raise OptionError(f"geometry: {name} holds values that are not finite; extract the features again")
        n = len(self.xy)
        if self.xy.shape != (n, 2) or self.scale.shape != (n,) or self.angle.shape != (n,):
            raise OptionError(f"geometry: xy {self.xy.shape}, scale {self.scale.shape}, angle {self.angle.shape} do not fit")
        if (self.scale < 0).any():
            raise OptionError("geometry: some scales are negative; extract the features again")

    def __len__(self) -> int:
        """Count the features."""
        return len(self.xy)


@dataclass(frozen=True, eq=False)
class ImageWords:
    """What an index keeps of one image. May be shared by threads."""

    words: Array  # [n, K]
    signatures: Array  # [n, K] ([n, K, 2] beyond 64 bits), or [n, 0] without signatures
    keypoints: Keypoints


ImageRef = tuple[int, int]  # segment, position


def keypoints_of(features: Features) -> Keypoints:
    """Give where features lie, as geometry wants it."""
    return Keypoints(*(values.astype(np.float64) for values in (features.xy, features.scale, features.angle)))
