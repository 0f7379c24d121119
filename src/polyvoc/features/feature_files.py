"""Which file of features is this?."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from polyvoc.errors import ExchangeError
from polyvoc.features.colmap import ColmapFeatures
from polyvoc.features.hloc import HlocFeatures
from polyvoc.storage.stores import display_name
from polyvoc.types import FeatureKind, Features

SQLITE, HDF5 = b"SQLite format 3\0", b"\x89HDF\r\n\x1a\n"  # how such files begin


class FeatureFile(Protocol):
    """Features of many images in one file."""

    path: Path

    def __len__(self) -> int:
        """Count the images."""

    def names(self) -> list[str]:
        """Give the names of all images."""

    def read(self) -> Iterator[tuple[str, Features | ExchangeError]]:
        """Give the name and the features of each image, or what is wrong with it."""

    def close(self) -> None:
        """Release the file."""


def open_features(path: str | os.PathLike[str], kind: str | None = None, binary: bool = False) -> FeatureFile:
    """Open a file of features, known by its content; `kind` and `binary` say what the descriptors are if the file does not."""
    try:
        with Path(path).open("rb") as file:
            start = file.read(len(SQLITE))
    except OSError as error:
        raise ExchangeError(f"{display_name(Path(path))} cannot be read ({error.strerror or error}); check the path") from None
    if start.startswith(HDF5):
        return HlocFeatures(path, kind, binary)
    if start == SQLITE:
        return ColmapFeatures(path, kind)
    raise ExchangeError(f"{display_name(Path(path))} is neither a COLMAP database nor an HDF5 file of hloc; give one of them")


def kind_of(file: FeatureFile) -> FeatureKind:
    """Give what the descriptors of a file are, by the first image that can be used."""
    wrong = None
    for _, found in file.read():
        if isinstance(found, Features):
            return found.kind
        wrong = wrong or found
    raise ExchangeError(f"{display_name(file.path)} holds no image that could be used" + (f": {wrong}" if wrong else ""))


def largest_features(features: Features, most: int) -> Features:
    """Give the largest features, as COLMAP keeps them where there are too many; of equal ones the first in their order."""
    if len(features) <= most:
        return features
    kept = np.sort(np.argsort(-features.scale, kind="stable")[:most])
    arrays = {name: getattr(features, name)[kept] for name in ("xy", "scale", "angle", "descriptors")}
    return replace(features, **arrays)


def features_digest(features: Features) -> str:
    """Give 32 hex digits that change with anything in the features."""
    hashed = hashlib.blake2b(f"{features.kind} {features.width} {features.height} {len(features)}".encode(), digest_size=16)
    for values in (features.xy, features.scale, features.angle, features.descriptors):
        hashed.update(np.ascontiguousarray(values).view(np.uint8).data)
    return hashed.hexdigest()
