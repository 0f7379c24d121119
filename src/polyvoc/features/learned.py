"""Pixels -> local features, by a network in an ONNX file with a JSON file beside it that describes it (`NetworkDescription`).

The network returns maps of scores and descriptors, or keypoints directly. Of maps: local maxima above a threshold, positions
between pixels by parabolas, descriptors interpolated between the cells of their map. Several scales are a pyramid of the image.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from polyvoc.errors import ImageError, OptionError, one_line
from polyvoc.features.onnx import fingerprint_of, open_session, read_model
from polyvoc.options import DETECTOR_KINDS, FeatureOptions
from polyvoc.storage.stores import display_name
from polyvoc.types import Array, FeatureKind, Floats32, NetworkFile

GREY = "grey"
MAX_SCALE, MAX_SCALES = 4.0, 16
MAX_MULTIPLE = 1024
MAX_RADIUS = 64
PROBED_SIDE = 96  # pixels of the image that a network is tried with when it is loaded
ENLARGED = 0.8  # a level with fewer pixels per pixel than this is averaged, others are interpolated
LOADED = 4  # networks that stay loaded
Found = tuple[Array, Floats32, Floats32, Array]  # of a level, in its pixels: positions, scores, angles, descriptors


@dataclass(frozen=True)
class NetworkDescription:
    """What a network takes and returns: the JSON file beside it. Outputs are named as in the ONNX file."""

    name: str  # of the kind of its features
    dimension: int  # numbers of a descriptor
    descriptors: str  # output: a map [1, dimension, h, w]; with `positions` rows [n, dimension]
    # Output: a map [1, 1, h, w]; or logits [1, s s + 1, h, w] of cells of s x s pixels, the last for "no keypoint"; with
    # `positions` [n].
    scores: str
    reliability: str | None = None  # output: a map [1, 1, h, w] that the scores are multiplied by
    positions: str | None = None  # output [n, 2]: keypoints given directly, x and y in pixels of the input
    angles: str | None = None  # output [n] with `positions`: degrees, clockwise from the right; without it they are unknown
    channels: str = GREY  # of the input [1, 1, h, w], which is (pixel / 255 - mean) / std
    mean: float = 0.0
    std: float = 1.0
    multiple: int = 1  # the sides of the input are multiples of this
    threshold: float = 0.0  # a keypoint scores more than this, before the reliability
    radius: int = 2  # pixels: a keypoint is the maximum within a square of this half side
    diameter: float = 16.0  # pixels of the input that a feature describes
    scales: tuple[float, ...] = (1.0,)  # of the pyramid: sides of each level relative to the image

    def __post_init__(self) -> None:
        """Raise OptionError if a value is invalid."""
        texts = (self.name, self.descriptors, self.scores, self.channels)
        optional = (self.reliability, self.positions, self.angles)
        numbers = (self.mean, self.std, self.threshold, self.diameter)
        if not all(isinstance(text, str) and text for text in texts) or not all(isinstance(o, str | None) for o in optional):
            raise OptionError("name, descriptors, scores, channels, reliability, positions and angles should be texts")
        if not all(isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x) for x in numbers):
            raise OptionError("mean, std, threshold and diameter should be numbers")
        if not (self.std > 0 and self.diameter > 0):
            raise OptionError("std and diameter should be above 0")
        for name, low, high in (("dimension", 1, 1 << 16), ("multiple", 1, MAX_MULTIPLE), ("radius", 0, MAX_RADIUS)):
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise OptionError(f"{name}={value!r} should be a whole number from {low} to {high}")
        fits = isinstance(self.scales, tuple) and all(isinstance(s, int | float) and 0 < s <= MAX_SCALE for s in self.scales)
        if not fits or not 1 <= len(self.scales) <= MAX_SCALES:
            raise OptionError(f"scales={self.scales!r} should be 1 to {MAX_SCALES} numbers above 0, at most {MAX_SCALE:g}")
        if self.channels != GREY:
            raise OptionError(f"channels={self.channels!r}: only networks that take grey pixels can be used; choose such a one")
        if self.angles is not None and self.positions is None:
            raise OptionError("angles need positions: of maps, angles are not read")
        if FeatureKind(self.name, self.dimension).name in {kind.name for kind in DETECTOR_KINDS.values()}:
            raise OptionError(f"name={self.name!r} is that of other features; choose another name")

    @classmethod
    def beside(cls, model: Path) -> NetworkDescription:
        """Read the JSON file beside a network, `network.json` for `network.onnx`; raise OptionError if it is no description."""
        path = model.with_suffix(".json")
        if not path.is_file():
            raise OptionError(f"{display_name(model)}: it needs a description beside it, {path.name}; see docs/learned.md")
        try:
            stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            stored |= {name: tuple(value) for name, value in stored.items() if isinstance(value, list)}
            return cls(**stored)
        except (OSError, ValueError, TypeError, AttributeError, RecursionError, OptionError) as error:
            raise OptionError(f"{display_name(path)}: {one_line(error)}; see docs/learned.md") from error

    @property
    def outputs(self) -> list[str]:
        """Return the names of the outputs that are read."""
        named = (self.descriptors, self.scores, self.reliability, self.positions, self.angles)
        return list(dict.fromkeys(name for name in named if name is not None))


class LevelFeatures(NamedTuple):
    """Features of one level of the pyramid, in pixels of the image."""

    xy: Floats32  # [n, 2]
    scores: Floats32  # [n]
    scale: Floats32  # [n]
    angle: Floats32  # [n] degrees, NaN: unknown
    descriptors: Floats32  # [n, dimension] of unit length


@dataclass(frozen=True, eq=False)
class LearnedDetector:
    """A network that finds features. Several threads may share it."""

    network: NetworkFile
    description: NetworkDescription
    data: bytes
    _sessions: dict[int, Any] = field(default_factory=dict)
    _opening: Any = field(default_factory=threading.Lock)

    def find(self, pixels: npt.NDArray[np.uint8], max_features: int, threads: int = 1) -> tuple[Floats32, Floats32]:
        """Return the strongest features of pixels [h, w], strongest first; of equal ones by level, then from the top.

        A table [n, 4] of x, y, diameter and angle (degrees; NaN: unknown); descriptors [n, dimension] of unit length. Raise
        ImageError if the network fails.
        """
        session = self._session(threads)
        try:
            levels = [self._level(session, pixels, scale, max_features) for scale in self.description.scales]
        except MemoryError:
            raise
        except Exception as error:  # networks raise anything
            raise ImageError(f"the network {self.network.name} fails on it ({one_line(error)}); remove it") from error
        found = LevelFeatures(*(np.concatenate(column) for column in zip(*levels, strict=True)))
        order = np.argsort(-found.scores, kind="stable")[:max_features]
        table = np.column_stack([found.xy, found.scale, found.angle]).astype(np.float32)
        return table[order], found.descriptors[order]

    def probe(self) -> None:
        """Run the network once, so that its errors are raised now and not for each image of a collection."""
        noise = np.random.default_rng(0).integers(0, 256, (PROBED_SIDE, PROBED_SIDE), np.uint8)
        try:
            for scale in self.description.scales:
                self._level(self._session(1), noise, scale, 1)
        except Exception as error:  # networks raise anything
            name = display_name(self.network.file)
            raise OptionError(f"{name}: not as its description says ({one_line(error)}); correct it") from error

    def _session(self, threads: int) -> Any:
        with self._opening:
            if threads not in self._sessions:
                name = display_name(self.network.file)
                session, inputs, outputs = open_session(self.data, threads, name, "learned")
                if len(inputs) != 1 or inputs[0][1] != "tensor(float)" or len(inputs[0][2]) != 4 or inputs[0][2][1] != 1:
                    raise OptionError(f"{name}: its inputs are {inputs}; it needs one of floats, [1, 1, h, w]")
                missing = sorted(set(self.description.outputs) - set(outputs))
                if missing:
                    raise OptionError(f"{name}: it has no output {missing[0]!r}, which its description names; it has {outputs}")
                self._sessions[threads] = session, inputs[0][0]
            return self._sessions[threads]

    def _level(self, session: Any, pixels: npt.NDArray[np.uint8], scale: float, most: int) -> LevelFeatures:
        """Return the features of one level of the pyramid, at most so many."""
        wanted, (height, width) = self.description, pixels.shape
        sides = [max(wanted.multiple, int(side * scale) // wanted.multiple * wanted.multiple) for side in (width, height)]
        level = resize(pixels, sides[0], sides[1])
        values = ((level / np.float32(255) - np.float32(wanted.mean)) / np.float32(wanted.std)).astype(np.float32)
        runner, input_name = session
        names = wanted.outputs
        outputs = dict(zip(names, runner.run(names, {input_name: values[None, None]}), strict=True))
        read = self._given if wanted.positions is not None else self._maxima
        xy, scores, angle, descriptors = read(outputs, (sides[1], sides[0]), most)
        factor = np.array([width / sides[0], height / sides[1]])  # pixels of the image per pixel of the level
        diameter = np.full(len(xy), wanted.diameter * math.sqrt(factor.prod()), np.float32)
        return LevelFeatures(((xy + 0.5) * factor - 0.5).astype(np.float32), scores, diameter, angle, _unit(descriptors))

    def _maxima(self, outputs: Mapping[str, Array], size: tuple[int, int], most: int) -> Found:
        """Return positions, scores, angles and descriptors of the maxima of a map of scores, the strongest."""
        wanted = self.description
        scores = score_map(outputs[wanted.scores])
        descriptors = _map_of(outputs[wanted.descriptors], wanted.dimension)
        y, x = np.nonzero(local_maxima(scores, wanted.threshold, wanted.radius))
        step = np.array([size[1] / scores.shape[1], size[0] / scores.shape[0]])  # pixels of the level per entry of the map
        strengths = scores[y, x].astype(np.float32)
        if wanted.reliability is not None:
            reliability = _map_of(outputs[wanted.reliability], 1)
            strengths = strengths * sample(reliability, np.column_stack([x, y]), scores.shape)[:, 0]
        best = np.lexsort((x, y, -strengths))[:most]
        best = best[strengths[best] > 0]
        xy = between_pixels(scores, x[best], y[best])
        found = sample(descriptors, xy, scores.shape)
        return (xy + 0.5) * step - 0.5, strengths[best], np.full(len(best), np.nan, np.float32), found

    def _given(self, outputs: Mapping[str, Array], size: tuple[int, int], most: int) -> Found:
        """Return positions, scores, angles and descriptors of keypoints that the network returns, the strongest."""
        wanted = self.description
        xy = _rows(outputs[str(wanted.positions)], 2).astype(np.float64)
        scores = np.asarray(outputs[wanted.scores], np.float32).reshape(-1)
        angle = np.full(len(xy), np.nan, np.float32)
        if wanted.angles is not None:
            angle = np.mod(np.asarray(outputs[wanted.angles], np.float32).reshape(-1), np.float32(360))
        descriptors = _rows(outputs[wanted.descriptors], wanted.dimension)
        if not len(xy) == len(scores) == len(angle) == len(descriptors):
            raise ValueError(f"{len(xy)} positions, {len(scores)} scores, {len(angle)} angles, {len(descriptors)} descriptors")
        if not np.isfinite(xy).all():
            raise ValueError("some positions are not finite")
        inside = np.asarray(((xy >= -0.5) & (xy <= np.array(size[::-1]) - 0.5)).all(axis=1))
        best = np.lexsort((xy[:, 0], xy[:, 1], -scores))
        best = best[inside[best] & (scores[best] > wanted.threshold)][:most]
        return xy[best], scores[best], angle[best], descriptors[best]


# -- files


def resolved(options: FeatureOptions) -> FeatureOptions:
    """Return feature options whose detector, where it is a file, was read: its name, what it makes, and its fingerprint."""
    if not options.is_file:
        return options
    path = Path(os.path.abspath(options.detector))
    states = tuple((status.st_mtime_ns, status.st_size) for one in (path, path.with_suffix(".json")) if (status := _stat(one)))
    network = _read(str(path), states)
    return replace(options, detector=network.name, network=network)


def load_network(network: NetworkFile) -> LearnedDetector:
    """Load the network of a file, once; raise OptionError if it is missing or another one now."""
    with _LOADING:
        return _load(network.file, network.fingerprint)


_LOADING = threading.Lock()


@lru_cache(LOADED)
def _load(file: str, fingerprint: str) -> LearnedDetector:
    path = Path(file)
    data, description = read_model(path), NetworkDescription.beside(path)
    network = _network_of(file, data, description)
    if network.fingerprint != fingerprint:
        raise OptionError(f"{display_name(path)} is not the network {fingerprint}, or its description differs; restore it, or "
                          "index again with a new --index")  # fmt: skip
    detector = LearnedDetector(network, description, data)
    detector.probe()
    return detector


@lru_cache(LOADED)
def _read(file: str, states: tuple[tuple[int, int], ...]) -> NetworkFile:
    """Return what a file is. states: of the file and its description, so that changed ones are read again."""
    return _network_of(file, read_model(Path(file)), NetworkDescription.beside(Path(file)))


def _network_of(file: str, data: bytes, description: NetworkDescription) -> NetworkFile:
    fingerprint = fingerprint_of(hashlib.sha256(data).hexdigest(), asdict(description))
    return NetworkFile(file, fingerprint, description.name, description.dimension)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (OSError, ValueError):
        return None


# -- arrays


def resize(pixels: npt.NDArray[np.uint8], width: int, height: int) -> npt.NDArray[np.uint8]:
    """Return pixels [h, w] in another size."""
    if pixels.shape == (height, width):
        return pixels
    averaged = width * height < ENLARGED**2 * pixels.size
    return np.asarray(cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA if averaged else cv2.INTER_LINEAR))


def score_map(output: Array) -> Floats32:
    """Return the scores of pixels [h, w]: of a map [1, 1, h, w], or of logits [1, s s + 1, h, w] of cells of s x s pixels."""
    if output.ndim != 4 or output.shape[0] != 1:
        raise ValueError(f"its scores have shape {list(output.shape)}, not [1, 1, h, w] or [1, s s + 1, h, w]")
    values = np.asarray(output[0], np.float32)
    if len(values) == 1:
        return np.ascontiguousarray(values[0])
    side = math.isqrt(len(values) - 1)
    if side * side != len(values) - 1:
        raise ValueError(f"its scores have {len(values)} channels, not 1 or s s + 1")
    powers = np.exp(values - values.max(axis=0))
    shares = powers[:-1] / powers.sum(axis=0)
    _, rows, columns = shares.shape
    shuffled = shares.reshape(side, side, rows, columns).transpose(2, 0, 3, 1)
    return np.ascontiguousarray(shuffled).reshape(rows * side, columns * side)


def local_maxima(scores: Floats32, threshold: float, radius: int) -> npt.NDArray[np.bool_]:
    """Return which scores [h, w] are above a threshold and the largest within `radius` pixels to each side."""
    square = np.ones((2 * radius + 1, 2 * radius + 1), np.uint8)
    highest = cv2.dilate(scores, square)
    return np.asarray((scores == highest) & (scores > threshold))


def between_pixels(scores: Floats32, x: Array, y: Array) -> npt.NDArray[np.float64]:
    """Return the positions [n, 2] of maxima: the vertex of a parabola through each and its neighbours, along each axis."""
    padded = np.pad(scores.astype(np.float64), 1, mode="edge")
    centre = padded[y + 1, x + 1]
    pairs = ((padded[y + 1, x], padded[y + 1, x + 2]), (padded[y, x + 1], padded[y + 2, x + 1]))
    shifts = []
    for before, after in pairs:
        bend = 2 * centre - before - after
        shifts.append(np.clip(np.divide(after - before, 2 * bend, out=np.zeros(len(bend)), where=bend > 0), -0.5, 0.5))
    return np.column_stack([x + shifts[0], y + shifts[1]])


def sample(values: Floats32, xy: Array, size: tuple[int, ...]) -> Floats32:
    """Return a map [channels, h, w] interpolated at positions [n, 2] in pixels of an image of a size (height, width)."""
    channels, height, width = values.shape
    rows = np.ascontiguousarray(values.reshape(channels, -1).T)
    at = (xy + 0.5) * (np.array([width, height]) / np.array([size[1], size[0]])) - 0.5
    at = np.clip(at, 0, np.array([width - 1, height - 1]))
    low = np.minimum(at.astype(np.int64), np.maximum(np.array([width, height]) - 2, 0))
    (u, v), (x, y) = (at - low).astype(np.float32).T, low.T
    right, below = np.minimum(x + 1, width - 1), np.minimum(y + 1, height - 1)
    corners = (
        (y * width + x, (1 - u) * (1 - v)),
        (y * width + right, u * (1 - v)),
        (below * width + x, (1 - u) * v),
        (below * width + right, u * v),
    )
    return np.asarray(sum(rows[place] * share[:, None] for place, share in corners), np.float32)


def _map_of(output: Array, channels: int) -> Floats32:
    if output.ndim != 4 or output.shape[:2] != (1, channels) or 0 in output.shape:
        raise ValueError(f"a map has shape {list(output.shape)}, not [1, {channels}, h, w]")
    return np.asarray(output[0], np.float32)


def _rows(output: Array, columns: int) -> Array:
    values = output[0] if output.ndim == 3 and len(output) == 1 else output
    if values.ndim != 2 or values.shape[1] != columns:
        raise ValueError(f"an output has shape {list(output.shape)}, not [n, {columns}]")
    return np.asarray(values)


def _unit(rows: Array) -> Floats32:
    """Return rows [n, dimension] of unit length; raise ValueError if some are not finite."""
    values = np.asarray(rows, np.float32)
    if not np.isfinite(values).all():
        raise ValueError("some descriptors are not finite")
    return np.asarray(values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), np.float32(1e-12)), np.float32)
