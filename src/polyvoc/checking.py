"""Is an index whole? Every checksum, and every reference from one part to another.

Checksums find what the disk did to the files; references find what a mistake in a program would have done. All arrays are read
once, in chunks; apart from these a check takes up to 10 bytes of memory per feature of the largest segment.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from polyvoc import evidence, neighbourhood, soundness, storage, witness
from polyvoc.catalogue import Catalogue, ImageRow
from polyvoc.copies import resemblance
from polyvoc.engine import MAX_VOCABULARIES
from polyvoc.errors import DamagedError, PolyvocError
from polyvoc.home import Home
from polyvoc.records import FeatureOptions, Kind, Progress, SearchOptions
from polyvoc.segment import Segment
from polyvoc.vocabulary import Vocabulary

Array = npt.NDArray[Any]
R = TypeVar("R", neighbourhood.Record, resemblance.Record)
UNIT = 0.01  # by which halves may miss the length of a unit vector
# Facts of indexes that were calibrated, have vectors, were linked, were searched for copies; and of those made since there are
# kinds of features.
OPTIONAL = ("line", "evidence", "embedding", "neighbours", "copies", "kind")


def check(path: str | os.PathLike[str], progress: Progress | None = None) -> Iterator[str]:
    """Give one line for each damage of an index, none if it is whole. Others may read and write meanwhile."""
    home = Home(Path(path))
    try:
        numbers = home.catalogue.segments()  # what is missing, foreign or newer raises, as it does when opened
    except DamagedError as error:
        return iter([str(error)])
    return _damage(home, numbers, progress or (lambda stage, done, total: None))


def _damage(home: Home, numbers: list[int], progress: Progress) -> Iterator[str]:
    parts: list[Iterator[str]] = [home.catalogue.damage(), _facts(home.catalogue), _vocabularies(home)]
    parts += [_norms(home), _pairs(home.read_graph, lambda graph: home.neighbours_file(graph.commit), neighbourhood.damage)]
    parts += [_pairs(home.read_copies, lambda found: home.copies_file(found.serial), resemblance.damage)]
    parts += [_segment(home, number) for number in numbers]
    seen = set()
    try:
        for done, part in enumerate(parts, start=1):
            for line in _lines(part):
                if line not in seen:  # one damaged fact is met by several parts
                    seen.add(line)
                    yield line
            progress("checking", done, len(parts))
    finally:
        home.close()


def _lines(part: Iterator[str]) -> Iterator[str]:
    try:
        yield from part
    except PolyvocError as error:
        yield str(error)


# -- the catalogue, the vocabularies, the norms


def _facts(catalogue: Catalogue) -> Iterator[str]:
    last = max(catalogue.segments(), default=0)
    plausible: dict[str, Callable[[Any], bool]] = {
        "sizes": lambda sizes: 1 <= len(sizes) <= MAX_VOCABULARIES and min(sizes) >= 1,
        "vocabularies": lambda fingerprints: len(fingerprints) == len(catalogue.fact("sizes")),
        "vocabulary_checksums": lambda checksums: len(checksums) == len(catalogue.fact("sizes")),
        "dimension": lambda dimension: dimension >= 1,
        "kind": lambda kind: kind is None or Kind(**kind).dimension == catalogue.fact("dimension"),
        "features": lambda options: FeatureOptions(**options) is not None,
        "commit": lambda commit: commit >= 0,
        "last_segment": lambda segment: segment >= last,
        "line": lambda line: line is None or SearchOptions(line=(line["a"], line["b"])) is not None,
        "evidence": lambda table: table is None or evidence.from_dict(table, "").n_vocabularies == len(catalogue.fact("sizes")),
        "embedding": lambda model: model is None or (witness.Record(**model).dimension >= 1 and len(model["fingerprint"]) > 0),
        "neighbours": lambda graph: graph is None or (0 < graph["commit"] <= catalogue.fact("commit") and graph["pairs"] >= 0),
        "copies": lambda pairs: pairs is None or resemblance.Record(**pairs).plausible,
        "norms": lambda norms: norms is None or (0 < norms["commit"] <= catalogue.fact("commit") and "checksum" in norms),
    }
    for name, holds in plausible.items():
        value = catalogue.fact(name, required=name not in OPTIONAL)
        try:
            believed = holds(value)
        except (TypeError, KeyError, ValueError, DamagedError):
            believed = False
        if not believed:
            yield f"{catalogue.path}: the fact {name!r} cannot be {reprlib.repr(value)}"


def _vocabularies(home: Home) -> Iterator[str]:
    facts = [home.catalogue.fact(name) for name in ("sizes", "vocabularies", "vocabulary_checksums")]
    for number, (size, fingerprint, checksum) in enumerate(zip(*facts, strict=False)):
        folder = home.vocabulary_folder(number)
        found = storage.file_damage(folder / storage.META, checksum)
        if found is not None:
            yield found
            continue
        try:
            vocabulary = Vocabulary.load(folder)
        except PolyvocError as error:
            yield str(error)
            continue
        if (vocabulary.fingerprint, vocabulary.size, vocabulary.kind) != (fingerprint, size, home.kind):
            yield f"{folder} is another vocabulary than the one the index was made with"


def _norms(home: Home) -> Iterator[str]:
    with home.catalogue.snapshot():
        norms, commit = home.catalogue.fact("norms"), home.catalogue.fact("commit")
        n_images = sum(size.n_images for size in home.catalogue.segment_sizes())
    if norms is None:
        return
    path = home.norms_file(norms["commit"])
    found = storage.file_damage(path, norms["checksum"])
    if found is not None:
        if home.catalogue.fact("norms") == norms:  # else a writer has replaced them meanwhile
            yield found
    elif norms["commit"] == commit:
        values = storage.map_array(path, np.float32, (n_images,))
        if not (np.isfinite(values) & (values >= 0)).all():
            yield f"{path} holds norms that are negative or not finite"


def _pairs(read: Callable[[], R | None], file: Callable[[R], Path], damage: Callable[[Array], str | None]) -> Iterator[str]:
    """Look at the file of pairs that a fact refers to."""
    record = read()
    if record is None:
        return
    path = file(record)
    found = storage.file_damage(path, record.checksum)
    wrong = found or damage(record.read(path))
    if wrong is not None and read() == record:  # else a writer has replaced them meanwhile
        yield found or f"{path} {wrong}"


# -- one segment


def _segment(home: Home, number: int) -> Iterator[str]:
    catalogue = home.catalogue
    with catalogue.snapshot():
        row, images, deleted = catalogue.segment(number), catalogue.images_in(number), catalogue.deleted(number)
        sizes, model = tuple(catalogue.fact("sizes")), witness.Record.of(catalogue)
    if row is None:
        return
    folder = home.segment_folder(number)
    lines = list(storage.damage(folder, row.checksum))
    if not lines:
        segment = Segment.open(folder)
        lines = [f"{folder}: {line}" for line in _shape_damage(segment, sizes)]
        if not lines:
            lines = [f"{folder}: {line}" for line in (*soundness.damage(segment), *_embedding_damage(segment, model, images))]
            found = (segment.n_images, segment.n_features)
            if found != (row.n_images, row.n_features):
                claimed = f"{row.n_images} images, {row.n_features} features"
                lines.append(f"{catalogue.path}: segment {number} should have {claimed}, but has {found[0]}, {found[1]}")
            lines += [f"{catalogue.path}: segment {number}: {line}" for line in _image_damage(segment, images, deleted)]
    if lines and number in catalogue.segments():  # else a writer has merged it away meanwhile
        yield from lines


def _shape_damage(segment: Segment, sizes: tuple[int, ...]) -> Iterator[str]:
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
    """Give the type and shape of every array, from those whose length is free."""
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


def _embedding_damage(segment: Segment, model: witness.Record | None, images: list[ImageRow]) -> Iterator[str]:
    """Look whether there is a vector for every image: of the model's dimension and of length 1, or of zeros."""
    vectors = segment.embeddings
    if vectors is None:
        if model is not None and images:
            yield "meta.json does not describe embeddings.npy"
        return
    shape = (segment.n_images, 0 if model is None else model.dimension)
    if vectors.dtype != np.float16 or vectors.shape != shape:
        yield f"embeddings.npy is {vectors.dtype}{list(vectors.shape)} instead of float16{list(shape)}"
        return
    lengths = [np.linalg.norm(part.astype(np.float32), axis=1) for part in soundness.chunks(vectors, max(shape[1], 1))]
    if not all(((part == 0) | (np.abs(part - 1) < UNIT)).all() for part in lengths):
        yield "embeddings.npy holds a vector whose length is neither 1 nor 0"


def _image_damage(segment: Segment, images: list[ImageRow], deleted: list[int]) -> Iterator[str]:
    """Compare the catalogue's rows of a segment with its arrays."""
    try:
        rows = np.array([(row.image, row.position, row.n_features) for row in images], np.int64).reshape(-1, 3)
        gone = np.array(deleted, np.int64)
    except (TypeError, ValueError, OverflowError):
        yield "some positions or numbers of features are no numbers"
        return
    positions = np.concatenate([rows[:, 1], gone])
    outside = positions[(positions < 0) | (positions >= segment.n_images)]
    if len(outside):
        yield f"position {outside[0]} is beyond its {segment.n_images} images"
        return
    held = np.bincount(positions, minlength=segment.n_images)
    for position in np.flatnonzero(held == 0)[:1]:
        yield f"position {position} is neither an image nor deleted"
    for position in np.flatnonzero(held > 1)[:1]:
        yield f"position {position} is both an image and deleted"
    stored = segment.ids[rows[:, 1]]
    for image, position, _ in rows[stored != rows[:, 0]][:1]:
        yield f"image {image} should stand at position {position}, but ids.npy has {segment.ids[position]} there"
    lengths = np.diff(segment.arrays["feature_starts"].astype(np.int64))[rows[:, 1]]
    for image, position, n_features in rows[lengths != rows[:, 2]][:1]:
        yield f"image {image} should have {n_features} features, but feature_starts.npy has another number at {position}"
