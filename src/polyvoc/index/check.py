"""Check every checksum and every reference of an index.

Checksums find what the disk did to the files; references find what a mistake in a program would have done: the lists of a
segment are built again from what is stored by image. A check takes about 95 bytes of memory per feature of the largest
segment, its own mapped arrays among them.
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
from polyvoc.index.codes import all_codes, build_codes
from polyvoc.index.folder import SIDE_FILES, EmbeddingInfo, IndexFolder
from polyvoc.index.segment import Segment
from polyvoc.index.words import MAX_VOCABULARIES, build_lists, word_type
from polyvoc.options import FeatureOptions, ScoringOptions
from polyvoc.storage.files import file_errors, folder_errors
from polyvoc.types import Array, FeatureKind, Progress
from polyvoc.vocabulary.vocabulary import FINE, Vocabulary

UNIT = 0.01  # by which half-precision vectors may differ from length 1
# Settings of indexes that were calibrated, linked, searched for duplicates, or have vectors.
OPTIONAL = (*LINES.values(), "likelihood_table", "code_table", "embedding", *SIDE_FILES)
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
    checks += [*more]
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
        "sizes": lambda sizes: (sizes or settings["fine"]) and len(sizes) <= MAX_VOCABULARIES and min(sizes, default=1) >= 1,
        "vocabularies": lambda fingerprints: len(fingerprints) == len(settings["sizes"]),
        "vocabulary_checksums": lambda checksums: len(checksums) == len(settings["sizes"]),
        "bits": lambda bits: bits >= 0,
        "fine": lambda fine: fine is None or (fine["size"] >= 1 and fine["bits"] >= 1 and bool(fine["fingerprint"])),
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
    rows = [(number, *row) for number, row in enumerate(zip(*settings, strict=False))]
    if (fine := folder.fixed["fine"]) is not None:
        rows.append((FINE, fine["size"], fine["fingerprint"], fine["checksum"]))
    for number, size, fingerprint, checksum in rows:
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


def _check_segment(folder: IndexFolder, number: int) -> Iterator[str]:
    catalogue = folder.catalogue
    with catalogue.snapshot():
        row, images, deleted = catalogue.segment(number), catalogue.images_in(number), catalogue.deleted(number)
        settings = catalogue.settings()
        sizes, model = tuple(settings["sizes"]), EmbeddingInfo.of(settings)
        fine = 0 if settings["fine"] is None else settings["fine"]["size"]
    if row is None:
        return
    path = folder.segment_folder(number)
    lines = list(folder_errors(path, row.checksum))
    if not lines:
        segment = Segment.open(path)
        lines = [f"{path}: {line}" for line in _shape_errors(segment, sizes, fine)]
        if not lines:
            lines = [f"{path}: {line}" for line in (*segment_errors(segment), *_embedding_errors(segment, model, images))]
            actual = (segment.n_images, segment.n_features)
            if actual != (row.n_images, row.n_features):
                expected = f"{row.n_images} images, {row.n_features} features"
                lines.append(f"{catalogue.path}: segment {number} should have {expected}, but has {actual[0]}, {actual[1]}")
            lines += [f"{catalogue.path}: segment {number}: {line}" for line in _image_errors(segment, images, deleted)]
    if lines and number in catalogue.segments():  # else a writer has merged it away meanwhile
        yield from lines


def _shape_errors(segment: Segment, sizes: tuple[int, ...], fine: int) -> Iterator[str]:
    if segment.fine != fine:
        yield f"its codes refer to {segment.fine} words, those of the index to {fine}"
        return
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
    n_images, n_features, n_runs = segment.n_images, lengths.get("positions", 0), lengths.get("run_words", 0)
    n_words, k = sum(segment.sizes), len(segment.sizes)
    n_postings, of_words = k * n_features, word_type(segment.sizes)
    expected: dict[str, tuple[type, tuple[int, ...]]] = {
        "feature_starts": (np.uint32, (n_images + 1,)),
        "frames": (np.float32, (n_images, 3)),
        "positions": (np.uint16, (n_features, 2)),
        "shapes": (np.uint8, (n_features, 2)),
    }
    if segment.sizes:
        planes = lengths.get("signatures", 0)
        expected |= {
            "starts": (np.uint32, (n_words + 1,)),
            "postings": (np.uint16, (n_postings,)),
            "run_starts": (np.uint32, (n_words + 1,)),
            "run_words": (of_words, (n_runs,)),
            "run_lengths": (np.uint8, (n_runs,)),
            "columns": (of_words, (k - 2, n_postings) if k > 2 else (0, 0)),
            "signatures": (np.uint64, (planes, n_postings)),
            "words": (of_words, (n_features, k)),
            "places": (np.uint32, (n_features if planes else 0, k)),
            "documents": (np.uint32, (n_words,)),
        }
    if segment.fine:
        rest = segment.arrays.get("rest")
        expected |= {
            "code_starts": (np.uint32, (segment.fine + 1,)),
            "codes": (np.uint64, (lengths.get("codes", 0), n_features)),
            "code_images": (np.uint16, (n_features,)),
            "code_words": (word_type((segment.fine,)), (n_features,)),
            "code_norms": (np.float32, (n_images,)),
            "rest": (np.uint8, (n_features, 0 if rest is None or rest.ndim < 2 else rest.shape[1])),
        }
    return expected


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

CHUNK = 1 << 20  # numbers checked together


def segment_errors(segment: Segment) -> Iterator[str]:
    """Yield one line for each array that contradicts another; stop where the rest cannot be read."""
    arrays = segment.arrays
    if not _rises(arrays["feature_starts"], [(0, 0), (-1, len(arrays["positions"]))]):
        yield "feature_starts.npy does not rise from 0 to the number of features"
        return
    if not np.isfinite(arrays["frames"]).all() or (arrays["frames"][:, 2] <= 0).any():
        yield "frames.npy holds a frame that is no part of an image"
    if segment.sizes:
        yield from _word_errors(segment)
    if segment.fine:
        yield from _code_errors(segment)


def _rises(values: Array, known: Iterable[tuple[int, int]]) -> bool:
    return bool((values[1:] >= values[:-1]).all()) and all(int(values[at]) == value for at, value in known)


def chunks(values: Array, width: int = 1) -> Iterator[Array]:
    """Return an array in parts of CHUNK numbers, for rows of so many."""
    size = max(CHUNK // width, 1)
    for first in range(0, len(values), size):
        yield values[first : first + size]


def _word_errors(segment: Segment) -> Iterator[str]:
    """Build the inverted files again from the words of the features."""
    arrays = segment.arrays
    if any((part >= np.array(segment.sizes)).any() for part in chunks(arrays["words"])):
        yield "words.npy holds a word that does not exist"
        return
    if any((part >= arrays["signatures"].shape[1]).any() for part in chunks(arrays["places"])):
        yield "places.npy leads beyond the postings"
        return
    signatures = None
    if segment.planes:
        signatures = np.stack([plane[arrays["places"]] for plane in arrays["signatures"]], axis=-1)
    starts = arrays["feature_starts"].astype(np.int64)
    yield from _differences(arrays, build_lists(arrays["words"], signatures, starts, segment.sizes), "words.npy")


def _code_errors(segment: Segment) -> Iterator[str]:
    """Build the lists of codes again from the fine words of the features."""
    arrays = segment.arrays
    if any((part >= segment.fine).any() for part in chunks(arrays["code_words"])):
        yield "code_words.npy holds a word that does not exist"
        return
    starts = arrays["feature_starts"].astype(np.int64)
    yield from _differences(arrays, build_codes(all_codes(arrays), starts, segment.fine), "code_words.npy")


def _differences(arrays: dict[str, Array], expected: dict[str, Array], source: str) -> Iterator[str]:
    for name, array in expected.items():
        if not np.array_equal(arrays[name], array):
            yield f"{name}.npy differs from what {source} gives"
