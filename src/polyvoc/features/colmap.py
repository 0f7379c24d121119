"""COLMAP: features out, pairs and matches in."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DamagedError, ExchangeError, OptionError
from polyvoc.features.extract import root_sift
from polyvoc.storage.files import write_errors
from polyvoc.storage.sqlite import ReadOnlyDatabase
from polyvoc.storage.stores import display_name
from polyvoc.types import SIFT, Features, Floats32


def write_pairs(path: str | os.PathLike[str], pairs: Iterable[tuple[str, str]]) -> int:
    """Write pairs of image names to a file, which appears whole or not at all; gives how many."""
    lines = [f"{first} {second}\n" for first, second in _checked(pairs)]
    target = Path(path)
    partial = target.with_name(target.name + ".partial")
    with write_errors(target):
        try:
            partial.write_text("".join(lines), encoding="utf-8", errors="surrogateescape")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    return len(lines)


def read_pairs(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Read pairs of image names; empty lines, and those that begin with #, are passed over."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise ExchangeError(f"{path} cannot be read ({error.strerror or error}); give a list of pairs") from None
    pairs = []
    for number, line in enumerate(text.splitlines(), start=1):
        names = line.split()
        if not names or names[0].startswith("#"):
            continue
        if len(names) != 2:
            raise ExchangeError(f"{path}: line {number} holds {len(names)} names, not 2; write: NAME1 NAME2")
        pairs.append((names[0], names[1]))
    return pairs


def _checked(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for pair in pairs:
        for name in pair:
            if name.split() != [name] or name.startswith("#"):
                raise OptionError(f"{name!r} cannot stand in a list of pairs, where a space ends a name; rename the photograph")
        yield pair


Bytes = npt.NDArray[np.uint8]
TABLES = {
    "cameras": {"camera_id", "width", "height"},
    "images": {"image_id", "name", "camera_id"},
    "keypoints": {"image_id", "rows", "cols", "data"},
    "descriptors": {"image_id", "rows", "cols", "data"},
}
# The column `type` of descriptors, which COLMAP has since its version 4: what made them. Before, all were SIFT.
KINDS = {0: SIFT, 1: "aliked-n16rot", 2: "aliked-n32", 3: "loma-b", 4: "loma-b128"}
SIFT_TYPE = 0
MAX_NUMBERS = 1 << 28  # of one image: more is damage
# COLMAP writes SIFT as bytes, normalised in one of two ways: L1_ROOT, its default, is rootSIFT; L2 is plain SIFT. Nothing says
# which, but plain SIFT clips every value at 0.2 before it is normalised the last time, so its largest value can hardly be less.
# Of 180 photographs, share of descriptors below: L2 0.000 to 0.007, L1_ROOT 0.098 to 0.94 (all but one); pooled over several
# images there is no doubt. With domain-size pooling L2 has up to 0.037.
CLIPPED = 0.197
LEAST_SHARE = 0.06
LOOKED_AT = 16  # images


class ColmapFeatures:
    """The features in a COLMAP database, in the order of its image ids. Nothing is written to it, also while COLMAP writes."""

    def __init__(self, path: str | os.PathLike[str], kind: str | None = None) -> None:
        """Open a database; `kind` says what made the descriptors, where COLMAP does not know or calls it otherwise."""
        self.path = Path(path)
        self._kind = kind
        if not self.path.is_file():
            raise ExchangeError(f"{display_name(self.path)} is not there, or no file; give a COLMAP database")
        with self._complaints():
            self._database = ReadOnlyDatabase.open(self.path)
            self._columns = {table: self._columns_of(table) for table in TABLES}
        for table, wanted in TABLES.items():
            if not wanted <= self._columns[table]:
                lacking = f"no table {table!r}" if not self._columns[table] else f"its table {table!r} has other columns"
                raise ExchangeError(
                    f"{display_name(self.path)} is not a COLMAP database ({lacking}); give one that COLMAP made"
                )
        with self._complaints():  # as bytes: a file name need not be text
            self._images = self._database.rows(
                "SELECT image_id, CAST(name AS BLOB), width, height FROM images LEFT JOIN cameras USING (camera_id) "
                "ORDER BY image_id"
            )

    def __len__(self) -> int:
        """Count the images."""
        return len(self._images)

    def names(self) -> list[str]:
        """Give the names of all images."""
        return [_text(name) for _, name, _, _ in self._images]

    def read(self) -> Iterator[tuple[str, Features | ExchangeError]]:
        """Give the name and the features of each image, or what is wrong with it; one at a time, as they are asked for."""
        for image, stored, width, height in self._images:
            name = _text(stored)
            try:
                yield name, self._features(image, name, width, height)
            except (ExchangeError, OptionError) as error:
                yield name, ExchangeError(f"{display_name(self.path)}: {display_name(name)}: {error}")

    def close(self) -> None:
        """Release the file."""
        self._database.close()

    @cached_property
    def _plain(self) -> bool:
        """Tell whether SIFT is plain here, not rootSIFT: by some images from all over the database."""
        step = max(len(self._images) // LOOKED_AT, 1)
        tables = [self._stored_sift(image) for image, *_ in self._images[::step][:LOOKED_AT]]
        values = np.concatenate([np.empty((0, 128), np.uint8), *tables]).astype(np.float64)
        norms = np.linalg.norm(values, axis=1)
        if not norms.any():
            return False
        return bool(np.mean(values[norms > 0].max(axis=1) / norms[norms > 0] < CLIPPED) < LEAST_SHARE)

    def _stored_sift(self, image: int) -> Bytes:
        try:
            stored, made_by = self._descriptors(image)
        except ExchangeError:
            return np.empty((0, 128), np.uint8)
        return stored if made_by == SIFT_TYPE and stored.shape[1] == 128 else np.empty((0, 128), np.uint8)

    def _features(self, image: int, name: str, width: Any, height: Any) -> Features:
        stored, made_by = self._descriptors(image)
        kind = self._kind or KINDS.get(made_by)
        if kind is None:
            raise ExchangeError(f"its features are of the unknown type {made_by}; say what they are: --kind NAME")
        if made_by != SIFT_TYPE and stored.shape[1] % 4:
            raise ExchangeError(f"its descriptors have {stored.shape[1]} bytes, which are no numbers of 4 bytes")
        descriptors = self._sift(stored) if made_by == SIFT_TYPE else stored.view(np.dtype("<f4"))
        keypoints = self._matrix("keypoints", image, np.dtype("<f4"))
        scale, angle = _shapes(keypoints)
        if len(keypoints) != len(descriptors):
            raise ExchangeError(f"{len(keypoints)} keypoints but {len(descriptors)} descriptors; extract its features again")
        if not len(keypoints):
            raise ExchangeError("no features; leave it out")
        if not all(isinstance(side, int) and side > 0 for side in (width, height)):
            raise ExchangeError(f"its camera gives no size ({width} x {height}); extract its features again")
        return Features(keypoints[:, :2] - np.float32(0.5), scale, angle, descriptors, width, height, kind)

    def _sift(self, stored: Bytes) -> Floats32:
        """Give SIFT of COLMAP as polyvoc has it: rootSIFT of unit norm."""
        if self._plain and stored.shape[1] == 128:
            return root_sift(stored)
        values = stored.astype(np.float32)
        norms = np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1)
        unit: Floats32 = (values / norms).astype(np.float32)
        return unit

    def _descriptors(self, image: int) -> tuple[Bytes, int]:
        """Give the descriptors of an image as they are stored, and the number of what made them."""
        made_by = SIFT_TYPE
        if "type" in self._columns["descriptors"]:
            with self._complaints():
                for (number,) in self._database.rows("SELECT type FROM descriptors WHERE image_id = ?", [image]):
                    made_by = number
        return self._matrix("descriptors", image, np.dtype(np.uint8)), made_by

    def _matrix(self, table: str, image: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Read a matrix of numbers [rows, cols]."""
        with self._complaints():
            found = self._database.rows(f"SELECT rows, cols, data FROM {table} WHERE image_id = ?", [image])
        if not found:
            raise ExchangeError(f"no {table}; extract its features, or leave it out")
        rows, cols, data = found[0]
        data = data or b""  # COLMAP's for none
        if not (isinstance(rows, int) and isinstance(cols, int) and isinstance(data, bytes) and rows >= 0 and cols >= 0):
            raise ExchangeError(f"its {table} are damaged; extract its features again")
        if rows * cols > MAX_NUMBERS or rows * cols * dtype.itemsize != len(data):
            raise ExchangeError(
                f"its {table} have {len(data)} bytes, not {rows} x {cols} x {dtype.itemsize}; extract its features again"
            )
        return np.frombuffer(data, dtype).reshape(rows, cols)

    def _columns_of(self, table: str) -> set[str]:
        return {row[1] for row in self._database.rows(f"PRAGMA table_info({table})")}

    @contextmanager
    def _complaints(self) -> Iterator[None]:
        try:
            yield
        except DamagedError as error:
            raise ExchangeError(str(error)) from None


def _shapes(keypoints: npt.NDArray[np.float32]) -> tuple[Floats32, Floats32]:
    """Give diameters and angles of keypoints: x, y; or x, y, scale, angle; or x, y, and the matrix of an affine shape."""
    n, cols = keypoints.shape
    if cols == 2:
        return np.ones(n, np.float32), np.zeros(n, np.float32)
    if cols == 4:
        scale, angle = keypoints[:, 2], np.degrees(keypoints[:, 3])
    elif cols == 6:
        a11, a12, a21, a22 = keypoints[:, 2:].T.astype(np.float64)
        scale = np.sqrt(np.abs(a11 * a22 - a12 * a21))  # of the circle with the same area
        angle = np.degrees(np.arctan2(a21, a11))
    else:
        raise ExchangeError(f"its keypoints have {cols} numbers, not 2, 4 or 6; extract its features again")
    return (2 * scale).astype(np.float32), np.mod(angle, 360).astype(np.float32)


def _text(stored: Any) -> str:
    return os.fsdecode(stored) if isinstance(stored, bytes) else ""


def match_pairs(database: str | os.PathLike[str], pairs: Iterable[tuple[str, str]]) -> int:
    """Let COLMAP match pairs of images, by name, and verify them; gives how many pairs of them have a geometry then.

    Matches and two-view geometries stand in the database: it is ready to be mapped. Pairs that stand there already are kept.
    """
    pycolmap = _pycolmap()
    wanted = list(dict.fromkeys(pairs))
    features = ColmapFeatures(database)
    known = set(features.names())
    features.close()
    for name in (name for pair in wanted for name in pair):
        if name not in known:
            raise ExchangeError(
                f"{display_name(Path(database))} has no image {display_name(name)}; give names as the database has them"
            )
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder, "pairs.txt")
        write_pairs(listed, wanted)
        options = pycolmap.ImportedPairingOptions()
        options.match_list_path = str(listed)
        try:
            with quiet(pycolmap):
                pycolmap.match_image_pairs(os.fspath(database), pairing_options=options)
                return _count_geometries(pycolmap, database, wanted)
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise ExchangeError(f"{display_name(Path(database))}: COLMAP cannot match its images: {reason}") from None


def _count_geometries(pycolmap: Any, database: str | os.PathLike[str], pairs: list[tuple[str, str]]) -> int:
    opened = pycolmap.Database.open(os.fspath(database))
    try:
        ids = {image.name: image.image_id for image in opened.read_all_images()}
        return sum(len(opened.read_two_view_geometry(ids[a], ids[b]).inlier_matches) > 0 for a, b in pairs)
    finally:
        opened.close()


@contextmanager
def quiet(pycolmap: Any) -> Iterator[None]:
    """Let COLMAP speak of what is wrong only."""
    level = pycolmap.logging.minloglevel
    pycolmap.logging.minloglevel = int(pycolmap.logging.ERROR)
    try:
        yield
    finally:
        pycolmap.logging.minloglevel = level


def _pycolmap() -> Any:
    try:
        import pycolmap
    except ImportError:
        raise OptionError("matching with COLMAP needs pycolmap; install it: pip install 'polyvoc[colmap]'") from None
    return pycolmap
