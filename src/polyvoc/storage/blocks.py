"""Arrays of a folder in one mapped file, with a checksum per block: what is read can be verified before its first use.

    arrays      the arrays, one after the other, each at a multiple of ALIGNMENT; then the table: a checksum for every BLOCK
    meta.json   dtype, shape and offset of each array, their length together, and the checksum of the table

One file per folder takes one descriptor. A block is verified once, when something of it is about to be used; numbers that other
arrays are indexed with are compared with their limit at the same time. So nothing that was damaged or forged before its first
use leads a kernel outside an array.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DamagedError
from polyvoc.kernels.checksums import SOUND, checksum_blocks, verify_blocks
from polyvoc.storage.files import META, flush_file, flush_path, new_folder, read_meta
from polyvoc.types import Array

FILE = "arrays"
BLOCK = 1 << 12  # bytes: a page, because a search of a cold disk reads no more than the pages of its lists
ALIGNMENT = 64  # bytes: a cache line, and no number of an array crosses the end of a block
WORD = 8  # bytes that checksums are made of
REPAIR = "run 'polyvoc check --repair'"
DTYPES = ("<i8", "<f2", "<f4", "|u1", "<u2", "<u4", "<u8")
Limit = int | npt.NDArray[np.int64]  # numbers of an array are smaller: one limit for all, or one for each column


def write_arrays(folder: Path, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
    """Write arrays and `meta.json`, with more entries, as a folder that appears complete or not at all."""
    with new_folder(folder) as partial:
        entries, length = {}, 0
        with (partial / FILE).open("w+b") as file:
            for name, array in arrays.items():
                content = np.ascontiguousarray(array)
                entries[name] = [content.dtype.str, list(content.shape), length]
                file.write(content.reshape(-1).view(np.uint8).data)
                file.write(bytes(-content.nbytes % ALIGNMENT))
                length = file.tell()
            file.flush()
            table = _table(mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ))
            file.write(table.data)
            file.flush()
            flush_file(file.fileno())
        described = {"arrays": entries, "length": length, "table": _checksum(table)}
        (partial / META).write_text(json.dumps({**meta, **described}, indent=1, sort_keys=True), encoding="utf-8")
        flush_path(partial / META)


def _table(content: mmap.mmap | memoryview) -> npt.NDArray[np.uint32]:
    """Return the checksum of every block of some content, and zeros up to a multiple of ALIGNMENT."""
    n_blocks = -(-len(content) // BLOCK)
    table = np.zeros(n_blocks + -n_blocks % (ALIGNMENT // 4), np.uint32)
    checksum_blocks(np.frombuffer(content, np.uint64), BLOCK // WORD, table[:n_blocks])
    return table


def _checksum(table: npt.NDArray[np.uint32]) -> str:
    """Return the checksum of a table."""
    own = np.zeros(1, np.uint32)
    words = table.view(np.uint64)
    checksum_blocks(words, len(words), own)
    return f"{own[0]:08x}"


@dataclass(frozen=True, eq=False)
class ArrayFile:
    """The mapped arrays of a folder of `write_arrays`, and which of their blocks were verified. May be shared by threads."""

    path: Path
    meta: Mapping[str, Any]
    arrays: dict[str, Array]
    limits: dict[str, Limit]  # of arrays whose numbers lead somewhere
    _map: mmap.mmap
    _offsets: dict[str, int]
    _words: npt.NDArray[np.uint64]  # the arrays as checksums take them
    _checksums: npt.NDArray[np.uint32]  # of each block
    _verified: dict[str, npt.NDArray[np.uint8]] = field(default_factory=dict)  # of the blocks of each array
    passed: set[Any] = field(default_factory=set)  # further checks, by any name, that were passed

    @classmethod
    def open(cls, folder: Path) -> ArrayFile:
        """Map the arrays of a folder. Raise DamagedError if its description does not fit the file; no array is read yet."""
        path, meta = folder / FILE, read_meta(folder)
        mapped = _map_file(path)
        try:
            entries = {name: (_dtype(kind), tuple(shape), offset) for name, (kind, shape, offset) in meta["arrays"].items()}
            words, checksums = _parts(mapped, meta["length"])
            if _checksum(checksums) != meta["table"]:
                raise ValueError("the table of checksums has another checksum")
            arrays = {name: _array(memoryview(mapped)[: meta["length"]], *entry) for name, entry in entries.items()}
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DamagedError(f"{folder / META} does not fit {path} ({error!r}); {REPAIR}") from None
        file = cls(path, meta, arrays, {}, mapped, {name: offset for name, (_, _, offset) in entries.items()}, words, checksums)
        file._verified.update({name: np.zeros(len(file._blocks_of(name)), np.uint8) for name in arrays})
        return file

    def check_size(self) -> None:
        """Raise DamagedError if the file was cut: reading beyond its end would end the process."""
        if self._map.size() < len(self._map):
            raise DamagedError(f"{self.path} has {self._map.size()} bytes where {len(self._map)} are expected; {REPAIR}")

    def verify(self, *names: str) -> None:
        """Verify whole arrays. Raise DamagedError if one is damaged."""
        for name in names:
            if not self._verified[name].all():
                blocks = self._blocks_of(name)
                self._verify(name, np.array([blocks.start]), np.array([blocks.stop]))

    def verify_ranges(self, name: str, begins: Array | int, ends: Array | int, width: int = 1) -> None:
        """Verify elements begin .. end of an array, of many ranges at once, counted without axes; width: of what is counted."""
        scale = width * self.arrays[name].itemsize
        firsts, lasts = (self._offsets[name] + np.atleast_1d(at).astype(np.int64) * scale for at in (begins, ends))
        self._verify(name, firsts // BLOCK, np.where(lasts > firsts, -(-lasts // BLOCK), 0))

    def _blocks_of(self, name: str) -> range:
        """Return the blocks that an array lies in."""
        first, n_bytes = self._offsets[name], self.arrays[name].nbytes
        return range(first // BLOCK, -(-(first + n_bytes) // BLOCK) if n_bytes else first // BLOCK)

    def _verify(self, name: str, firsts: npt.NDArray[np.int64], lasts: npt.NDArray[np.int64]) -> None:
        """Verify some ranges of blocks of an array."""
        self.check_size()
        array, limit = self.arrays[name].reshape(-1), self.limits.get(name)
        values, limits = (array.view(np.uint8), np.empty(0, np.int64)) if limit is None else (array, np.atleast_1d(limit))
        place = (self._blocks_of(name).start, self._verified[name], values, self._offsets[name], limits)
        found = verify_blocks(self._words, BLOCK // WORD, self._checksums, firsts, lasts, *place)
        if found != SOUND and found % 2:
            raise DamagedError(f"{self.path}, {name} holds a number beyond {np.max(limits) - 1}; {REPAIR}")
        if found != SOUND:
            raise DamagedError(f"{self.path}, {name} is damaged: a checksum differs from the one recorded; {REPAIR}")


def _map_file(path: Path) -> mmap.mmap:
    """Map a file for reading."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing; {REPAIR}") from None
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise DamagedError(f"{path} cannot be read: {error}; {REPAIR}") from None


def _parts(mapped: mmap.mmap, length: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
    """Return the arrays and the table of a mapped file; raise ValueError if it has another length."""
    n_blocks = -(-length // BLOCK)
    if length <= 0 or length % ALIGNMENT or len(mapped) != length + 4 * (n_blocks + -n_blocks % (ALIGNMENT // 4)):
        raise ValueError(f"{len(mapped)} bytes")
    return np.frombuffer(mapped, np.uint64, length // WORD), np.frombuffer(mapped, np.uint32, offset=length)


def _dtype(text: str) -> np.dtype[Any]:
    """Return the type of numbers by its name in the description."""
    if text not in DTYPES:
        raise ValueError(text)
    return np.dtype(text)


def _array(mapped: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> Array:
    """Return a view of an array in a mapped file; raise ValueError if it does not lie within."""
    if not all(isinstance(n, int) and n >= 0 for n in (*shape, offset)) or offset % ALIGNMENT:
        raise ValueError(f"{dtype.str}{list(shape)} at {offset!r}")
    count = math.prod(shape)
    if offset + count * dtype.itemsize > len(mapped):
        raise ValueError(f"{dtype.str}{list(shape)} at {offset}")
    return np.frombuffer(mapped, dtype, count, offset).reshape(shape) if count else np.empty(shape, dtype)
