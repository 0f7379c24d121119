"""Pairs worth matching: all against all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from polyvoc.errors import ClusterError, OptionError
from polyvoc.index.segment import with_planes, word_offsets
from polyvoc.kernels.pairs import keep_best, score_exact, vote_coarse
from polyvoc.kernels.verification import list_words
from polyvoc.options import PairOptions, SearchOptions
from polyvoc.scoring.engine import NO_ANSWER, Engine, LocalShards
from polyvoc.scoring.query import QueryWords
from polyvoc.scoring.rules import likelihood_rows
from polyvoc.search.verify import Found, verify
from polyvoc.threads import count_threads, ordered_map
from polyvoc.types import Array, Floats32, ImageRef, Progress

# Of the 20 best of a search with one of 422 and 1,374 photographs these find all and 99 %, a doubt of 1 with as many
# spare ones 94 and 92 %, in about the same time; of the 5 best they find all.
MIN_LLR_ROUGH = 0.25  # nats: the rough score leaves out matches that say less
EXTRA_CANDIDATES = 40  # candidates beyond those wanted whose exact scores are computed
SMALL_COLLECTION = 128  # images: in a collection no larger the exact scores of all pairs are computed
PAIR_BLOCK = 1 << 19  # rough scores of the images that ask at once, if possible: they should stay in the cache
FEWEST, MOST = 32, 256  # images that ask at once
# Two ids, first < second; the higher of the scores that either has in a search with the other, if both are known; and if pairs
# are verified: inliers, what they say in nats, and what takes places of the first to places of the second.
PAIR = np.dtype([("first", np.int64), ("second", np.int64), ("score", np.float32), ("inliers", np.int32),
                 ("weight", np.float32), ("transform", np.float64, (2, 3))])  # fmt: skip
Ids = npt.NDArray[np.int64]
Pairs = npt.NDArray[np.void]  # [P] of PAIR, by their ids
Result = TypeVar("Result")


class Candidates(NamedTuple):
    """The best other images of each image, best first, ties by id."""

    images: Ids  # [n]
    others: Ids  # [n, top], -1 where there are fewer
    scores: Floats32  # [n, top]


def find_pairs(engine: Engine, options: PairOptions, search: SearchOptions, images: Sequence[int] | None = None,
         progress: Progress | None = None, threads: int | None = None) -> Pairs:  # fmt: skip
    """Give the pairs of images that are worth matching; with `images`, by their ids, those of each of them with any image."""
    top = min(options.top, max(engine.statistics.n_images - 1, 1))
    best = pair_candidates(engine, search, top, images, progress, threads)
    pairs, _ = join_pairs(best)
    if options.mutual:
        missing = np.setdiff1d(best.others[best.others >= 0], best.images)
        more = pair_candidates(engine, search, top, missing.tolist(), progress, threads)
        pairs, times = join_pairs(best, more)
        asked = np.isin(pairs["first"], best.images) | np.isin(pairs["second"], best.images)
        pairs = pairs[(times == 2) & asked]
    pairs = pairs[pairs["score"] >= options.least]
    if not options.verify:
        return pairs
    pairs = verify_pairs(engine, pairs, search, progress, threads)
    return pairs[pairs["inliers"] >= options.inliers]


def join_pairs(*lists: Candidates) -> tuple[Pairs, Ids]:
    """Give the pairs of images in lists of candidates, each once, with the higher of its scores; and how often each stands."""
    held = [best.others >= 0 for best in lists]
    images = np.concatenate([np.repeat(best.images, mask.sum(axis=1)) for best, mask in zip(lists, held, strict=True)])
    others = np.concatenate([best.others[mask] for best, mask in zip(lists, held, strict=True)])
    pairs = np.zeros(len(images), PAIR)
    pairs["first"], pairs["second"] = np.minimum(images, others), np.maximum(images, others)
    pairs["score"] = np.concatenate([best.scores[mask] for best, mask in zip(lists, held, strict=True)])
    pairs["transform"] = np.nan
    pairs = pairs[np.lexsort((-pairs["score"], pairs["second"], pairs["first"]))]
    fresh = np.ones(len(pairs), bool)
    fresh[1:] = (pairs["first"][1:] != pairs["first"][:-1]) | (pairs["second"][1:] != pairs["second"][:-1])
    places = np.flatnonzero(fresh)
    return pairs[places], np.diff(np.append(places, len(pairs)))


def verify_pairs(engine: Engine, pairs: Pairs, search: SearchOptions, progress: Progress | None = None,
             threads: int | None = None) -> Pairs:  # fmt: skip
    """Give pairs with the matches that agree on one arrangement: how many, what they say, and on which."""
    pairs = pairs.copy()
    places = Places.of(engine)
    firsts, starts = np.unique(pairs["first"], return_index=True)
    groups = np.split(np.arange(len(pairs)), starts[1:])

    def work(rows: Array) -> dict[ImageRef, Found]:
        (sketch,) = engine.sketches(places.at(pairs["first"][rows[:1]]))
        return verify(engine, sketch, places.at(pairs["second"][rows]), search, threads=1)

    done = 0
    with closing(ordered_map(work, groups if len(firsts) else [], count_threads(threads), "polyvoc-pairs")) as results:
        for rows, seen in results:
            for row, place in zip(rows, places.at(pairs["second"][rows]), strict=True):
                found = seen.get(place)
                if found is None:
                    raise ClusterError(NO_ANSWER)
                pairs["inliers"][row], pairs["weight"][row] = found.inliers, found.weight
                pairs["transform"][row] = np.nan if found.transform is None else found.transform
            done += len(rows)
            if progress is not None:
                progress("verifying", done, len(pairs))
    return pairs


def pair_candidates(engine: Engine, search: SearchOptions, top: int, images: Sequence[int] | None = None,
               progress: Progress | None = None, threads: int | None = None) -> Candidates:  # fmt: skip
    """Give the `top` best other images of every image, or of some, by words and signatures alone."""
    places = Places.of(engine)
    asking = places.ids if images is None else places.known(images)
    search, threads = engine.settled(search), count_threads(threads)
    if batched(engine, search):
        n_others = max(len(places.ids) - 1, 0)
        depth = max(top, n_others) if n_others < max(top + EXTRA_CANDIDATES, SMALL_COLLECTION) else top + EXTRA_CANDIDATES
        batch = _Batch.of(engine, search, depth, places)
        return batch.candidates(asking, top, _Crew(threads, progress))
    best = Candidates(asking, np.full((len(asking), top), -1, np.int64), np.zeros((len(asking), top), np.float32))
    alone = partial(_alone, engine, search, top, places)
    for row, (others, scores) in _Crew(threads, progress).each("comparing", lambda row: alone(asking[row]), len(asking), 1):
        best.others[row], best.scores[row] = others, scores
    return best


class _Crew(NamedTuple):
    """Threads that work on blocks of rows, and whoever is told how far they are."""

    threads: int
    progress: Progress | None

    def each(self, stage: str, work: Callable[[slice], Result], n_rows: int, size: int) -> Iterator[tuple[slice, Result]]:
        """Give every block of `size` rows and the result of the work on it, in their order."""
        blocks = [slice(first, min(first + size, n_rows)) for first in range(0, n_rows, size)]
        with closing(ordered_map(work, blocks, self.threads, "polyvoc-pairs")) as results:
            for block, result in results:
                yield block, result
                if self.progress is not None:
                    self.progress(stage, block.stop, n_rows)


def batched(engine: Engine, search: SearchOptions) -> bool:
    """Tell whether images can ask in blocks, rather than one by one."""
    return (
        isinstance(engine.shards, LocalShards)
        and engine.bits > 0
        and (search.merge, search.burstiness, search.sets) == ("likelihood", "best", "feature")
        and search.burstiness_on != "difference"
        and (search.evidence is None or not search.evidence.edges)
        and search.norm != "self"
    )


def _alone(engine: Engine, search: SearchOptions, top: int, places: Places, asking: Ids) -> tuple[Ids, Floats32]:
    """Give the best other images of one image [1, top] by a search."""
    others, scores = np.full((1, top), -1, np.int64), np.zeros((1, top), np.float32)
    (sketch,) = engine.sketches(places.at(asking))
    signatures = sketch.signatures if sketch.signatures.shape[1] else None
    found, _ = engine.best(engine.query(sketch.words, signatures, search), search, threads=1, depth=top + 1)
    for rank, one in enumerate([one for one in found if one.image != asking[0]][:top]):
        others[0, rank], scores[0, rank] = one.image, one.score
    return others, scores


def _block_size(engine: Engine, n_asking: int, threads: int) -> int:
    largest = max(segment.n_images for segment in engine.segments)
    return max(1, min(max(PAIR_BLOCK // max(largest, 1), FEWEST), MOST, -(-n_asking // threads)))


class Places(NamedTuple):
    """Where the live images of an index stand."""

    ids: Ids  # [n], ascending
    segments: Ids  # [n]
    positions: Ids  # [n]

    @classmethod
    def of(cls, engine: Engine) -> Places:
        """Ask the segments."""
        standing = engine.standing()
        ids = np.concatenate([np.empty(0, np.int64), *(part.ids[part.live] for part in standing)])
        segments = np.repeat(np.arange(len(standing)), [len(part.live) for part in standing])
        positions = np.concatenate([np.empty(0, np.int64), *(part.live for part in standing)])
        order = np.argsort(ids)
        return cls(ids[order], segments[order], positions[order])

    def known(self, images: Sequence[int]) -> Ids:
        """Give ids, ascending and each once; refuse one that is not in the index."""
        wanted = np.unique(np.asarray(images, np.int64))
        strangers = np.setdiff1d(wanted, self.ids)
        if len(strangers):
            raise OptionError(f"image {strangers[0]} is not in the index")
        return wanted

    def at(self, images: Ids) -> list[ImageRef]:
        """Give where images stand, by their ids."""
        rows = np.searchsorted(self.ids, images)
        return list(zip(self.segments[rows].tolist(), self.positions[rows].tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class _Block:
    """What is stored of the images that ask together."""

    starts: Ids  # [n + 1] their features
    words: Ids  # [Q, K]
    signatures: npt.NDArray[np.uint64]  # [Q, K, B]

    @classmethod
    def read(cls, engine: Engine, places: Sequence[ImageRef]) -> _Block:
        rows = [engine.segments[segment].image_words(position) for segment, position in places]
        starts = np.concatenate([[0], np.cumsum([len(row.words) for row in rows])])
        planes, width = engine.bits // 64, len(engine.sizes)
        # Images without features tell nothing of the length of signatures.
        signatures = [with_planes(row.signatures, 2).reshape(-1, width, planes) for row in rows if len(row.words)]
        return cls(
            starts=starts,
            words=np.concatenate([row.words for row in rows]).astype(np.int64),
            signatures=np.concatenate([np.empty((0, width, planes), np.uint64), *signatures]),
        )


@dataclass(frozen=True, eq=False)
class _Batch:
    """What is the same for all blocks of images that ask. May be shared by threads."""

    engine: Engine
    depth: int  # candidates whose exact scores are computed
    places: Places
    norms: Sequence[Floats32]  # of each segment
    squares: npt.NDArray[np.float32]  # [W] idf^2 of each word
    singles: npt.NDArray[np.float32]  # [bits + 1] evidence of a match in one list, by its distance
    gains: npt.NDArray[np.float32]  # [2^K, bits K + 1] of one in a set of lists, by the sum of its distances

    @classmethod
    def of(cls, engine: Engine, search: SearchOptions, depth: int, places: Places) -> _Batch:
        n_vocabularies = len(engine.sizes)
        anyone = QueryWords(np.zeros((1, n_vocabularies, 1), np.int64), None, engine.sizes)
        cells, table = likelihood_rows(anyone, np.zeros((1, 1 << n_vocabularies), np.int64), search)
        squares = engine.statistics.squares_of(search.idf).astype(np.float32)
        orders = np.array([max(mask.bit_count(), 1) for mask in range(1 << n_vocabularies)])[:, None]
        means = (2 * np.arange(engine.bits * n_vocabularies + 1) + orders) // (2 * orders)  # halves up, as in `votes.py`
        gains = table[cells[0][:, None], np.minimum(means, engine.bits)]
        singles = table[cells[0, 1 << np.arange(n_vocabularies)]].max(axis=0)
        return cls(engine, depth, places, engine.norms(search), squares, singles, gains)

    def candidates(self, asking: Ids, top: int, crew: _Crew) -> Candidates:
        """Give the best other images of images: candidates by their rough scores first, then by the exact ones."""
        size = _block_size(self.engine, len(asking), crew.threads)
        images = np.full((len(asking), self.depth), -1, np.int64)
        for rows, chosen in crew.each("comparing", lambda rows: self.chosen(asking[rows]), len(asking), size):
            images[rows] = chosen
        twins = _reverse_pairs(asking, images)
        scores, backs = np.zeros((2, *images.shape), np.float32)
        first = np.arange(images.size).reshape(images.shape) > twins  # the other way of a pair comes along with the first
        asked = np.where(first, images, -1)
        for rows, exact in crew.each("scoring", lambda rows: self.exact(asking[rows], asked[rows]), len(asking), size):
            scores[rows], backs[rows] = exact
        scores[~first] = backs.ravel()[twins[~first]]
        order = np.lexsort((images, -scores), axis=-1)[:, :top]
        images, scores = np.take_along_axis(images, order, 1), np.take_along_axis(scores, order, 1)
        return Candidates(asking, np.where(scores > 0, images, -1), scores)

    def chosen(self, asking: Ids) -> Ids:
        """Give the candidates of a block of images [n, depth], -1 where there are fewer."""
        if self.depth >= len(self.places.ids) - 1:
            return self.others(asking)
        images = self.rough(_Block.read(self.engine, self.places.at(asking)), asking, MIN_LLR_ROUGH)
        short = np.flatnonzero(images[:, -1] < 0)
        if len(short):  # too few: hear every match
            some = _Block.read(self.engine, self.places.at(asking[short]))
            images[short] = self.rough(some, asking[short], 0.0)
        return images

    def others(self, asking: Ids) -> Ids:
        """Give all other images [n, depth], -1 where there are fewer."""
        images = np.full((len(asking), self.depth), -1, np.int64)
        everyone = np.tile(self.places.ids, (len(asking), 1))
        images[:, : everyone.shape[1] - 1] = everyone[everyone != asking[:, None]].reshape(len(asking), -1)
        return images

    def rough(self, block: _Block, asking: Ids, doubt: float) -> Ids:
        """Give the images with the highest rough scores [n, depth]; matches of less than `doubt` nats are mute."""
        numbers = (block.words + word_offsets(self.engine.sizes)).T.ravel()  # vocabulary by vocabulary
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        owners = np.repeat(np.arange(len(asking)), np.diff(block.starts))[order % max(len(block.words), 1)]
        planes = np.ascontiguousarray(block.signatures.transpose(2, 1, 0).reshape(block.signatures.shape[2], -1)[:, order])
        threshold = np.flatnonzero(self.singles > min(doubt, self.singles.max() / 2)).max(initial=0)
        images = np.full((len(asking), self.depth), -1, np.int64)
        best = np.zeros(images.shape, np.float32)
        for segment, norms in zip(self.engine.segments, self.norms, strict=True):
            votes = np.zeros((len(asking), segment.n_images), np.float32)
            lists = (segment.arrays[name] for name in ("starts", "postings", "signatures"))
            if segment.n_features:
                vote_coarse(numbers, owners, planes, self.squares[numbers], *lists, self.singles, threshold, votes)
            keep_best(votes, norms, segment.alive, segment.ids, asking, best, images)
        return images

    def exact(self, asking: Ids, images: Ids) -> tuple[Floats32, Floats32]:
        """Give the scores of some images in searches with those of a block [n, depth], 0 for -1; and the other way round."""
        places = self.places.at(asking)
        block = _Block.read(self.engine, places)
        idf = self.squares[block.words + word_offsets(self.engine.sizes)]
        scores, backs = np.zeros((2, *images.shape), np.float32)
        for row, (segment, position) in enumerate(places):
            own = slice(block.starts[row], block.starts[row + 1])
            scores[row], backs[row] = self.compare(block.words[own], block.signatures[own], idf[own], images[row])
            backs[row] /= _divisors(self.norms[segment][position])
        return scores, backs

    def compare(self, words: Ids, signatures: Array, idf: Array, images: Ids) -> tuple[Floats32, Floats32]:
        """Give the scores of some images for the features of one [depth], and the votes of their features for it."""
        bases = np.concatenate([[0], np.cumsum(np.add(self.engine.sizes, 1))])
        lists = list_words(words, bases, len(words))
        scores, backs = np.zeros((2, len(images)), np.float32)
        held = np.flatnonzero(images >= 0)
        at = np.array(self.places.at(images[held])).reshape(-1, 2)
        for number in np.unique(at[:, 0]):
            mine, arrays = at[:, 0] == number, self.engine.segments[number].arrays
            stored = (arrays[name] for name in ("feature_starts", "words", "places", "signatures"))
            positions, votes = at[mine, 1], np.zeros((2, mine.sum()), np.float32)
            score_exact(positions, *stored, signatures, idf, bases, *lists, self.gains, *votes)
            scores[held[mine]], backs[held[mine]] = votes[0] / _divisors(self.norms[number][positions]), votes[1]
        return scores, backs


def _divisors(norms: Array) -> Array:
    """Give norms by which scores can be divided: images without one have no score."""
    return np.where(norms > 0, norms, np.float32(np.inf))


def _reverse_pairs(asking: Ids, images: Ids) -> Ids:
    """Give where in a table of candidates [n, depth] the same pair stands the other way round, in cells; -1: nowhere."""
    rows = np.repeat(np.arange(len(asking)), images.shape[1])
    others = np.searchsorted(asking, images.ravel())
    known = asking[np.minimum(others, len(asking) - 1)] == images.ravel() if len(asking) else np.zeros(0, bool)
    keys = np.where(known, rows * len(asking) + others, -1)
    order = np.argsort(keys)
    wanted = others * len(asking) + rows
    found = order[np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)] if len(keys) else order
    return np.where(known & (keys[found] == wanted), found, -1).reshape(images.shape)
