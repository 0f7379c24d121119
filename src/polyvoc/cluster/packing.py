"""What travels between machines, in few bytes: numbers as narrow as they fit, equal rows once, records by their fields."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
SMALL = 64  # numbers: fewer are not worth a look


class _Packer(pickle.Pickler):
    """Pickles arrays narrow, and records without what they have computed of their fields."""

    def reducer_override(self, value: Any) -> Any:
        """Say how arrays and records are put together again."""
        if type(value) is np.ndarray and value.size >= SMALL and value.dtype.kind in "iuf":
            return _narrow(value)
        if is_dataclass(value) and not isinstance(value, type):
            return _record, (type(value), [getattr(value, field.name) for field in fields(value)])
        return NotImplemented


def pack(value: Any) -> bytes:
    """Give a value as bytes. Functions travel by name: those at the top level of a module."""
    out = io.BytesIO()
    _Packer(out, pickle.HIGHEST_PROTOCOL).dump(value)
    return out.getvalue()


def unpack(content: bytes) -> Any:
    """Give a value back; only for bytes from machines of one's own cluster."""
    return pickle.loads(content)  # noqa: S301 - Ray itself unpickles whatever its machines send


def _narrow(array: Array) -> Any:
    """Say how an array is made of fewer bytes: exactly the same numbers come out."""
    rows = array
    if len(array) > 1 and array.ndim > 1 and _are_equal(array):
        rows = array[:1]
    small = rows.astype(_narrowest(rows), copy=False)
    if small.nbytes == array.nbytes:
        return NotImplemented
    return _widened, (small.tobytes(), small.dtype.str, small.shape, array.dtype.str, len(array))


def _narrowest(array: Array) -> np.dtype[Any]:
    """Give the narrowest type that holds all numbers of an array exactly."""
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            exact = array.dtype == np.float64 and bool((array.astype(np.float32) == array).all())
        return np.dtype(np.float32) if exact else array.dtype
    if array.dtype.itemsize == 1 or not array.size:
        return array.dtype
    found = np.result_type(np.min_scalar_type(array.min()), np.min_scalar_type(array.max()))
    return array.dtype if found.kind == "f" else found  # which would not hold all of them exactly


def _are_equal(rows: Array) -> bool:
    """Tell whether all rows are the same, bit by bit."""
    bits = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
    return bool((bits == bits[:1]).all())


def _widened(content: bytes, kind: str, shape: Sequence[int], wanted: str, length: int) -> Array:
    rows = np.frombuffer(content, kind).reshape(shape).astype(wanted)
    return rows if len(rows) == length else np.repeat(rows, length, axis=0)


def _record(kind: type, values: Sequence[Any]) -> Any:
    """Give a record with these fields; it was checked when it was made."""
    made: Any = object.__new__(kind)
    for field, value in zip(fields(kind), values, strict=True):
        object.__setattr__(made, field.name, value)
    return made
