"""Do the arrays of a segment contradict each other? Every posting is followed to its feature and back; words are recounted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.kernels.build import LONGEST_RUN
from polyvoc.segment import Segment, bases_of

Array = npt.NDArray[Any]
CHUNK = 1 << 20  # features looked at together
NOWHERE = np.uint32(0xFFFFFFFF)


def damage(segment: Segment) -> Iterator[str]:
    """Say which arrays contradict each other; stop where the rest could not be looked at."""
    arrays, n_features = segment.arrays, segment.n_features
    bases = [*bases_of(segment.sizes).tolist(), sum(segment.sizes)]
    ends = [k * n_features for k in range(segment.n_vocabularies + 1)]
    n_runs = len(arrays["run_words"])
    found = []
    if not _rises(arrays["feature_starts"], [(0, 0), (-1, n_features)]):
        found.append("feature_starts.npy does not rise from 0 to the number of features")
    if not _rises(arrays["starts"], zip(bases, ends, strict=True)):
        found.append("starts.npy does not rise from 0 to the number of postings of each vocabulary")
    if not _rises(arrays["run_starts"], [(0, 0), (-1, n_runs)]):
        found.append("run_starts.npy does not rise from 0 to the number of runs")
    if any((part >= segment.n_images).any() for part in chunks(arrays["postings"])):
        found.append("postings.npy holds an image that does not exist")
    if any((part >= np.array(segment.sizes)).any() for part in chunks(arrays["words"])):
        found.append("words.npy holds a word that does not exist")
    if not found and segment.n_vocabularies > 1:
        for k in range(segment.n_vocabularies):
            found += _run_damage(segment, k)
    yield from found
    if not found:
        for k in range(segment.n_vocabularies):
            yield from _place_damage(segment, k)
        yield from _order_damage(segment)
        yield from _count_damage(segment)


def _rises(values: Array, known: Iterable[tuple[int, int]]) -> bool:
    return bool((values[1:] >= values[:-1]).all()) and all(int(values[at]) == value for at, value in known)


def chunks(values: Array, width: int = 1) -> Iterator[Array]:
    """Cut an array into parts that are looked at together; each of its rows has so many numbers."""
    size = max(CHUNK // width, 1)
    for first in range(0, len(values), size):
        yield values[first : first + size]


def _run_damage(segment: Segment, k: int) -> Iterator[str]:
    """Compare the run directory of a vocabulary with its lists."""
    lists = slice(int(bases_of(segment.sizes)[k]), int(bases_of(segment.sizes)[k]) + segment.sizes[k] + 1)
    lengths = np.diff(segment.arrays["starts"][lists].astype(np.int64))
    run_starts = segment.arrays["run_starts"][lists].astype(np.int64)
    runs = slice(run_starts[0], run_starts[-1])
    words, run_lengths = segment.arrays["run_words"][runs], segment.arrays["run_lengths"][runs]
    run_starts -= run_starts[0]
    sums = np.zeros(len(lengths), np.int64)
    filled = np.diff(run_starts) > 0
    if filled.any():
        sums[filled] = np.add.reduceat(run_lengths, run_starts[:-1][filled], dtype=np.int64)
    if (sums != lengths).any() or (run_lengths == 0).any():
        yield f"run_lengths.npy does not fill the lists of vocabulary {k}"
        return
    rising = (words[1:] > words[:-1]) | ((words[1:] == words[:-1]) & (run_lengths[:-1] == LONGEST_RUN))
    if np.setdiff1d(np.flatnonzero(~rising) + 1, run_starts).size:
        yield f"run_words.npy does not rise within the lists of vocabulary {k}"


def _place_damage(segment: Segment, k: int) -> Iterator[str]:
    """Follow every feature to its posting in one vocabulary, and back."""
    arrays, n_features = segment.arrays, segment.n_features
    base, first_posting = int(bases_of(segment.sizes)[k]), k * n_features
    starts, partner = arrays["starts"], 1 if k == 0 else 0
    others = [m for m in range(segment.n_vocabularies) if m not in (k, partner)]
    runs = slice(*(int(arrays["run_starts"][base + w]) for w in (0, segment.sizes[k])))
    partner_words = np.repeat(arrays["run_words"][runs], arrays["run_lengths"][runs])  # [F] in the order of the postings
    numbers = np.full(n_features, NOWHERE)  # [F] place in vocabulary 0 of the feature of each posting
    for first in range(0, n_features, CHUNK):
        features = slice(first, first + CHUNK)
        words, places = arrays["words"][features], arrays["places"][features]
        own, number = places[:, k].astype(np.int64), words[:, k].astype(np.int64) + base
        if ((own < starts[number]) | (own >= starts[number + 1])).any():
            yield f"places.npy leads to a list of another word of vocabulary {k}"
            return
        if (arrays["postings"][own] != _images_of(segment, features)).any():
            yield f"places.npy leads to a posting of another image in vocabulary {k}"
        if segment.n_vocabularies > 1 and (partner_words[own - first_posting] != words[:, partner]).any():
            yield f"run_words.npy differs from words.npy in the lists of vocabulary {k}"
        if any((arrays["columns"][c, own] != words[:, m]).any() for c, m in enumerate(others)):
            yield f"columns.npy differs from words.npy in the lists of vocabulary {k}"
        numbers[own - first_posting] = places[:, 0]
    if (numbers == NOWHERE).any():
        yield f"places.npy leads twice to one posting of vocabulary {k}"
    falls = np.flatnonzero(numbers[1:] <= numbers[:-1]) + 1 + first_posting
    if np.setdiff1d(falls, starts[base : base + segment.sizes[k]]).size:
        yield f"the lists of vocabulary {k} are not in the order of the features"


def _images_of(segment: Segment, features: slice) -> Array:
    last = min(features.stop, segment.n_features)
    return np.searchsorted(segment.arrays["feature_starts"], np.arange(features.start, last), side="right") - 1


def _order_damage(segment: Segment) -> Iterator[str]:
    """Look whether the lists of vocabulary 0 are sorted by the words in the others, then by image."""
    arrays, n_features = segment.arrays, segment.n_features
    runs = int(arrays["run_starts"][segment.sizes[0]])
    keys = [np.repeat(arrays["run_words"][:runs], arrays["run_lengths"][:runs])] if segment.n_vocabularies > 1 else []
    keys += [*arrays["columns"][:, :n_features], arrays["postings"][:n_features]]
    for first in range(1, n_features, CHUNK):
        last = min(first + CHUNK, n_features)
        falls, equal = np.zeros(last - first, bool), np.ones(last - first, bool)
        for key in keys:
            before, after = key[first - 1 : last - 1], key[first:last]
            falls |= equal & (after < before)
            equal &= after == before
        if np.setdiff1d(np.flatnonzero(falls) + first, arrays["starts"][: segment.sizes[0]]).size:
            yield "the lists of vocabulary 0 are not sorted by the words of their features"
            return


def _count_damage(segment: Segment) -> Iterator[str]:
    """Count again which images hold each word, and which hold it more than once."""
    feature_starts = segment.arrays["feature_starts"].astype(np.int64)
    stored = segment.arrays["repeats"].astype(np.int64)
    stored = stored[np.lexsort((stored[:, 1], stored[:, 0]))]
    documents = np.zeros(sum(segment.sizes), np.int64)
    repeats_differ = bool((stored[:, 0] >= segment.n_images).any())
    first = 0
    while first < segment.n_images:
        last = max(first + 1, int(np.searchsorted(feature_starts, feature_starts[first] + CHUNK, side="right")) - 1)
        images = np.repeat(np.arange(first, last), np.diff(feature_starts[first : last + 1]))
        words = segment.arrays["words"][feature_starts[first] : feature_starts[last]] + bases_of(segment.sizes)
        keys, counts = np.unique(images[:, None] * len(documents) + words, return_counts=True)
        documents += np.bincount(keys % len(documents), minlength=len(documents))
        keys, counts = keys[counts > 1], counts[counts > 1]
        expected = np.column_stack([keys // len(documents), keys % len(documents), counts])
        found = stored[np.searchsorted(stored[:, 0], first) : np.searchsorted(stored[:, 0], last)]
        repeats_differ = repeats_differ or not np.array_equal(found, expected)
        first = last
    if not np.array_equal(documents, segment.arrays["documents"]):
        yield "documents.npy differs from a recount"
    if repeats_differ:
        yield "repeats.npy differs from a recount"
