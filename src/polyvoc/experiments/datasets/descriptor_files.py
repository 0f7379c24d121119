"""Published files of SIFT descriptors: INRIA's `.siftgeo` and the text of Perdoch's Hessian-Affine detector."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DatasetError, one_line
from polyvoc.storage.files import replace_file
from polyvoc.types import Array, Floats32, Floats64

MAX_DIMENSION = 1 << 20  # a header with more is damaged or of another format
MAX_TEXT = 1 << 30  # bytes of a hesaff text: some three million features
SIFT_DIMENSION = 128  # of an empty .siftgeo, which does not store it
BLOCK = 1 << 16  # records that are checked or written at once
HINT = "get or make it again"
# INRIA's siftgeo.h: nine float32, the dimension, the descriptor; no header, little endian. 168 bytes if it has 128 numbers.
SIFTGEO: list[tuple[Any, ...]] = [
    ("xy", "<f4", (2,)),
    ("scale", "<f4"),
    ("angle", "<f4"),  # radians
    ("affine", "<f4", (4,)),  # mi11, mi12, mi21, mi22: shape of the region
    ("cornerness", "<f4"),  # strength of the detection
]


@dataclass(frozen=True, eq=False)
class SiftFeatures:
    """SIFT features of one image, in the units of `polyvoc.types.Features`."""

    xy: Floats32  # [n, 2] pixels
    scale: Floats32  # [n] diameter of the region in pixels
    angle: Floats32  # [n] degrees from 0 to 360
    descriptors: npt.NDArray[np.uint8]  # [n, dimension] SIFT as it is stored, not rootSIFT

    def __len__(self) -> int:
        """Return the number of features."""
        return len(self.xy)


def read_siftgeo(path: Path | str) -> SiftFeatures:
    """Return the features of a `.siftgeo` file; an empty file is an image without features.

    INRIA's own search engine compares scales by their ratio only and takes the difference of angles modulo 2 pi; the factor
    between its scale and a diameter in pixels depends on the detector and is not stored: scales are taken as diameters.
    """
    path = Path(path)
    with open_file(path) as (file, size):
        if size == 0:
            table = np.empty(0, _record(SIFT_DIMENSION))
        else:
            table = _map_records(path, file, size)
            _check_geometry(path, table)
        xy, scale, angle, descriptors = (np.array(table[name]) for name in ("xy", "scale", "angle", "descriptors"))
    degrees = np.mod(np.degrees(angle.astype(np.float64)), 360).astype(np.float32)
    return SiftFeatures(xy, scale, np.where(degrees < 360, degrees, 0), descriptors)  # 359.99999999 rounds up


def write_siftgeo(path: Path | str, features: SiftFeatures) -> None:
    """Write features as a `.siftgeo` file of circles without a strength."""
    n, dimension = features.descriptors.shape
    table = np.zeros(n, _record(dimension))
    table["xy"], table["scale"], table["angle"] = features.xy, features.scale, np.radians(features.angle)
    table["affine"], table["dimension"], table["descriptors"] = (1, 0, 0, 1), dimension, features.descriptors
    with replace_file(Path(path)) as partial:
        partial.write_bytes(table.tobytes())


def read_hesaff(path: Path | str) -> SiftFeatures:
    """Return the features of a text `dimension`, `n`, then n lines `x y a b c` and the descriptor.

    The ellipse a(u-x)^2 + 2b(u-x)(v-y) + c(v-y)^2 = 1 is the region; its diameter is that of the circle of the same area.
    Angles are 0: the detector assumes that photographs are upright.
    """
    path = Path(path)
    with open_file(path) as (file, size):
        if size > MAX_TEXT:
            fail(path, f"{size} bytes are too many for a text of features", "split it by images")
        try:
            lines = file.read(MAX_TEXT).decode("ascii").replace("\r\n", "\n").rstrip().split("\n")
        except UnicodeDecodeError as error:
            fail(path, f"byte {error.start} is not text")
        dimension = _header(path, lines, 1, "dimension", (1, MAX_DIMENSION))
        n = _header(path, lines, 2, "number of features", (0, MAX_TEXT))
        if n != len(lines) - 2:
            fail(path, f"line 2 announces {n} features, but {len(lines) - 2} lines follow")
        numbers, values = np.split(_parse_lines(path, lines[2:], 5 + dimension), [5], axis=1)
    integer = (values == np.rint(values)) & (values >= 0) & (values <= 255)
    _check_lines(path, integer, "holds a descriptor value that is not an integer from 0 to 255")
    with np.errstate(over="ignore"):
        geometry = numbers.astype(np.float32)
    _check_lines(path, np.isfinite(geometry), "holds a position or shape that is not finite")
    determinants = _determinants(geometry[:, 2:])
    _check_lines(path, determinants[:, None] > 0, "holds no ellipse: a > 0 and ac > b^2 are needed")
    diameters = 2 * determinants**-0.25  # the product of the half axes is 1 / sqrt(ac - b^2)
    return SiftFeatures(geometry[:, :2], diameters.astype(np.float32), np.zeros(n, np.float32), values.astype(np.uint8))


@contextmanager
def open_file(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file of a dataset and yield it with its size in bytes; errors become a `DatasetError`."""
    if "\0" in str(path):  # the system functions would raise ValueError
        fail(path, "is no path", "check the list that it comes from")
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            fail(path, "is a folder", "give a file")
        if not stat.S_ISREG(mode):  # a pipe would block, a device has no end
            fail(path, "is no regular file", "copy its content into one")
        with path.open("rb") as file:
            yield file, os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        fail(path, "there is no such file", "check the path")
    except PermissionError:
        fail(path, "no permission to read it", "change its mode")
    except OSError as error:
        fail(path, f"cannot be read ({one_line(error)})", "check the path and the disk")
    except MemoryError:
        fail(path, "does not fit in memory", "read a smaller file or a part of it")


def fail(path: Path, what: str, hint: str = HINT) -> NoReturn:
    """Raise a `DatasetError` of one line: the file, what is wrong with it, and what to do next."""
    name = str(path) if str(path).isprintable() else repr(str(path))
    raise DatasetError(f"{name}: {what}; {hint}") from None


def _record(dimension: int) -> np.dtype[Any]:
    return np.dtype([*SIFTGEO, ("dimension", "<i4"), ("descriptors", "u1", (dimension,))])


def _map_records(path: Path, file: BinaryIO, size: int) -> Array:
    """Map the records of a `.siftgeo` file; the dimension of each is that of the first."""
    start = np.dtype(SIFTGEO).itemsize
    if size < start + 4:
        fail(path, f"{size} bytes are too few for one record")
    file.seek(start)
    dimension = int.from_bytes(file.read(4), "little", signed=True)
    if not 1 <= dimension <= MAX_DIMENSION:
        fail(path, f"the first record has dimension {dimension} (byte {start}), not between 1 and {MAX_DIMENSION}")
    record = _record(dimension)
    n, rest = divmod(size, record.itemsize)
    if n == 0:
        fail(path, f"one record of dimension {dimension} takes {record.itemsize} bytes, the file has {size}")
    table = np.memmap(file, record, "r", shape=(n,))
    for first in range(0, n, BLOCK):
        wrong = table["dimension"][first : first + BLOCK] != dimension
        if wrong.any():
            row = first + int(wrong.argmax())
            what = f"record {row + 1} has dimension {table['dimension'][row]} (byte {row * record.itemsize + start})"
            fail(path, f"{what}, the first has {dimension}")
    if rest:
        fail(path, f"record {n + 1} (byte {n * record.itemsize}) is cut: it has {rest} of its {record.itemsize} bytes")
    return table


def _check_geometry(path: Path, table: Array) -> None:
    start = 0  # byte of the numbers within a record
    for name in (field[0] for field in SIFTGEO):
        values = table[name].reshape(len(table), -1)
        wrong = ~np.isfinite(values) | (values < 0 if name == "scale" else False)
        if wrong.any():
            row, column = divmod(int(wrong.argmax()), values.shape[1])
            byte = row * table.itemsize + start + 4 * column
            fail(path, f"{name} of record {row + 1} (byte {byte}) is {values[row, column]}")
        start += 4 * values.shape[1]


def _header(path: Path, lines: list[str], number: int, what: str, bounds: tuple[int, int]) -> int:
    low, high = bounds
    line = lines[number - 1].strip() if number <= len(lines) else ""
    if not (line.isdecimal() and len(line) <= 18 and low <= int(line) <= high):
        fail(path, f"line {number} should be the {what}, not {_short(line)}", "give a text of the hesaff program")
    return int(line)


def _parse_lines(path: Path, lines: list[str], columns: int) -> Floats64:
    """Return the numbers of lines [n, columns]."""
    try:
        table = np.loadtxt(lines, np.float64, comments=None, ndmin=2) if lines else np.empty((0, columns))
    except ValueError:
        table = np.empty((0, 0))
    if table.shape == (len(lines), columns):
        return table
    for number, line in enumerate(lines, start=3):
        words = line.split()
        if len(words) != columns:
            fail(path, f"line {number} has {len(words)} numbers, {columns} are expected")
        bad = next((word for word in words if not _is_number(word)), None)
        if bad is not None:
            fail(path, f"line {number}: {_short(bad)} is not a number")
    fail(path, f"its lines cannot be read as {columns} numbers each")


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return "_" not in word


def _check_lines(path: Path, right: npt.NDArray[np.bool_], what: str) -> None:
    """Raise an error for the first row [n, k] that is not all right; rows are the lines behind the header."""
    if not right.all():
        fail(path, f"line {int(right.argmin()) // right.shape[1] + 3} {what}")


def _determinants(ellipse: Floats32) -> Floats64:
    """Return ac - b^2 [n], or -1 where a is not positive."""
    a, b, c = ellipse.astype(np.float64).T
    return np.where(a > 0, a * c - b * b, -1.0)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")
