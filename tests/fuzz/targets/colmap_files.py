"""Databases of COLMAP, and lists of pairs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import numpy as np

from fuzz.laws import check_line, one_line_errors, scratch, scratch_file
from polyvoc.errors import ExchangeError
from polyvoc.features.colmap import read_pairs
from polyvoc.features.feature_files import features_digest, kind_of, open_features

MAX_BYTES = 40_000
TABLES = """
PRAGMA page_size = 512;
CREATE TABLE cameras (camera_id INTEGER PRIMARY KEY, model INTEGER, width INTEGER, height INTEGER, params BLOB);
CREATE TABLE images (image_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, camera_id INTEGER NOT NULL);
CREATE TABLE keypoints (image_id INTEGER PRIMARY KEY, rows INTEGER, cols INTEGER, data BLOB);
"""
DESCRIPTORS = "CREATE TABLE descriptors (image_id INTEGER PRIMARY KEY, {}rows INTEGER, cols INTEGER, data BLOB);"


def target(data: bytes) -> None:
    """Read every image of a database; each gives features or one line."""
    path = scratch_file("features.db", data)
    with one_line_errors(), closing(open_features(path)) as features:
        names = features.names()
        for name, found in features.read():
            assert name in names
            if isinstance(found, ExchangeError):
                check_line(str(found))
            else:
                assert features_digest(found)
        assert kind_of(features).name
    with one_line_errors():
        assert all(len(pair) == 2 for pair in read_pairs(path))


def seeds() -> Iterator[bytes]:
    """Yield databases of old and new versions of COLMAP, and a list of pairs."""
    rng = np.random.default_rng(1)
    for typed, columns in ((False, 2), (True, 4), (True, 6)):
        path = scratch("seeds") / "features.db"
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as database:
            database.executescript(TABLES + DESCRIPTORS.format("type INTEGER, " if typed else ""))
            database.execute("INSERT INTO cameras VALUES (1, 2, 640, 480, NULL)")
            for image in (1, 2):
                points = rng.random((3, columns), np.float32)
                stored = rng.integers(0, 256, (3, 128), np.uint8)
                kind = [image - 1] if typed else []
                database.execute("INSERT INTO images VALUES (?, ?, 1)", [image, f"{image}.jpg"])
                database.execute("INSERT INTO keypoints VALUES (?, 3, ?, ?)", [image, columns, points.tobytes()])
                places = ", ".join("?" * (4 + typed))
                database.execute(f"INSERT INTO descriptors VALUES ({places})", [image, *kind, 3, 128, stored.tobytes()])
            database.commit()
        yield path.read_bytes()
    yield b"# pairs\na.jpg b.jpg\n\nb.jpg c.jpg\n"
