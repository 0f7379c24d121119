"""The stages of a search, in their order: score, verify, expand, smooth, fuse, rank.

Only the best candidates are used, so only they are fetched from the segments. Where the scores of all images are needed
(smoothing, fusion, measuring accuracy) they are arrays, one per segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from polyvoc.errors import OptionError
from polyvoc.index.segment import Batch, Geometry, Segment
from polyvoc.options import SearchOptions, preset
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.rules import ScoringPlan
from polyvoc.scoring.segments import Candidate, SegmentImages, image_features_at
from polyvoc.search.fuse import fuse_embedding
from polyvoc.search.links import LinkGraph
from polyvoc.search.probability import DEPTH, HitProbability
from polyvoc.search.query import Query, expand
from polyvoc.search.verify import AnyVerification, is_reliable, prepare_verification, verify
from polyvoc.types import Array, FeatureCodes, Floats32, ImageFeatures, ImageRef, Keypoints
from polyvoc.vocabulary.codes import CodedQuery, Coder

SCORE_BOOST = 5.0  # nats of inliers that about double a score: it is multiplied by 1 + ln(1 + nats / SCORE_BOOST)
COPY_SHARE = 0.8  # of the query's features: a hit with as many inliers is a copy, and adds nothing to an expanded query

SURE = 0.99  # probability from which a hit joins an expanded query (benchmarks/expansion.py)

OnFirst = Callable[[list[Candidate]], None]


def search(engine: Engine, query: Query, options: SearchOptions,  # noqa: PLR0913, PLR0917
           probability: HitProbability | None = None,
           links: LinkGraph | None = None, threads: int | None = None, on_first: OnFirst | None = None,
           coder: Coder | None = None, first_image: int = 0, every: bool = False) -> list[Candidate]:  # fmt: skip
    """Return the best images, best first. `on_first` is called with the ranking by words alone, if verification follows.

    `coder` makes queries of stored images, for expansion by codes. Images with ids below `first_image` are left out. With
    `every`, all candidates are returned: neither `top` nor `min_probability` drops any.

    With `probability`, every candidate has its probability: the most probable come first, and those below `min_probability`
    are dropped. Without it, and with `smooth` or `fuse`, whose evidence it does not cover, the order is by score.
    """
    if options.min_probability and (options.smooth or options.fuse):
        raise OptionError(f"min_probability={options.min_probability!r}: hits have no probability with smooth or fuse; "
                          "leave it or them out")  # fmt: skip
    if options.min_probability and probability is None:
        raise OptionError(f"min_probability={options.min_probability!r}: no probability model for the features of this index; "
                          "leave min_probability out")  # fmt: skip
    plan = replace(engine.plan(options), first_image=first_image)
    run = _Search(engine, query, options, plan, links, threads, coder, probability)
    first = None if on_first is None else lambda best: on_first(run.finished(best))
    best = run.score_and_verify(first)
    if run.needs_all_scores:
        images = engine.images(threads)
        best = engine.rank(run.smooth_and_fuse(best, images), images, options.top)
    return run.finished(best, every)


def score_all(engine: Engine, query: Query, options: SearchOptions, links: LinkGraph | None = None,
              threads: int | None = None, coder: Coder | None = None,
              probability: HitProbability | None = None) -> list[Floats32]:  # fmt: skip
    """Return the final scores of all images, one array per segment; `probability` decides which hits expand the query."""
    run = _Search(engine, query, options, engine.plan(options), links, threads, coder, probability, needs_all_scores=True)
    return run.smooth_and_fuse(run.score_and_verify(None), engine.images(threads))


@dataclass(eq=False)
class _Search:
    """One query on its way through the stages."""

    engine: Engine
    query: Query
    options: SearchOptions
    plan: ScoringPlan
    links: LinkGraph | None
    threads: int | None
    coder: Coder | None = None
    probability: HitProbability | None = None
    needs_all_scores: bool = False
    all_scores: list[Floats32] = field(default_factory=list)  # if needed: by words alone, one array per segment
    verified: dict[ImageRef, Candidate] = field(default_factory=dict)
    # The best of all images, also of those that are left out: by the words of the query alone, and of the expanded query.
    first: list[Candidate] = field(default_factory=list)
    expanded: list[Candidate] = field(default_factory=list)
    joined: frozenset[ImageRef] = frozenset()  # the hits whose features it has

    def __post_init__(self) -> None:
        """Raise OptionError if the graph for smoothing is missing."""
        if self.options.smooth and self.links is None:
            raise OptionError("smooth needs the links between images; build them: polyvoc link")
        self.needs_all_scores = self.needs_all_scores or self.options.smooth > 0 or self.options.fuse

    def score_and_verify(self, on_first: OnFirst | None) -> list[Candidate]:
        """Score, verify and expand; return the best images, and all that were verified."""
        best, self.first = self.score(self.query)
        if not self.options.verify:
            return best
        if on_first is not None:
            on_first(best)
        if not best:
            return best
        prepared = prepare_verification(self.engine, self.query, self.options)
        ranking = self.verify(best, prepared)
        hits = self.expansion_hits() if self.options.expand else []
        if not hits:
            return ranking
        best, self.expanded = self.score(expand(self.query, hits, self.options, self.coder))
        return self.verify(best, prepared)

    def score(self, asked: Query) -> tuple[list[Candidate], list[Candidate]]:
        """Return the best by words alone, enough to verify and to fill the ranking; then all that were verified before.

        And the same with the best of the images that are left out: probabilities are measured against the noise of all.
        """
        query = self.engine.query_of(asked.codes, asked.words, asked.signatures, self.plan)
        depth = max(self.options.verify + len(self.verified) + self.options.top, DEPTH)
        if self.needs_all_scores:
            self.all_scores = self.engine.scores(query, self.plan, self.threads)
            best = self.engine.rank(self.all_scores, self.engine.images(self.threads), depth)
            before = [replace(one, score=float(self.all_scores[s][p])) for (s, p), one in self.verified.items()]
        else:
            best, before = self.engine.best(query, self.plan, depth, tuple(self.verified), self.threads)
        best = _joined(best, before)
        if not best or not self.plan.first_image or self.probability is None:
            return best, best
        of_all, _ = self.engine.best(query, replace(self.plan, first_image=0), DEPTH, threads=self.threads)
        return best, _joined(of_all, best)

    def verify(self, best: list[Candidate], prepared: AnyVerification) -> list[Candidate]:
        """Verify the best candidates; return all, with raised scores where they were verified, now or before."""
        chosen = [one.ref for one in best[: self.options.verify] if one.score > 0 and one.ref not in self.verified]
        self.verified.update(verify(self.engine, prepared, chosen, self.threads))
        return [self.raised(one) for one in best]

    def raised(self, one: Candidate) -> Candidate:
        """Return a candidate with its verification and the score that this gives."""
        found = self.verified.get(one.ref)
        if found is None or found.weight is None:
            return one
        return replace(found, score=float(np.float32(one.score * (1 + np.log1p(found.weight / SCORE_BOOST)))))

    def expansion_hits(self) -> list[tuple[ImageFeatures, Array]]:
        """Return what is stored of the reliable hits, the heaviest first, and the transform to each.

        Reliable: nearly certain by probability, so a query with no such hit is not expanded. Where there is no probability, by
        the weight and number of the inliers alone.
        """
        most = COPY_SHARE * len(self.query)
        verified = [one for one in self.verified.values() if one.transform is not None and one.inliers <= most]
        if self.probability is None:
            reliable = [one for one in verified if is_reliable(one)]
        else:
            rated = self.probability.rate(verified, self.first, self.engine.shards.statistics.n_images)
            reliable = [one for one in rated if (one.probability or 0.0) >= SURE]
        reliable.sort(key=lambda one: (-(one.weight or 0.0), one.image))
        chosen = [(one.ref, one.transform) for one in reliable[: self.options.expand] if one.transform is not None]
        self.joined = frozenset(ref for ref, _ in chosen)
        stored = self.engine.shards.at(image_features_at, [ref for ref, _ in chosen])
        # None: its machine became unavailable.
        return [(image, to) for (_, to), image in zip(chosen, stored, strict=True) if image is not None]

    def smooth_and_fuse(self, best: list[Candidate], images: Sequence[SegmentImages]) -> list[Floats32]:
        """Return the scores of all images after the stages that concern all of them."""
        scores = [part.copy() for part in self.all_scores]
        for one in best:
            scores[one.ref[0]][one.ref[1]] = one.score
        if self.options.smooth and self.links is not None:
            scores = self.links.smooth(images, scores, self.options.smooth)
        if self.options.fuse:
            scores = fuse_embedding(self.engine, scores, images, self.query.vector, self.threads)
        for part, values in zip(images, scores, strict=True):
            values[part.ids < self.plan.first_image] = 0
        return scores

    def finished(self, best: Sequence[Candidate], every: bool = False) -> list[Candidate]:
        """Return the `top` best with their verification: the most probable first; by score where they have no probability.

        With `every`, all of them.
        """
        top = len(best) if every else self.options.top
        found = [replace(self.verified.get(one.ref, one), score=one.score) for one in best if one.score > 0]
        found.sort(key=lambda one: (-one.score, one.image))
        if self.probability is None or self.options.smooth or self.options.fuse:
            return found[:top]
        rated = self.rated(found, self.probability)
        rated.sort(key=lambda one: -(one.probability or 0.0))  # stable: equal ones stay in the order of their scores
        least = 0.0 if every else self.options.min_probability
        return [one for one in rated[:top] if (one.probability or 0.0) >= least]

    def rated(self, candidates: Sequence[Candidate], probability: HitProbability) -> list[Candidate]:
        """Return candidates with their probability, by the query as it was last scored.

        The hits whose features an expanded query has match themselves in it: theirs is that of the query alone.
        """
        n_images = self.engine.shards.statistics.n_images
        if not self.expanded:
            return probability.rate(candidates, self.first, n_images)
        own = [one for one in candidates if one.ref in self.joined]
        others = [one for one in candidates if one.ref not in self.joined]
        rated = probability.rate(own, self.first, n_images) + probability.rate(others, self.expanded, n_images)
        place = {one.ref: number for number, one in enumerate(candidates)}
        return sorted(rated, key=lambda one: place[one.ref])


def _joined(best: list[Candidate], others: list[Candidate]) -> list[Candidate]:
    """Return a ranking, then the others that are not in it."""
    ranked = {one.ref for one in best}
    return best + [one for one in others if one.ref not in ranked]


def warm_up(sizes: Sequence[int], bits: int, code_bits: int = 0) -> None:
    """Compile or load the kernels of the usual searches, on a made-up collection: no search should wait for that."""
    rng, k, n = np.random.default_rng(0), len(sizes), 40
    words = rng.integers(0, sizes, (n, k)).astype(np.int32) if k else np.empty((n, 0), np.int32)
    planes = rng.integers(0, 1 << 63, (n, max(k, 1), max(bits // 64, 1)), dtype=np.uint64)[:, :k]
    signatures = None if not bits else planes[:, :, 0] if bits == 64 else planes
    keypoints = Keypoints(rng.uniform(0, 100, (n, 2)), np.ones(n), np.zeros(n))
    starts = np.array([0, n // 2, n])
    codes, coded = _made_up_codes(rng, n, code_bits) if code_bits else (None, None)
    geometry = Geometry.of(keypoints.xy, keypoints.scale, keypoints.angle, starts)
    batch = Batch(np.arange(2), starts, geometry, words, signatures, codes)
    engine = Engine([Segment.build(batch, tuple(sizes), MADE_UP if code_bits else 0)], sizes)
    query = Query(coded, words, signatures, keypoints)
    plain = SearchOptions(merge="posterior", burstiness="none", verify=0)
    by_words = (plain, *([replace(plain, hamming=24)] if bits else [])) if k else ()
    for options in (preset("fast", bits, code_bits), preset("default", bits, code_bits), *by_words):
        search(engine, query, options, threads=1)


MADE_UP = 16  # fine words of a made-up collection


def _made_up_codes(rng: np.random.Generator, n: int, bits: int) -> tuple[FeatureCodes, CodedQuery]:
    words, codes = rng.integers(0, MADE_UP, n), rng.integers(0, 1 << 63, (n, bits // 64), dtype=np.uint64)
    magnitudes = np.ones((n, bits), np.uint8)
    coded = CodedQuery(words[:, None].astype(np.int32), np.ones((n, 1), np.float32), codes[:, None], magnitudes,
                       np.full((n, 1), bits, np.int64))  # fmt: skip
    return FeatureCodes(words.astype(np.uint32), codes, np.zeros((n, 1), np.uint8)), coded
