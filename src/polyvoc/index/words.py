"""The words of a segment: inverted files of K vocabularies, which the rules of the paper merge.

They follow one another, each of F postings (F = features of the segment):

    starts      uint32 [W + 1]      list of word w of vocabulary k: starts[offsets[k] + w] .. (W = sum of the vocabulary sizes)
    postings    uint16 [K F]        image of each posting
    run_starts  uint32 [W + 1]      run directory of each list
    run_words   uint16|32 [R]       word in the partner vocabulary (1 for vocabulary 0, else 0) of each run, ascending
    run_lengths uint8 [R]           number of postings of the run; a run of more than 255 takes several entries
    columns     uint16|32 [K-2, K F]  words in the vocabularies that are neither the own nor the partner
    documents   uint32 [W]          images that hold each word
    words       uint16|32 [F, K]    by image

and, where signatures are kept (Hamming Embedding in every vocabulary):

    signatures  uint64 [B, K F]     in posting order: B planes of 64 bits ([0, K F]: none)
    places      uint32 [F, K]       by image: place of the feature in each inverted file ([0, K]: none)

In the inverted files features are numbered by (word in 0, word in 1, ..., image); every list is sorted by that number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.kernels.postings import count_repeats, count_runs, fill_runs, gather, sort_by_word
from polyvoc.types import Array, with_planes

MAX_VOCABULARIES = 9


def word_offsets(sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the number of the first word of each vocabulary [K]."""
    return np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64) if len(sizes) else np.empty(0, np.int64)


def word_type(sizes: Sequence[int]) -> type[np.unsignedinteger]:
    """Return the type that words are stored in."""
    return np.uint16 if max(sizes, default=0) <= 1 << 16 else np.uint32


def check_words(words: Array, sizes: Sequence[int]) -> None:
    """Raise OptionError for words [F, K] that inverted files cannot hold."""
    if words.shape[1] != len(sizes):
        raise OptionError(f"words of {words.shape[1]} vocabularies where {len(sizes)} are expected")
    if words.size >= 1 << 32:
        raise OptionError(f"{len(words)} features do not fit into one segment; use fewer images per segment")
    for k, size in enumerate(sizes):
        column = words[:, k]
        if len(column) and (column.min() < 0 or column.max() >= size):
            raise OptionError(f"words of vocabulary {k} should be 0 to {size - 1}; found {column.min()} to {column.max()}")


def build_lists(words: Array, signatures: Array | None, feature_starts: Array, sizes: Sequence[int]) -> dict[str, Array]:
    """Sort features by their words [F, K] into inverted files; return the arrays. signatures: [F, K] or [F, K, 2]."""
    stored = np.ascontiguousarray(words, word_type(sizes))
    by_vocabulary = np.ascontiguousarray(stored.T)  # [K, F]: each pass reads one vocabulary
    bits = None if signatures is None else with_planes(signatures, 2)
    arrays = _build_files(by_vocabulary, bits, feature_starts, sizes)
    documents = [count_repeats(by_vocabulary[k], feature_starts, size)[0] for k, size in enumerate(sizes)]
    return arrays | {"words": stored, "documents": np.concatenate(documents).astype(np.uint32)}


def _build_files(words: Array, bits: Array | None, feature_starts: Array, sizes: Sequence[int]) -> dict[str, Array]:
    """Sort features by their words [K, F] into inverted files. bits: signatures [F, K, B]."""
    n_features, lengths = words.shape[1], np.diff(feature_starts)
    image_of = np.repeat(np.arange(len(lengths), dtype=np.uint16), lengths)
    places: Array = np.empty((0 if bits is None else n_features, len(sizes)), np.uint32)
    planes: Array = np.empty((0 if bits is None else bits.shape[2], len(sizes) * n_features), np.uint64)
    order, parts = np.arange(n_features, dtype=np.uint32), []
    for k in reversed(range(1, len(sizes))):
        order, _ = sort_by_word(order, words[k], sizes[k])
    for k, size in enumerate(sizes):
        own, starts = sort_by_word(order, words[k], size)
        parts.append(_InvertedFile.build(own, starts, words, image_of, k))
        if bits is not None:
            places[own, k] = np.arange(k * n_features, (k + 1) * n_features, dtype=np.uint32)
            planes[:, k * n_features : (k + 1) * n_features] = bits[own, k].T
        order = own if k == 0 else order  # by (word in 0, word in 1, ...): the numbers of the features
    return _join(parts, n_features, words.dtype) | {"signatures": planes, "places": places}


def find_repeats(words: Array, feature_starts: Array, sizes: Sequence[int]) -> Array:
    """Return (image, number of the word, tf) of words [F, K] that an image holds more than once [r, 3]."""
    found = []
    for k, base in enumerate(word_offsets(sizes)):
        _, rows = count_repeats(np.ascontiguousarray(words[:, k]), feature_starts, sizes[k])
        rows[:, 1] += base
        found.append(rows)
    return np.concatenate([np.empty((0, 3), np.int64), *found])


@dataclass(frozen=True, eq=False)
class _InvertedFile:
    """One vocabulary's part of a segment, before the parts are joined."""

    starts: Array
    postings: Array
    run_starts: Array
    run_words: Array
    run_lengths: Array
    columns: list[Array]

    @classmethod
    def build(cls, order: Array, starts: Array, words: Array, image_of: Array, k: int) -> _InvertedFile:
        """Build that of vocabulary k. order: [F] feature of each posting."""
        n_vocabularies = len(words)
        run_starts = np.zeros(len(starts), np.int64)
        run_words, run_lengths = np.empty(0, words.dtype), np.empty(0, np.uint8)
        partner = 1 if k == 0 else 0
        if n_vocabularies > 1:
            partner_words = gather(words[partner], order)
            run_starts = count_runs(starts, partner_words)
            run_words, run_lengths = np.empty(run_starts[-1], words.dtype), np.empty(run_starts[-1], np.uint8)
            fill_runs(starts, partner_words, run_words, run_lengths)
        columns = [gather(words[m], order) for m in range(n_vocabularies) if m not in (k, partner)]
        return cls(starts, gather(image_of, order), run_starts, run_words, run_lengths, columns)


def _join(parts: Sequence[_InvertedFile], n_features: int, kind: npt.DTypeLike) -> dict[str, Array]:
    starts = [part.starts[:-1] + k * n_features for k, part in enumerate(parts)]
    run_ends = np.cumsum([0, *(len(part.run_words) for part in parts)])
    run_starts = [part.run_starts[:-1] + run_ends[k] for k, part in enumerate(parts)]
    n_columns = max(len(parts) - 2, 0)
    columns: Array = np.empty((n_columns, len(parts) * n_features if n_columns else 0), kind)
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


def stack_signatures(images: Sequence[Array], n_vocabularies: int) -> Array:
    """Join signatures [n_i, K] or [n_i, K, 2]; an image without features may have either shape."""
    arrays = [np.asarray(rows) for rows in images]
    for rows in arrays:
        if rows.size and (rows.dtype.kind not in "iu" or (rows.ndim == 3 and rows.shape[2] != 2)):
            raise OptionError(f"signatures {rows.dtype}{list(rows.shape)} should be integers of 64 or 2 x 64 bits")
    if not any(rows.size and rows.ndim == 3 for rows in arrays):
        return stack_words(arrays, n_vocabularies, np.uint64)
    signed = [rows.reshape(len(rows), n_vocabularies, -1) for rows in arrays if rows.size]
    planes = [stack_words([rows[:, :, b] for rows in signed], n_vocabularies, np.uint64) for b in range(2)]
    return np.stack(planes, axis=-1)


def stack_words(images: Sequence[Array], n_vocabularies: int, dtype: type) -> Array:
    """Join words, or signatures, [n_i, K] of images."""
    parts: list[Array] = [np.empty((0, n_vocabularies), dtype)]
    for rows in map(np.asarray, images):
        if rows.size and (rows.dtype.kind not in "iu" or rows.shape != (len(rows), n_vocabularies)):
            raise OptionError(f"an image of {rows.dtype}{list(rows.shape)} where integers [n, {n_vocabularies}] are expected")
        if rows.size and rows.max() > np.iinfo(dtype).max:
            raise OptionError(f"word {rows.max()} is larger than any vocabulary")
        parts.append(rows.astype(dtype, copy=False).reshape(-1, n_vocabularies))
    return np.concatenate(parts)
