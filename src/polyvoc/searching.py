"""A query against a collection, from its words to the ranking: score, verify, expand, smooth, rank.

Only the best candidates are looked at, so only they are fetched from those who hold the segments. Whoever wants the scores
of all images (smoothing, fusion, a measure of accuracy) gets arrays, one per segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc import expansion, geometry, operations, witness
from polyvoc.confidence import NEEDED, Confidence, Standings
from polyvoc.engine import Engine
from polyvoc.errors import OptionError
from polyvoc.geometry import Sketch, Verifications
from polyvoc.operations import Place, Scored
from polyvoc.records import Floats, Region, SearchOptions, inside
from polyvoc.segment import with_planes
from polyvoc.shards import Scores

Array = npt.NDArray[Any]

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
        (sketch,) = engine.sketches([place])
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
    image: int
    score: float
    inliers: int = 0  # matches that agree on one transform
    weight: float = 0.0  # what they say together, in nats
    transform: Array | None = None  # [2, 3] places of the query to places of the image
    probability: float | None = None  # of showing the same thing; None: nobody knows

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
    of_all: bool  # does anybody want the scores of all images?
    every: list[Scores] = field(default_factory=list)  # if so, by words alone, one array per segment
    seen: dict[Place, Found] = field(default_factory=dict)  # verified so far
    first: list[Scored] = field(default_factory=list)  # the best by the words of the query alone

    def best(self, words: Array, signatures: Array | None) -> list[Scored]:
        """Score, and give the best by words alone: enough to verify and to fill the ranking; then all others seen before."""
        query = self.engine.query(words, signatures, self.options)
        depth = max(self.options.verify + len(self.seen) + self.options.top, NEEDED)
        if not self.of_all:
            return _united(*self.engine.best(query, self.options, self.threads, depth, tuple(self.seen)))
        self.every = self.engine.scores(query, self.options, self.threads)
        again = [Scored(place, one.image, float(self.every[place[0]][place[1]])) for place, one in self.seen.items()]
        return _united(self.engine.ranked(self.every, depth), again)

    def verified(self, best: list[Scored]) -> list[Scored]:
        """Verify the best candidates, and give all with the scores of those raised that were verified, now or before."""
        candidates = [one.place for one in best[: self.options.verify] if one.score > 0]
        fresh = [place for place in candidates if place not in self.seen]
        self.seen.update(verify(self.engine, self.asked.sketch, fresh, self.options, self.threads))
        return [one._replace(score=self._raised(one)) if one.place in self.seen else one for one in best]

    def _raised(self, one: Scored) -> float:
        return float(np.float32(one.score * (1 + np.log1p(self.seen[one.place].weight / PROOF))))

    def expanded(self) -> list[Scored] | None:
        """Score again with what verified hits add to the query; None if there are none."""
        copy = COPY * len(self.asked.words)
        trusted = [found for found in self.seen.values() if found.trusted and found.inliers <= copy]
        trusted.sort(key=lambda found: (-found.weight, found.image))
        chosen = [found for found in trusted[: self.options.expand] if found.transform is not None]
        if not trusted:
            return None
        return self.best(*expansion.expand(self.asked.sketch, self._spoken(chosen), self.options.expansion))

    def _spoken(self, chosen: Sequence[Found]) -> list[expansion.Verified]:
        """Give what hits have to say; for "hamming" also which of their features match the query's."""
        places, shards = [found.place for found in chosen], self.engine.shards
        sketches = shards.at(operations.sketch_at, places)
        pairs: list[Array | None] = [np.empty((0, 2), np.int64)] * len(places)
        if self.options.expansion == "hamming":
            pairs = shards.at(operations.inliers, places, self.asked.sketch, match_table(self.engine, self.options))
        spoken = []
        for found, sketch, matched in zip(chosen, sketches, pairs, strict=True):
            if sketch is not None and matched is not None:  # else its machine does not answer any more
                assert found.transform is not None
                spoken.append((sketch, found.transform, matched))
        return spoken

    def arrays(self, best: list[Scored]) -> list[Scores]:
        """Give the scores of all images, one array per segment, with those of `best` in their places."""
        scores = [part.copy() for part in self.every]
        for (segment, position), _, value in best:
            scores[segment][position] = value
        return scores


def _united(best: list[Scored], again: Sequence[Scored]) -> list[Scored]:
    """Give the best, best first, and behind them those of the others that are not among them."""
    held = {one.place for one in best}
    return best + [one for one in again if one.place not in held]


def search(engine: Engine, asked: Asked, options: SearchOptions, threads: int | None = None,
           early: Callable[[list[Found]], None] | None = None,
           confidence: Confidence | None = None) -> list[Found]:  # fmt: skip
    """Give the images that answer a query, best first. `early` is told the ranking by words alone, if verification follows.

    With `confidence`, each has its probability, and those are left out that are not as sure as the options want.
    """
    if options.sure and confidence is None:
        raise OptionError(f"sure={options.sure!r} needs probabilities, and nobody knows those of such features; leave it out")
    at_work = _begin(engine, asked, options, threads, of_all=False)

    def ranked(best: list[Scored], seen: dict[Place, Found]) -> list[Found]:
        found = sorted((one for one in best if one.score > 0), key=lambda one: (-one.score, one.image))[: options.top]
        hits = [replace(seen.get(one.place, Found(*one)), score=one.score) for one in found]
        return hits if confidence is None else _sure(at_work, hits, seen, confidence)

    best = _run(at_work, None if early is None else lambda first: early(ranked(first, {})))
    if at_work.of_all:
        best = engine.ranked(_finished(at_work, best), options.top)
    return ranked(best, at_work.seen)


def _sure(at_work: _Search, hits: list[Found], seen: dict[Place, Found], confidence: Confidence) -> list[Found]:
    """Give hits their probabilities; leave out those that are less probable than is wanted."""
    standings = Standings.of([one.score for one in at_work.first], at_work.engine.statistics.n_images)
    ranks = {one.place: (one.score, rank) for rank, one in enumerate(at_work.first, start=1)}
    believed = []
    for hit in hits:
        standing = standings.standing(*ranks.get(hit.place, (None, 0)))
        chance = confidence.probability(standing, hit.weight if hit.place in seen else None)
        if chance >= at_work.options.sure:
            believed.append(replace(hit, probability=chance))
    return believed


def score(engine: Engine, asked: Asked, options: SearchOptions,
          threads: int | None = None) -> tuple[list[Scores], dict[Place, Found]]:  # fmt: skip
    """Give the final scores of all images, one array per segment, and what was verified on the way."""
    at_work = _begin(engine, asked, options, threads, of_all=True)
    return _finished(at_work, _run(at_work, None)), at_work.seen


def _begin(engine: Engine, asked: Asked, options: SearchOptions, threads: int | None, of_all: bool) -> _Search:
    if options.smooth and engine.neighbours is None:
        raise OptionError("smooth needs the neighbours of every image; find them: polyvoc link")
    return _Search(engine, asked, engine.settled(options), threads, of_all or options.smooth > 0 or options.fuse)


def _run(at_work: _Search, early: Callable[[list[Scored]], None] | None) -> list[Scored]:
    """Score, verify and expand; gives the best images, and whatever was verified."""
    best = at_work.first = at_work.best(at_work.asked.words, at_work.asked.signatures)
    if not at_work.options.verify:
        return best
    if early is not None:
        early(best)
    first = at_work.verified(best)
    again = at_work.expanded() if at_work.options.expansion != "none" else None
    return first if again is None else at_work.verified(again)


def _finished(at_work: _Search, best: list[Scored]) -> list[Scores]:
    """Give the scores of all images after what concerns all of them: smoothing and fusion."""
    engine, options = at_work.engine, at_work.options
    scores = at_work.arrays(best)
    if options.smooth and engine.neighbours is not None:
        scores = engine.neighbours.smoothed(engine.standing(at_work.threads), scores, options.smooth)
    if options.fuse:
        scores = witness.fused(engine, scores, at_work.asked.vector, at_work.threads)
    return scores


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

    told = engine.shards.at(operations.verify, chunks, query, table, threads=threads)
    seen = {}
    for (number, positions), part in zip(chunks, told, strict=True):
        if part is not None:  # else its machine does not answer: it stays where its words put it
            seen.update(_seen(number, positions, *part))
    return seen


def _seen(number: int, positions: Sequence[int], ids: Sequence[int], found: Verifications) -> dict[Place, Found]:
    rows = zip(positions, ids, found.counts, found.weights, found.transforms, strict=True)
    return {
        (number, position): Found((number, position), image, 0.0, int(count), float(weight), transform if count else None)
        for position, image, count, weight, transform in rows
    }


def match_table(engine: Engine, options: SearchOptions) -> Array:
    """Give the weight of a match for geometry by the number of lists that hold it and the mean distance [K + 1, bits + 1]."""
    n_vocabularies = len(engine.sizes)
    evidence = engine.settled(replace(options, merge="likelihood")).evidence if engine.bits else None
    if evidence is None:
        return geometry.default_table(n_vocabularies, engine.bits)
    bins = len(evidence.edges) + 1
    rows = [evidence.rows[evidence.groups[(1 << order) - 1] * bins] for order in range(1, n_vocabularies + 1)]
    return np.array([rows[0], *rows], np.float32)
