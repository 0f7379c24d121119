"""Check every checksum and every reference of an index.

Checksums find what the disk did to the files; references find what a mistake in a program would have done. All arrays are read
once, in chunks; apart from these a check takes up to 10 bytes of memory per feature of the largest segment.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyvoc.errors import DamagedError, PolyvocError
from polyvoc.index.catalogue import LINES, ImageRow
from polyvoc.index.folder import NORMS, SIDE_FILES, EmbeddingInfo, IndexFolder, SideFile
from polyvoc.index.segment import MAX_VOCABULARIES, Segment, word_offsets
from polyvoc.kernels.postings import LONGEST_RUN
from polyvoc.options import FeatureOptions, ScoringOptions
from polyvoc.storage.files import file_errors, folder_errors
from polyvoc.types import Array, FeatureKind, Progress
from polyvoc.vocabulary.vocabulary import Vocabulary

UNIT = 0.01  # by which half-precision vectors may differ from length 1
# Settings of indexes that were calibrated, linked, searched for duplicates, or have vectors.
OPTIONAL = (*LINES.values(), "likelihood_table", "embedding", *SIDE_FILES)
Check = Callable[[IndexFolder], Iterator[str]]  # yields one line per error


def check(path: str | os.PathLike[str], progress: Progress | None = None, more: Sequence[Check] = ()) -> Iterator[str]:
    """Return one line for each error of an index, none if it has none. Others may read and write meanwhile.

    `more` are checks of what this package only stores: likelihood tables, links, duplicate pairs.
    """
    folder = IndexFolder(Path(path))
    try:
        numbers = folder.catalogue.segments()  # raises, as `open` does, if there is no index or it is newer
    except DamagedError as error:
        return iter([str(error)])
    return _errors(folder, numbers, progress or (lambda stage, done, total: None), more)


def _errors(folder: IndexFolder, numbers: list[int], progress: Progress, more: Sequence[Check]) -> Iterator[str]:
    checks: list[Check] = [lambda folder: folder.catalogue.errors(), _check_settings, _check_vocabularies]
    checks += [lambda folder, kind=kind: _check_side_file(folder, kind) for kind in SIDE_FILES]  # type: ignore[misc]
    checks += [_check_norms, *more]
    checks += [lambda folder, number=number: _check_segment(folder, number) for number in numbers]  # type: ignore[misc]
    seen = set()
    try:
        for done, one in enumerate(checks, start=1):
            for line in _lines(one, folder):
                if line not in seen:  # one damaged setting is met by several checks
                    seen.add(line)
                    yield line
            progress("checking", done, len(checks))
    finally:
        folder.close()


def _lines(one: Check, folder: IndexFolder) -> Iterator[str]:
    try:
        yield from one(folder)
    except PolyvocError as error:
        yield str(error)
    except (TypeError, ValueError, KeyError) as error:  # a setting of another type
        yield f"{folder.path}: cannot be checked further ({error!r})"


def _check_settings(folder: IndexFolder) -> Iterator[str]:
    catalogue = folder.catalogue
    settings, last = catalogue.settings(), max(catalogue.segments(), default=0)
    valid: dict[str, Callable[[Any], bool]] = {
        "sizes": lambda sizes: 1 <= len(sizes) <= MAX_VOCABULARIES and min(sizes) >= 1,
        "vocabularies": lambda fingerprints: len(fingerprints) == len(settings["sizes"]),
        "vocabulary_checksums": lambda checksums: len(checksums) == len(settings["sizes"]),
        "bits": lambda bits: bits >= 0,
        "kind": lambda kind: FeatureKind(**kind) is not None,
        "features": lambda options: FeatureOptions(**options) is not None,
        "commit": lambda commit: commit >= 0,
        "last_segment": lambda segment: segment >= last,
        **dict.fromkeys(LINES.values(), lambda line: line is None or ScoringOptions(line=(line["a"], line["b"])) is not None),
        "embedding": lambda _: (info := EmbeddingInfo.of(settings)) is None or (info.dimension >= 1 and bool(info.fingerprint)),
    }
    for name, holds in valid.items():
        value = settings.get(name) if name in OPTIONAL else settings[name]
        try:
            is_valid = holds(value)
        except (TypeError, KeyError, ValueError, DamagedError):
            is_valid = False
        if not is_valid:
            yield f"{catalogue.path}: the setting {name!r} cannot be {reprlib.repr(value)}"


def _check_vocabularies(folder: IndexFolder) -> Iterator[str]:
    settings = [folder.fixed[name] for name in ("sizes", "vocabularies", "vocabulary_checksums")]
    for number, (size, fingerprint, checksum) in enumerate(zip(*settings, strict=False)):
        path = folder.vocabulary_folder(number)
        errors = list(folder_errors(path, checksum))
        if errors:
            yield from errors
            continue
        vocabulary = Vocabulary.load(path)
        if (vocabulary.fingerprint, vocabulary.size, vocabulary.kind) != (fingerprint, size, folder.kind):
            yield f"{path} is another vocabulary than the one the index was made with"


def _check_side_file(folder: IndexFolder, kind: str) -> Iterator[str]:
    """Compare a side file with its checksum, unless a writer replaces it meanwhile."""
    side = folder.side_file(kind)
    error = None if side is None else file_errors(folder.side_path(side), side.checksum)
    if error is not None and folder.side_file(kind) == side:
        yield error


def _check_norms(folder: IndexFolder) -> Iterator[str]:
    with folder.catalogue.snapshot():
        settings = folder.catalogue.settings()
        n_images = sum(size.n_images for size in folder.catalogue.segment_sizes())
    side = SideFile.of(NORMS, settings)
    if side is None or side.extra.get("commit") != settings["commit"] or not folder.side_path(side).is_file():
        return
    values = folder.map_side_file(side, np.float32)
    if len(values) != n_images or not (np.isfinite(values) & (values >= 0)).all():
        yield f"{folder.side_path(side)} holds norms that are negative or not finite, or of another number of images"


def _check_segment(folder: IndexFolder, number: int) -> Iterator[str]:
    catalogue = folder.catalogue
    with catalogue.snapshot():
        row, images, deleted = catalogue.segment(number), catalogue.images_in(number), catalogue.deleted(number)
        settings = catalogue.settings()
        sizes, model = tuple(settings["sizes"]), EmbeddingInfo.of(settings)
    if row is None:
        return
    path = folder.segment_folder(number)
    lines = list(folder_errors(path, row.checksum))
    if not lines:
        segment = Segment.open(path)
        lines = [f"{path}: {line}" for line in _shape_errors(segment, sizes)]
        if not lines:
            lines = [f"{path}: {line}" for line in (*segment_errors(segment), *_embedding_errors(segment, model, images))]
            actual = (segment.n_images, segment.n_features)
            if actual != (row.n_images, row.n_features):
                expected = f"{row.n_images} images, {row.n_features} features"
                lines.append(f"{catalogue.path}: segment {number} should have {expected}, but has {actual[0]}, {actual[1]}")
            lines += [f"{catalogue.path}: segment {number}: {line}" for line in _image_errors(segment, images, deleted)]
    if lines and number in catalogue.segments():  # else a writer has merged it away meanwhile
        yield from lines


def _shape_errors(segment: Segment, sizes: tuple[int, ...]) -> Iterator[str]:
    if segment.sizes != sizes:
        yield f"its vocabularies have {list(segment.sizes)} words, those of the index {list(sizes)}"
        return
    for name, (dtype, shape) in _expected(segment).items():
        array = segment.arrays.get(name)
        if array is None:
            yield f"meta.json does not describe {name}.npy"
        elif array.dtype != dtype or array.shape != shape:
            yield f"{name}.npy is {array.dtype}{list(array.shape)} instead of {np.dtype(dtype)}{list(shape)}"


def _expected(segment: Segment) -> dict[str, tuple[type, tuple[int, ...]]]:
    """Return the type and shape of every array, from those whose length is free."""
    lengths = {name: len(array) for name, array in segment.arrays.items()}
    n_images, n_features, n_runs = segment.n_images, lengths.get("words", 0), lengths.get("run_words", 0)
    n_words, k = sum(segment.sizes), len(segment.sizes)
    n_postings = k * n_features
    word_type = np.uint16 if max(segment.sizes) <= 1 << 16 else np.uint32
    return {
        "starts": (np.uint32, (n_words + 1,)),
        "postings": (np.uint16, (n_postings,)),
        "run_starts": (np.uint32, (n_words + 1,)),
        "run_words": (word_type, (n_runs,)),
        "run_lengths": (np.uint8, (n_runs,)),
        "columns": (word_type, (k - 2, n_postings) if k > 2 else (0, 0)),
        "signatures": (np.uint64, (lengths.get("signatures", 0), n_postings)),
        "feature_starts": (np.uint32, (n_images + 1,)),
        "words": (word_type, (n_features, k)),
        "places": (np.uint32, (n_features, k)),
        "xy": (np.float32, (n_features, 2)),
        "shape": (np.float16, (n_features, 2)),
        "documents": (np.uint32, (n_words,)),
        "repeats": (np.uint32, (lengths.get("repeats", 0), 3)),
    }


def _embedding_errors(segment: Segment, model: EmbeddingInfo | None, images: list[ImageRow]) -> Iterator[str]:
    """Check that there is a vector for every image: of the model's dimension and of length 1, or of zeros."""
    vectors = segment.embeddings
    if vectors is None:
        if model is not None and images:
            yield "meta.json does not describe embeddings.npy"
        return
    shape = (segment.n_images, 0 if model is None else model.dimension)
    if vectors.dtype != np.float16 or vectors.shape != shape:
        yield f"embeddings.npy is {vectors.dtype}{list(vectors.shape)} instead of float16{list(shape)}"
        return
    lengths = [np.linalg.norm(part.astype(np.float32), axis=1) for part in chunks(vectors, max(shape[1], 1))]
    if not all(((part == 0) | (np.abs(part - 1) < UNIT)).all() for part in lengths):
        yield "embeddings.npy holds a vector whose length is neither 1 nor 0"


def _image_errors(segment: Segment, images: list[ImageRow], deleted: list[int]) -> Iterator[str]:
    """Compare the catalogue's rows of a segment with its arrays."""
    try:
        rows = np.array([(row.image, row.position, row.n_features) for row in images], np.int64).reshape(-1, 3)
        removed = np.array(deleted, np.int64)
    except (TypeError, ValueError, OverflowError):
        yield "some positions or numbers of features are no numbers"
        return
    positions = np.concatenate([rows[:, 1], removed])
    outside = positions[(positions < 0) | (positions >= segment.n_images)]
    if len(outside):
        yield f"position {outside[0]} is beyond its {segment.n_images} images"
        return
    counts = np.bincount(positions, minlength=segment.n_images)
    for position in np.flatnonzero(counts == 0)[:1]:
        yield f"position {position} is neither an image nor deleted"
    for position in np.flatnonzero(counts > 1)[:1]:
        yield f"position {position} is both an image and deleted"
    stored = segment.ids[rows[:, 1]]
    for image, position, _ in rows[stored != rows[:, 0]][:1]:
        yield f"image {image} should be at position {position}, but ids.npy has {segment.ids[position]} there"
    lengths = np.diff(segment.arrays["feature_starts"].astype(np.int64))[rows[:, 1]]
    for image, position, n_features in rows[lengths != rows[:, 2]][:1]:
        yield f"image {image} should have {n_features} features, but feature_starts.npy has another number at {position}"


# -- arrays of a segment

CHUNK = 1 << 20  # features checked together
NOWHERE = np.uint32(0xFFFFFFFF)


def segment_errors(segment: Segment) -> Iterator[str]:
    """Yield one line for each array that contradicts another; stop where the rest cannot be read."""
    arrays, n_features = segment.arrays, segment.n_features
    bases = [*word_offsets(segment.sizes).tolist(), sum(segment.sizes)]
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
            found += _run_errors(segment, k)
    yield from found
    if not found:
        for k in range(segment.n_vocabularies):
            yield from _place_errors(segment, k)
        yield from _order_errors(segment)
        yield from _count_errors(segment)


def _rises(values: Array, known: Iterable[tuple[int, int]]) -> bool:
    return bool((values[1:] >= values[:-1]).all()) and all(int(values[at]) == value for at, value in known)


def chunks(values: Array, width: int = 1) -> Iterator[Array]:
    """Yield parts of an array that are checked together; `width` is the number of values in a row."""
    size = max(CHUNK // width, 1)
    for first in range(0, len(values), size):
        yield values[first : first + size]


def _run_errors(segment: Segment, k: int) -> Iterator[str]:
    """Compare the run directory of a vocabulary with its lists."""
    lists = slice(int(word_offsets(segment.sizes)[k]), int(word_offsets(segment.sizes)[k]) + segment.sizes[k] + 1)
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


def _place_errors(segment: Segment, k: int) -> Iterator[str]:
    """Follow every feature to its posting in one vocabulary, and back."""
    arrays, n_features = segment.arrays, segment.n_features
    base, first_posting = int(word_offsets(segment.sizes)[k]), k * n_features
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


def _order_errors(segment: Segment) -> Iterator[str]:
    """Check that the lists of vocabulary 0 are sorted by the words in the others, then by image."""
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


def _count_errors(segment: Segment) -> Iterator[str]:
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
        words = segment.arrays["words"][feature_starts[first] : feature_starts[last]] + word_offsets(segment.sizes)
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
