"""Ground truth of revisited Oxford and Paris, published as a pickle: read without running code of the file, then checked."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from polyvoc.errors import one_line
from polyvoc.experiments.datasets.descriptor_files import fail, open_file
from polyvoc.types import Region

MAX_BYTES = 64 << 20  # the published files have less than one megabyte
MAX_ANSWERS = 4_000_000  # in all; entries may share one list, so a small file could hold any number
MAX_NAME = 200  # characters
MAX_CODE = 8  # characters of a numpy dtype, as `f8`
MAX_SIDES = 64  # of an array, as in numpy
SHOWN = 40  # characters of the file, at most, in the text of an error
HINT = "get gnd_roxford5k.pkl or gnd_rparis6k.pkl again from the authors of the revisited protocol"


@dataclass(frozen=True)
class RevisitedEntry:
    """The relevant images of one query, by number: easy to find, hard to find, junk."""

    region: Region  # x1, y1, x2, y2 of the object in the query, in pixels
    easy: tuple[int, ...]
    hard: tuple[int, ...]
    junk: tuple[int, ...]


@dataclass(frozen=True)
class RevisitedTruth:
    """The content of `gnd_roxford5k.pkl` or `gnd_rparis6k.pkl`; names are those of files without their suffix."""

    images: tuple[str, ...]  # the database; an image's number is its position here
    queries: tuple[str, ...]
    entries: tuple[RevisitedEntry, ...]  # one per query


def read_ground_truth(path: Path | str) -> RevisitedTruth:
    """Return the ground truth in a pickle of the revisited protocol, written by any Python."""
    path = Path(path)
    with open_file(path) as (file, size):
        if size > MAX_BYTES:
            fail(path, f"{size} bytes are too many for a ground truth", HINT)
        data = file.read(MAX_BYTES)
    try:
        return _truth(_PlainUnpickler(io.BytesIO(data), encoding="latin1").load())
    except _ContentError as error:
        fail(path, f"no revisited ground truth ({error})", HINT)
    except Exception as error:  # noqa: BLE001 - a damaged pickle can raise any exception
        fail(path, f"no revisited ground truth ({one_line(error, SHOWN)})", HINT)


class _ContentError(ValueError):
    """The content of a file is not what it should be, in words of this module: of the file at most `SHOWN` characters."""


def _set(content: Any, items: list[Any]) -> None:
    """Set keys and values of a dict: texts only, since the hash of nested tuples may take time exponential in their depth."""
    if type(content) is not dict:
        raise _ContentError(f"it sets a key of a {type(content).__name__}")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if type(key) is not str:
            raise _ContentError(f"it holds a dict with a {type(key).__name__} as key, which should be a text")
        content[key] = value


def _load_dict(unpickler: Any) -> None:
    items = unpickler.pop_mark()
    unpickler.append({})
    _set(unpickler.stack[-1], items)


def _load_item(unpickler: Any) -> None:
    value, key = unpickler.stack.pop(), unpickler.stack.pop()
    _set(unpickler.stack[-1], [key, value])


def _load_items(unpickler: Any) -> None:
    items = unpickler.pop_mark()
    _set(unpickler.stack[-1], items)


def _refuse_bytearray(_: Any) -> None:
    raise _ContentError("it holds a bytearray, which is not data")


def _refuse_set(_: Any) -> None:
    raise _ContentError("it holds a set, which is not data")


class _PlainUnpickler(pickle._Unpickler):
    """Builds plain values and arrays of numbers. A name in the file is a function below or an error: nothing is imported.

    In Python: the one in C has a table of values as long as the largest number that the file gives one, gigabytes if it lies.
    Both take the memory of a bytearray before its bytes are read, so there must be none. Values that a file builds may share
    their members and so be exponentially larger than it, if walked: nothing here hashes, compares or prints them.
    """

    dispatch: ClassVar = pickle._Unpickler.dispatch | {
        pickle.BYTEARRAY8[0]: _refuse_bytearray,
        pickle.EMPTY_SET[0]: _refuse_set,
        pickle.FROZENSET[0]: _refuse_set,
        pickle.DICT[0]: _load_dict,
        pickle.SETITEM[0]: _load_item,
        pickle.SETITEMS[0]: _load_items,
    }
    _encoded = 0  # bytes made from texts so far

    def find_class(self, module: str, name: str) -> Any:
        """Return the replacement of one of the few names in pickles of numbers and numpy arrays."""
        known = {
            "numpy.core.multiarray._reconstruct": lambda *_: _Array(),
            "numpy.core.multiarray.scalar": lambda kind, data: _parse(kind, data).item(),
            "numpy.ndarray": None,  # argument of _reconstruct
            "numpy.dtype": lambda code, *_: _Kind(code, self._encode),
            "_codecs.encode": lambda text, _: self._encode(text),  # bytes in protocols 0 to 2
            "builtins.bytes": lambda: b"",
        }
        full = f"{module}.{name}".replace("numpy._core.", "numpy.core.").replace("__builtin__.", "builtins.")
        if full not in known:
            raise _ContentError(f"it uses {full[:SHOWN]!r}, which is not data")
        return known[full]  # made anew for each name: a file that changes it changes nothing else

    def _encode(self, text: Any) -> bytes:
        """Return the bytes that Python 2 had; many arrays may share one text, and each would have a copy of it."""
        if type(text) is not str:
            raise _ContentError(f"it encodes a {type(text).__name__}, which should be a text")
        self._encoded += len(text)
        if self._encoded > MAX_BYTES:
            raise _ContentError(f"its arrays share more than {MAX_BYTES} bytes")
        return text.encode("latin1")


class _Kind:
    """A numpy dtype of numbers."""

    def __init__(self, code: str, encode: Callable[[str], bytes]) -> None:
        if type(code) is not str or len(code) > MAX_CODE or np.dtype(code).kind not in "biuf":
            raise _ContentError("it holds an array that is not of numbers")
        self.dtype = np.dtype(code)
        self._encode = encode

    def __setstate__(self, state: Any) -> None:
        if type(state) is not tuple or len(state) < 2:
            raise _ContentError("it holds a damaged array")
        self.dtype = self.dtype.newbyteorder(">" if state[1] == ">" else "<")

    def parse(self, data: bytes | str) -> np.ndarray[Any, Any]:
        return np.frombuffer(data if isinstance(data, bytes) else self._encode(data), self.dtype)


def _parse(kind: Any, data: Any) -> np.ndarray[Any, Any]:
    if type(kind) is not _Kind:
        raise _ContentError("it holds an array that is not of numbers")
    return kind.parse(data)


class _Array:
    """A numpy array of at most one side longer than 1, flat."""

    values: np.ndarray[Any, Any] = np.empty(0)

    def __setstate__(self, state: Any) -> None:
        if type(state) is not tuple or len(state) != 5:
            raise _ContentError("it holds a damaged array")
        _, shape, kind, _, data = state
        if type(shape) is not tuple or len(shape) > MAX_SIDES or not all(type(side) is int for side in shape):
            raise _ContentError("it holds an array whose shape is not of numbers")
        if not all(0 <= side <= MAX_BYTES for side in shape):  # the product of larger ones may take any memory and time
            raise _ContentError("it holds an array of an impossible shape")
        values = _parse(kind, data)
        if len(values) != math.prod(shape) or len(values) != max(shape, default=1) * bool(math.prod(shape)):
            raise _ContentError(f"an array of shape {str(shape)[:SHOWN]} with {len(values)} values, not a list of numbers")
        self.values = values


def _truth(content: Any) -> RevisitedTruth:
    _check_keys(content, ("imlist", "qimlist", "gnd"), "it")
    images, queries = _names(content["imlist"], "imlist"), _names(content["qimlist"], "qimlist")
    gnd = content["gnd"]
    if not isinstance(gnd, list | tuple) or len(gnd) != len(queries):
        raise _ContentError(f"'gnd' should be a list of {len(queries)} entries, one for each name in 'qimlist'")
    entries = []
    answers = 0
    for number, values in enumerate(gnd):
        entry = _entry(values, f"entry {number} of 'gnd'", len(images))
        answers += len(entry.easy) + len(entry.hard) + len(entry.junk)
        if answers > MAX_ANSWERS:
            raise _ContentError(f"more than {MAX_ANSWERS} answers")
        entries.append(entry)
    return RevisitedTruth(images, queries, tuple(entries))


def _entry(content: Any, what: str, images: int) -> RevisitedEntry:
    _check_keys(content, ("bbx", "easy", "hard", "junk"), what)
    easy, hard, junk = (_numbers(content[part], f"{part!r} of {what}", images) for part in ("easy", "hard", "junk"))
    return RevisitedEntry(_region(content["bbx"], f"'bbx' of {what}"), easy, hard, junk)


def _check_keys(content: Any, keys: tuple[str, ...], what: str) -> None:
    missing = [key for key in keys if not isinstance(content, dict) or key not in content]
    if missing:
        raise _ContentError(f"{what} has no {missing[0]!r}")


def _names(content: Any, what: str) -> tuple[str, ...]:
    """Return names that are safe as parts of a path: a file must not lead out of its folder."""
    if not isinstance(content, list | tuple) or not content:
        raise _ContentError(f"{what!r} should be a list of names")
    for number, name in enumerate(content):
        if not isinstance(name, str):
            raise _ContentError(f"{what!r} should hold names, but number {number} is a {type(name).__name__}")
        unsafe = ".." in name or name == "." or any(letter in name for letter in "/\\:") or not name.isprintable()
        if not name.strip() or len(name) > MAX_NAME or unsafe:
            raise _ContentError(f"number {number} of {what!r} is {name[:SHOWN]!r}, which is no name of a file")
    return tuple(content)


def _numbers(content: Any, what: str, images: int) -> tuple[int, ...]:
    values = _listed(content, what, images)
    for value in values:
        if type(value) is not int or not 0 <= value < images:  # True is an int, too
            wrong = f"is {_shown(value)}" if type(value) is int else f"is a {type(value).__name__}"
            raise _ContentError(f"{what} should hold numbers of images from 0 to {images - 1}, but one {wrong}")
    return tuple(values)


def _shown(value: int) -> str:
    return str(value) if abs(value) < 10**SHOWN else "larger"


def _region(content: Any, what: str) -> Region:
    values = _listed(content, what, 4)
    if len(values) != 4 or not all(type(value) in (int, float) and math.isfinite(value) for value in values):
        raise _ContentError(f"{what} should be four finite numbers")
    x1, y1, x2, y2 = map(float, values)
    if not (x1 < x2 and y1 < y2):
        raise _ContentError(f"{what} should be x1, y1, x2, y2 of a region, but is {x1:g}, {y1:g}, {x2:g}, {y2:g}")
    return x1, y1, x2, y2


def _listed(content: Any, what: str, most: int) -> list[Any]:
    """Return the members of a list or an array, after a check of their number."""
    values = content.values if isinstance(content, _Array) else content
    if not isinstance(values, list | tuple | np.ndarray):
        raise _ContentError(f"{what} should be a list or an array, not a {type(content).__name__}")
    if len(values) > most:
        raise _ContentError(f"{what} has {len(values)} members, at most {most} are possible")
    return values.tolist() if isinstance(values, np.ndarray) else list(values)
