"""Check every checksum and every reference of an index.

Checksums find what the disk did to the files; references find what a mistake in a program would have done: the lists of a
segment are built again from what is stored by image. A check takes about 95 bytes of memory per feature of the largest
segment, its own mapped arrays among them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from polyvoc.errors import DamagedError, PolyvocError, VocabularyError
from polyvoc.index.catalogue import ImageRow, SegmentRow
from polyvoc.index.codes import all_codes, build_codes
from polyvoc.index.folder import SIDE_FILES, EmbeddingInfo, IndexFolder, SegmentKind, odd_settings
from polyvoc.index.segment import Segment
from polyvoc.index.words import build_lists
from polyvoc.storage.files import file_errors, folder_errors
from polyvoc.types import Array, Progress
from polyvoc.vocabulary.vocabulary import FINE, Vocabulary

UNIT = 0.01  # by which half-precision vectors may differ from length 1
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
    yield from odd_settings(catalogue.settings(), max(catalogue.segments(), default=0)).values()


def _check_vocabularies(folder: IndexFolder) -> Iterator[str]:
    for record in vocabulary_records(folder):
        yield from vocabulary_errors(folder, *record)


def vocabulary_records(folder: IndexFolder) -> list[tuple[int | str, int, str, str]]:
    """Return number, size, fingerprint and checksum of each vocabulary of an index, as its settings have them."""
    settings = [folder.fixed[name] for name in ("sizes", "vocabularies", "vocabulary_checksums")]
    rows: list[tuple[int | str, int, str, str]] = [(number, *row) for number, row in enumerate(zip(*settings, strict=False))]
    if (fine := folder.fixed["fine"]) is not None:
        rows.append((FINE, fine["size"], fine["fingerprint"], fine["checksum"]))
    return rows


def vocabulary_errors(folder: IndexFolder, number: int | str, size: int, fingerprint: str, checksum: str) -> Iterator[str]:
    """Yield one line for each error of a vocabulary of an index."""
    path = folder.vocabulary_folder(number)
    errors = list(folder_errors(path, checksum))
    if errors:
        yield from errors
        return
    try:
        vocabulary = Vocabulary.load(path)
    except VocabularyError as error:
        yield str(error)
        return
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
        kind, model = SegmentKind.of(settings), EmbeddingInfo.of(settings)
    if row is None:
        return
    lines = list(segment_lines(folder, number, row, kind, model, images, deleted))
    if lines and number in catalogue.segments():  # else a writer has merged it away meanwhile
        yield from lines


def segment_lines(folder: IndexFolder, number: int, row: SegmentRow, kind: SegmentKind, model: EmbeddingInfo | None,
                   images: list[ImageRow], deleted: list[int]) -> Iterator[str]:  # fmt: skip
    """Yield one line for each error of a segment; none of what is beyond a damaged array."""
    path, catalogue = folder.segment_folder(number), folder.catalogue.path
    try:
        segment = folder.read_segment(number, row.checksum, kind, ())
        segment.verify()
    except DamagedError as error:
        yield str(error)
        return
    yield from (f"{path}: {line}" for line in (*segment_errors(segment), *_embedding_errors(segment, model, images)))
    actual = (segment.n_images, segment.n_features)
    if actual != (row.n_images, row.n_features):
        expected = f"{row.n_images} images, {row.n_features} features"
        yield f"{catalogue}: segment {number} should have {expected}, but has {actual[0]}, {actual[1]}"
    yield from (f"{catalogue}: segment {number}: {line}" for line in _image_errors(segment, images, deleted))


def _embedding_errors(segment: Segment, model: EmbeddingInfo | None, images: list[ImageRow]) -> Iterator[str]:
    """Check that there is a vector for every image: of the model's dimension and of length 1, or of zeros."""
    vectors = segment.embeddings
    if vectors is None:
        if model is not None and images:
            yield "meta.json does not describe embeddings"
        return
    shape = (segment.n_images, 0 if model is None else model.dimension)
    if vectors.dtype != np.float16 or vectors.shape != shape:
        yield f"embeddings is {vectors.dtype}{list(vectors.shape)} instead of float16{list(shape)}"
        return
    lengths = [np.linalg.norm(part.astype(np.float32), axis=1) for part in chunks(vectors, max(shape[1], 1))]
    if not all(((part == 0) | (np.abs(part - 1) < UNIT)).all() for part in lengths):
        yield "embeddings holds a vector whose length is neither 1 nor 0"


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
        yield f"image {image} should be at position {position}, but ids has {segment.ids[position]} there"
    lengths = np.diff(segment.arrays["feature_starts"].astype(np.int64))[rows[:, 1]]
    for image, position, n_features in rows[lengths != rows[:, 2]][:1]:
        yield f"image {image} should have {n_features} features, but feature_starts has another number at {position}"


# -- arrays of a segment

CHUNK = 1 << 20  # numbers checked together


def segment_errors(segment: Segment) -> Iterator[str]:
    """Yield one line for each array that contradicts another, of a segment that was verified."""
    if segment.sizes:
        yield from _word_errors(segment)
    if segment.fine:
        yield from _code_errors(segment)


def chunks(values: Array, width: int = 1) -> Iterator[Array]:
    """Return an array in parts of CHUNK numbers, for rows of so many."""
    size = max(CHUNK // width, 1)
    for first in range(0, len(values), size):
        yield values[first : first + size]


def _word_errors(segment: Segment) -> Iterator[str]:
    """Build the inverted files again from the words of the features."""
    arrays, signatures = segment.arrays, None
    if segment.planes:
        signatures = np.stack([plane[arrays["places"]] for plane in arrays["signatures"]], axis=-1)
    starts = arrays["feature_starts"].astype(np.int64)
    yield from _differences(arrays, build_lists(arrays["words"], signatures, starts, segment.sizes), "words")


def _code_errors(segment: Segment) -> Iterator[str]:
    """Build the lists of codes again from the fine words of the features."""
    arrays = segment.arrays
    starts = arrays["feature_starts"].astype(np.int64)
    yield from _differences(arrays, build_codes(all_codes(arrays), starts, segment.fine), "code_words")


def _differences(arrays: dict[str, Array], expected: dict[str, Array], source: str) -> Iterator[str]:
    for name, array in expected.items():
        if not np.array_equal(arrays[name], array):
            yield f"{name} differs from what {source} gives"
