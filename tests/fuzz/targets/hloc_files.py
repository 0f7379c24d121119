"""HDF5 files of hloc."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import h5py
import numpy as np

from fuzz.laws import check_line, one_line_errors, scratch, scratch_file
from polyvoc.errors import ExchangeError
from polyvoc.features.feature_files import features_digest, open_features

MAX_BYTES = 16_384


def target(data: bytes) -> None:
    """Read every image of a file, its descriptors as numbers and as bits; each gives features or one line."""
    path = scratch_file("feats-test.h5", data)
    for binary in (False, True):
        with one_line_errors(), closing(open_features(path, binary=binary)) as features:
            for name, found in features.read():
                assert isinstance(name, str)
                if isinstance(found, ExchangeError):
                    check_line(str(found))
                else:
                    assert features_digest(found)


def seeds() -> Iterator[bytes]:
    """Yield files of the old and the new format of HDF5, with and without scores, of numbers and of bytes."""
    rng = np.random.default_rng(1)
    for version in ("earliest", "latest"):
        for kind in (np.float16, np.float32, np.uint8):
            path = scratch("seeds") / "features.h5"
            path.unlink(missing_ok=True)
            with h5py.File(path, "w", libver=version) as file:
                for name in ("a.jpg", "db/b.jpg"):
                    group = file.create_group(name)
                    group["keypoints"] = rng.random((4, 2)).astype(np.float16)
                    group["descriptors"] = (rng.random((8, 4)) * 9).astype(kind)
                    group["image_size"] = np.array([640, 480])
                    if kind != np.uint8:
                        group["scores"], group["scales"], group["oris"] = (rng.random(4) for _ in range(3))
            yield path.read_bytes()
