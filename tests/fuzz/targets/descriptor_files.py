"""Files of datasets: `.siftgeo`, text of hesaff, pickles of the revisited ground truths."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import numpy as np

from fuzz.laws import one_line_errors, scratch_file
from polyvoc.experiments.datasets.descriptor_files import SiftFeatures, read_hesaff, read_siftgeo, write_siftgeo
from polyvoc.experiments.datasets.ground_truth import read_ground_truth

MAX_BYTES = 4096


def target(data: bytes) -> None:
    """Read a file in all three formats; what is read is finite, and fits together."""
    path = scratch_file("descriptors.bin", data)
    for read in (read_siftgeo, read_hesaff):
        with one_line_errors():
            found = read(path)
            assert len(found.xy) == len(found.scale) == len(found.angle) == len(found.descriptors)
            assert all(np.isfinite(values).all() for values in (found.xy, found.scale, found.angle))
            assert ((found.angle >= 0) & (found.angle < 360)).all()
    with one_line_errors():
        truth = read_ground_truth(path)
        assert len(truth.entries) == len(truth.queries)


def seeds() -> Iterator[bytes]:
    """Yield one file of each format."""
    rng = np.random.default_rng(1)
    xy, scale, angle = rng.random((3, 2), np.float32), rng.random(3, np.float32), rng.random(3, np.float32)
    path = scratch_file("descriptors.bin", b"")
    write_siftgeo(path, SiftFeatures(xy, scale, angle, rng.integers(0, 256, (3, 8), np.uint8)))
    yield path.read_bytes()
    yield b"4\n2\n1.5 2 0.25 0 0.25 1 2 3 4\n3 4.5 1e-2 0.001 0.25 5 6 7 255\n"
    entry = {"bbx": [1.0, 2.0, 30.0, 40.0], "easy": [0], "hard": np.array([1]), "junk": []}
    for protocol in (0, 2, 4):
        yield pickle.dumps({"imlist": ["a", "b"], "qimlist": ["q"], "gnd": [entry]}, protocol)
