"""Pairs of images that are worth matching: every image is compared with all others, by what is stored of them.

Scores are those of a search with the image. By codes the images of a block are decoded together, and every image is searched
for by itself; so it is by most rules of words. Where only near signatures vote, as in the presets without codes, images are
compared in blocks: each posting list is read once for a block, and weak matches are left out. This coarse score chooses the
candidates, and their exact scores are then computed one by one. In a small collection all are candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from polyvoc.errors import ClusterError, OptionError
from polyvoc.index.words import word_offsets
from polyvoc.kernels.pairs import keep_best, score_exact, vote_coarse
from polyvoc.kernels.verification import list_words
from polyvoc.options import CODE_CUT, CODES, PairOptions, SearchOptions
from polyvoc.scoring.engine import UNAVAILABLE, Engine, LocalShards
from polyvoc.scoring.rules import ScoringPlan
from polyvoc.scoring.segments import Candidate, norms_of
from polyvoc.search.probability import DEPTH, HitProbability, NoiseRanks
from polyvoc.search.query import Query, query_of_image
from polyvoc.search.verify import AnyVerification, prepare_verification, verify
from polyvoc.threads import count_threads, ordered_map
from polyvoc.types import Array, FeatureCodes, Floats32, ImageRef, Progress, with_planes
from polyvoc.vocabulary.codes import HALF, Coder

# Of the 20 best of a search with one of 422 and 1,374 photographs these find all and 99 %, a limit of 1 nat with as many extra
# candidates 94 and 92 %, in about the same time; of the 5 best they find all.
MIN_LLR_ROUGH = 0.25  # nats: the coarse score leaves out matches with a lower log-likelihood ratio
EXTRA_CANDIDATES = 40  # candidates beyond those wanted whose exact scores are computed
SMALL_COLLECTION = 128  # images: in a collection no larger the exact scores of all pairs are computed
BLOCK_SCORES = 1 << 19  # coarse scores of the images of one block, if possible: they should stay in the cache
MIN_BLOCK, MAX_BLOCK = 32, 256  # images of one block
SEARCHED_TOGETHER = 16  # images that are decoded together, by codes
# Two ids, first < second; the higher of the scores of either in a search with the other, if both are known, and of the noise
# ranks (`search.probability`); the probability that they show the same thing, NaN where there is no model; and if pairs are
# verified: inliers, their weight in nats, and the transform of positions in the first to positions in the second.
PAIR = np.dtype([("first", np.int64), ("second", np.int64), ("score", np.float32), ("noise_rank", np.float32),
                 ("probability", np.float32), ("inliers", np.int32), ("weight", np.float32),
                 ("transform", np.float64, (2, 3))])  # fmt: skip
Ids = npt.NDArray[np.int64]
Pairs = npt.NDArray[np.void]  # [P] of PAIR, by their ids
Result = TypeVar("Result")


class Candidates(NamedTuple):
    """The best other images of each image, best first, ties by id."""

    images: Ids  # [n]
    others: Ids  # [n, top], -1 where there are fewer
    scores: Floats32  # [n, top]


class RatedCandidates(NamedTuple):
    """Candidates, and how far each rises above the noise of its image's scores."""

    images: Ids  # [n]
    others: Ids  # [n, top]
    scores: Floats32  # [n, top]
    noise_ranks: Floats32  # [n, top]

    @classmethod
    def of(cls, best: Candidates, top: int, n_images: int) -> RatedCandidates:
        """Return the `top` best of candidates, with their noise ranks by the scores of all."""
        others, scores = best.others[:, :top], best.scores[:, :top]
        ranks = np.full(scores.shape, -np.inf, np.float32)
        for row, all_scores in enumerate(best.scores):
            noise = NoiseRanks.of(all_scores[: int(np.count_nonzero(all_scores > 0))].tolist(), n_images)
            for place, score in enumerate(scores[row].tolist()):
                if score > 0:
                    ranks[row, place] = noise.noise_rank(score, place + 1)
        return cls(best.images, others, scores, ranks)


@dataclass(frozen=True, eq=False)
class StoredQueries:
    """Makes queries of stored images: those of a collection, by some options. May be shared by threads."""

    engine: Engine
    search: SearchOptions
    coder: Coder | None = None  # None: without codes

    def of(self, ref: ImageRef, verify: int = 0) -> Query:
        """Return what is stored of an image as a query; `verify`: also for verification."""
        (stored,) = self.engine.image_features([ref])
        return query_of_image(stored, replace(self.search, verify=verify), self.coder)

    def of_many(self, refs: Sequence[ImageRef], verify: int = 0) -> list[Query]:
        """Return what is stored of images as queries; their codes are decoded together, which is faster.

        `verify`: also for verification, as they always are by codes.
        """
        coder = self.coder
        if self.search.merge != CODES or coder is None or not refs:
            return [self.of(ref, verify) for ref in refs]
        stored = self.engine.image_features(refs)
        codes = [one.codes for one in stored if one.codes is not None]
        starts = np.concatenate([[0], np.cumsum([len(one.words) for one in codes])]).astype(int)
        joined = FeatureCodes(*map(np.concatenate, zip(*codes, strict=True)))
        query = coder.query_stored(joined, self.search.n_assignments, CODE_CUT, HALF)
        parts = zip(stored, pairwise(starts.tolist()), strict=True)
        return [Query(query.part(first, last), keypoints=image.keypoints) for image, (first, last) in parts]

    def verification(self, ref: ImageRef) -> AnyVerification:
        """Return a stored image prepared for verification."""
        return prepare_verification(self.engine, self.of(ref, verify=1), self.search)


def find_pairs(source: StoredQueries, options: PairOptions, images: Sequence[int] | None = None,
               progress: Progress | None = None, threads: int | None = None,
               probability: HitProbability | None = None) -> Pairs:  # fmt: skip
    """Return the pairs of images that are worth matching; with `images`, by their ids, those of each of them with any image.

    With `probability` every pair has one; two images that show the same thing are as a query and its hit.
    """
    engine = source.engine
    others = max(engine.statistics.n_images - 1, 1)
    top, depth = min(options.top, others), min(options.top if probability is None else max(options.top, DEPTH), others)

    def ranked(wanted: Sequence[int] | None) -> RatedCandidates:
        return RatedCandidates.of(find_candidates(source, depth, wanted, progress, threads), top, others)

    best = ranked(images)
    pairs, _ = join_pairs(best)
    if options.mutual:
        missing = np.setdiff1d(best.others[best.others >= 0], best.images)
        more = ranked(missing.tolist())
        pairs, times = join_pairs(best, more)
        wanted = np.isin(pairs["first"], best.images) | np.isin(pairs["second"], best.images)
        pairs = pairs[(times == 2) & wanted]
    pairs = pairs[pairs["score"] >= options.min_score]
    if options.verify:
        pairs = verify_pairs(source, pairs, progress, threads)
        pairs = pairs[pairs["inliers"] >= options.min_inliers]
    return rate_pairs(pairs, options.verify, probability)


def rate_pairs(pairs: Pairs, verified: bool, probability: HitProbability | None) -> Pairs:
    """Return pairs with their probabilities: by their noise ranks, and by their weights if they were verified."""
    if probability is None:
        return pairs
    pairs = pairs.copy()
    for pair in pairs:
        pair["probability"] = probability.of(float(pair["noise_rank"]), float(pair["weight"]) if verified else None)
    return pairs


def join_pairs(*lists: RatedCandidates) -> tuple[Pairs, Ids]:
    """Return the pairs of images in lists of candidates, each once, with the higher of its scores; and how often it occurs."""
    present = [best.others >= 0 for best in lists]
    images = np.concatenate([np.repeat(best.images, mask.sum(axis=1)) for best, mask in zip(lists, present, strict=True)])
    others = np.concatenate([best.others[mask] for best, mask in zip(lists, present, strict=True)])
    pairs = np.zeros(len(images), PAIR)
    pairs["first"], pairs["second"] = np.minimum(images, others), np.maximum(images, others)
    pairs["score"] = np.concatenate([best.scores[mask] for best, mask in zip(lists, present, strict=True)])
    pairs["noise_rank"] = np.concatenate([best.noise_ranks[mask] for best, mask in zip(lists, present, strict=True)])
    pairs["transform"] = pairs["probability"] = np.nan
    pairs = pairs[np.lexsort((-pairs["score"], pairs["second"], pairs["first"]))]
    fresh = np.ones(len(pairs), bool)
    fresh[1:] = (pairs["first"][1:] != pairs["first"][:-1]) | (pairs["second"][1:] != pairs["second"][:-1])
    starts = np.flatnonzero(fresh)
    highest = np.maximum.reduceat(pairs["noise_rank"], starts) if len(pairs) else pairs["noise_rank"]
    joined = pairs[starts]
    joined["noise_rank"] = highest
    return joined, np.diff(np.append(starts, len(pairs)))


def verify_pairs(source: StoredQueries, pairs: Pairs, progress: Progress | None = None,
                 threads: int | None = None) -> Pairs:  # fmt: skip
    """Return pairs with the matches that are consistent with one transform: how many, their weight, and the transform."""
    pairs, engine = pairs.copy(), source.engine
    refs = ImageRefs.of(engine)
    firsts, starts = np.unique(pairs["first"], return_index=True)
    groups = np.split(np.arange(len(pairs)), starts[1:])

    def work(rows: Array) -> dict[ImageRef, Candidate]:
        (first,) = refs.at(pairs["first"][rows[:1]])
        return verify(engine, source.verification(first), refs.at(pairs["second"][rows]), threads=1)

    done = 0
    with closing(ordered_map(work, groups if len(firsts) else [], count_threads(threads), "polyvoc-pairs")) as results:
        for rows, verified in results:
            for row, ref in zip(rows, refs.at(pairs["second"][rows]), strict=True):
                found = verified.get(ref)
                if found is None:
                    raise ClusterError(UNAVAILABLE)
                pairs["inliers"][row], pairs["weight"][row] = found.inliers, found.weight
                pairs["transform"][row] = np.nan if found.transform is None else found.transform
            done += len(rows)
            if progress is not None:
                progress("verifying", done, len(pairs))
    return pairs


def find_candidates(source: StoredQueries, top: int, images: Sequence[int] | None = None,
                    progress: Progress | None = None, threads: int | None = None) -> Candidates:  # fmt: skip
    """Return the `top` best other images of every image, or of some, without verification."""
    engine = source.engine
    refs, plan, threads = ImageRefs.of(engine), engine.plan(source.search), count_threads(threads)
    ids = refs.ids if images is None else refs.checked(images)
    if can_compare_blocks(engine, plan):
        n_others = max(len(refs.ids) - 1, 0)
        depth = max(top, n_others) if n_others < max(top + EXTRA_CANDIDATES, SMALL_COLLECTION) else top + EXTRA_CANDIDATES
        return _Comparison.of(engine, plan, depth, refs).candidates(ids, top, threads, progress)
    best = Candidates(ids, np.full((len(ids), top), -1, np.int64), np.zeros((len(ids), top), np.float32))

    def several(rows: slice) -> list[tuple[Ids, Floats32]]:
        queries = source.of_many(refs.at(ids[rows]))
        return [_search_one(engine, query, plan, top, image) for query, image in zip(queries, ids[rows].tolist(), strict=True)]

    size = max(1, min(SEARCHED_TOGETHER, -(-len(ids) // threads)))
    for rows, found in _each_block("comparing", several, len(ids), size, threads, progress):
        best.others[rows], best.scores[rows] = (np.stack(column) for column in zip(*found, strict=True))
    return best


def can_compare_blocks(engine: Engine, plan: ScoringPlan) -> bool:
    """Return whether images can be compared in blocks, rather than by one search each."""
    return (
        isinstance(engine.shards, LocalShards)
        and plan.table is not None
        and not plan.table.edges
        and plan.options.burstiness == "best"
        and plan.sizes == engine.sizes
        and not plan.image_sets
    )


def _search_one(engine: Engine, asked: Query, plan: ScoringPlan, top: int, image: int) -> tuple[Ids, Floats32]:
    """Return the best images [top] of a search with an image, without it."""
    others, scores = np.full(top, -1, np.int64), np.zeros(top, np.float32)
    query = engine.query_of(asked.codes, asked.words, asked.signatures, plan)
    best, _ = engine.best(query, plan, top + 1, threads=1)
    for rank, one in enumerate([one for one in best if one.image != image][:top]):
        others[rank], scores[rank] = one.image, one.score
    return others, scores


def _each_block(stage: str, work: Callable[[slice], Result], n_rows: int, size: int, threads: int,
                progress: Progress | None) -> Iterator[tuple[slice, Result]]:  # fmt: skip
    """Yield every block of `size` rows and the result of the work on it, in their order."""
    blocks = [slice(first, min(first + size, n_rows)) for first in range(0, n_rows, size)]
    with closing(ordered_map(work, blocks, threads, "polyvoc-pairs")) as results:
        for block, result in results:
            yield block, result
            if progress is not None:
                progress(stage, block.stop, n_rows)


class ImageRefs(NamedTuple):
    """Where the live images of an index are stored."""

    ids: Ids  # [n], ascending
    segments: Ids  # [n]
    positions: Ids  # [n]

    @classmethod
    def of(cls, engine: Engine) -> ImageRefs:
        """Read them from the segments."""
        images = engine.images()
        ids = np.concatenate([np.empty(0, np.int64), *(part.ids[part.live] for part in images)])
        segments = np.repeat(np.arange(len(images)), [len(part.live) for part in images])
        positions = np.concatenate([np.empty(0, np.int64), *(part.live for part in images)])
        order = np.argsort(ids)
        return cls(ids[order], segments[order], positions[order])

    def checked(self, images: Sequence[int]) -> Ids:
        """Return ids, ascending and each once; raise OptionError if one is not in the index."""
        wanted = np.unique(np.asarray(images, np.int64))
        unknown = np.setdiff1d(wanted, self.ids)
        if len(unknown):
            raise OptionError(f"image {unknown[0]} is not in the index")
        return wanted

    def at(self, images: Ids) -> list[ImageRef]:
        """Return the refs of images by their ids."""
        rows = np.searchsorted(self.ids, images)
        return list(zip(self.segments[rows].tolist(), self.positions[rows].tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class _Block:
    """What is stored of the images that are compared together."""

    starts: Ids  # [n + 1] their features
    words: Ids  # [Q, K]
    signatures: npt.NDArray[np.uint64]  # [Q, K, B]

    @classmethod
    def read(cls, engine: Engine, refs: Sequence[ImageRef]) -> _Block:
        rows = [engine.segments[segment].image_features(position) for segment, position in refs]
        planes, width = engine.bits // 64, len(engine.sizes)
        # Images without features do not show the length of signatures.
        signatures = [with_planes(row.signatures, 2).reshape(-1, width, planes) for row in rows if len(row.words)]
        return cls(
            starts=np.concatenate([[0], np.cumsum([len(row.words) for row in rows])]),
            words=np.concatenate([row.words for row in rows]).astype(np.int64),
            signatures=np.concatenate([np.empty((0, width, planes), np.uint64), *signatures]),
        )


@dataclass(frozen=True, eq=False)
class _Comparison:
    """What is the same for all blocks of images. May be shared by threads."""

    engine: Engine
    depth: int  # candidates whose exact scores are computed
    refs: ImageRefs
    norms: Sequence[Floats32]  # of each segment
    idf_squared: Floats32  # [W] of each word
    singles: Floats32  # [bits + 1] log-likelihood ratio of a match in one list, by its distance
    gains: Floats32  # [2^K, bits K + 1] of one in a set of lists, by the sum of its distances

    @classmethod
    def of(cls, engine: Engine, plan: ScoringPlan, depth: int, refs: ImageRefs) -> _Comparison:
        n_vocabularies = len(engine.sizes)
        cells, table = plan.table_rows(np.zeros((1, 1 << n_vocabularies), np.int64))
        n_lists = np.array([max(mask.bit_count(), 1) for mask in range(1 << n_vocabularies)])[:, None]
        means = (2 * np.arange(engine.bits * n_vocabularies + 1) + n_lists) // (2 * n_lists)  # halves up, as the kernels
        return cls(
            engine,
            depth,
            refs,
            norms=engine.shards.each(norms_of, plan.norm),
            idf_squared=engine.statistics.idf_squared[plan.options.idf].astype(np.float32),
            singles=table[cells[0, 1 << np.arange(n_vocabularies)]].max(axis=0),
            gains=table[cells[0][:, None], np.minimum(means, engine.bits)],
        )

    def candidates(self, ids: Ids, top: int, threads: int, progress: Progress | None) -> Candidates:
        """Return the best other images of images: candidates by their coarse scores first, then by the exact ones."""
        largest = max(segment.n_images for segment in self.engine.segments)
        size = max(1, min(max(BLOCK_SCORES // max(largest, 1), MIN_BLOCK), MAX_BLOCK, -(-len(ids) // threads)))
        others = np.full((len(ids), self.depth), -1, np.int64)
        for rows, chosen in _each_block("comparing", lambda at: self.choose(ids[at]), len(ids), size, threads, progress):
            others[rows] = chosen
        reverse = _reverse_pairs(ids, others)
        scores, backs = np.zeros((2, *others.shape), np.float32)
        first = np.arange(others.size).reshape(others.shape) > reverse  # the other way of a pair comes along with the first
        wanted = np.where(first, others, -1)

        def exact(at: slice) -> tuple[Floats32, Floats32]:
            return self.exact(ids[at], wanted[at])

        for rows, both in _each_block("scoring", exact, len(ids), size, threads, progress):
            scores[rows], backs[rows] = both
        scores[~first] = backs.ravel()[reverse[~first]]
        order = np.lexsort((others, -scores), axis=-1)[:, :top]
        others, scores = np.take_along_axis(others, order, 1), np.take_along_axis(scores, order, 1)
        return Candidates(ids, np.where(scores > 0, others, -1), scores)

    def choose(self, ids: Ids) -> Ids:
        """Return the candidates of a block of images [n, depth], -1 where there are fewer."""
        if self.depth >= len(self.refs.ids) - 1:
            return self.all_others(ids)
        others = self.coarse(_Block.read(self.engine, self.refs.at(ids)), ids, MIN_LLR_ROUGH)
        short = np.flatnonzero(others[:, -1] < 0)
        if len(short):  # too few: count every match
            some = _Block.read(self.engine, self.refs.at(ids[short]))
            others[short] = self.coarse(some, ids[short], 0.0)
        return others

    def all_others(self, ids: Ids) -> Ids:
        """Return all other images [n, depth], -1 where there are fewer."""
        others = np.full((len(ids), self.depth), -1, np.int64)
        everyone = np.tile(self.refs.ids, (len(ids), 1))
        others[:, : everyone.shape[1] - 1] = everyone[everyone != ids[:, None]].reshape(len(ids), -1)
        return others

    def coarse(self, block: _Block, ids: Ids, min_llr: float) -> Ids:
        """Return the images with the highest coarse scores [n, depth], without matches below `min_llr` nats."""
        numbers = (block.words + word_offsets(self.engine.sizes)).T.ravel()  # vocabulary by vocabulary
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        owners = np.repeat(np.arange(len(ids)), np.diff(block.starts))[order % max(len(block.words), 1)]
        planes = np.ascontiguousarray(block.signatures.transpose(2, 1, 0).reshape(block.signatures.shape[2], -1)[:, order])
        threshold = np.flatnonzero(self.singles > min(min_llr, self.singles.max() / 2)).max(initial=0)
        others = np.full((len(ids), self.depth), -1, np.int64)
        best = np.zeros(others.shape, np.float32)
        for segment, norms in zip(self.engine.segments, self.norms, strict=True):
            votes = np.zeros((len(ids), segment.n_images), np.float32)
            lists = (segment.arrays[name] for name in ("starts", "postings", "signatures"))
            if segment.n_features:
                vote_coarse(numbers, owners, planes, self.idf_squared[numbers], *lists, self.singles, threshold, votes)
            keep_best(votes, norms, segment.alive, segment.ids, ids, best, others)
        return others

    def exact(self, ids: Ids, others: Ids) -> tuple[Floats32, Floats32]:
        """Return the scores of some images in searches with those of a block [n, depth], 0 for -1; and the other way round."""
        refs = self.refs.at(ids)
        block = _Block.read(self.engine, refs)
        idf = self.idf_squared[block.words + word_offsets(self.engine.sizes)]
        scores, backs = np.zeros((2, *others.shape), np.float32)
        for row, (segment, position) in enumerate(refs):
            own = slice(block.starts[row], block.starts[row + 1])
            scores[row], backs[row] = self.compare(block.words[own], block.signatures[own], idf[own], others[row])
            backs[row] /= _divisors(self.norms[segment][position])
        return scores, backs

    def compare(self, words: Ids, signatures: Array, idf: Array, others: Ids) -> tuple[Floats32, Floats32]:
        """Return the scores of some images for the features of one [depth], and the votes of their features for it."""
        offsets = np.concatenate([[0], np.cumsum(np.add(self.engine.sizes, 1))])
        lists = list_words(words, offsets, len(words))
        scores, backs = np.zeros((2, len(others)), np.float32)
        present = np.flatnonzero(others >= 0)
        at = np.array(self.refs.at(others[present])).reshape(-1, 2)
        for number in np.unique(at[:, 0]):
            mine, arrays = at[:, 0] == number, self.engine.segments[number].arrays
            stored = (arrays[name] for name in ("feature_starts", "words", "places", "signatures"))
            positions, votes = at[mine, 1], np.zeros((2, mine.sum()), np.float32)
            score_exact(positions, *stored, signatures, idf, offsets, *lists, self.gains, *votes)
            scores[present[mine]], backs[present[mine]] = votes[0] / _divisors(self.norms[number][positions]), votes[1]
        return scores, backs


def _divisors(norms: Array) -> Array:
    """Return norms that scores can be divided by: images without one have no score."""
    return np.where(norms > 0, norms, np.float32(np.inf))


def _reverse_pairs(ids: Ids, others: Ids) -> Ids:
    """Return in which cell of a table of candidates [n, depth] the same pair is the other way round; -1: in none."""
    rows = np.repeat(np.arange(len(ids)), others.shape[1])
    columns = np.searchsorted(ids, others.ravel())
    known = ids[np.minimum(columns, len(ids) - 1)] == others.ravel() if len(ids) else np.zeros(0, bool)
    keys = np.where(known, rows * len(ids) + columns, -1)
    order = np.argsort(keys)
    wanted = columns * len(ids) + rows
    cells = order[np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)] if len(keys) else order
    return np.where(known & (keys[cells] == wanted), cells, -1).reshape(others.shape)
