"""A query against a collection, from its words to the ranking: score, verify, expand, smooth, rank.

Scores are arrays over all images, one per segment, from the first stage to the last; a later stage changes some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc import expansion, geometry, witness
from polyvoc.engine import Engine, Scores, threads_over
from polyvoc.errors import OptionError
from polyvoc.geometry import Sketch
from polyvoc.records import Floats, Region, SearchOptions, inside
from polyvoc.segment import with_planes

Array = npt.NDArray[Any]
Place = tuple[int, int]  # segment, position

PROOF = 5.0  # nats of inliers that double a score or so: it is multiplied by 1 + ln(1 + nats / PROOF)
TRUSTED, LEAST = 20.0, 6  # nats and inliers from which a hit may speak for the query
COPY = 0.8  # of the query's features: a hit with as many inliers is a copy, and has nothing to add
CHUNK = 16  # candidates that one thread verifies at a time


@dataclass(frozen=True, eq=False)
class Asked:
    """A query: the words and signatures of its features, and where they lie if anybody knows."""

    words: Array  # [Q, K] or [Q, K, A]
    signatures: Array | None
    frames: geometry.Frames | None = None
    vector: Floats | None = None  # [d] of a global embedding, to `fuse`
    region: Region | None = None  # of the photograph that asks, all of it or a part; None: nobody knows

    @classmethod
    def stored(cls, engine: Engine, place: Place, size: tuple[int, int], region: Region | None = None) -> Asked:
        """Ask with what is stored of an image, of some width and height, or of a region of it."""
        sketch = Sketch.of(engine.segments[place[0]], place[1])
        at = sketch.frames
        held = np.ones(len(at), bool) if region is None else inside(at.xy, region, size)
        signatures = sketch.signatures[held] if sketch.signatures.shape[1] else None
        frames = geometry.Frames(at.xy[held], at.scale[held], at.angle[held])
        return cls(sketch.words[held], signatures, frames, region=region or (0, 0, *size))

    @cached_property
    def sketch(self) -> Sketch:
        """Give what geometry compares: the nearest words."""
        if self.frames is None:
            raise OptionError("verify needs the places of the query's features; give a photograph or a Features record")
        if len(self.frames) != len(self.words):
            raise OptionError(f"words of {len(self.words)} features but places of {len(self.frames)}; give those of the same")
        axes = self.words.ndim
        words = self.words if axes == 2 else self.words[:, :, 0]
        if self.signatures is None:
            return Sketch(words, np.zeros((len(words), 0), np.uint64), self.frames)
        return Sketch(words, self.signatures if axes == 2 else self.signatures[:, :, 0], self.frames)


@dataclass(frozen=True, eq=False)
class Found:
    """An image that answers a query."""

    place: Place
    score: float
    inliers: int = 0  # matches that agree on one transform
    weight: float = 0.0  # what they say together, in nats
    transform: Array | None = None  # [2, 3] places of the query to places of the image

    @property
    def trusted(self) -> bool:
        """Tell whether it surely shows the same thing."""
        return self.weight >= TRUSTED and self.inliers >= LEAST

    def outline(self, region: Region | None) -> tuple[tuple[float, float], ...] | None:
        """Give where the region that asks lies in the image: its corners; None if that is not known."""
        return None if region is None or self.transform is None else geometry.outline(region, self.transform)


@dataclass(eq=False)
class _Search:
    """One query on its way through the stages."""

    engine: Engine
    asked: Asked
    options: SearchOptions
    threads: int | None
    seen: dict[Place, Found] = field(default_factory=dict)  # verified so far

    def scores(self, words: Array, signatures: Array | None) -> list[Scores]:
        query = self.engine.query(words, signatures, self.options)
        return self.engine.scores(query, self.options, self.threads)

    def verified(self, scores: list[Scores]) -> list[Scores]:
        """Verify the best candidates and raise the scores of all that were verified, now or before."""
        places = [place for place, _ in self.engine.ranked(scores, self.options.verify)]
        fresh = [place for place in places if place not in self.seen]
        self.seen.update(verify(self.engine, self.asked.sketch, fresh, self.options, self.threads))
        raised = [part.copy() for part in scores]
        for (segment, position), found in self.seen.items():
            raised[segment][position] *= 1 + np.log1p(found.weight / PROOF)
        return raised

    def expanded(self) -> list[Scores] | None:
        """Score again with what verified hits add to the query; None if there are none."""
        copy = COPY * len(self.asked.words)
        trusted = [found for found in self.seen.values() if found.trusted and found.inliers <= copy]
        trusted.sort(key=lambda found: (-found.weight, self.engine.image_at(found.place)))
        if not trusted:
            return None
        hits = [(f.place, f.transform) for f in trusted[: self.options.expand]]
        chosen = [(self.engine.segments[place[0]], place[1], moved) for place, moved in hits if moved is not None]
        return self.scores(*expansion.expand(self.asked.sketch, chosen, self.options.expansion, self.table))

    @property
    def table(self) -> Array:
        return match_table(self.engine, self.options)


def search(engine: Engine, asked: Asked, options: SearchOptions, threads: int | None = None,
           early: Callable[[list[Found]], None] | None = None) -> list[Found]:  # fmt: skip
    """Give the images that answer a query, best first. `early` is told the ranking by words alone, if verification follows."""

    def ranked(scores: Sequence[Scores], seen: dict[Place, Found]) -> list[Found]:
        best = engine.ranked(scores, options.top)
        return [replace(seen.get(place, Found(place, 0.0)), score=value) for place, value in best]

    return ranked(*score(engine, asked, options, threads, None if early is None else lambda first: early(ranked(first, {}))))


def score(engine: Engine, asked: Asked, options: SearchOptions,
          threads: int | None = None,
          early: Callable[[list[Scores]], None] | None = None) -> tuple[list[Scores], dict[Place, Found]]:  # fmt: skip
    """Give the final scores of all images, one array per segment, and what was verified on the way.

    `early` is told the scores by words alone before any image is verified, if any will be; it should leave them as they are.
    """
    if options.smooth and engine.neighbours is None:
        raise OptionError("smooth needs the neighbours of every image; find them: polyvoc link")
    options = engine.settled(options)
    at_work = _Search(engine, asked, options, threads)
    scores = at_work.scores(asked.words, asked.signatures)
    if options.verify:
        if early is not None:
            early(scores)
        first = at_work.verified(scores)
        again = at_work.expanded() if options.expansion != "none" else None
        scores = first if again is None else at_work.verified(again)
    if options.smooth and engine.neighbours is not None:
        scores = engine.neighbours.smoothed(scores, options.smooth)
    if options.fuse:
        scores = witness.fused(engine, scores, asked.vector, threads)
    return scores, at_work.seen


def verify(engine: Engine, query: Sketch, places: Sequence[Place], options: SearchOptions,
           threads: int | None = None) -> dict[Place, Found]:  # fmt: skip
    """Verify images: how many matches agree on one transform, and on which."""
    bits = 64 * with_planes(query.signatures, 2).shape[2] if query.signatures.shape[1] else 0
    if engine.bits and bits != engine.bits:
        raise OptionError(f"verify needs the query's signatures of {engine.bits} bits, not {bits}; quantise as the index does")
    table = match_table(engine, options)
    by_segment: dict[int, list[int]] = {}
    for segment, position in places:
        by_segment.setdefault(segment, []).append(position)
    chunks = [(s, held[i : i + CHUNK]) for s, held in by_segment.items() for i in range(0, len(held), CHUNK)]

    def of_chunk(chunk: tuple[int, list[int]]) -> dict[Place, Found]:
        number, positions = chunk
        found = geometry.verify_images(query, engine.segments[number], np.array(positions), table)
        return {
            (number, position): Found((number, position), 0.0, int(count), float(weight), transform if count else None)
            for position, count, weight, transform in zip(positions, found.counts, found.weights, found.transforms, strict=True)
        }

    with threads_over(chunks, threads) as over:
        return {place: one for part in over(of_chunk, chunks) for place, one in part.items()}


def match_table(engine: Engine, options: SearchOptions) -> Array:
    """Give the weight of a match for geometry by the number of lists that hold it and the mean distance [K + 1, bits + 1]."""
    n_vocabularies = len(engine.sizes)
    evidence = engine.settled(replace(options, merge="likelihood")).evidence if engine.bits else None
    if evidence is None:
        return geometry.default_table(n_vocabularies, engine.bits)
    bins = len(evidence.edges) + 1
    rows = [evidence.rows[evidence.groups[(1 << order) - 1] * bins] for order in range(1, n_vocabularies + 1)]
    return np.array([rows[0], *rows], np.float32)
