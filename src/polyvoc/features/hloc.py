"""Hloc's HDF5 features."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from polyvoc.errors import ExchangeError, OptionError
from polyvoc.storage.files import write_errors
from polyvoc.storage.stores import display_name
from polyvoc.types import Array, Features

KEYPOINTS, DESCRIPTORS, SCORES, SIZE, SCALES, ANGLES = "keypoints", "descriptors", "scores", "image_size", "scales", "oris"
MAX_NUMBERS = 1 << 28  # of one image: more is damage
# What h5py raises where a file is cut or changed.
COMPLAINTS = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError)
_NAMED = re.compile(r"feats-([a-z0-9]+)", re.I)  # feats-superpoint-n4096-r1024.h5; not global-feats-netvlad.h5


class HlocFeatures:
    """The features in an HDF5 file of hloc, in the order of the image names."""

    def __init__(self, path: str | os.PathLike[str], kind: str | None = None, binary: bool = False) -> None:
        """Open a file; `kind` says what made the descriptors: unless given, the name of the file does, as hloc chooses it.

        `binary`: bytes are eight bits each of a binary descriptor, such as ORB's; in an HDF5 file they look like numbers.
        """
        self.path = Path(path)
        self._binary = binary
        self._h5py = _h5py()
        if not self.path.is_file():
            raise ExchangeError(f"{display_name(self.path)} is not there, or no file; give an HDF5 file of hloc")
        with self._complaints():
            self._file = self._h5py.File(self.path, "r")
            self._names: list[str] = []
            self._file.visititems(self._note)
        if not self._names:
            raise ExchangeError(f"{display_name(self.path)} holds no local features of hloc (no group with {KEYPOINTS!r}); "
                                "give a file such as feats-superpoint-n4096-r1024.h5")  # fmt: skip
        self._kind = kind or self._named()

    def __len__(self) -> int:
        """Count the images."""
        return len(self._names)

    def names(self) -> list[str]:
        """Give the names of all images."""
        return list(self._names)

    def read(self) -> Iterator[tuple[str, Features | ExchangeError]]:
        """Give the name and the features of each image, or what is wrong with it; one at a time, as they are asked for."""
        for name in self._names:
            try:
                yield name, self._features(name)
            except (ExchangeError, OptionError) as error:
                yield name, ExchangeError(f"{display_name(self.path)}: {display_name(name)}: {error}")

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def _note(self, name: str, found: Any) -> None:
        if isinstance(found, self._h5py.Group) and KEYPOINTS in found.keys():  # noqa: SIM118 - `in` would follow links
            self._names.append(name)

    def _named(self) -> str:
        named = _NAMED.match(self.path.name)
        if named is None:
            raise ExchangeError(f"{display_name(self.path)}: what made these features? Say it, such as --kind superpoint")
        return named[1].lower()

    def _features(self, name: str) -> Features:
        with self._complaints():
            keypoints, descriptors = self._array(name, KEYPOINTS), self._array(name, DESCRIPTORS)
            scores, size = self._optional(name, SCORES), self._optional(name, SIZE)
            scales, angles = self._optional(name, SCALES), self._optional(name, ANGLES)
        n = len(keypoints)
        if keypoints.shape != (n, 2) or descriptors.ndim != 2 or descriptors.shape[1] != n:
            raise ExchangeError(f"keypoints {keypoints.shape} and descriptors {descriptors.shape} should be [n, 2] and "
                                "[dimension, n]; extract its features again")  # fmt: skip
        if not n:
            raise ExchangeError("no features; leave it out")
        for what, values in ((SCORES, scores), (SCALES, scales), (ANGLES, angles)):
            if values is not None and values.shape != (n,):
                raise ExchangeError(f"{what} {values.shape} do not fit {n} keypoints; extract its features again")
        order = np.arange(n) if scores is None else np.argsort(-scores.astype(np.float64), kind="stable")
        # hloc's scale is the sigma of its SIFT, ours a diameter. Most other detectors give neither scale nor angle.
        diameter = np.ones(n, np.float32) if scales is None else 2 * scales.astype(np.float32)
        angle = np.zeros(n, np.float32) if angles is None else np.mod(angles.astype(np.float32), np.float32(360))
        width, height = _frame(keypoints) if size is None else _size(size)
        return Features(
            keypoints[order], diameter[order], angle[order], self._numbers(descriptors)[order], width, height, self._kind
        )

    def _numbers(self, stored: Array) -> Array:
        """Give descriptors [dimension, n] as [n, dimension], bits as bool."""
        table = np.ascontiguousarray(stored.T)
        if not self._binary or table.dtype == np.bool_:
            return table
        if table.dtype != np.uint8:
            raise ExchangeError(f"its descriptors are {table.dtype}, not bytes of bits; leave --binary out")
        return np.unpackbits(table, axis=1, bitorder="little").view(np.bool_)  # the lowest bit first, as polyvoc has it

    def _array(self, name: str, part: str) -> Array:
        """Read one array of an image: it must lie in this file, and fit in memory."""
        group = self._file[name]
        if not isinstance(group.get(part, getlink=True), self._h5py.HardLink):
            raise ExchangeError(f"no {part}; extract its features, or leave it out")
        dataset = group[part]
        if not isinstance(dataset, self._h5py.Dataset) or dataset.shape is None or dataset.dtype.kind not in "fiub":
            raise ExchangeError(f"its {part} are no numbers; extract its features again")
        if dataset.external or dataset.is_virtual or dataset.size > MAX_NUMBERS or not dataset.shape:
            raise ExchangeError(f"its {part} of shape {dataset.shape} are not those of an image; extract its features again")
        return np.asarray(dataset[()])

    def _optional(self, name: str, part: str) -> Array | None:
        return self._array(name, part) if part in self._file[name].keys() else None  # noqa: SIM118 - `in` would follow links

    @contextmanager
    def _complaints(self) -> Iterator[None]:
        try:
            yield
        except COMPLAINTS as error:
            reason = " ".join(str(error).split())
            raise ExchangeError(
                f"{display_name(self.path)} cannot be read as HDF5 ({reason}); restore it, or make it again"
            ) from None


def write_features(path: str | os.PathLike[str], images: Iterable[tuple[str, Features]]) -> int:
    """Write features as hloc reads them, to a file that appears whole or not at all; gives the number of images.

    Bits are written as bool. Features come in the order of their strength, of which hloc has no other record: no `scores`.
    """
    h5py, target = _h5py(), Path(path)
    partial = target.with_name(target.name + ".partial")
    count = 0
    with write_errors(target):
        try:
            with h5py.File(partial, "w", libver="latest") as file:
                for count, (name, features) in enumerate(images, start=1):  # noqa: B007 - counted
                    _fill(file, name, features)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    return count


def _fill(file: Any, name: str, features: Features) -> None:
    try:
        group = file.create_group(name)
    except (ValueError, UnicodeEncodeError):
        raise OptionError(f"{name!r} cannot be the name of an image in HDF5, or is there twice") from None
    group[KEYPOINTS] = features.xy
    group[DESCRIPTORS] = np.ascontiguousarray(features.descriptors.T)
    group[SCALES], group[ANGLES] = features.scale / 2, features.angle
    group[SIZE] = np.array([features.width, features.height])


def _size(size: Array) -> tuple[int, int]:
    if size.shape != (2,) or not np.isfinite(size).all() or not (size >= 1).all():
        raise ExchangeError(f"image_size {size.tolist()} is no width and height; extract its features again")
    return int(size[0]), int(size[1])


def _frame(keypoints: Array) -> tuple[int, int]:
    """Give the size of the smallest photograph that has all keypoints, where nothing says how large it is."""
    if not np.isfinite(keypoints).all():
        raise ExchangeError("some keypoints are not finite; extract its features again")
    width, height = np.maximum(np.ceil(keypoints.max(axis=0)), 0) + 1
    return int(width), int(height)


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise OptionError("files of hloc need h5py; install it: pip install 'polyvoc[hloc]'") from None
    return h5py
