"""A segment: at most 65,536 images, immutable, the unit of storage, of threads and of machines.

The inverted files of the K vocabularies follow one another, each of F postings (F = features of the segment):

    starts      uint32 [W + 1]      list of word w of vocabulary k: starts[offsets[k] + w] .. (W = sum of the vocabulary sizes)
    postings    uint16 [K F]        image of each posting
    run_starts  uint32 [W + 1]      run directory of each list
    run_words   uint16|32 [R]       word in the partner vocabulary (1 for vocabulary 0, else 0) of each run, ascending
    run_lengths uint8 [R]           number of postings of the run; a run of more than 255 takes several entries
    columns     uint16|32 [K-2, K F]  words in the vocabularies that are neither the own nor the partner
    signatures  uint64 [B, K F]     Hamming signatures, in posting order: B planes of 64 bits (0: none)

Features are numbered by (word in 0, word in 1, ..., image); every list is sorted by that number. Scoring reads nothing else.
By image, for what only the best hits need (explanation, geometry) and for merging segments:

    feature_starts uint32 [n + 1]   features of each image
    words       uint16|32 [F, K]    places uint32 [F, K]  place of the feature in each inverted file (finds its signature)
    xy          float32 [F, 2]      shape  float16 [F, 2]  scale and angle
    documents   uint32 [W]          images that hold each word
    repeats     uint32 [r, 3]       (image, word, tf) of words that an image holds more than once: for the norms
    embeddings  float16 [n, d]      optional: the unit vector of each image, zeros where it has none
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DamagedError, OptionError
from polyvoc.kernels.postings import count_repeats, count_runs, fill_runs, sort_by_word
from polyvoc.storage.files import META, map_folder, read_meta, write_folder
from polyvoc.types import Array, ImageWords, Keypoints, with_planes

MAX_VOCABULARIES = 9
MAX_IMAGES = 1 << 16  # so that a posting is a uint16 and the scores of a segment stay in the L2 cache


@dataclass(frozen=True, eq=False)
class Batch:
    """Quantised images, the input of a segment. Geometry may be absent (`xy` and `shape` of zeros)."""

    ids: npt.NDArray[np.int64]  # [n]
    feature_starts: npt.NDArray[np.int64]  # [n + 1]
    words: npt.NDArray[np.int32]  # [F, K]
    signatures: npt.NDArray[np.uint64] | None  # [F, K], or [F, K, 2] beyond 64 bits
    xy: npt.NDArray[np.float32]  # [F, 2]
    shape: npt.NDArray[np.float16]  # [F, 2] scale, angle
    embeddings: npt.NDArray[np.float16] | None = None  # [n, d] unit vectors; of zeros for an image that has none

    @classmethod
    def of_words(cls, images: Sequence[Array], n_vocabularies: int, signatures: Sequence[Array] | None = None,
                 first_id: int = 0) -> Batch:  # fmt: skip
        """Make a batch of bare words: images of [n_i, K] words, without geometry."""
        starts = np.zeros(len(images) + 1, np.int64)
        np.cumsum([len(words) for words in images], out=starts[1:])
        words = _stack(images, n_vocabularies, np.int32)
        bits = None if signatures is None else _stack_signatures(signatures, n_vocabularies)
        if bits is not None and bits.shape[:2] != words.shape:
            raise OptionError(f"signatures of shape {bits.shape} do not fit words of shape {words.shape}")
        n = len(words)
        return cls(
            ids=np.arange(first_id, first_id + len(images), dtype=np.int64),
            feature_starts=starts,
            words=words,
            signatures=bits,
            xy=np.zeros((n, 2), np.float32),
            shape=np.zeros((n, 2), np.float16),
        )

    @classmethod
    def concatenate(cls, batches: Sequence[Batch]) -> Batch:
        """Join batches, in order."""
        lengths = np.concatenate([np.diff(batch.feature_starts) for batch in batches])
        signed = [batch.signatures for batch in batches if batch.signatures is not None]
        return cls(
            ids=np.concatenate([batch.ids for batch in batches]),
            feature_starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            words=np.concatenate([batch.words for batch in batches]),
            signatures=np.concatenate(signed) if signed else None,
            xy=np.concatenate([batch.xy for batch in batches]),
            shape=np.concatenate([batch.shape for batch in batches]),
            embeddings=_join_embeddings(batches),
        )


@dataclass(frozen=True, eq=False)
class Segment:
    """The arrays of one segment, in memory or mapped from its folder. Read-only; may be shared by threads."""

    sizes: tuple[int, ...]
    ids: npt.NDArray[np.int64]
    arrays: dict[str, Array]
    alive: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))  # empty: all; else [n_images]

    # -- what it holds

    @cached_property
    def n_images(self) -> int:
        """Return the number of images, deleted ones included."""
        return len(self.ids)

    @cached_property
    def n_features(self) -> int:
        """Return the number of features, those of deleted images included."""
        return len(self.arrays["words"])

    @cached_property
    def n_vocabularies(self) -> int:
        """Return the number of vocabularies."""
        return len(self.sizes)

    @cached_property
    def signed(self) -> bool:
        """Return whether the postings have Hamming signatures."""
        return self.planes > 0 or self.n_features == 0

    @cached_property
    def planes(self) -> int:
        """Return the number of planes, groups of 64 bits, of a signature."""
        return len(self.arrays["signatures"])

    @property
    def embeddings(self) -> npt.NDArray[np.float16] | None:
        """Return the unit vectors of the images [n, d], zeros where one has none; None if there are none."""
        return self.arrays.get("embeddings")

    def live_positions(self) -> npt.NDArray[np.int64]:
        """Return the positions of the images that are not deleted."""
        return np.flatnonzero(self.alive) if len(self.alive) else np.arange(self.n_images)

    @cached_property
    def live_lengths(self) -> npt.NDArray[np.int64]:
        """Count the live features of each word [W]."""
        starts = self.arrays["starts"].astype(np.int64)
        counts: npt.NDArray[np.int64] = starts[1:] - starts[:-1]
        for words in self._deleted_words():
            counts -= np.bincount(words.ravel(), minlength=len(counts))
        return counts

    def documents(self) -> npt.NDArray[np.int64]:
        """Count the live images that hold each word [W]."""
        counts = self.arrays["documents"].astype(np.int64)
        for words in self._deleted_words():
            counts[np.unique(words)] -= 1
        return counts

    def _deleted_words(self) -> Iterator[Array]:
        bases = word_offsets(self.sizes)
        starts = self.arrays["feature_starts"]
        for position in np.flatnonzero(self.alive == 0):
            yield self.arrays["words"][starts[position] : starts[position + 1]].astype(np.int64) + bases

    def image_words(self, position: int) -> ImageWords:
        """Return words, signatures and keypoints of the image at a position."""
        first, last = (int(i) for i in self.arrays["feature_starts"][position : position + 2])
        signatures = self._signatures_at(self.arrays["places"][first:last])
        if signatures is None:
            signatures = np.zeros((last - first, 0), np.uint64)
        scale, angle = self.arrays["shape"][first:last].T
        keypoints = Keypoints(self.arrays["xy"][first:last], scale, angle)
        return ImageWords(np.asarray(self.arrays["words"][first:last]), signatures, keypoints)

    def _signatures_at(self, places: Array) -> npt.NDArray[np.uint64] | None:
        planes = self.arrays["signatures"]
        if self.planes < 2:
            return planes[0][places] if self.planes else None
        return np.stack([plane[places] for plane in planes], axis=-1)

    def without(self, positions: Sequence[int]) -> Segment:
        """Return the same segment with the images at some positions marked as deleted."""
        if not len(positions):
            return self
        alive = self.alive.copy() if len(self.alive) else np.ones(self.n_images, np.uint8)
        alive[np.asarray(positions)] = 0
        return replace(self, alive=alive)

    def live_batch(self) -> Batch:
        """Return the batch it was built from, without the deleted images: the input of a merged segment."""
        starts = self.arrays["feature_starts"].astype(np.int64)
        live = self.live_positions()
        lengths = np.diff(starts)[live]
        keep = np.ones(self.n_features, bool)
        for position in np.flatnonzero(self.alive == 0):
            keep[starts[position] : starts[position + 1]] = False
        return Batch(
            ids=self.ids[live],
            feature_starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            words=self.arrays["words"][keep].astype(np.int32),
            signatures=self._signatures_at(self.arrays["places"][keep]),
            xy=self.arrays["xy"][keep],
            shape=self.arrays["shape"][keep],
            embeddings=None if self.embeddings is None else self.embeddings[live],
        )

    # -- building

    @classmethod
    def build(cls, batch: Batch, sizes: tuple[int, ...]) -> Segment:
        """Sort the features of a batch into posting lists."""
        check_batch(batch, sizes)
        n_features = len(batch.words)
        word_type = np.uint16 if max(sizes) <= 1 << 16 else np.uint32
        words = np.ascontiguousarray(batch.words.T.astype(word_type))  # [K, F]: each pass reads one vocabulary
        lengths = np.diff(batch.feature_starts)
        image_of = np.repeat(np.arange(len(lengths), dtype=np.uint16), lengths)
        order = np.arange(n_features, dtype=np.uint32)
        for k in reversed(range(len(sizes))):
            order, starts_0 = sort_by_word(order, words[k], sizes[k])
        parts = [_InvertedFile.build(order, starts_0, words, image_of, 0)]
        for k in range(1, len(sizes)):
            order_k, starts_k = sort_by_word(order, words[k], sizes[k])
            parts.append(_InvertedFile.build(order_k, starts_k, words, image_of, k))
        arrays = _join(parts, n_features, word_type)
        places = np.empty((n_features, len(sizes)), np.uint32)
        bits = None if batch.signatures is None else with_planes(batch.signatures, 2)
        signatures = np.empty((0 if bits is None else bits.shape[2], len(sizes) * n_features), np.uint64)
        for k, part in enumerate(parts):
            places[part.order, k] = np.arange(k * n_features, (k + 1) * n_features, dtype=np.uint32)
            if bits is not None:
                signatures[:, k * n_features : (k + 1) * n_features] = bits[part.order, k].T
        documents, repeats = _repeats(words, batch.feature_starts, sizes)
        arrays |= {
            "signatures": signatures,
            "feature_starts": batch.feature_starts.astype(np.uint32),
            "words": np.ascontiguousarray(words.T),
            "places": places,
            "xy": batch.xy,
            "shape": batch.shape,
            "documents": documents,
            "repeats": repeats,
        }
        if batch.embeddings is not None:
            arrays["embeddings"] = batch.embeddings
        return cls(tuple(sizes), _frozen(batch.ids), {name: _frozen(array) for name, array in arrays.items()})

    # -- storing

    def save(self, folder: Path) -> None:
        """Write the segment to a folder, which appears complete or not at all."""
        shapes = {name: [str(array.dtype), list(array.shape)] for name, array in self.arrays.items()}
        meta = {"sizes": list(self.sizes), "arrays": shapes, "n_images": self.n_images}
        write_folder(folder, {**self.arrays, "ids": self.ids}, meta)

    @classmethod
    def open(cls, folder: Path) -> Segment:
        """Map a segment from its folder."""
        meta = read_meta(folder)
        try:
            shapes = {name: (dtype, tuple(shape)) for name, (dtype, shape) in meta["arrays"].items()}
            arrays = map_folder(folder, {**shapes, "ids": (np.int64, (meta["n_images"],))})
            return cls(tuple(meta["sizes"]), arrays.pop("ids"), arrays)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedError(f"{folder / META} does not describe a segment ({error!r})") from None


@dataclass(frozen=True, eq=False)
class _InvertedFile:
    """One vocabulary's part of a segment, before the parts are joined."""

    order: Array  # [F] feature of each posting
    starts: Array
    postings: Array
    run_starts: Array
    run_words: Array
    run_lengths: Array
    columns: list[Array]

    @classmethod
    def build(cls, order: Array, starts: Array, words: Array, image_of: Array, k: int) -> _InvertedFile:
        n_vocabularies = len(words)
        run_starts = np.zeros(len(starts), np.int64)
        run_words, run_lengths = np.empty(0, words.dtype), np.empty(0, np.uint8)
        partner = 1 if k == 0 else 0
        if n_vocabularies > 1:
            partner_words = words[partner][order]
            run_starts = count_runs(starts, partner_words)
            run_words, run_lengths = np.empty(run_starts[-1], words.dtype), np.empty(run_starts[-1], np.uint8)
            fill_runs(starts, partner_words, run_words, run_lengths)
        columns = [words[m][order] for m in range(n_vocabularies) if m not in (k, partner)]
        return cls(order, starts, image_of[order], run_starts, run_words, run_lengths, columns)


def word_offsets(sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the number of the first word of each vocabulary [K]."""
    return np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)


def check_batch(batch: Batch, sizes: Sequence[int]) -> None:
    """Raise OptionError for a batch that a segment cannot hold."""
    if len(batch.ids) > MAX_IMAGES:
        raise OptionError(f"{len(batch.ids)} images do not fit into one segment of {MAX_IMAGES}")
    if batch.words.size >= 1 << 32:
        raise OptionError(f"{len(batch.words)} features do not fit into one segment; use fewer images per segment")
    if batch.words.shape[1] != len(sizes):
        raise OptionError(f"words of {batch.words.shape[1]} vocabularies where {len(sizes)} are expected")
    vectors = batch.embeddings
    if vectors is not None and (vectors.dtype != np.float16 or vectors.ndim != 2 or len(vectors) != len(batch.ids)):
        raise OptionError(f"embeddings {vectors.dtype}{list(vectors.shape)} should be float16 [{len(batch.ids)}, dimension]")
    for k, size in enumerate(sizes):
        column = batch.words[:, k]
        if len(column) and (column.min() < 0 or column.max() >= size):
            raise OptionError(f"words of vocabulary {k} should be 0 to {size - 1}; found {column.min()} to {column.max()}")


def _join_embeddings(batches: Sequence[Batch]) -> npt.NDArray[np.float16] | None:
    """Join the vectors of batches [n, d]; those without any get zeros, unless none has any."""
    vectors = [batch.embeddings for batch in batches]
    lengths = {part.shape[1] for part in vectors if part is not None}
    if len(lengths) > 1:
        raise OptionError(f"vectors of {sorted(lengths)} numbers cannot be mixed; use one model for all images")
    parts = [np.zeros((len(b.ids), *lengths), np.float16) if p is None else p for b, p in zip(batches, vectors, strict=True)]
    return np.concatenate(parts) if lengths else None


def _frozen(array: Array) -> Array:
    """Return a read-only view: a segment never changes, and built and mapped ones then share their compiled kernels."""
    view = array.view()
    view.flags.writeable = False
    return view


def _join(parts: Sequence[_InvertedFile], n_features: int, word_type: type) -> dict[str, Array]:
    starts = [part.starts[:-1] + k * n_features for k, part in enumerate(parts)]
    run_ends = np.cumsum([0, *(len(part.run_words) for part in parts)])
    run_starts = [part.run_starts[:-1] + run_ends[k] for k, part in enumerate(parts)]
    n_columns = max(len(parts) - 2, 0)
    columns: Array = np.empty((n_columns, len(parts) * n_features if n_columns else 0), word_type)
    for k, part in enumerate(parts):
        for c, column in enumerate(part.columns):
            columns[c, k * n_features : (k + 1) * n_features] = column
    return {
        "starts": np.concatenate([*starts, [len(parts) * n_features]]).astype(np.uint32),
        "postings": np.concatenate([part.postings for part in parts]),
        "run_starts": np.concatenate([*run_starts, run_ends[-1:]]).astype(np.uint32),
        "run_words": np.concatenate([part.run_words for part in parts]),
        "run_lengths": np.concatenate([part.run_lengths for part in parts]),
        "columns": columns,
    }


def _repeats(words: Array, feature_starts: Array, sizes: Sequence[int]) -> tuple[Array, Array]:
    documents, repeats = [], []
    for k, base in enumerate(word_offsets(sizes)):
        counts, rows = count_repeats(words[k], feature_starts, sizes[k])
        rows[:, 1] += base
        documents.append(counts)
        repeats.append(rows)
    return np.concatenate(documents).astype(np.uint32), np.concatenate(repeats).astype(np.uint32)


def _stack_signatures(images: Sequence[Array], n_vocabularies: int) -> Array:
    """Join signatures [n_i, K] or [n_i, K, 2]; an image without features may have either shape."""
    arrays = [np.asarray(rows) for rows in images]
    for rows in arrays:
        if rows.size and (rows.dtype.kind not in "iu" or (rows.ndim == 3 and rows.shape[2] != 2)):
            raise OptionError(f"signatures {rows.dtype}{list(rows.shape)} should be integers of 64 or 2 x 64 bits")
    if not any(rows.size and rows.ndim == 3 for rows in arrays):
        return _stack(arrays, n_vocabularies, np.uint64)
    planes = [_stack([rows.reshape(len(rows), n_vocabularies, -1)[:, :, b] for rows in arrays if rows.size], n_vocabularies,
                     np.uint64) for b in range(2)]  # fmt: skip
    return np.stack(planes, axis=-1)


def _stack(images: Sequence[Array], n_vocabularies: int, dtype: type) -> Array:
    parts: list[Array] = [np.empty((0, n_vocabularies), dtype)]
    for rows in map(np.asarray, images):
        if rows.size and (rows.dtype.kind not in "iu" or rows.shape != (len(rows), n_vocabularies)):
            raise OptionError(f"an image of {rows.dtype}{list(rows.shape)} where integers [n, {n_vocabularies}] are expected")
        if rows.size and rows.max() > np.iinfo(dtype).max:
            raise OptionError(f"word {rows.max()} is larger than any vocabulary")
        parts.append(rows.astype(dtype, copy=False).reshape(-1, n_vocabularies))
    return np.concatenate(parts)
