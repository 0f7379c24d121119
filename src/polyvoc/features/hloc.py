"""hloc: features of its HDF5 files, read and written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from polyvoc.errors import ExchangeError, OptionError, one_line
from polyvoc.features.extract import unpack_bits
from polyvoc.features.feature_files import MAX_NUMBERS, FeatureFile
from polyvoc.storage.files import replace_file
from polyvoc.types import Array, Features

KEYPOINTS, DESCRIPTORS, SCORES, SIZE, SCALES, ANGLES = "keypoints", "descriptors", "scores", "image_size", "scales", "oris"
H5PY_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError)  # on a damaged file
_KIND_IN_NAME = re.compile(r"feats-([a-z0-9]+)", re.I)  # feats-superpoint-n4096-r1024.h5; not global-feats-netvlad.h5


class HlocFeatures(FeatureFile):
    """The features of an HDF5 file of hloc, in the order of the image names."""

    def __init__(self, path: str | os.PathLike[str], kind: str | None = None, binary: bool = False) -> None:
        """Open a file; `kind` names the extractor of the descriptors, by default that in hloc's name of the file.

        `binary`: a byte holds eight bits of a binary descriptor, such as ORB's; in an HDF5 file they look like numbers.
        """
        self._h5py = _h5py()
        super().__init__(path)
        self._binary = binary
        with self._h5py_errors():
            self._file = self._h5py.File(self.path, "r")
            self._names: list[str] = []
            self._file.visititems(self._add_name)
        if not self._names:
            raise ExchangeError(f"{self._name} holds no local features of hloc (no group with {KEYPOINTS!r}); "
                                "give a file such as feats-superpoint-n4096-r1024.h5")  # fmt: skip
        named = _KIND_IN_NAME.match(self.path.name)
        self._kind = kind or (named[1].lower() if named else "")
        if not self._kind:
            raise ExchangeError(f"{self._name}: unknown kind of features; name it, such as --feature-kind superpoint")

    def names(self) -> list[str]:
        """Return the names of all images."""
        return list(self._names)

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def _add_name(self, name: str, entry: Any) -> None:
        if isinstance(entry, self._h5py.Group) and KEYPOINTS in entry.keys():  # noqa: SIM118 - `in` would follow links
            self._names.append(name)

    def _features(self, number: int) -> Features:
        name = self._names[number]
        with self._h5py_errors():
            keypoints, descriptors = self._array(name, KEYPOINTS), self._array(name, DESCRIPTORS)
            scores, size = self._optional(name, SCORES), self._optional(name, SIZE)
            scales, angles = self._optional(name, SCALES), self._optional(name, ANGLES)
        n = len(keypoints)
        if keypoints.shape != (n, 2) or descriptors.ndim != 2 or descriptors.shape[1] != n:
            raise ExchangeError(f"keypoints {keypoints.shape} and descriptors {descriptors.shape} should be [n, 2] and "
                                "[dimension, n]; extract its features again")  # fmt: skip
        if not n:
            raise ExchangeError("no features; omit it")
        for what, values in ((SCORES, scores), (SCALES, scales), (ANGLES, angles)):
            if values is not None and values.shape != (n,):
                raise ExchangeError(f"{what} {values.shape} do not fit {n} keypoints; extract its features again")
        order = np.arange(n) if scores is None else np.argsort(-scores.astype(np.float64), kind="stable")
        # hloc's scale is the sigma of its SIFT, ours a diameter. Most other detectors have neither scale nor angle.
        diameter = np.ones(n, np.float32) if scales is None else 2 * scales.astype(np.float32)
        angle = np.zeros(n, np.float32) if angles is None else np.mod(angles.astype(np.float32), np.float32(360))
        width, height = _bounding_size(keypoints) if size is None else _size(size)
        numbers = self._numbers(descriptors)[order]
        return Features(keypoints[order], diameter[order], angle[order], numbers, width, height, self._kind)

    def _numbers(self, stored: Array) -> Array:
        """Return descriptors [dimension, n] as [n, dimension], bits as bool."""
        table = np.ascontiguousarray(stored.T)
        if not self._binary or table.dtype == np.bool_:
            return table
        if table.dtype != np.uint8:
            raise ExchangeError(f"its descriptors are {table.dtype}, not bytes of bits; omit --binary")
        return unpack_bits(table)

    def _array(self, name: str, part: str) -> Array:
        """Return one array of an image. Raise ExchangeError if it is in another file, or too large."""
        group = self._file[name]
        if not isinstance(group.get(part, getlink=True), self._h5py.HardLink):
            raise ExchangeError(f"no {part}; extract its features, or omit it")
        dataset = group[part]
        if not isinstance(dataset, self._h5py.Dataset) or dataset.shape is None or dataset.dtype.kind not in "fiub":
            raise ExchangeError(f"its {part} are not numbers; extract its features again")
        if dataset.external or dataset.is_virtual or dataset.size > MAX_NUMBERS or not dataset.shape:
            raise ExchangeError(f"its {part} of shape {dataset.shape} are not those of an image; extract its features again")
        return np.asarray(dataset[()])

    def _optional(self, name: str, part: str) -> Array | None:
        return self._array(name, part) if part in self._file[name].keys() else None  # noqa: SIM118 - `in` would follow links

    @contextmanager
    def _h5py_errors(self) -> Iterator[None]:
        try:
            yield
        except H5PY_ERRORS as error:
            reason = f"cannot be read as HDF5 ({one_line(error)})"
            raise ExchangeError(f"{self._name} {reason}; restore it, or make it again") from None


def write_features(path: str | os.PathLike[str], images: Iterable[tuple[str, Features]]) -> int:
    """Write features in the format of hloc; return the number of images.

    Bits are written as bool. Features keep their order, the strongest first; `scores` are not written.
    """
    h5py, count = _h5py(), 0
    with replace_file(Path(path)) as partial, h5py.File(partial, "w", libver="latest") as file:
        for count, (name, features) in enumerate(images, start=1):  # noqa: B007 - counted
            try:
                group = file.create_group(name)
            except (ValueError, UnicodeEncodeError):
                raise OptionError(f"{name!r} cannot be the name of an image in HDF5, or occurs twice") from None
            group[KEYPOINTS] = features.xy
            group[DESCRIPTORS] = np.ascontiguousarray(features.descriptors.T)
            group[SCALES], group[ANGLES] = features.scale / 2, features.angle
            group[SIZE] = np.array([features.width, features.height])
    return count


def _size(size: Array) -> tuple[int, int]:
    if size.shape != (2,) or not np.isfinite(size).all() or not (size >= 1).all():
        raise ExchangeError(f"image_size {size.tolist()} is not a width and height; extract its features again")
    return int(size[0]), int(size[1])


def _bounding_size(keypoints: Array) -> tuple[int, int]:
    """Return the size of the smallest image that holds all keypoints, if its true size is not recorded."""
    if not np.isfinite(keypoints).all():
        raise ExchangeError("some keypoints are not finite; extract its features again")
    width, height = np.maximum(np.ceil(keypoints.max(axis=0)), 0) + 1
    return int(width), int(height)


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise OptionError("files of hloc: h5py is missing; install it: pip install 'polyvoc[hloc]'") from None
    return h5py
