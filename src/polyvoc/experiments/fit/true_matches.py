"""True matches of query features: in relevant images of a dataset, or in verified hits of an index without ground truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.experiments.match_table import Matcher, MatchTable
from polyvoc.experiments.measures import Truth
from polyvoc.experiments.workbench import QuantisedDataset, no_progress
from polyvoc.options import ScoringOptions, SetKind
from polyvoc.search.index import Index
from polyvoc.search.verify import AnyVerification, WordVerification, default_match_table, inlier_pairs, prepare_verification
from polyvoc.types import Array, Floats64, ImageFeatures, ImageRef, Progress, with_planes

Counts = npt.NDArray[np.int64]
_Matches = tuple[Floats64, Counts, Counts]  # [Q] of each query feature: ratio, true matches in intersection and union
Criterion = Literal["either", "both", "mean", "first"]
DISTANCE = 20  # the paper: true matches have a Hamming distance below 20 (of 64 bits) and lie in a relevant image
# Inliers from which two images may show the same object. Of the 20 best hits (Holidays, Ukbench) 87 % of the right ones have as
# many, and 186 of 16,015 others.
DOUBTFUL = 5
MIN_PAIRS = 20  # verified: with fewer the interval of b is wider than 0.1


@dataclass(frozen=True, eq=False)
class Observations:
    """Query features with at least one true match, one row each; the lists are sets of features or of images."""

    ratio: Floats64  # [n] |intersection| / |union| of its lists
    inside: Counts  # [n] true matches in the intersection: they, or their images, are in every list
    true: Counts  # [n] true matches in the union
    group: Counts  # [n] features of one group come from photographs of the same object
    questions: int
    pairs: int  # of a question and a relevant image

    @property
    def share(self) -> float:
        """Return the share of all true matches that are in the intersection."""
        return float(self.inside.sum() / max(self.true.sum(), 1))

    @classmethod
    def join(cls, parts: Sequence[_Matches], groups: Sequence[int], questions: int, pairs: int) -> Observations:
        """Join the matches of questions, with the group of each; features without true matches are left out."""
        none = np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64)
        ratio, inside, true = (np.concatenate(column) for column in zip(none, *parts, strict=True))
        group = np.repeat(np.array(groups, np.int64), [len(part[0]) for part in parts])
        kept = true > 0
        return cls(ratio[kept], inside[kept], true[kept], group[kept], questions, pairs)


def observe(
    bench: QuantisedDataset,
    level: str | None = None,
    distance: int = DISTANCE,
    criterion: Criterion = "either",
    with_query: bool = False,
    progress: Progress = no_progress,
    sets: SetKind = "feature",
) -> Observations:
    """Return the true matches of all questions of a dataset, with the lists of all its vocabularies.

    True match: near, in a relevant image other than the query; `distance` is of 64 bits. `sets`: what the lists are sets of;
    in sets of images a true match is in the intersection if its image has a feature in each list. `with_query`: the query's
    own image, which is in every list, counts in the ratio. `level`: one of the ground truths; default: medium, or the first.
    """
    if bench.signatures is None or len(bench.sizes) < 2:
        raise OptionError("calibration needs two vocabularies with signatures; train them with --bits 64")
    dataset = bench.dataset
    if level is not None and level not in dataset.truths:
        raise OptionError(f"level={level!r} should be one of {', '.join(map(repr, dataset.truths))}")
    truths = dataset.truths[dataset.main_level if level is None else level]
    limit = distance * bench.bits // 64
    matcher = Matcher(bench)
    numbers: dict[str, int] = {}
    parts, groups, pairs = [], [], 0
    for number, (question, truth) in enumerate(zip(dataset.questions, truths, strict=True)):
        relevant = relevant_images(truth, question.image)
        table = matcher.table(number)
        if not with_query:
            table = without(table, question.image)
        parts.append(_observe(table, relevant, limit, criterion, sets))
        groups.append(numbers.setdefault(question.group or question.name, len(numbers)))
        pairs += len(relevant)
        progress(f"true matches, {sets} sets: {dataset.name}", number + 1, len(truths))
    return Observations.join(parts, groups, len(truths), pairs)


def near(shared: Array, distance: Array, limit: int, criterion: Criterion) -> npt.NDArray[np.bool_]:
    """Return which matches are near enough to be true [m]; shared, distance: [m, K], only distances of shared words count.

    The paper does not define which distance decides when several vocabularies share the word: the smallest ("either" is below
    the limit), the largest ("both"), their mean, or that of the first of them. For one shared word all are the same.
    """
    if criterion not in get_args(Criterion):
        raise OptionError(f"criterion={criterion!r} should be one of {', '.join(get_args(Criterion))}")
    below = shared & (distance < limit)
    if criterion == "either":
        chosen = below.any(axis=1)
    elif criterion == "both":
        chosen = (below == shared).all(axis=1)
    elif criterion == "mean":
        chosen = np.where(shared, distance, 0).sum(axis=1) < limit * shared.sum(axis=1)
    else:
        chosen = below[np.arange(len(shared)), np.argmax(shared, axis=1)]
    return np.asarray(chosen, bool)


def relevant_images(truth: Truth, query: int | None) -> list[int]:
    """Return the relevant images of a question, without its own."""
    return sorted(truth.relevant - truth.junk - {-1 if query is None else query})


def without(table: MatchTable, image: int | None) -> MatchTable:
    """Return a table without the matches of one image."""
    others = table.image != (-1 if image is None else image)
    rows = {name: getattr(table, name)[others] for name in ("query", "feature", "image", "shared", "distance")}
    return replace(table, **rows)


def _observe(table: MatchTable, relevant: Sequence[int], distance: int, criterion: Criterion, sets: SetKind) -> _Matches:
    assert table.distance is not None
    rows = np.flatnonzero(np.isin(table.image, relevant))
    rows = rows[near(table.shared[rows], table.distance[rows], distance, criterion)]
    own = table.images if sets == "image" else table.features
    inside = own.mask[rows] == own.counts.shape[1] - 1
    n = len(table.words)
    ratio = own.ratios[:, -1]
    return ratio, np.bincount(table.query[rows[inside]], minlength=n), np.bincount(table.query[rows], minlength=n)


@dataclass(frozen=True)
class Sampling:
    """How true matches are found in an index without ground truth."""

    queries: int = 200  # images of the index that are searched for
    candidates: int = 20  # best hits of each that are verified
    seed: int = 0  # of the choice of images
    # Inliers from which two images show the same object. Of the 20 best hits (Holidays, Ukbench; three vocabularies, 128 bits)
    # 73 % of the right ones have 12 or more, and none of 16,015 others.
    inliers: int = 12
    # Copies of one file are no examples of photographs taken anew: pairs whose inliers differ by fewer bits (of 64) on
    # average are left out. Measured: copies 1 to 6 bits, 99 % of the pairs of Holidays and Ukbench more than 5.8.
    copy_bits: float = 6.0
    pair: tuple[int, int] = (0, 1)  # vocabularies whose lists are compared

    def __post_init__(self) -> None:
        """Raise OptionError for values out of range."""
        for name in ("queries", "candidates", "inliers"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name}={getattr(self, name)!r} should be at least 1")


@dataclass(frozen=True, eq=False)
class Pairs:
    """Images of an index that were queries, and which of their best hits show the same object."""

    sampling: Sampling
    queries: tuple[ImageRef, ...]
    related: dict[ImageRef, tuple[ImageRef, ...]]  # verified hits, of the images that have any
    doubtful: dict[ImageRef, frozenset[ImageRef]]  # of the same images: hits that are neither related nor certainly unrelated

    @property
    def count(self) -> int:
        """Return the number of pairs."""
        return sum(map(len, self.related.values()))

    @cached_property
    def groups(self) -> dict[ImageRef, int]:
        """Return the number of the connected component of each related image: images of one component show the same object."""
        leader: dict[ImageRef, ImageRef] = {}

        def lead(ref: ImageRef) -> ImageRef:
            while (above := leader.setdefault(ref, ref)) != ref:
                ref = above
            return ref

        for ref, others in self.related.items():
            for other in others:
                leader[lead(other)] = lead(ref)
        numbers = {ref: number for number, ref in enumerate(sorted({lead(ref) for ref in leader}))}
        return {ref: numbers[lead(ref)] for ref in leader}

    def require(self, n_images: int) -> None:
        """Raise OptionError if there are too few pairs for a fit; n_images: of the index."""
        if self.count >= MIN_PAIRS:
            return
        more = "give a larger --queries, or " if len(self.queries) < n_images else ""
        raise OptionError(
            f"{len(self.queries)} queries of the index have {self.count} verified pairs, and at least {MIN_PAIRS} are needed; "
            f"{more}index more photographs of the same objects"
        )


def find_pairs(index: Index, sampling: Sampling = Sampling(), progress: Progress = no_progress) -> Pairs:
    """Search an index for some of its images and verify the best hits: pairs with enough inliers show the same object."""
    if not (index.engine.signed or index.engine.code_bits):
        raise OptionError("calibration needs an index with codes or signatures; make one with: polyvoc index FOLDER")
    queries = draw(index, sampling.queries, np.random.default_rng(sampling.seed))
    related, doubtful = {}, {}
    for done, ref in enumerate(queries, start=1):
        confirmed, unsure = _verify(index, ref, sampling)
        if confirmed:
            related[ref], doubtful[ref] = tuple(confirmed), frozenset(unsure)
        progress("verifying", done, len(queries))
    return Pairs(sampling, tuple(queries), related, doubtful)


def draw(index: Index, count: int, rng: np.random.Generator) -> list[ImageRef]:
    """Return images of an index drawn at random, or all if it has fewer; in their order."""
    every = [(number, position) for number, s in enumerate(index.engine.segments) for position in s.live_positions().tolist()]
    return [every[i] for i in sorted(rng.choice(len(every), min(count, len(every)), replace=False).tolist())]


def _verify(index: Index, ref: ImageRef, sampling: Sampling) -> tuple[list[ImageRef], list[ImageRef]]:
    """Return those of the best hits of an image, itself left out, that are verified, and those that remain doubtful."""
    engine, source = index.engine, index.stored_queries
    query, stored = source.of(ref, verify=1), read_words(index, ref)
    plan = engine.plan(source.search)
    found = engine.query_of(query.codes, query.words, query.signatures, plan)
    hits = engine.best(found, plan, sampling.candidates + 1)[0]
    if query.codes is None:
        table = default_match_table(len(engine.sizes), engine.bits)  # not that of the index, which is to be fitted
        prepared: AnyVerification = WordVerification.of(query.image_features, table)
    else:
        prepared = prepare_verification(engine, query, replace(source.search, code_table=None))
    confirmed: list[ImageRef] = []
    doubtful: list[ImageRef] = []
    for hit in [one.ref for one in hits if one.ref != ref][: sampling.candidates]:
        inliers = inlier_pairs(prepared, engine.segments[hit[0]], hit[1])
        if len(inliers) >= min(sampling.inliers, DOUBTFUL):
            bits = _nearest(stored, read_words(index, hit), *inliers.T)
            anew = bits.mean() >= sampling.copy_bits
            (confirmed if anew and len(inliers) >= sampling.inliers else doubtful).append(hit)
    return confirmed, doubtful


def read_words(index: Index, ref: ImageRef) -> ImageFeatures:
    """Return the words, signatures and keypoints of one image of an index."""
    return index.engine.segments[ref[0]].image_features(ref[1])


def _nearest(query: ImageFeatures, image: ImageFeatures, q: Counts, f: Counts) -> Counts:
    """Return the Hamming distance of pairs of features, in 1/64 of the bits [m]: of codes relative to the same word, else the
    smallest over the words that they share."""
    if query.codes is not None and image.codes is not None:
        one, other = query.codes.chosen(q), image.codes.chosen(f)
        distances = np.bitwise_count(one.codes ^ other.codes).sum(axis=1) / one.codes.shape[1]
        return np.asarray(distances[one.words == other.words] if (one.words == other.words).any() else [64.0])
    shared = query.words[q] == image.words[f]
    planes = with_planes(query.signatures, 2).shape[2]
    return np.asarray(np.where(shared, hamming(query, image, q, f), 255).min(axis=1) / planes)


def hamming(query: ImageFeatures, image: ImageFeatures, q: Counts, f: Counts) -> Counts:
    """Return the Hamming distances of pairs of features in every vocabulary, whether they share the word or not [m, K]."""
    differing = with_planes(query.signatures, 2)[q] ^ with_planes(image.signatures, 2)[f]
    return np.asarray(np.bitwise_count(differing).sum(axis=2), np.int64)


def sharing_of(
    query: ImageFeatures, image: ImageFeatures, vocabularies: Sequence[int]
) -> tuple[Counts, Counts, npt.NDArray[np.bool_]]:
    """Return the pairs of features that share a word in one of some vocabularies or in several, once, and in which [m, k]."""
    parts = []
    for number, k in enumerate(vocabularies):
        q, f = _sharing(query, image, k)
        earlier = list(vocabularies[:number])
        new = (query.words[q][:, earlier] != image.words[f][:, earlier]).all(axis=1)
        parts.append((q[new], f[new]))
    q, f = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    columns = list(vocabularies)
    return q, f, query.words[q][:, columns] == image.words[f][:, columns]


def _sharing(query: ImageFeatures, image: ImageFeatures, k: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the pairs (query feature, feature) that share the word of vocabulary k, by word."""
    ours, theirs = (np.argsort(one.words[:, k], kind="stable") for one in (query, image))
    words, places = query.words[ours, k], image.words[theirs, k]
    first = np.searchsorted(places, words, "left")
    lengths = np.searchsorted(places, words, "right") - first
    q = np.repeat(np.arange(len(words)), lengths)
    within = np.arange(len(q)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return ours[q], theirs[first[q] + within]


def set_counts(index: Index, query: ImageFeatures, sets: SetKind = "feature") -> Counts:
    """Return the number of features (or images) of every exact set of lists, for each feature of an indexed image [Q, 2^K].

    The image itself is left out: a query is usually not in the index.
    """
    engine, plan = index.engine, index.engine.plan(ScoringOptions(merge="posterior", sets=sets))
    counts = engine.counts(engine.query(query.words.astype(np.int64), None, plan), plan, threads=1)
    n_vocabularies = len(engine.sizes)
    if sets == "image":
        return np.asarray(counts - (np.arange(counts.shape[1]) == counts.shape[1] - 1))  # it is in every list of its features
    own, _, shared = sharing_of(query, query, range(n_vocabularies))
    masks = shared @ (1 << np.arange(n_vocabularies))
    return np.asarray(counts - np.bincount(own * counts.shape[1] + masks, minlength=counts.size).reshape(counts.shape))


def observe_pairs(index: Index, pairs: Pairs, sets: SetKind = "feature") -> Observations:
    """Return the true matches of images of an index: those with a Hamming distance below 20 (of 64 bits) in a related image.

    `sets`: what the lists are sets of (see `observe`).
    """
    pair = pairs.sampling.pair
    if not index.engine.signed or len(index.engine.sizes) <= max(pair) or min(pair) < 0 or pair[0] == pair[1]:
        raise OptionError("calibration needs an index with signatures of two vocabularies; make one with: polyvoc index FOLDER")
    bits = sum(1 << k for k in pair)
    parts = []
    for ref, related in pairs.related.items():
        query = read_words(index, ref)
        counts = set_counts(index, query, sets)
        masks = np.arange(counts.shape[1]) & bits
        both, union = counts[:, masks == bits].sum(axis=1), counts[:, masks != 0].sum(axis=1)
        ratio = np.divide(both, union, out=np.zeros(len(both)), where=union > 0)
        parts.append((ratio, *_true_matches(query, [read_words(index, image) for image in related], pair, sets)))
    return Observations.join(parts, [pairs.groups[ref] for ref in pairs.related], len(pairs.queries), pairs.count)


def _true_matches(
    query: ImageFeatures, images: Sequence[ImageFeatures], pair: tuple[int, int], sets: SetKind
) -> tuple[Counts, Counts]:
    """Return the number of true matches of each query feature in relevant images: in the intersection, and in the union [Q]."""
    inside, true = np.zeros((2, len(query.words)), np.int64)
    limit = DISTANCE * with_planes(query.signatures, 2).shape[2]
    for image in images:
        q, f, shared = sharing_of(query, image, pair)
        chosen = near(shared, hamming(query, image, q, f)[:, pair], limit, "either")
        if sets == "image":
            lists = np.zeros((len(true), len(pair)), bool)  # of each query feature: which hold the image
            np.logical_or.at(lists, q, shared)
            shared = lists[q]
        true += np.bincount(q[chosen], minlength=len(true))
        inside += np.bincount(q[chosen & shared.all(axis=1)], minlength=len(true))
    return inside, true
