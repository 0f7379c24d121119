"""Features of many images in one file of another program: a COLMAP database or an HDF5 file of hloc."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from polyvoc.errors import ExchangeError, OptionError
from polyvoc.storage.stores import display_name
from polyvoc.types import FeatureKind, Features

SQLITE, HDF5 = b"SQLite format 3\0", b"\x89HDF\r\n\x1a\n"  # first bytes
MAX_NUMBERS = 1 << 28  # in an array of one image: more is damage


class FeatureFile(ABC):
    """An open file of features."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raise ExchangeError if the file does not exist."""
        self.path = Path(path)
        self._name = display_name(self.path)
        if not self.path.is_file():
            raise ExchangeError(f"{self._name} does not exist, or is not a file; check the path")

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.names())

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all images."""

    def read(self) -> Iterator[tuple[str, Features | ExchangeError]]:
        """Yield the name and the features, or the error, of each image; each is read when it is needed."""
        for number, name in enumerate(self.names()):
            try:
                yield name, self._features(number)
            except (ExchangeError, OptionError) as error:
                yield name, ExchangeError(f"{self._name}: {display_name(name)}: {error}")

    @abstractmethod
    def close(self) -> None:
        """Release the file."""

    @abstractmethod
    def _features(self, number: int) -> Features:
        """Return the features of an image, by its position among the names."""


def open_features(path: str | os.PathLike[str], kind: str | None = None, binary: bool = False) -> FeatureFile:
    """Open a file of features of either format; `kind` and `binary` describe the descriptors if the file does not."""
    from polyvoc.features.colmap import ColmapFeatures
    from polyvoc.features.hloc import HlocFeatures

    name = display_name(Path(path))
    try:
        with Path(path).open("rb") as file:
            start = file.read(len(SQLITE))
    except OSError as error:
        raise ExchangeError(f"{name} cannot be read ({error.strerror or error}); check the path") from None
    if start.startswith(HDF5):
        return HlocFeatures(path, kind, binary)
    if start == SQLITE:
        return ColmapFeatures(path, kind)
    raise ExchangeError(f"{name} is neither a COLMAP database nor an HDF5 file of hloc; give one of them")


def kind_of(file: FeatureFile) -> FeatureKind:
    """Return the kind of the features of a file, by the first usable image."""
    detail = ""
    for _, features in file.read():
        if isinstance(features, Features):
            return features.kind
        detail = detail or f": {features}"
    raise ExchangeError(f"{display_name(file.path)} holds no usable image{detail}")


def largest_features(features: Features, count: int) -> Features:
    """Return the features of largest scale, as COLMAP keeps them, in their order; of equal ones the first."""
    if len(features) <= count:
        return features
    kept = np.sort(np.argsort(-features.scale, kind="stable")[:count])
    arrays = {name: getattr(features, name)[kept] for name in ("xy", "scale", "angle", "descriptors")}
    return replace(features, **arrays)


def features_digest(features: Features) -> str:
    """Return 32 hex digits that change with any value of the features."""
    digest = hashlib.blake2b(f"{features.kind} {features.width} {features.height} {len(features)}".encode(), digest_size=16)
    for values in (features.xy, features.scale, features.angle, features.descriptors):
        digest.update(np.ascontiguousarray(values).view(np.uint8).data)
    return digest.hexdigest()
