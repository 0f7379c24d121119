"""Small vocabularies, features and photographs to fill an index with."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from polyvoc.index.writer import IndexWriter
from polyvoc.options import SearchOptions
from polyvoc.search.index import Index
from polyvoc.types import Array, Features
from polyvoc.vocabulary.vocabulary import Decoder, Vocabulary, VocabularySet, random_rotation

DIMENSION = 12
BITS = 8
VARIABLE = "POLYVOC_PHOTOGRAPHS"  # of the environment: a folder with holidays150 and ukbench500


@pytest.fixture(autouse=True, scope="module")
def unflushed() -> Iterator[None]:
    """Import this for quick tests: flushing matters only in a power cut, and takes most of the time of a small commit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr("polyvoc.storage.sqlite.FLUSH", "OFF")
        yield


def vocabularies(k: int = 2, size: int = 30, signed: bool = True, dimension: int = DIMENSION) -> list[Vocabulary]:
    """Return K vocabularies of random words; their sizes differ."""
    found = []
    rotation = random_rotation(dimension, BITS) if signed else None
    for number in range(k):
        rng = np.random.default_rng([1, number])
        n_words = size + 3 * number
        words = rng.random((n_words, dimension))
        words /= np.linalg.norm(words, axis=1, keepdims=True)
        thresholds = None if rotation is None else words @ rotation.T + rng.normal(0, 0.02, (n_words, BITS))
        found.append(Vocabulary.create(words, thresholds, rotation))
    return found


def coded(k: int = 2, dimension: int = DIMENSION) -> VocabularySet:
    """Return K vocabularies for words with signatures, and a fine one of 40 words for codes."""
    rng = np.random.default_rng(4)
    matrix, parts = rng.normal(0, 0.1, (dimension, BITS)), rng.normal(0, 0.05, (4, 6, -(-dimension // 4)))
    decoder = Decoder(matrix.astype(np.float32), parts.astype(np.float32))
    fine = replace(vocabularies(1, size=40, dimension=dimension)[0], medians=None, decoder=decoder)
    return VocabularySet(tuple(vocabularies(k, dimension=dimension)), fine, signed=True)


def features(seed: int, count: int = 20, dimension: int = DIMENSION) -> Features:
    """Return random features; a third of them repeat others with a little noise, so that words repeat."""
    rng = np.random.default_rng([2, seed])
    descriptors = rng.random((count, dimension))
    for repeated in range(count // 3):
        descriptors[repeated] = descriptors[count - 1] + rng.normal(0, 0.01, dimension)
    descriptors /= np.maximum(np.linalg.norm(descriptors, axis=1, keepdims=True), 1e-9)
    return Features(
        xy=(rng.random((count, 2)) * 100).astype(np.float32),
        scale=(rng.random(count) * 9 + 1).astype(np.float32),
        angle=(rng.random(count) * 360).astype(np.float32),
        descriptors=descriptors.astype(np.float32),
        width=100 + seed,
        height=100,
    )


def collection(count: int, first: int = 0, dimension: int = DIMENSION) -> dict[str, Features]:
    """Return named images of different lengths, every seventh without a feature."""
    seeds = range(first, first + count)
    return {f"image {seed}": features(seed, 0 if seed % 7 == 6 else 8 + seed % 13, dimension) for seed in seeds}


def build(
    path: Path, images: Mapping[str, Features], made_with: VocabularySet | Sequence[Vocabulary] | None = None, commits: int = 1
) -> Index:
    """Make an index, or add to it, in some commits; and open it."""
    known = (path / "catalogue.sqlite").exists()
    with IndexWriter.open(path, made_with or (None if known else vocabularies())) as writer:
        for number, (name, found) in enumerate(images.items(), start=1):
            writer.add(name, found)
            if number * commits % len(images) < commits:
                writer.commit()
    return Index.open(path)


def quantised(index: Index, query: Features, options: SearchOptions) -> tuple[Array, Array | None]:
    """Return the words and signatures of features by the vocabularies of an index."""
    quantiser = index.folder.models.quantiser
    assert quantiser is not None
    return quantiser.quantise(query.descriptors, options.n_assignments)


def scores(index: Index, query: Features, options: SearchOptions) -> dict[str, float]:
    """Return the score of every image, by name."""
    words, signatures = quantised(index, query, options)
    values = index.score_words(words, signatures, options)
    return {row.path: float(value) for row, value in zip(index.images(), values, strict=True)}


def photograph(path: Path, seed: int, size: tuple[int, int] = (160, 120)) -> Path:
    """Draw a photograph of overlapping discs and boxes: many features, at all scales."""
    rng = np.random.default_rng([3, seed])
    image = Image.new("RGB", size, (90, 120, 150))
    draw = ImageDraw.Draw(image)
    for _ in range(60):
        x, y, length = rng.uniform(0, size[0]), rng.uniform(0, size[1]), rng.uniform(3, 40)
        shape = draw.ellipse if rng.random() < 0.5 else draw.rectangle
        shape((x, y, x + length, y + length * rng.uniform(0.5, 2)), fill=tuple(rng.integers(0, 256, 3).tolist()))
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
    return path
