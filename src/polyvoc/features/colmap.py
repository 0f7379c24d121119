"""COLMAP: features of its database, lists of pairs, and matching by pycolmap."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.errors import ExchangeError, OptionError, one_line
from polyvoc.features.extract import load_pycolmap, root_sift
from polyvoc.features.feature_files import MAX_NUMBERS, FeatureFile
from polyvoc.storage.files import replace_file
from polyvoc.storage.sqlite import ReadOnlyDatabase
from polyvoc.storage.stores import display_name
from polyvoc.types import SIFT, Array, Features, Floats32

Bytes = npt.NDArray[np.uint8]
TABLES = {
    "cameras": {"camera_id", "width", "height"},
    "images": {"image_id", "name", "camera_id"},
    "keypoints": {"image_id", "rows", "cols", "data"},
    "descriptors": {"image_id", "rows", "cols", "data"},
}
# The column `type` of descriptors, which COLMAP has since version 4: their extractor. Before, all were SIFT.
KINDS = {0: SIFT, 1: "aliked-n16rot", 2: "aliked-n32", 3: "loma-b", 4: "loma-b128"}
SIFT_TYPE = 0
# COLMAP writes SIFT as bytes, normalised in one of two ways: L1_ROOT, its default, is rootSIFT; L2 is plain SIFT. The database
# does not record which, but plain SIFT clips every value at 0.2 before its last normalisation, so its largest value is hardly
# ever less. Share of descriptors below it, of 180 photographs: L2 0.000 to 0.007, L1_ROOT 0.098 to 0.94 (all but one); pooled
# over several images the two are apart. With domain-size pooling L2 has up to 0.037.
CLIPPED = 0.197
MIN_SHARE = 0.06
SAMPLED_IMAGES = 16


class ColmapFeatures(FeatureFile):
    """The features of a COLMAP database, in the order of its image ids. It is only read, even while COLMAP writes."""

    def __init__(self, path: str | os.PathLike[str], kind: str | None = None) -> None:
        """Open a database; `kind` names the extractor of the descriptors if COLMAP does not."""
        super().__init__(path)
        self._kind = kind
        self._database = ReadOnlyDatabase.open(self.path)
        for table, columns in TABLES.items():
            existing = {row[1] for row in self._database.rows(f"PRAGMA table_info({table})")}
            if not columns <= existing:
                reason = f"its table {table!r} has other columns" if existing else f"no table {table!r}"
                raise ExchangeError(f"{self._name} is not a COLMAP database ({reason}); give one that COLMAP made")
        self._has_types = "type" in existing  # of descriptors, the last table
        self._images = self._database.rows(  # names as bytes: a file name need not be text
            "SELECT image_id, CAST(name AS BLOB), width, height FROM images LEFT JOIN cameras USING (camera_id) "
            "ORDER BY image_id"
        )

    def names(self) -> list[str]:
        """Return the names of all images."""
        return [os.fsdecode(name) if isinstance(name, bytes) else "" for _, name, _, _ in self._images]

    def close(self) -> None:
        """Release the file."""
        self._database.close()

    @cached_property
    def _plain(self) -> bool:
        """Return whether SIFT is plain, not rootSIFT, by a sample of images from all over the database."""
        step = max(len(self._images) // SAMPLED_IMAGES, 1)
        tables = [self._stored_sift(image) for image, *_ in self._images[::step][:SAMPLED_IMAGES]]
        values = np.concatenate([np.empty((0, 128), np.uint8), *tables]).astype(np.float64)
        norms = np.linalg.norm(values, axis=1)
        return bool(norms.any() and np.mean(values[norms > 0].max(axis=1) / norms[norms > 0] < CLIPPED) < MIN_SHARE)

    def _stored_sift(self, image: int) -> Bytes:
        with suppress(ExchangeError):
            stored, made_by = self._descriptors(image)
            if made_by == SIFT_TYPE and stored.shape[1] == 128:
                return stored
        return np.empty((0, 128), np.uint8)

    def _features(self, number: int) -> Features:
        image, _, width, height = self._images[number]
        stored, made_by = self._descriptors(image)
        kind = self._kind or KINDS.get(made_by)
        if kind is None:
            raise ExchangeError(f"its features have the unknown type {made_by}; name it: --feature-kind NAME")
        if made_by != SIFT_TYPE and stored.shape[1] % 4:
            raise ExchangeError(f"its descriptors have {stored.shape[1]} bytes, no multiple of 4; extract its features again")
        descriptors = self._sift(stored) if made_by == SIFT_TYPE else stored.view(np.dtype("<f4"))
        keypoints = self._matrix("keypoints", image, np.dtype("<f4"))
        scale, angle = _shapes(keypoints)
        if len(keypoints) != len(descriptors):
            raise ExchangeError(f"{len(keypoints)} keypoints but {len(descriptors)} descriptors; extract its features again")
        if not len(keypoints):
            raise ExchangeError("no features; omit it")
        if not all(isinstance(side, int) and side > 0 for side in (width, height)):
            raise ExchangeError(f"its camera has no size ({width} x {height}); extract its features again")
        return Features(keypoints[:, :2] - np.float32(0.5), scale, angle, descriptors, width, height, kind)

    def _sift(self, stored: Bytes) -> Floats32:
        """Return SIFT of COLMAP as rootSIFT of unit norm."""
        if self._plain and stored.shape[1] == 128:
            return root_sift(stored)
        values = stored.astype(np.float32)
        return np.asarray(values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1), np.float32)

    def _descriptors(self, image: int) -> tuple[Bytes, int]:
        """Return the descriptors of an image as stored, and the number of their extractor."""
        types = self._database.rows("SELECT type FROM descriptors WHERE image_id = ?", [image]) if self._has_types else []
        return self._matrix("descriptors", image, np.dtype(np.uint8)), types[-1][0] if types else SIFT_TYPE

    def _matrix(self, table: str, image: int, dtype: np.dtype[Any]) -> Array:
        """Return a matrix of numbers [rows, cols]."""
        matrices = self._database.rows(f"SELECT rows, cols, data FROM {table} WHERE image_id = ?", [image])
        if not matrices:
            raise ExchangeError(f"no {table}; extract its features, or omit it")
        rows, cols, data = matrices[0]
        data = data or b""  # COLMAP writes NULL for no features
        if not (isinstance(rows, int) and isinstance(cols, int) and isinstance(data, bytes) and rows >= 0 and cols >= 0):
            raise ExchangeError(f"its {table} are damaged; extract its features again")
        if rows * cols > MAX_NUMBERS or rows * cols * dtype.itemsize != len(data):
            size = f"{rows} x {cols} x {dtype.itemsize}"
            raise ExchangeError(f"its {table} have {len(data)} bytes, not {size}; extract its features again")
        return np.frombuffer(data, dtype).reshape(rows, cols)


def _shapes(keypoints: Floats32) -> tuple[Floats32, Floats32]:
    """Return diameters and angles of keypoints: x, y; or x, y, scale, angle; or x, y, and the matrix of an affine shape."""
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


def write_pairs(path: str | os.PathLike[str], pairs: Iterable[tuple[str, str]]) -> int:
    """Write pairs of image names to a file; return their number."""
    pairs = list(pairs)
    for name in (name for pair in pairs for name in pair):
        if name.split() != [name] or name.startswith("#"):
            raise OptionError(f"{name!r} cannot be in a list of pairs, where a space ends a name; rename the image")
    with replace_file(Path(path)) as partial:
        partial.write_text("".join(f"{a} {b}\n" for a, b in pairs), encoding="utf-8", errors="surrogateescape")
    return len(pairs)


def read_pairs(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Return the pairs of image names in a file; skips empty lines and those that begin with #."""
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


def match_pairs(database: str | os.PathLike[str], pairs: Iterable[tuple[str, str]]) -> int:
    """Match and verify pairs of images, by name, with COLMAP, in its database; return how many have a two-view geometry."""
    pycolmap = load_pycolmap("matching with COLMAP")
    wanted = list(dict.fromkeys(pairs))
    with closing(ColmapFeatures(database)) as features:
        names = set(features.names())
    for name in (name for pair in wanted for name in pair):
        if name not in names:
            raise ExchangeError(f"{display_name(Path(database))} has no image {display_name(name)}; use its image names")
    with tempfile.TemporaryDirectory() as folder:
        options = pycolmap.ImportedPairingOptions()
        options.match_list_path = os.path.join(folder, "pairs.txt")
        write_pairs(options.match_list_path, wanted)
        try:
            with quiet(pycolmap):
                pycolmap.match_image_pairs(os.fspath(database), pairing_options=options)
                with closing(pycolmap.Database.open(os.fspath(database))) as opened:
                    ids = {image.name: image.image_id for image in opened.read_all_images()}
                    return sum(len(opened.read_two_view_geometry(ids[a], ids[b]).inlier_matches) > 0 for a, b in wanted)
        except (RuntimeError, ValueError) as error:
            raise ExchangeError(f"{display_name(Path(database))}: COLMAP cannot match its images: {one_line(error)}") from None


@contextmanager
def quiet(pycolmap: Any) -> Iterator[None]:
    """Limit the log of COLMAP to errors."""
    level = pycolmap.logging.minloglevel
    pycolmap.logging.minloglevel = int(pycolmap.logging.ERROR)
    try:
        yield
    finally:
        pycolmap.logging.minloglevel = level
