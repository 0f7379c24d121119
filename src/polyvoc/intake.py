"""What comes in, and waits for the next commit: photographs are read, their features become words.

Features of many images are quantised together: the matrix products of a batch are much cheaper than one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing

import numpy as np

from polyvoc import features
from polyvoc.catalogue import ImageRow
from polyvoc.embedding import Embedder
from polyvoc.errors import ImageError, UnreachableError
from polyvoc.images import Location
from polyvoc.quantiser import Quantiser
from polyvoc.records import FeatureOptions, Features, Floats
from polyvoc.segment import Batch

QUANTISE_FEATURES = 20_000  # quantised together
LARGEST_SCALE = float(np.finfo(np.float16).max)  # as it is stored

Waiting = tuple[ImageRow, Features, Floats | None]  # with the image's unit vector, if it has one


def read(
    paths: Sequence[Location], options: FeatureOptions, model: Embedder | None
) -> Generator[tuple[str, Features | ImageError, Floats | None], None, None]:
    """Give the features of photographs, or what is wrong with them, and their vectors if there is a model for them.

    Where the model alone refuses a photograph, its words do without.
    """
    with closing(features.extract_many(paths, options)) as extracted:
        if model is None:
            yield from ((str(path), found, None) for path, found in extracted)
            return
        with closing(model.embed_many(paths)) as embedded:
            for (path, found), (_, vector) in zip(extracted, embedded, strict=True):
                yield str(path), *_joined(found, vector)


def read_one(path: str, options: FeatureOptions, model: Embedder | None) -> tuple[Features | ImageError, Floats | None]:
    """Give the same of one photograph, on this thread."""
    try:
        found: Features | ImageError = features.extract(path, options)
    except ImageError as error:
        found = error
    if model is None:
        return found, None
    try:
        return _joined(found, model.embed(path))
    except ImageError as error:
        return _joined(found, error)


def _joined(found: Features | ImageError, vector: Floats | ImageError) -> tuple[Features | ImageError, Floats | None]:
    if isinstance(vector, UnreachableError):  # as if the first reading had failed: it may pass
        return vector, None
    return found, None if isinstance(vector, ImageError) else vector


class Intake:
    """Images that wait for a commit, and those that they replace."""

    def __init__(self, quantiser: Callable[[], Quantiser], dimension: int) -> None:
        """Begin without any; the quantiser is asked for when it is needed. `dimension` is that of vectors, 0 for none."""
        self._quantiser = quantiser
        self._dimension = dimension
        self._raw: list[Waiting] = []
        self._batches: list[Batch] = []
        self.rows: list[ImageRow] = []  # of the quantised ones
        self.replaced: list[int] = []  # ids
        self.names: set[str] = set()  # of all

    @property
    def n_features(self) -> int:
        """Count the features that are quantised."""
        return sum(len(batch.words) for batch in self._batches)

    def add(self, row: ImageRow, found: Features, vector: Floats | None, replaced: ImageRow | None) -> None:
        """Take an image, its vector [d] if it has one, and the image that it replaces."""
        if replaced is not None:
            self.replaced.append(replaced.image)
        self._raw.append((row, found, vector))
        self.names.add(row.path)
        if sum(len(waiting) for _, waiting, _ in self._raw) >= QUANTISE_FEATURES:
            self.quantise()

    def quantise(self) -> None:
        """Turn the features of all that wait into words."""
        if not self._raw:
            return
        rows, found, vectors = zip(*self._raw, strict=True)
        words, signatures = self._quantiser().quantise(np.concatenate([f.descriptors for f in found]))
        shape = [np.column_stack([np.minimum(f.scale, LARGEST_SCALE), f.angle]) for f in found]
        silent = np.zeros(self._dimension, np.float16)
        batch = Batch(
            ids=np.array([row.image for row in rows], np.int64),
            feature_starts=np.concatenate([[0], np.cumsum([len(f) for f in found])]).astype(np.int64),
            words=words,
            signatures=signatures,
            xy=np.concatenate([f.xy for f in found]),
            shape=np.concatenate(shape).astype(np.float16),
            embeddings=np.array([silent if v is None else v for v in vectors], np.float16) if self._dimension else None,
        )
        self._batches, self.rows, self._raw = [*self._batches, batch], [*self.rows, *rows], []

    def batch(self) -> Batch:
        """Give all that is quantised, in the order of `rows`."""
        return Batch.concatenate(self._batches)

    def forget(self) -> None:
        """Wait for nothing any more: it was committed."""
        self.rows, self._batches, self.replaced, self.names = [], [], [], set()
