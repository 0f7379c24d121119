"""Image -> one global vector, by an ONNX model or any function."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.errors import ImageError, OptionError, one_line
from polyvoc.features.decode import MIN_SIDE, read_rgb
from polyvoc.features.onnx import fingerprint_of, open_session, read_model
from polyvoc.storage.stores import display_name
from polyvoc.types import Array, Floats32, Source

Pixels = npt.NDArray[np.uint8]  # [h, w, 3]  red, green, blue
Model = Callable[[Pixels], npt.ArrayLike]  # returns [d] or [1, d]
Triple = tuple[float, float, float]  # for red, green, blue
# EfficientNet-Lite2, trained at 260 pixels, finds more at a higher resolution: mAP on 150 groups of Holidays is 85.5 at 260
# pixels, 87.5 with 384, 88.2 with 448; time grows with the square.
DEFAULT_SIDE = 384
MAX_SIDE = 2048  # memory grows with its square
_INPUT_TYPES: dict[str, Any] = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


@dataclass(frozen=True)
class Preprocessing:
    """Conversion of pixels to the input of a model: (pixel / 255 - mean) / std. The default is that of most, ImageNet's."""

    side: int | None = None  # long side in pixels; None: that of the model, or DEFAULT_SIDE if it accepts any
    mean: Triple = (0.485, 0.456, 0.406)  # like std 0.5 for models that take values from -1 to 1
    std: Triple = (0.229, 0.224, 0.225)
    output: str | None = None  # the output of the model that is the vector; None: the first

    def __post_init__(self) -> None:
        """Raise OptionError if a value is invalid."""
        if self.side is not None and not (isinstance(self.side, int) and MIN_SIDE <= self.side <= MAX_SIDE):
            raise OptionError(f"side={self.side!r} should be a whole number from {MIN_SIDE} to {MAX_SIDE}")
        for name, values, lower in (("mean", self.mean, -math.inf), ("std", self.std, 0.0)):
            if not (isinstance(values, tuple) and len(values) == 3 and all(_is_number(v) and v > lower for v in values)):
                raise OptionError(f"{name}={values!r} should be three {'numbers' if lower else 'numbers above 0'}")
        if not isinstance(self.output, str | None):
            raise OptionError(f"output={self.output!r} should be the name of an output")

    @classmethod
    def beside(cls, model: Path) -> Preprocessing:
        """Read the JSON file beside a model, `model.json` for `model.onnx`; return the default if there is none."""
        path = model.with_suffix(".json")
        if not path.is_file():
            return cls()
        try:
            stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            stored |= {name: tuple(value) for name, value in stored.items() if isinstance(value, list)}
            return cls(**stored)
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            fields = ", ".join(cls.__dataclass_fields__)
            raise OptionError(f"{display_name(path)}: {one_line(error)}; it should be a JSON object with {fields}") from error


@dataclass(frozen=True, eq=False)
class Embedder:
    """A model that returns one unit vector per image. Made by `load` or `of`; several threads may share it."""

    model: Model
    long_side: int  # pixels at which images are read
    dimension: int
    fingerprint: str  # 16 hex digits that change with the model and its preprocessing: vectors of two models cannot be compared
    file: str | None = None  # absolute path of its ONNX file, if any

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], preprocessing: Preprocessing | None = None, threads: int | None = None
    ) -> Embedder:
        """Load a model from an ONNX file that holds all its weights; `threads` per image, None for all cores.

        It has one input, an image [1, 3, h, w] or [1, h, w, 3]. If the model fixes h and w, images are stretched to them;
        else they keep their proportions, and their long side is at most `preprocessing.side`. Its output is a vector
        [1, d], or a map laid out as the input, of which the mean over all positions is taken.
        """
        file = Path(path)
        preprocessing = preprocessing or Preprocessing.beside(file)
        data = read_model(file)
        network = _Network.open(data, preprocessing, threads, display_name(file))
        long_side = max(MIN_SIDE, 2 * max(network.size)) if network.size else preprocessing.side or DEFAULT_SIDE
        settings = network.output, network.gain.tolist(), network.shift.tolist(), long_side
        fingerprint = fingerprint_of(hashlib.sha256(data).hexdigest(), *settings)
        return replace(cls._probed(network, long_side, fingerprint, display_name(file)), file=os.path.abspath(file))

    @classmethod
    def of(cls, model: Model, name: str, side: int = DEFAULT_SIDE) -> Embedder:
        """Use any function from pixels [h, w, 3], RGB of 8 bits with a long side of at most `side`, to numbers [d].

        Change `name`, which is part of the fingerprint, whenever the function changes its results.
        """
        Preprocessing(side=side)  # checks the side
        return cls._probed(model, side, fingerprint_of(name, side), f"model {name!r}")

    @classmethod
    def _probed(cls, model: Model, long_side: int, fingerprint: str, name: str) -> Embedder:
        """Run the model once, so that its errors are raised now and not for each image of a collection."""
        noise = np.random.default_rng(0).integers(0, 256, (long_side, long_side, 3), np.uint8)
        try:
            dimension = len(_unit(model(noise)))
        except Exception as error:  # models raise anything
            raise OptionError(f"{name}: it returns no vector ({one_line(error)}); choose another model or output") from error
        return cls(model, long_side, dimension, fingerprint)

    def embed(self, source: Source, name: str | None = None) -> Floats32:
        """Return the unit vector [dimension] of a path, an address, or the bytes of a file; `name` is shown in errors."""
        name = display_name(name or source)
        return self.embed_pixels(read_rgb(source, self.long_side, name=name), name)

    def embed_pixels(self, pixels: Pixels, name: str = "pixels") -> Floats32:
        """Return the unit vector [dimension] of decoded pixels; `name` is shown in errors."""
        try:
            vector = _unit(self.model(pixels))
        except Exception as error:  # models raise anything
            raise ImageError(f"{name}: the model returns no vector for it ({one_line(error)}); remove it") from error
        if len(vector) != self.dimension:
            raise OptionError(f"{name}: the model returns {len(vector)} numbers instead of {self.dimension}; repair the model")
        return vector


@dataclass(frozen=True, eq=False)
class _Network:
    """A model of onnxruntime: pixels to numbers."""

    session: Any
    input_name: str
    output: str
    dtype: npt.DTypeLike  # of its input
    size: tuple[int, int] | None  # (height, width) of its input if fixed
    channels_last: bool  # [1, h, w, 3] instead of [1, 3, h, w]
    gain: Floats32  # [3]  input = pixel * gain + shift
    shift: Floats32  # [3]

    @classmethod
    def open(cls, data: bytes, preprocessing: Preprocessing, threads: int | None, name: str) -> _Network:
        session, inputs, outputs = open_session(data, threads, name)
        input_name, dtype, shape = inputs[0] if len(inputs) == 1 else ("", "", [])
        last = len(shape) == 4 and shape[1] != 3 and shape[3] == 3
        if len(shape) != 4 or dtype not in _INPUT_TYPES or not (_fits(shape[0], 1) and _fits(shape[3 if last else 1], 3)):
            raise OptionError(f"{name}: its inputs are {inputs}; it needs one of floats, [1, 3, h, w] or [1, h, w, 3]")
        if preprocessing.output not in (None, *outputs) or not outputs:
            raise OptionError(f"{name}: it has no output {preprocessing.output!r}; choose one of {outputs}")
        size = _fixed_size(shape[1:3] if last else shape[2:4], preprocessing.side, name)
        mean, std = np.array(preprocessing.mean), np.array(preprocessing.std)
        gain, shift = (1 / (255 * std)).astype(np.float32), (-mean / std).astype(np.float32)
        return cls(session, input_name, preprocessing.output or outputs[0], _INPUT_TYPES[dtype], size, last, gain, shift)

    def __call__(self, pixels: Pixels) -> Array:
        if self.size is not None:
            from polyvoc.features.pixels import resize  # loads Pillow, which nothing else here needs

            pixels = resize(pixels, width=self.size[1], height=self.size[0])
        values = (pixels * self.gain + self.shift).astype(self.dtype)  # [h, w, 3]
        batch = values if self.channels_last else np.ascontiguousarray(values.transpose(2, 0, 1))
        result: Array = np.asarray(self.session.run([self.output], {self.input_name: batch[None]})[0])
        return result.mean(axis=(1, 2) if self.channels_last else (2, 3), dtype=np.float64) if result.ndim == 4 else result


def _fixed_size(sides: list[Any], wanted: int | None, name: str) -> tuple[int, int] | None:
    """Return the (height, width) that a model fixes, None if it accepts any. Raise OptionError if `wanted` contradicts it."""
    fixed = [side for side in sides if isinstance(side, int)]
    if not fixed:
        return None
    height, width = (side if isinstance(side, int) else fixed[0] for side in sides)
    if not all(0 < side <= MAX_SIDE for side in (height, width)) or wanted not in (None, max(height, width)):
        limit = f"and the limit is {MAX_SIDE}" if wanted is None else f"not side={wanted}"
        raise OptionError(f"{name}: it takes images of {width} x {height} pixels, {limit}; omit side, or change the model")
    return height, width


def _fits(length: object, size: int) -> bool:
    """Return whether an axis has this length, or any: then it is a name or None."""
    return length == size or not isinstance(length, int)


def _unit(output: npt.ArrayLike) -> Floats32:
    """Return the output [d] or [1, d] of a model as a unit vector [d]. Raise ValueError if it has no direction."""
    values = np.asarray(output, np.float64)
    if values.ndim == 2 and len(values) == 1:
        values = values[0]
    if values.ndim != 1 or not values.size:
        raise ValueError(f"its output has shape {list(values.shape)}, not [d] or [1, d]")
    peak = float(np.abs(values).max())  # divide by it first: squares would overflow or vanish
    if not (math.isfinite(peak) and peak > 0):
        raise ValueError("its output is all zero or not finite")
    values = values / peak
    return np.asarray(values / np.linalg.norm(values), np.float32)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e30 < value < 1e30
