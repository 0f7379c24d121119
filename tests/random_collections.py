"""Small random collections with what often breaks an engine: empty images, bursts, unused words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.index.segment import Batch, Geometry, Segment
from polyvoc.options import Merge, SearchOptions
from polyvoc.scoring.engine import Engine
from polyvoc.types import CodeTable, FeatureCodes, LikelihoodTable
from polyvoc.vocabulary.codes import CodedQuery

BITS = 64
MOST_VOCABULARIES = 9
LARGEST_VOCABULARY = 30

RULES: tuple[Merge, ...] = ("b0", "b1", "b2", "bayes", "posterior", "likelihood")
BURSTINESS = ("none", "best", "intra")
# Every choice of: Hamming test or none, burstiness, idf, norm.
GRID = list(
    product(
        (False, True),
        BURSTINESS,
        ("average", "plain", "none"),
        ("tfidf", "tf", "sqrt-tf", "features", "distinct", "none"),
    )
)

Words = npt.NDArray[np.int32]
Signatures = npt.NDArray[np.uint64]
Feature = tuple[list[int], list[int]]  # K words, K signatures


@dataclass(frozen=True, eq=False)
class World:
    """A collection and a query, as words and signatures."""

    images: tuple[Words, ...]  # N times [n_i, K]
    sizes: tuple[int, ...]  # K
    words: Words  # [q, K], or [q, K, A] with -1 for none
    image_signatures: tuple[Signatures, ...]  # N times [n_i, K], or [n_i, K, 2] of 128 bits
    query_signatures: Signatures  # as words, or with one more axis

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return every array of the world."""
        return [*self.images, self.words, *self.image_signatures, self.query_signatures]


def plain(**changes: Any) -> SearchOptions:
    """Return the posterior rule without burstiness and verification, with changes."""
    return SearchOptions(**{"merge": "posterior", "burstiness": "none", "verify": 0, **changes})


def grid_options(number: int, **fixed: Any) -> SearchOptions:
    """Return the options at a position in the grid, with random numbers for what is not a choice."""
    rng = np.random.default_rng([7, number])
    hamming, burstiness, idf, norm = GRID[number % len(GRID)]
    lines = ((0.6, 0.4), (0.5, 0.2), (0.0, 0.3), (1.5, 0.3), (1.0, -0.3))  # the last two leave [0, 1]
    values = {
        "hamming": int(rng.choice([0, 12, 20, 24, 64])) if hamming else None,
        "sigma": float(rng.choice([16.0, 8.0])),
        "burstiness": burstiness,
        "idf": idf,
        "norm": norm,
        "line": lines[int(rng.integers(len(lines)))],
        "c": float(rng.choice([30.0, 1.0, 0.01])),
        "idf_power": int(rng.choice([1, 2])),
    }
    return plain(**{**values, **fixed})


def random_world(seed: int, k: int | None = None) -> World:
    """Return the world of a seed: K of 1..3 unless forced, 1..12 images of 0..25 features, a query of 0..8."""
    rng = np.random.default_rng([2014, seed])
    k = int(rng.integers(1, 4)) if k is None else k
    assert 1 <= k <= MOST_VOCABULARIES
    maker = _Maker(rng, k)
    most = int(rng.choice([2, 6, 12, 25]))  # sparse collections too, else the average idf is mostly 0
    collection: list[list[Feature]] = []
    for _ in range(int(rng.integers(1, 13))):
        count = 0 if rng.random() < 0.1 else int(rng.integers(0, most + 1))
        image: list[Feature] = []
        for _ in range(count):
            image.append(maker.indexed(image, [y for other in collection for y in other]))
        collection.append(image)
    features = [y for image in collection for y in image]
    query = [maker.queried(features) for _ in range(int(rng.integers(0, 9)))]
    return World(
        images=tuple(_words(image, k) for image in collection),
        sizes=maker.sizes,
        words=_words(query, k),
        image_signatures=tuple(_signatures(image, k) for image in collection),
        query_signatures=_signatures(query, k),
    )


def with_assignments(world: World, seed: int, assignments: int) -> World:
    """Return the world with A distinct words per query feature and vocabulary, -1 where there are fewer.

    The nearest word stays among them, except in the rare vocabulary that assigns nothing at all; the places
    of words and of -1 are shuffled.
    """
    rng = np.random.default_rng([1999, seed])
    long = world.query_signatures.ndim > world.words.ndim
    first = world.query_signatures[..., 0] if long else world.query_signatures
    shape = (*world.words.shape, assignments)
    words = np.full(shape, -1, dtype=np.int32)
    signatures = rng.integers(0, 2**BITS, shape, dtype=np.uint64)  # noise where there is no word
    for x, k in np.ndindex(*world.words.shape):
        if rng.random() < 0.05:
            continue
        nearest = int(world.words[x, k])
        others = [word for word in rng.permutation(world.sizes[k]).tolist() if word != nearest]
        chosen = [nearest, *others[: int(rng.integers(0, assignments))]]
        places = rng.permutation(assignments)[: len(chosen)]
        words[x, k, places] = chosen
        signature = int(first[x, k])
        signatures[x, k, places] = [signature, *(_flip(rng, signature, 20) for _ in chosen[1:])]
    return replace(world, words=words, query_signatures=_lengthened(rng, signatures) if long else signatures)


def with_long_signatures(world: World, seed: int) -> World:
    """Return the world with signatures of 128 bits: features that are near in the first 64 are near in the others."""
    rng = np.random.default_rng([2008, seed])
    return replace(
        world,
        image_signatures=tuple(_lengthened(rng, signatures) for signatures in world.image_signatures),
        query_signatures=_lengthened(rng, world.query_signatures),
    )


def _lengthened(rng: np.random.Generator, signatures: Signatures) -> Signatures:
    noise = np.bitwise_and.reduce(rng.integers(0, 2**BITS, (4, *signatures.shape), dtype=np.uint64))  # 4 bits on average
    return np.stack([signatures, signatures ^ noise], axis=-1)


def random_evidence(seed: int, k: int, bits: int, by_ratio: bool = True) -> LikelihoodTable:
    """Draw a likelihood table: random groups of sets, bins of the ratio or none, rough rows that fall below 0."""
    rng = np.random.default_rng([2009, seed, k, bits])
    n_groups = int(rng.integers(1, min(2**k - 1, 6) + 1))
    groups = np.concatenate([np.arange(n_groups), rng.integers(0, n_groups, 2**k - 1 - n_groups)])
    n_edges = int(rng.choice([0, 0, 1, 3])) if by_ratio else 0
    edges = np.sort(rng.choice([1 / 8, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 1.0], n_edges, replace=False))
    reach = rng.uniform(0.1, 0.8, (n_groups * (len(edges) + 1), 1)) * bits
    rows = rng.uniform(1, 9, reach.shape) * (1 - np.arange(bits + 1) / reach) + rng.normal(0, 0.5, (len(reach), bits + 1))
    return LikelihoodTable(
        (0, *rng.permutation(groups).tolist()), tuple(edges.tolist()), tuple(map(tuple, rows.tolist())), f"seed {seed}"
    )


@dataclass(frozen=True, eq=False)
class CodedWorld:
    """A collection and a query, as codes, and a table to score by."""

    images: tuple[FeatureCodes, ...]
    size: int  # number of fine words
    query: CodedQuery
    table: CodeTable

    @property
    def options(self) -> SearchOptions:
        """Return options that score by the table."""
        return SearchOptions(code_table=self.table)

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return every array of the world."""
        return [*(array for image in self.images for array in image), *vars(self.query).values()]


def random_coded_world(seed: int, bits: int) -> CodedWorld:
    """Return the world of a seed: 1..30 images of 0..15 features, a query of 0..12; the list of one word is long.

    Codes of one word are near each other. Some query features have no words, some are at the very place of a word.
    """
    rng = np.random.default_rng([2026, seed, bits])
    size, planes = int(rng.choice([4, 15, 60])), bits // 64
    base = rng.integers(0, 2**BITS, (size, planes), dtype=np.uint64)
    images = []
    for _ in range(int(rng.integers(1, 31))):
        count = 0 if rng.random() < 0.1 else int(rng.integers(0, 16))
        words = rng.integers(0, round(0.8 * size), count).astype(np.uint32)
        words[rng.random(count) < 0.5] = 1
        images.append(FeatureCodes(words, base[words] ^ _noise(rng, (count, planes)), rng.integers(0, 9, (count, 8), np.uint8)))
    count, width = int(rng.integers(0, 13)), int(rng.integers(1, 5))
    visited = np.array([rng.permutation(size)[:width] for _ in range(count)], np.int32).reshape(count, width)
    visited[np.arange(width) >= rng.integers(0, width + 1, (count, 1))] = -1  # fewer words, or none
    ratios = np.sort(rng.choice([1.0, 1.05, 1.1, 1.17], (count, width)), axis=1).astype(np.float32)
    magnitudes = rng.integers(0, 256, (count * width, bits)).astype(np.uint8)
    magnitudes[rng.random(len(magnitudes)) < 0.1] = 0
    totals = magnitudes.sum(axis=1, dtype=np.int64).reshape(count, width)
    codes = base[visited] ^ _noise(rng, (count, width, planes))
    return CodedWorld(tuple(images), size, CodedQuery(visited, ratios, codes, magnitudes, totals), _code_table(rng, bits))


def coded_engine(world: CodedWorld, segment_images: int = 1000) -> Engine:
    """Return an engine of the images of a world."""
    segments = []
    for first in range(0, len(world.images), segment_images):
        part = world.images[first : first + segment_images]
        starts = np.cumsum([0, *(len(image.words) for image in part)])
        codes = FeatureCodes(*map(np.concatenate, zip(*part, strict=True)))
        geometry = Geometry.unknown(len(part), len(codes.words))
        ids = np.arange(first, first + len(part))
        batch = Batch(ids, starts, geometry, np.empty((len(codes.words), 0), np.int32), codes=codes)
        segments.append(Segment.build(batch, (), world.size))
    return Engine(segments, ())


def _noise(rng: np.random.Generator, shape: tuple[int, ...]) -> Signatures:
    return np.bitwise_and.reduce(rng.integers(0, 2**BITS, (3, *shape), dtype=np.uint64))  # an eighth of the bits


def _code_table(rng: np.random.Generator, bits: int) -> CodeTable:
    columns = int(rng.choice([bits, bits // 2]))
    reach = rng.uniform(0.3, 0.8, (4, 1)) * columns
    rows = rng.uniform(1, 9, (4, 1)) * (1 - np.arange(columns + 1) / reach) + rng.normal(0, 0.5, (4, columns + 1))
    return CodeTable((1.0, 1.07, 1.1), tuple(map(tuple, rows.tolist())), int(rng.uniform(0.2, 0.6) * bits))


class _Maker:
    """Draws features of correlated vocabularies: the further words are often functions of the first."""

    def __init__(self, rng: np.random.Generator, k: int) -> None:
        self.rng = rng
        sizes = rng.permutation(np.arange(1, LARGEST_VOCABULARY + 1))[:k]
        self.sizes = tuple(int(size) for size in sizes)
        # A fifth of each vocabulary is never used by the collection.
        self.used = [rng.permutation(size)[: max(1, round(0.8 * size))] for size in self.sizes]
        self.follow = [rng.choice(used, self.sizes[0]) for used in self.used]
        self.base = [int(rng.integers(0, 2**BITS, dtype=np.uint64)) for _ in self.sizes]

    def indexed(self, image: list[Feature], elsewhere: list[Feature]) -> Feature:
        """Draw a feature of the collection: a burst in its image, a copy from another, or a new one."""
        luck = self.rng.random()
        if luck < 0.25 and image:
            return self._copy(image, flips=6)
        if luck < 0.45 and elsewhere:
            return self._copy(elsewhere, flips=12)
        first = int(self.rng.choice(self.used[0]))
        words = [first]
        for used, follow in zip(self.used[1:], self.follow[1:], strict=True):
            words.append(int(follow[first]) if self.rng.random() < 0.7 else int(self.rng.choice(used)))
        return words, [_flip(self.rng, base, 16) for base in self.base]

    def queried(self, features: list[Feature]) -> Feature:
        """Draw a query feature: a copy of an indexed one with some other words, or any words at all."""
        anything = [int(self.rng.integers(size)) for size in self.sizes]
        if not features or self.rng.random() < 0.3:
            return anything, [_flip(self.rng, base, 24) for base in self.base]
        words, signatures = self._copy(features, flips=8)
        stray = self.rng.random(len(words)) < 0.2
        return [a if s else w for w, a, s in zip(words, anything, stray, strict=True)], signatures

    def _copy(self, features: list[Feature], flips: int) -> Feature:
        words, signatures = features[int(self.rng.integers(len(features)))]
        return list(words), [_flip(self.rng, signature, flips) for signature in signatures]


def _flip(rng: np.random.Generator, signature: int, most: int) -> int:
    """Return the signature with 0..most of its bits flipped."""
    bits = rng.permutation(BITS)[: int(rng.integers(0, most + 1))]
    return signature ^ sum(1 << int(bit) for bit in bits)


def _words(features: list[Feature], k: int) -> Words:
    return np.array([words for words, _ in features], dtype=np.int32).reshape(-1, k)


def _signatures(features: list[Feature], k: int) -> Signatures:
    return np.array([signatures for _, signatures in features], dtype=np.uint64).reshape(-1, k)
