"""Files of a dataset, opened: whatever the system has against it becomes one line that says what to do next."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DatasetError, OptionError
from polyvoc.types import Array, Floats32

PARTIAL = ".partial"  # suffix of a file that is being written; whoever finds an old one may delete it


@contextmanager
def reading(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file and give it with its size in bytes."""
    if "\0" in str(path):  # the system functions would raise ValueError
        refuse(path, "is no path", "check the list that it comes from")
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            refuse(path, "is a folder", "give a file")
        if not stat.S_ISREG(mode):  # a pipe would block, a device has no end
            refuse(path, "is no regular file", "copy its content into one")
        with path.open("rb") as file:
            yield file, os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        refuse(path, "there is no such file", "check the path")
    except PermissionError:
        refuse(path, "no permission to read it", "ask its owner, or change its mode")
    except OSError as error:
        refuse(path, f"cannot be read ({error.strerror or error})", "check the path and the disk")
    except MemoryError:
        refuse(path, "does not fit in memory", "read a smaller file or a part of it")


@contextmanager
def writing_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file to be filled; it takes its name only when it is complete, and leaves nothing if it fails."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        if path.is_dir():
            refuse(path, "is a folder", "give the name of a file")
        try:
            with partial.open("wb") as file:
                yield file
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        refuse(path, f"cannot be written ({error.strerror or error})", "choose another place, or make room")


def refuse(path: Path, what: str, what_next: str) -> NoReturn:
    """Raise the one line about a file: what is wrong with it, and what to do next."""
    name = str(path) if str(path).isprintable() else repr(str(path))
    raise DatasetError(f"{name}: {what}; {what_next}") from None


Bytes = npt.NDArray[np.uint8]
FilePath = Path | str
MAX_DIMENSION = 1 << 20  # a header that says more is damaged or of another format
MAX_TEXT = 1 << 30  # bytes of a hesaff text: some three million features
SIFT = 128  # dimension of an empty .siftgeo, which does not say it
BLOCK = 1 << 16  # records that are checked or written at once
AGAIN = "get or make it again"
VECTORS = {".fvecs": "<f4", ".bvecs": "u1", ".ivecs": "<i4"}  # numbers of each kind of file
# INRIA's siftgeo.h: nine float32, the dimension, the descriptor; no header, little endian. 168 bytes if it has 128 numbers.
SIFTGEO: list[tuple[Any, ...]] = [
    ("xy", "<f4", (2,)),
    ("scale", "<f4"),
    ("angle", "<f4"),
    ("affine", "<f4", (4,)),
    ("cornerness", "<f4"),
]


@dataclass(frozen=True, eq=False)
class Described:
    """What all files of described regions have in common, in the units of `polyvoc.records.Features`."""

    xy: Floats32  # [n, 2] pixels
    scale: Floats32  # [n] diameter of the region in pixels
    angle: Floats32  # [n] degrees from 0 to 360
    descriptors: Bytes  # [n, dimension] SIFT as it is stored, not rootSIFT

    def __post_init__(self) -> None:
        """Take arrays of any number type; refuse what does not belong together."""
        _check_record(self, (2,), (), ())

    def __len__(self) -> int:
        """Count the features."""
        return len(self.xy)


@dataclass(frozen=True, eq=False)
class SiftGeo:
    """A `.siftgeo` file, as it is stored.

    INRIA's own search engine compares scales by their ratio only and takes the difference of angles modulo 2 pi; the factor
    between `scale` and a diameter in pixels depends on the detector and is not stored.
    """

    xy: Floats32  # [n, 2] pixels
    scale: Floats32  # [n]
    angle: Floats32  # [n] radians
    affine: Floats32  # [n, 4] mi11, mi12, mi21, mi22: shape of the region
    cornerness: Floats32  # [n] strength of the detection
    descriptors: Bytes  # [n, dimension]

    def __post_init__(self) -> None:
        """Take arrays of any number type; refuse what does not belong together."""
        _check_record(self, (2,), (), (), (4,), ())

    def __len__(self) -> int:
        """Count the features."""
        return len(self.xy)

    def described(self) -> Described:
        """Give what is common to all formats: angles in degrees, scales taken as diameters."""
        degrees = np.mod(np.degrees(self.angle.astype(np.float64)), 360).astype(np.float32)
        return Described(self.xy, self.scale, np.where(degrees < 360, degrees, 0), self.descriptors)  # 359.99999999 rounds up

    @classmethod
    def of(cls, features: Described) -> SiftGeo:
        """Give features as a `.siftgeo` of circles without a strength."""
        n = len(features)
        circles = np.tile(np.array([1, 0, 0, 1], np.float32), (n, 1))
        strength = np.zeros(n, np.float32)
        return cls(features.xy, features.scale, np.radians(features.angle), circles, strength, features.descriptors)


@dataclass(frozen=True, eq=False)
class Hesaff:
    """A text of Perdoch's Hessian-Affine detector: the ellipse a(u-x)^2 + 2b(u-x)(v-y) + c(v-y)^2 = 1 is the region."""

    xy: Floats32  # [n, 2] pixels
    ellipse: Floats32  # [n, 3] a, b, c
    descriptors: Bytes  # [n, dimension]

    def __post_init__(self) -> None:
        """Take arrays of any number type; refuse what does not belong together, and ellipses that are none."""
        _check_record(self, (2,), (3,))
        if (_determinants(self.ellipse) <= 0).any():
            raise OptionError("ellipse: some are not ellipses; a > 0 and ac > b^2 are needed")

    def __len__(self) -> int:
        """Count the features."""
        return len(self.xy)

    def described(self) -> Described:
        """Give what is common to all formats: the diameter of the circle of the same area; angles are 0.

        The detector assumes that photographs are upright and turns no region.
        """
        diameters = 2 * _determinants(self.ellipse) ** -0.25  # the product of the half axes is 1 / sqrt(ac - b^2)
        return Described(self.xy, diameters.astype(np.float32), np.zeros(len(self), np.float32), self.descriptors)


def read_siftgeo(path: FilePath) -> SiftGeo:
    """Give the features of a `.siftgeo` file; an empty file is an image without features."""
    path = Path(path)
    with reading(path) as (file, size):
        if size == 0:
            table = np.empty(0, _record(SIFTGEO, "u1", SIFT))
        else:
            table = _map_records(path, file, SIFTGEO, "u1", None)
            _check_geometry(path, table)
        return SiftGeo(*(np.array(table[field.name]) for field in fields(SiftGeo)))


def write_siftgeo(path: FilePath, features: SiftGeo) -> None:
    """Write features as a `.siftgeo` file; `read_siftgeo` gives the same bits back."""
    if (features.scale < 0).any():
        raise OptionError("scale: some are negative; a .siftgeo needs 0 or more")
    arrays = {f.name: getattr(features, f.name) for f in fields(SiftGeo)}
    _write_records(Path(path), SIFTGEO, "u1", arrays)


def read_siftgeo_features(path: FilePath) -> Described:
    """Give the features of a `.siftgeo` file in the units that all formats share."""
    return read_siftgeo(path).described()


def _check_geometry(path: Path, table: Array) -> None:
    start = 0  # byte of the numbers within a record
    for name in (field[0] for field in SIFTGEO):
        values = table[name].reshape(len(table), -1)
        wrong = ~np.isfinite(values) | (values < 0 if name == "scale" else False)
        if wrong.any():
            row, column = divmod(int(wrong.argmax()), values.shape[1])
            byte = row * table.itemsize + start + 4 * column
            refuse(path, f"{name} of record {row + 1} (byte {byte}) is {values[row, column]}", AGAIN)
        start += 4 * values.shape[1]


def read_vectors(path: FilePath, limit: int | None = None) -> Array:
    """Give the vectors [n, dimension] of an `.fvecs` (float32), `.bvecs` (uint8) or `.ivecs` (int32) file.

    With a limit only the first vectors are read and checked. An empty file is refused: it does not say its dimension.
    """
    path = Path(path)
    if limit is not None and limit < 1:
        raise OptionError(f"limit={limit!r} should be at least 1, or None for all vectors")
    kind = _kind(path)
    with reading(path) as (file, size):
        if size == 0:
            refuse(path, "is empty, so its vectors have no dimension", AGAIN)
        table = _map_records(path, file, [], kind, limit)
        vectors = np.array(table["descriptors"], np.dtype(kind).newbyteorder("="))
        for start in range(0, len(vectors), BLOCK):
            wrong = ~np.isfinite(vectors[start : start + BLOCK]).all(axis=1)
            if wrong.any():
                row = start + int(wrong.argmax())
                refuse(path, f"vector {row + 1} (byte {row * table.itemsize}) holds a number that is not finite", AGAIN)
    return vectors


def write_vectors(path: FilePath, vectors: npt.ArrayLike) -> None:
    """Write vectors [n, dimension], at least one, in the format that the suffix names.

    `.fvecs` rounds numbers to float32; `.bvecs` and `.ivecs` take integers that fit.
    """
    path = Path(path)
    kind = _kind(path)
    values = np.asarray(vectors)
    if values.ndim != 2 or 0 in values.shape or values.shape[1] > MAX_DIMENSION:
        raise OptionError(f"vectors: shape {values.shape} should be [n, dimension] with at least one of each")
    _write_records(path, [], kind, {"descriptors": _as_kind(values, kind, f"{path.suffix} vectors")})


def read_hesaff(path: FilePath) -> Hesaff:
    """Give the features of a text `dimension`, `n`, then n lines `x y a b c` and the descriptor."""
    path = Path(path)
    with reading(path) as (file, size):
        if size > MAX_TEXT:
            refuse(path, f"{size} bytes are too many for a text of features", "split it by images")
        try:
            lines = file.read(MAX_TEXT).decode("ascii").replace("\r\n", "\n").rstrip().split("\n")
        except UnicodeDecodeError as error:
            refuse(path, f"byte {error.start} is not text", AGAIN)
        dimension = _header(path, lines, 1, "dimension", (1, MAX_DIMENSION))
        n = _header(path, lines, 2, "number of features", (0, MAX_TEXT))
        if n != len(lines) - 2:
            refuse(path, f"line 2 announces {n} features, but {len(lines) - 2} lines follow", AGAIN)
        numbers, values = np.split(_parse_lines(path, lines[2:], 5 + dimension), [5], axis=1)
    whole = (values == np.rint(values)) & (values >= 0) & (values <= 255)
    _refuse_lines(path, whole, "holds a descriptor value that is not an integer from 0 to 255")
    with np.errstate(over="ignore"):
        geometry = numbers.astype(np.float32)
    _refuse_lines(path, np.isfinite(geometry), "holds a position or shape that is not finite")
    _refuse_lines(path, _determinants(geometry[:, 2:])[:, None] > 0, "holds no ellipse: a > 0 and ac > b^2 are needed")
    return Hesaff(geometry[:, :2], geometry[:, 2:], values.astype(np.uint8))


def write_hesaff(path: FilePath, features: Hesaff) -> None:
    """Write features as the text of Perdoch's detector; `read_hesaff` gives the same bits back."""
    with writing_file(Path(path)) as file:
        file.write(f"{features.descriptors.shape[1]}\n{len(features)}\n".encode())
        geometry = np.column_stack([features.xy, features.ellipse])  # [n, 5]
        for numbers, descriptor in zip(geometry.tolist(), features.descriptors.tolist(), strict=True):
            words = [f"{number:.9g}" for number in numbers] + [str(value) for value in descriptor]  # 9 digits: any float32
            file.write((" ".join(words) + "\n").encode())


def read_hesaff_features(path: FilePath) -> Described:
    """Give the features of a hesaff text in the units that all formats share."""
    return read_hesaff(path).described()


def _header(path: Path, lines: list[str], number: int, what: str, bounds: tuple[int, int]) -> int:
    least, most = bounds
    line = lines[number - 1].strip() if number <= len(lines) else ""
    if not (line.isdecimal() and len(line) <= 18 and least <= int(line) <= most):
        refuse(path, f"line {number} should be the {what}, not {_short(line)}", "give a text of the hesaff program")
    return int(line)


def _parse_lines(path: Path, lines: list[str], columns: int) -> npt.NDArray[np.float64]:
    """Give the numbers of lines that must have so many each."""
    try:
        table = np.loadtxt(lines, np.float64, comments=None, ndmin=2) if lines else np.empty((0, columns))
    except ValueError:
        table = np.empty((0, 0))
    if table.shape == (len(lines), columns):
        return table
    for number, line in enumerate(lines, start=3):
        words = line.split()
        if len(words) != columns:
            refuse(path, f"line {number} has {len(words)} numbers, {columns} are expected", AGAIN)
        bad = next((word for word in words if not _is_number(word)), None)
        if bad is not None:
            refuse(path, f"line {number}: {_short(bad)} is not a number", AGAIN)
    refuse(path, f"its lines cannot be read as {columns} numbers each", AGAIN)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return "_" not in word


def _refuse_lines(path: Path, right: npt.NDArray[np.bool_], what: str) -> None:
    """Refuse the first row [n, k] that is not all right; rows are lines behind the header."""
    if not right.all():
        refuse(path, f"line {int(right.argmin()) // right.shape[1] + 3} {what}", AGAIN)


def _determinants(ellipse: Floats32) -> npt.NDArray[np.float64]:
    """Give ac - b^2 [n], or -1 where a is not positive."""
    a, b, c = ellipse.astype(np.float64).T
    return np.where(a > 0, a * c - b * b, -1.0)


def _map_records(path: Path, file: BinaryIO, head: list[Any], kind: str, limit: int | None) -> Array:
    """Map records of a head, a dimension, and so many numbers; the dimension of each is that of the first."""
    size = os.fstat(file.fileno()).st_size
    start = np.dtype(head).itemsize if head else 0
    if size < start + 4:
        refuse(path, f"{size} bytes are too few for one record", AGAIN)
    file.seek(start)
    dimension = int.from_bytes(file.read(4), "little", signed=True)
    if not 1 <= dimension <= MAX_DIMENSION:
        refuse(path, f"the first record says dimension {dimension} (byte {start}), not between 1 and {MAX_DIMENSION}", AGAIN)
    record = _record(head, kind, dimension)
    whole, rest = divmod(size, record.itemsize)
    if whole == 0:
        refuse(path, f"one record of dimension {dimension} takes {record.itemsize} bytes, the file has {size}", AGAIN)
    table = np.memmap(file, record, "r", shape=(whole if limit is None else min(limit, whole),))
    for first in range(0, len(table), BLOCK):
        wrong = table["dimension"][first : first + BLOCK] != dimension
        if wrong.any():
            row = first + int(wrong.argmax())
            what = f"record {row + 1} says dimension {table['dimension'][row]} (byte {row * record.itemsize + start})"
            refuse(path, f"{what}, the first says {dimension}", AGAIN)
    if rest:
        begin = whole * record.itemsize
        refuse(path, f"record {whole + 1} (byte {begin}) is cut: {rest} of its {record.itemsize} bytes are there", AGAIN)
    return table


def _write_records(path: Path, head: list[Any], kind: str, arrays: dict[str, Array]) -> None:
    n, dimension = arrays["descriptors"].shape
    record = _record(head, kind, dimension)
    with writing_file(path) as file:
        for start in range(0, n, BLOCK):
            part = slice(start, min(start + BLOCK, n))
            table = np.empty(part.stop - part.start, record)
            table["dimension"] = dimension
            for name, values in arrays.items():
                table[name] = values[part]
            file.write(table.view(np.uint8).data)


def _record(head: list[Any], kind: str, dimension: int) -> np.dtype[Any]:
    return np.dtype([*head, ("dimension", "<i4"), ("descriptors", kind, (dimension,))])


def _kind(path: Path) -> str:
    kind = VECTORS.get(path.suffix.lower())
    if kind is None:
        refuse(path, "is of an unknown kind", f"name files of vectors {', '.join(VECTORS)}")
    return kind


def _check_record(record: Described | SiftGeo | Hesaff, *shapes: tuple[int, ...]) -> None:
    """Make the arrays of a record float32 of these shapes behind [n], the descriptors uint8 [n, dimension]."""
    *geometry, last = (f.name for f in fields(record))
    descriptors = np.asarray(getattr(record, last))
    if descriptors.ndim != 2 or not 1 <= descriptors.shape[1] <= MAX_DIMENSION:
        raise OptionError(f"{last}: shape {descriptors.shape} should be [n, dimension]")
    object.__setattr__(record, last, _as_kind(descriptors, "u1", last))
    for name, shape in zip(geometry, shapes, strict=True):
        values = _as_kind(np.asarray(getattr(record, name)), "f4", name)
        if values.shape != (len(descriptors), *shape):
            raise OptionError(f"{name}: shape {values.shape} should be {(len(descriptors), *shape)}, as there are descriptors")
        object.__setattr__(record, name, values)


def _as_kind(values: Array, kind: str, name: str) -> Array:
    """Give an array as float32, or as integers that all fit."""
    wanted = np.dtype(kind)
    if values.dtype.kind not in ("uif" if wanted.kind == "f" or values.size == 0 else "ui"):
        raise OptionError(f"{name}: {values.dtype} should be {'numbers' if wanted.kind == 'f' else 'integers'}")
    if wanted.kind == "f":
        with np.errstate(over="ignore"):
            values = values.astype(wanted, copy=False)
        if not np.isfinite(values).all():
            raise OptionError(f"{name}: some numbers are not finite, or too large for {wanted.name}")
        return values
    bounds = np.iinfo(wanted)
    if values.size and not (bounds.min <= values.min() and values.max() <= bounds.max):
        raise OptionError(f"{name}: some numbers are outside {bounds.min} to {bounds.max}")
    return values.astype(wanted, copy=False)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")
