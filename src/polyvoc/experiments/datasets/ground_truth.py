"""Ground truth of revisited Oxford and Paris, published as a pickle: read without running code of the file, then checked."""

from __future__ import annotations

import io
import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyvoc.errors import one_line
from polyvoc.experiments.datasets.descriptor_files import fail, open_file
from polyvoc.types import Region

MAX_BYTES = 64 << 20  # the published files have less than one megabyte
MAX_ANSWERS = 4_000_000  # in all; entries may share one list, so a small file could hold any number
MAX_NAME = 200  # characters
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
    except Exception as error:  # noqa: BLE001 - a damaged pickle can raise any exception
        fail(path, f"no revisited ground truth ({one_line(error)})", HINT)


class _PlainUnpickler(pickle.Unpickler):
    """Builds plain values and arrays of numbers. A name in the file is a function below or an error: nothing is imported."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the replacement of one of the few names in pickles of numbers and numpy arrays."""
        known = {
            "numpy.core.multiarray._reconstruct": lambda *_: _Array(),
            "numpy.core.multiarray.scalar": lambda kind, data: kind.parse(data).item(),
            "numpy.ndarray": None,  # argument of _reconstruct
            "numpy.dtype": lambda code, *_: _Kind(code),
            "_codecs.encode": lambda text, encoding: text.encode({"latin1": "latin1"}[encoding]),  # bytes in protocols 0 to 2
            "builtins.bytes": lambda: b"",
        }
        full = f"{module}.{name}".replace("numpy._core.", "numpy.core.").replace("__builtin__.", "builtins.")
        if full not in known:
            raise ValueError(f"it uses {full!r}, which is not data")
        return known[full]  # made anew for each name: a file that changes it changes nothing else


class _Kind:
    """A numpy dtype of numbers."""

    def __init__(self, code: str) -> None:
        if np.dtype(code).kind not in "biuf":
            raise ValueError(f"an array of {code!r}, not of numbers")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = self.dtype.newbyteorder(">" if state[1] == ">" else "<")

    def parse(self, data: bytes | str) -> np.ndarray[Any, Any]:
        return np.frombuffer(data.encode("latin1") if isinstance(data, str) else data, self.dtype)


class _Array:
    """A numpy array of at most one side longer than 1, flat."""

    values: np.ndarray[Any, Any] = np.empty(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, _, data = state
        values = kind.parse(data)
        if len(values) != math.prod(shape) or len(values) != max(shape, default=1) * bool(math.prod(shape)):
            raise ValueError(f"an array of shape {shape} with {len(values)} values; a list of numbers is expected")
        self.values = values


def _truth(content: Any) -> RevisitedTruth:
    _check_keys(content, ("imlist", "qimlist", "gnd"), "it")
    images, queries = _names(content["imlist"], "imlist"), _names(content["qimlist"], "qimlist")
    gnd = content["gnd"]
    if not isinstance(gnd, list | tuple) or len(gnd) != len(queries):
        raise ValueError(f"'gnd' should be a list of {len(queries)} entries, one for each name in 'qimlist'")
    entries = []
    answers = 0
    for number, values in enumerate(gnd):
        entry = _entry(values, f"entry {number} of 'gnd'", len(images))
        answers += len(entry.easy) + len(entry.hard) + len(entry.junk)
        if answers > MAX_ANSWERS:
            raise ValueError(f"more than {MAX_ANSWERS} answers")
        entries.append(entry)
    return RevisitedTruth(images, queries, tuple(entries))


def _entry(content: Any, what: str, images: int) -> RevisitedEntry:
    _check_keys(content, ("bbx", "easy", "hard", "junk"), what)
    easy, hard, junk = (_numbers(content[part], f"{part!r} of {what}", images) for part in ("easy", "hard", "junk"))
    return RevisitedEntry(_region(content["bbx"], f"'bbx' of {what}"), easy, hard, junk)


def _check_keys(content: Any, keys: tuple[str, ...], what: str) -> None:
    missing = [key for key in keys if not isinstance(content, dict) or key not in content]
    if missing:
        raise ValueError(f"{what} has no {missing[0]!r}")


def _names(content: Any, what: str) -> tuple[str, ...]:
    """Return names that are safe as parts of a path: a file must not lead out of its folder."""
    if not isinstance(content, list | tuple) or not content:
        raise ValueError(f"{what!r} should be a list of names")
    for number, name in enumerate(content):
        if not isinstance(name, str):
            raise ValueError(f"{what!r} should hold names, but number {number} is a {type(name).__name__}")
        unsafe = ".." in name or name == "." or any(letter in name for letter in "/\\:") or not name.isprintable()
        if not name.strip() or len(name) > MAX_NAME or unsafe:
            raise ValueError(f"number {number} of {what!r} is {name[:40]!r}, which is no name of a file")
    return tuple(content)


def _numbers(content: Any, what: str, images: int) -> tuple[int, ...]:
    values = _listed(content, what, images)
    for value in values:
        if type(value) is not int or not 0 <= value < images:  # True is an int, too
            wrong = f"is {value}" if type(value) is int else f"is a {type(value).__name__}"
            raise ValueError(f"{what} should hold numbers of images from 0 to {images - 1}, but one {wrong}")
    return tuple(values)


def _region(content: Any, what: str) -> Region:
    values = _listed(content, what, 4)
    if len(values) != 4 or not all(type(value) in (int, float) and math.isfinite(value) for value in values):
        raise ValueError(f"{what} should be four finite numbers")
    x1, y1, x2, y2 = map(float, values)
    if not (x1 < x2 and y1 < y2):
        raise ValueError(f"{what} should be x1, y1, x2, y2 of a region, but is {x1:g}, {y1:g}, {x2:g}, {y2:g}")
    return x1, y1, x2, y2


def _listed(content: Any, what: str, most: int) -> list[Any]:
    """Return the members of a list or an array, after a check of their number."""
    values = content.values if isinstance(content, _Array) else content
    if not isinstance(values, list | tuple | np.ndarray):
        raise ValueError(f"{what} should be a list or an array, not a {type(content).__name__}")
    if len(values) > most:
        raise ValueError(f"{what} has {len(values)} members, at most {most} are possible")
    return values.tolist() if isinstance(values, np.ndarray) else list(values)
