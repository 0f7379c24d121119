"""Score, verify, expand, smooth, fuse, rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from polyvoc.errors import OptionError
from polyvoc.options import SearchOptions
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.segments import Scored, image_words_at
from polyvoc.search.fuse import fuse_embedding
from polyvoc.search.probability import NEEDED, HitProbability, NoiseRanks
from polyvoc.search.query import Query, Verified, expand
from polyvoc.search.verify import Found, inliers_in, match_table, verify
from polyvoc.types import Array, Floats32, ImageRef

SCORE_BOOST = 5.0  # nats of inliers that double a score or so: it is multiplied by 1 + ln(1 + nats / PROOF)
COPY_SHARE = 0.8  # of the query's features: a hit with as many inliers is a copy, and has nothing to add


@dataclass(eq=False)
class _Search:
    """One query on its way through the stages."""

    engine: Engine
    asked: Query
    options: SearchOptions
    threads: int | None
    of_all: bool  # does anybody want the scores of all images?
    every: list[Floats32] = field(default_factory=list)  # if so, by words alone, one array per segment
    seen: dict[ImageRef, Found] = field(default_factory=dict)  # verified so far
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
        return float(np.float32(one.score * (1 + np.log1p(self.seen[one.place].weight / SCORE_BOOST))))

    def expanded(self) -> list[Scored] | None:
        """Score again with what verified hits add to the query; None if there are none."""
        copy = COPY_SHARE * len(self.asked.words)
        trusted = [found for found in self.seen.values() if found.trusted and found.inliers <= copy]
        trusted.sort(key=lambda found: (-found.weight, found.image))
        chosen = [found for found in trusted[: self.options.expand] if found.transform is not None]
        if not trusted:
            return None
        return self.best(*expand(self.asked.sketch, self._spoken(chosen), self.options.expansion))

    def _spoken(self, chosen: Sequence[Found]) -> list[Verified]:
        """Give what hits have to say; for "hamming" also which of their features match the query's."""
        places, shards = [found.place for found in chosen], self.engine.shards
        sketches = shards.at(image_words_at, places)
        pairs: list[Array | None] = [np.empty((0, 2), np.int64)] * len(places)
        if self.options.expansion == "hamming":
            pairs = shards.at(inliers_in, places, self.asked.sketch, match_table(self.engine, self.options))
        spoken = []
        for found, sketch, matched in zip(chosen, sketches, pairs, strict=True):
            if sketch is not None and matched is not None:  # else its machine does not answer any more
                assert found.transform is not None
                spoken.append((sketch, found.transform, matched))
        return spoken

    def arrays(self, best: list[Scored]) -> list[Floats32]:
        """Give the scores of all images, one array per segment, with those of `best` in their places."""
        scores = [part.copy() for part in self.every]
        for (segment, position), _, value in best:
            scores[segment][position] = value
        return scores


def _united(best: list[Scored], again: Sequence[Scored]) -> list[Scored]:
    """Give the best, best first, and behind them those of the others that are not among them."""
    held = {one.place for one in best}
    return best + [one for one in again if one.place not in held]


def search(engine: Engine, asked: Query, options: SearchOptions, threads: int | None = None,
           early: Callable[[list[Found]], None] | None = None,
           confidence: HitProbability | None = None) -> list[Found]:  # fmt: skip
    """Give the images that answer a query, best first. `early` is told the ranking by words alone, if verification follows.

    With `confidence`, each has its probability, and those are left out that are not as sure as the options want.
    """
    if options.sure and confidence is None:
        raise OptionError(f"sure={options.sure!r} needs probabilities, and nobody knows those of such features; leave it out")
    at_work = _begin(engine, asked, options, threads, of_all=False)

    def ranked(best: list[Scored], seen: dict[ImageRef, Found]) -> list[Found]:
        found = sorted((one for one in best if one.score > 0), key=lambda one: (-one.score, one.image))[: options.top]
        hits = [replace(seen.get(one.place, Found(*one)), score=one.score) for one in found]
        return hits if confidence is None else _sure(at_work, hits, seen, confidence)

    best = _run(at_work, None if early is None else lambda first: early(ranked(first, {})))
    if at_work.of_all:
        best = engine.ranked(_finished(at_work, best), options.top)
    return ranked(best, at_work.seen)


def _sure(at_work: _Search, hits: list[Found], seen: dict[ImageRef, Found], confidence: HitProbability) -> list[Found]:
    """Give hits their probabilities; leave out those that are less probable than is wanted."""
    standings = NoiseRanks.of([one.score for one in at_work.first], at_work.engine.statistics.n_images)
    ranks = {one.place: (one.score, rank) for rank, one in enumerate(at_work.first, start=1)}
    believed = []
    for hit in hits:
        standing = standings.standing(*ranks.get(hit.place, (None, 0)))
        chance = confidence.probability(standing, hit.weight if hit.place in seen else None)
        if chance >= at_work.options.sure:
            believed.append(replace(hit, probability=chance))
    return believed


def score_all(engine: Engine, asked: Query, options: SearchOptions,
          threads: int | None = None) -> tuple[list[Floats32], dict[ImageRef, Found]]:  # fmt: skip
    """Give the final scores of all images, one array per segment, and what was verified on the way."""
    at_work = _begin(engine, asked, options, threads, of_all=True)
    return _finished(at_work, _run(at_work, None)), at_work.seen


def _begin(engine: Engine, asked: Query, options: SearchOptions, threads: int | None, of_all: bool) -> _Search:
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


def _finished(at_work: _Search, best: list[Scored]) -> list[Floats32]:
    """Give the scores of all images after what concerns all of them: smoothing and fusion."""
    engine, options = at_work.engine, at_work.options
    scores = at_work.arrays(best)
    if options.smooth and engine.neighbours is not None:
        scores = engine.neighbours.smoothed(engine.standing(at_work.threads), scores, options.smooth)
    if options.fuse:
        scores = fuse_embedding(engine, scores, at_work.asked.vector, at_work.threads)
    return scores
