"""Photograph -> one global vector (ONNX)."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from polyvoc.errors import ImageError, OptionError
from polyvoc.features.decode import MIN_SIDE, read_rgb, resize
from polyvoc.storage.stores import display_name
from polyvoc.threads import count_threads, ordered_map
from polyvoc.types import Floats32, Location, Source

Pixels = npt.NDArray[np.uint8]  # [h, w, 3]  red, green, blue
Model = Callable[[Pixels], npt.ArrayLike]  # gives [d] or [1, d]
Triple = tuple[float, float, float]  # for red, green, blue
_P = TypeVar("_P", bound=Location)
# EfficientNet-Lite2, trained at 260 pixels, finds more when it sees more: mAP on 150 groups of Holidays is 85.5 with a long
# side of 260, 87.5 with 384, 88.2 with 448; time grows with the square.
DEFAULT_SIDE = 384
MAX_SIDE = 2048  # more is a mistake, and memory grows with its square
MAX_BYTES = 1 << 31  # of a model's file: the limit of its format
_KINDS: dict[str, Any] = {"tensor(float)": np.float32, "tensor(float16)": np.float16}  # inputs that pixels can be turned into


@dataclass(frozen=True)
class Preprocessing:
    """How pixels become the input of a model: (pixel / 255 - mean) / std. The default is that of most models, ImageNet's.

    For models that take values from -1 to 1, mean and std are 0.5.
    """

    side: int | None = None  # long side in pixels; None: the model's own, or DEFAULT_SIDE if it takes any
    mean: Triple = (0.485, 0.456, 0.406)
    std: Triple = (0.229, 0.224, 0.225)
    output: str | None = None  # which output of the model is the vector; None: the first

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        if self.side is not None and not (isinstance(self.side, int) and MIN_SIDE <= self.side <= MAX_SIDE):
            raise OptionError(f"side={self.side!r} should be a whole number from {MIN_SIDE} to {MAX_SIDE}")
        for name, values, least in (("mean", self.mean, -math.inf), ("std", self.std, 0.0)):
            if not (isinstance(values, tuple) and len(values) == 3 and all(_is_number(v) and v > least for v in values)):
                raise OptionError(f"{name}={values!r} should be three {'numbers' if least else 'numbers above 0'}")
        if not isinstance(self.output, str | None):
            raise OptionError(f"output={self.output!r} should be the name of an output")

    @classmethod
    def beside(cls, model: Path) -> Preprocessing:
        """Give what the JSON file beside a model says, `model.json` for `model.onnx`; the default if there is none."""
        path = model.with_suffix(".json")
        if not path.is_file():
            return cls()
        try:
            stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            stored |= {name: tuple(value) for name, value in stored.items() if isinstance(value, list)}
            return cls(**stored)
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            fields = ", ".join(cls.__dataclass_fields__)
            raise OptionError(f"{display_name(path)}: {_reason(error)}; it should be a JSON object of {fields}") from error


@dataclass(frozen=True, eq=False)
class Embedder:
    """Gives one unit vector per photograph. Make it with `load` or `of`; it may be used by several threads at once."""

    model: Model
    long_side: int  # pixels at which photographs are read
    dimension: int
    fingerprint: str  # 16 hex digits that change with the model and its preparation: vectors of two do not compare
    file: str | None = None  # absolute path of its ONNX file, if it has one

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], preparation: Preprocessing | None = None, threads: int | None = None
    ) -> Embedder:
        """Read a model from an ONNX file that holds all its weights; `threads` per photograph, None for all cores.

        It has one input, an image [1, 3, h, w] or [1, h, w, 3]. Where the model fixes h and w, photographs are stretched to
        them; else they keep their proportions, and their long side is at most `preparation.side`. Its output is a vector
        [1, d], or a map laid out as the input, whose mean over all places is taken.
        """
        file = Path(path)
        prepared = preparation or Preprocessing.beside(file)
        data = _read_model(file)
        network = _Network.open(data, prepared, threads, display_name(file))
        long_side = max(MIN_SIDE, 2 * max(network.size)) if network.size else prepared.side or DEFAULT_SIDE
        told = network.output, network.gain.tolist(), network.shift.tolist(), long_side
        probed = cls._probed(network, long_side, _digest(hashlib.sha256(data).hexdigest(), *told), display_name(file))
        return replace(probed, file=os.path.abspath(file))

    @classmethod
    def of(cls, model: Model, name: str, side: int = DEFAULT_SIDE) -> Embedder:
        """Take any function from pixels [h, w, 3], RGB of 8 bits with a long side of at most `side`, to numbers [d].

        `name` stands for the model in the fingerprint: change it whenever the function changes its answers.
        """
        Preprocessing(side=side)  # refuses a side that makes no sense
        return cls._probed(model, side, _digest(name, side), f"model {name!r}")

    @classmethod
    def _probed(cls, model: Model, long_side: int, fingerprint: str, name: str) -> Embedder:
        """Ask the model once: what is wrong with it is said now, not for each photograph of a collection."""
        noise = np.random.default_rng(0).integers(0, 256, (long_side, long_side, 3), np.uint8)
        try:
            dimension = len(_unit(model(noise)))
        except Exception as error:  # models raise anything
            raise OptionError(f"{name}: it gives no vector ({_reason(error)}); choose another model or output") from error
        return cls(model, long_side, dimension, fingerprint)

    def embed(self, source: Source) -> Floats32:
        """Give the unit vector [dimension] of one photograph: a path, an address in a store, or the bytes of its file."""
        return self.embed_pixels(read_rgb(source, self.long_side), display_name(source))

    def embed_many(
        self, sources: Iterable[_P], threads: int | None = None
    ) -> Generator[tuple[_P, Floats32 | ImageError], None, None]:
        """Give (path, vector), or (path, what is wrong with it), in the order of the sources, on all cores unless told.

        Quickest with a model loaded with `threads=1`.
        """
        return ordered_map(self._attempt, sources, count_threads(threads), "polyvoc-embed")

    def _attempt(self, path: Location) -> Floats32 | ImageError:
        try:
            return self.embed(path)
        except ImageError as error:
            return type(error)(str(error))  # anew: the traceback would keep the pixels alive

    def embed_pixels(self, pixels: Pixels, name: str = "pixels") -> Floats32:
        """Give the unit vector [dimension] of pixels already read; `name` says in messages what they show."""
        try:
            vector = _unit(self.model(pixels))
        except Exception as error:  # models raise anything
            raise ImageError(f"{name}: the model gives no vector for it ({_reason(error)}); remove it") from error
        if len(vector) != self.dimension:
            raise OptionError(f"{name}: the model gives {len(vector)} numbers, once it gave {self.dimension}; repair the model")
        return vector


@dataclass(frozen=True, eq=False)
class _Network:
    """A model of onnxruntime, from pixels to numbers."""

    session: Any
    input: str
    output: str
    kind: npt.DTypeLike  # of the numbers that it takes
    size: tuple[int, int] | None  # (height, width) that it insists on
    channels_last: bool  # [1, h, w, 3] instead of [1, 3, h, w]
    gain: Floats32  # [3]  input = pixel * gain + shift
    shift: Floats32  # [3]

    @classmethod
    def open(cls, data: bytes, preparation: Preprocessing, threads: int | None, name: str) -> _Network:
        session, inputs, outputs = _session(data, threads, name)
        source, kind, shape = inputs[0] if len(inputs) == 1 else ("", "", [])
        last = len(shape) == 4 and shape[1] != 3 and shape[3] == 3
        if len(shape) != 4 or kind not in _KINDS or not (_fits(shape[0], 1) and _fits(shape[3 if last else 1], 3)):
            raise OptionError(
                f"{name}: it takes {inputs}; choose a model with one input of floats, [1, 3, h, w] or [1, h, w, 3]"
            )
        if preparation.output not in (None, *outputs) or not outputs:
            raise OptionError(f"{name}: it has no output {preparation.output!r}; choose one of {outputs}")
        size = _fixed_size(shape[1:3] if last else shape[2:4], preparation.side, name)
        std = np.array(preparation.std)
        gain, shift = (1 / (255 * std)).astype(np.float32), (-np.array(preparation.mean) / std).astype(np.float32)
        return cls(session, source, preparation.output or outputs[0], _KINDS[kind], size, last, gain, shift)

    def __call__(self, pixels: Pixels) -> npt.NDArray[Any]:
        if self.size is not None:
            pixels = resize(pixels, width=self.size[1], height=self.size[0])
        values = (pixels * self.gain + self.shift).astype(self.kind)  # [h, w, 3]
        batch = values if self.channels_last else np.ascontiguousarray(values.transpose(2, 0, 1))
        (found,) = self.session.run([self.output], {self.input: batch[None]})
        answer: npt.NDArray[Any] = np.asarray(found)
        return answer.mean(axis=(1, 2) if self.channels_last else (2, 3), dtype=np.float64) if answer.ndim == 4 else answer


def _read_model(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise OptionError(f"{display_name(path)}: no such file; give the path of an ONNX file")
        if path.stat().st_size > MAX_BYTES:
            raise OptionError(f"{display_name(path)}: more than {MAX_BYTES >> 30} GB; choose a smaller model")
        return path.read_bytes()
    except (OSError, ValueError, MemoryError) as error:
        raise OptionError(f"{display_name(path)}: it cannot be read ({_reason(error)}); check its permissions") from error


def _session(data: bytes, threads: int | None, name: str) -> tuple[Any, list[tuple[str, str, list[Any]]], list[str]]:
    """Give a model ready to run, the (name, type, shape) of each input, and the names of its outputs."""
    count_threads(threads)  # refuses what makes no sense
    try:
        import onnxruntime
    except ImportError as error:
        raise OptionError(f"models need onnxruntime ({error}): pip install 'polyvoc[embedding]'") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads would burn the searchers' cores
    options.log_severity_level = 4  # what matters is raised too
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        inputs = [(entry.name, entry.type, list(entry.shape)) for entry in session.get_inputs()]
        return session, inputs, [entry.name for entry in session.get_outputs()]
    except Exception as error:  # one kind per fault, all of them private
        raise OptionError(f"{name}: not a model that onnxruntime can run ({_reason(error)}); replace it") from error


def _fixed_size(sides: list[Any], asked: int | None, name: str) -> tuple[int, int] | None:
    """Give the (height, width) that a model insists on, None if it takes any; refuse what contradicts it."""
    known = [side for side in sides if isinstance(side, int)]
    if not known:
        return None
    height, width = (side if isinstance(side, int) else known[0] for side in sides)
    if not all(0 < side <= MAX_SIDE for side in (height, width)) or asked not in (None, max(height, width)):
        limit = f"and the limit is {MAX_SIDE}" if asked is None else f"not side={asked}"
        raise OptionError(f"{name}: it takes images of {width} x {height} pixels, {limit}; leave side out or change the model")
    return height, width


def _fits(length: object, size: int) -> bool:
    """Tell whether an axis has this length, or any: a model then has a name or None there."""
    return length == size or not isinstance(length, int)


def _unit(answer: npt.ArrayLike) -> Floats32:
    """Give the numbers [d] or [1, d] of a model as a unit vector [d]; refuse those without a direction."""
    values = np.asarray(answer, np.float64)
    if values.ndim == 2 and len(values) == 1:
        values = values[0]
    if values.ndim != 1 or not values.size:
        raise ValueError(f"its output has shape {list(values.shape)}, not [d] or [1, d]")
    peak = float(np.abs(values).max())  # divided by first: squares would overflow or vanish
    if not (math.isfinite(peak) and peak > 0):
        raise ValueError("its output is all zero or not finite")
    values = values / peak
    unit: Floats32 = (values / np.linalg.norm(values)).astype(np.float32)
    return unit


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e30 < value < 1e30


def _reason(error: BaseException) -> str:
    """Give an error's text on one short line, or its kind if it has none."""
    return " ".join(str(error).split())[:200] or type(error).__name__
