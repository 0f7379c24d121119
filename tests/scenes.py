"""Small pictures as words, signatures and keypoints: seen again, scrambled, or of something else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.index.segment import OCTAVE, SMALLEST, TURN, Batch, Geometry, Segment
from polyvoc.scoring.engine import Engine
from polyvoc.search.query import Query
from polyvoc.types import Keypoints

SIZES = (400, 500, 450)
SIDE = 500.0
RIGHT = 3  # number of the image that shows what the query shows
Array = npt.NDArray[Any]
Random = np.random.Generator


@dataclass(frozen=True, eq=False)
class Picture:
    """The features of one image. The scales and angles are such that an index keeps them."""

    words: Array  # [n, K]
    signatures: Array | None  # [n, K], or [n, K, 2] of 128 bits
    xy: Array  # [n, 2]
    scale: Array  # [n]
    angle: Array  # [n] degrees

    def __len__(self) -> int:
        """Return the number of features."""
        return len(self.words)

    @property
    def query(self) -> Query:
        """Return a query for it."""
        return Query(None, self.words, self.signatures, Keypoints(self.xy, self.scale, self.angle))

    def chosen(self, rows: Any) -> Picture:
        """Return a picture of some of its features."""
        bits = None if self.signatures is None else self.signatures[rows]
        return Picture(self.words[rows], bits, self.xy[rows], self.scale[rows], self.angle[rows])

    def arrays(self) -> list[Array]:
        """Return its arrays."""
        return [array for array in vars(self).values() if array is not None]


def picture(rng: Random, count: int = 40, bits: int = 64) -> Picture:
    """Return a picture of features all over it; bits: 0, 64 or 128."""
    shape = (count, len(SIZES)) if bits <= 64 else (count, len(SIZES), 2)
    return Picture(
        rng.integers(0, SIZES, (count, len(SIZES))).astype(np.int32),
        rng.integers(0, 2**64, shape, dtype=np.uint64) if bits else None,
        rng.uniform(0, SIDE, (count, 2)),
        kept_scale(rng.uniform(4, 30, count)),
        kept_angle(rng.uniform(0, 359, count)),
    )


def seen_again(rng: Random, before: Picture, stray: float = 0.1, flips: int = 6) -> Picture:
    """Return the same thing turned, scaled, stretched and moved; a share `stray` of its words and some bits are others."""
    turn, zoom = np.radians(rng.uniform(-60, 60)), 2 ** rng.uniform(-0.7, 0.7)
    stretch = np.diag([rng.uniform(0.85, 1.15), 1.0])
    turned = zoom * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]) @ stretch
    other = rng.random(before.words.shape) < stray
    return Picture(
        np.where(other, rng.integers(0, SIZES, before.words.shape), before.words).astype(np.int32),
        None if before.signatures is None else flipped(rng, before.signatures, flips),
        before.xy @ turned.T + rng.uniform(0, 100, 2) + rng.normal(0, 1, before.xy.shape),
        kept_scale(before.scale * zoom),
        kept_angle(before.angle + np.degrees(turn)),
    )


def scrambled(rng: Random, before: Picture) -> Picture:
    """Return the same words and signatures at random positions."""
    places = picture(rng, len(before), 0)
    return Picture(before.words, before.signatures, places.xy, places.scale, places.angle)


def joined(*parts: Picture) -> Picture:
    """Return a picture that shows all of some pictures."""
    signed = [part.signatures for part in parts if part.signatures is not None]
    bits = np.concatenate(signed) if len(signed) == len(parts) else None
    rest = [np.concatenate([getattr(part, name) for part in parts]) for name in ("words", "xy", "scale", "angle")]
    return Picture(rest[0], bits, *rest[1:])


def flipped(rng: Random, signatures: Array, most: int) -> Array:
    """Return signatures with up to `most` bits of each 64 flipped."""
    places = rng.integers(0, 64, (most, *signatures.shape)).astype(np.uint64)
    bits: Array = signatures ^ np.bitwise_or.reduce(np.uint64(1) << places, axis=0)
    return bits


def engine_of(pictures: Sequence[Picture], segment_images: int = 1000) -> Engine:
    """Return an engine of pictures with their keypoints."""
    segments = []
    for first in range(0, len(pictures), segment_images):
        part = pictures[first : first + segment_images]
        starts = np.cumsum([0, *(len(one) for one in part)])
        every = joined(*part)
        batch = Batch(
            ids=np.arange(first, first + len(part)),
            feature_starts=starts,
            geometry=Geometry.of(every.xy, every.scale, every.angle, starts),
            words=every.words,
            signatures=every.signatures,
        )
        segments.append(Segment.build(batch, SIZES))
    return Engine(segments, SIZES)


def world(seed: int, bits: int = 64, others: int = 30) -> tuple[Picture, list[Picture]]:
    """Return a query and a collection: one image shows it anew, four have its words elsewhere, others some of them."""
    rng = np.random.default_rng([11, seed])
    query = picture(rng, 40, bits)
    right = joined(seen_again(rng, query, stray=0.2), picture(rng, 15, bits))
    images = [joined(scrambled(rng, query), picture(rng, int(rng.integers(20)), bits)) for _ in range(4)]
    images.insert(RIGHT, right)
    for _ in range(others):
        some = rng.permutation(len(query))[: int(rng.integers(1, 12))]
        images.append(joined(scrambled(rng, query.chosen(some)), picture(rng, 20, bits)))
    return query, images


def kept_scale(scale: Array) -> Array:
    """Return scales rounded as an index keeps them."""
    return np.asarray(2 ** (np.rint((np.log2(scale) + SMALLEST) * OCTAVE) / OCTAVE - SMALLEST))


def kept_angle(angle: Array) -> Array:
    """Return angles rounded as an index keeps them."""
    return np.asarray(np.rint(angle * (TURN / 360)) % TURN * (360 / TURN))
