"""Which query features have true matches, how many, and how many of them stand in the intersection of the lists?

True matches come from ground truth (`observe`), or from pairs of images that geometry confirms (`observe_verified`), so that
any index can calibrate itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from polyvoc import geometry, scoring
from polyvoc.errors import OptionError
from polyvoc.geometry import Sketch
from polyvoc.index import Index
from polyvoc.lab.matchtable import Matcher, MatchTable
from polyvoc.lab.measures import Truth
from polyvoc.lab.workbench import Bench, silent
from polyvoc.records import Progress, SearchOptions

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Place = tuple[int, int]  # segment and position of an image of an index
Criterion = Literal["either", "both", "mean", "first"]

DISTANCE = 20  # the paper: true matches have a Hamming distance below 20 (of 64 bits) and lie in a relevant image


@dataclass(frozen=True, eq=False)
class Observations:
    """What the query features with at least one true match show, one row each."""

    ratio: Floats  # [n] |intersection| / |union| of its lists
    inside: Counts  # [n] true matches in the intersection
    true: Counts  # [n] true matches in the union
    group: Counts  # [n] features of one group come from photographs of the same thing
    questions: int  # asked
    pairs: int  # of a question and a relevant image

    @property
    def share(self) -> float:
        """Give the share of all true matches that stand in the intersection."""
        return float(self.inside.sum() / max(self.true.sum(), 1))

    @classmethod
    def join(cls, asked: Sequence[Asked], questions: int, pairs: int) -> Observations:
        """Join what questions showed; features without true matches are left out."""
        none = np.empty(0, np.int64)
        true = np.concatenate([none, *(one.true for one in asked)])
        group = np.concatenate([none, *(np.full(len(one.true), one.group) for one in asked)])
        inside = np.concatenate([none, *(one.inside for one in asked)])
        ratio = np.concatenate([np.empty(0), *(one.ratio for one in asked)])
        kept = true > 0
        return cls(ratio[kept], inside[kept], true[kept], group[kept], questions, pairs)


@dataclass(frozen=True, eq=False)
class Asked:
    """What one question shows: ratio, and true matches in the intersection and in the union, of each of its features."""

    ratio: Floats  # [Q]
    inside: Counts  # [Q]
    true: Counts  # [Q]
    group: int


def observe(
    bench: Bench,
    level: str | None = None,
    distance: int = DISTANCE,
    criterion: Criterion = "either",
    with_query: bool = True,
    progress: Progress = silent,
) -> Observations:
    """Observe all questions of a dataset, with the lists of all its vocabularies (`bench.first(2)`: those of the first two).

    True match: near in a relevant image other than the query. `with_query` leaves the query's own image in the lists that
    give the ratio, as they are searched. `level` names one of the dataset's ground truths, the first unless given.
    """
    if bench.signatures is None or len(bench.sizes) < 2:
        raise OptionError("calibration needs two vocabularies with signatures; train them with --bits 64")
    dataset = bench.dataset
    if level is not None and level not in dataset.truths:
        raise OptionError(f"level={level!r} should be one of {', '.join(map(repr, dataset.truths))}")
    usual = "medium" if "medium" in dataset.truths else next(iter(dataset.truths))
    truths = dataset.truths[usual if level is None else level]
    matcher = Matcher(bench)
    groups: dict[str, int] = {}
    parts, pairs = [], 0
    for number, (question, truth) in enumerate(zip(dataset.questions, truths, strict=True)):
        relevant = _relevant(truth, question.image)
        table = matcher.table(number)
        if not with_query:
            table = _without(table, question.image)
        group = groups.setdefault(question.group or question.name, len(groups))
        parts.append(Asked(*_observed(table, relevant, distance, criterion), group=group))
        pairs += len(relevant)
        progress(f"true matches: {dataset.name}", number + 1, len(truths))
    return Observations.join(parts, len(truths), pairs)


def near(shared: Array, distance: Array, limit: int, criterion: Criterion) -> npt.NDArray[np.bool_]:
    """Tell which matches are near enough to be true; shared, distance: [m, K], distances of words not shared do not count.

    The paper does not say which distance decides when several vocabularies share the word: the smallest ("either" is below
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


def _relevant(truth: Truth, query: int | None) -> list[int]:
    return sorted(truth.relevant - truth.junk - {-1 if query is None else query})


def _without(table: MatchTable, image: int | None) -> MatchTable:
    """Give a table without the matches of one image."""
    others = table.image != (-1 if image is None else image)
    rows = {name: getattr(table, name)[others] for name in ("query", "feature", "image", "shared", "distance")}
    return replace(table, **rows)


def _observed(table: MatchTable, relevant: Sequence[int], distance: int, criterion: Criterion) -> tuple[Floats, Counts, Counts]:
    """Give the ratio of every query feature, and its true matches in the intersection and in the union."""
    assert table.distance is not None
    rows = np.flatnonzero(np.isin(table.image, relevant))
    rows = rows[near(table.shared[rows], table.distance[rows], distance, criterion)]
    inside = table.shared[rows].all(axis=1)
    n = len(table.words)
    return table.ratios[:, -1], np.bincount(table.query[rows[inside]], minlength=n), np.bincount(table.query[rows], minlength=n)


# -- without ground truth


@dataclass(frozen=True)
class Sampling:
    """How true matches are found in an index without ground truth."""

    queries: int = 200  # images of the index that ask
    candidates: int = 20  # best hits of each that are verified
    seed: int = 0  # of the choice of images
    # Inliers from which two images show the same thing. Of the 20 best hits of 2,122 photographs (Holidays, Ukbench, Flickr;
    # three vocabularies; benchmarks/calibration.py) 72 % of the right ones have 12 or more, and 3 of 40,064 others.
    inliers: int = 12
    # Copies of one file teach nothing about photographs taken anew: pairs whose inliers differ by fewer bits on average are
    # left out. Measured: copies 1 to 6 bits, 99 % of the pairs of Holidays and Ukbench more than 5.8.
    copy_bits: float = 6.0
    pair: tuple[int, int] = (0, 1)  # vocabularies whose lists are compared

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        for name in ("queries", "candidates", "inliers"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name}={getattr(self, name)!r} should be at least 1")


def observe_verified(index: Index, sampling: Sampling = Sampling(), progress: Progress = silent) -> Observations:  # noqa: B008
    """Observe images of an index as queries: what the best hits share with them in the same arrangement is relevant.

    True match: a Hamming distance below 20 in a verified image, as with ground truth. A photograph that is asked is usually
    not in the index, so the query's own features are taken out of the lists that give the ratio.
    """
    engine, pair = index.engine, sampling.pair
    if not engine.signed or len(engine.sizes) <= max(pair) or min(pair) < 0 or pair[0] == pair[1]:
        raise OptionError("calibration needs an index with signatures of two vocabularies; make one with: polyvoc index FOLDER")
    places = _sample(index, sampling)
    found: dict[Place, list[Place]] = {}
    asked: dict[Place, Asked] = {}
    for done, place in enumerate(places, start=1):
        query = Sketch.of(engine.segments[place[0]], place[1])
        verified = _verified(index, place, query, sampling)
        if verified:
            found[place] = list(verified)
            true = _true_matches(query, list(verified.values()), pair)
            asked[place] = Asked(_ratio(index, query, pair), *true, group=0)
        progress("verifying", done, len(places))
    grouped = [replace(asked[place], group=group) for place, group in _groups(found).items()]
    return Observations.join(grouped, len(places), sum(map(len, found.values())))


def _sample(index: Index, sampling: Sampling) -> list[Place]:
    every = [(number, position) for number, s in enumerate(index.engine.segments) for position in s.live_positions().tolist()]
    rng = np.random.default_rng(sampling.seed)
    return [every[i] for i in sorted(rng.choice(len(every), min(sampling.queries, len(every)), replace=False).tolist())]


def _verified(index: Index, place: Place, query: Sketch, sampling: Sampling) -> dict[Place, Sketch]:
    """Give those of the best hits of an image, itself left out, that geometry confirms."""
    engine = index.engine
    options = replace(index.default_options, top=sampling.candidates + 1)
    hits = engine.best(engine.query(query.words.astype(np.int64), query.signatures, options), options)
    confirmed = {}
    for hit in [(segment, position) for segment, position, _ in hits if (segment, position) != place][: sampling.candidates]:
        image = Sketch.of(engine.segments[hit[0]], hit[1])
        matches = geometry.tentative(query, image)
        found = geometry.verify(query.frames, image.frames, matches)
        if found.count >= sampling.inliers:
            bits = _bits(query, image, matches.query[found.inliers], matches.feature[found.inliers])
            if bits.mean() >= sampling.copy_bits:
                confirmed[hit] = image
    return confirmed


def _bits(query: Sketch, image: Sketch, q: Counts, f: Counts) -> npt.NDArray[np.uint8]:
    """Give the Hamming distance of pairs of features, the smallest over the words that they share [m]."""
    shared = query.words[q] == image.words[f]
    distance = np.bitwise_count(query.signatures[q] ^ image.signatures[f])
    return np.asarray(np.where(shared, distance, 255).min(axis=1), np.uint8)


def _ratio(index: Index, query: Sketch, pair: tuple[int, int]) -> Floats:
    """Give the cardinality ratio of the lists of two vocabularies for each feature of an indexed image, itself left out [Q]."""
    engine, options = index.engine, SearchOptions(merge="bayes")
    counts = scoring.count_sets(
        engine.segments, engine.query(query.words.astype(np.int64), None, options), engine.statistics, options, map
    )
    bits = sum(1 << k for k in pair)
    masks = np.arange(counts.shape[1]) & bits
    own, _, shared = _sharing(query, query, pair)
    own_both = np.bincount(own[shared.all(axis=1)], minlength=len(query.words))
    own_any = np.bincount(own, minlength=len(query.words))
    both = counts[:, masks == bits].sum(axis=1) - own_both
    union = counts[:, masks != 0].sum(axis=1) - own_any
    return np.asarray(np.divide(both, union, out=np.zeros(len(both)), where=union > 0))


def _true_matches(query: Sketch, images: Sequence[Sketch], pair: tuple[int, int]) -> tuple[Counts, Counts]:
    """Count the true matches of each query feature in relevant images: in the intersection, and in the union [Q]."""
    inside, true = np.zeros((2, len(query.words)), np.int64)
    for image in images:
        q, f, shared = _sharing(query, image, pair)
        distance = np.bitwise_count(query.signatures[q][:, pair] ^ image.signatures[f][:, pair])
        chosen = near(shared, distance, DISTANCE, "either")
        true += np.bincount(q[chosen], minlength=len(true))
        inside += np.bincount(q[chosen & shared.all(axis=1)], minlength=len(true))
    return inside, true


def _sharing(query: Sketch, image: Sketch, pair: tuple[int, int]) -> tuple[Counts, Counts, npt.NDArray[np.bool_]]:
    """Give the pairs of features that share a word in one of two vocabularies or in both, and in which [m, 2]."""
    (q0, f0), (q1, f1) = (geometry.sharing(query, image, k) for k in pair)
    new = query.words[q1, pair[0]] != image.words[f1, pair[0]]
    q, f = np.concatenate([q0, q1[new]]), np.concatenate([f0, f1[new]])
    return q, f, query.words[q][:, pair] == image.words[f][:, pair]


def _groups(found: dict[Place, list[Place]]) -> dict[Place, int]:
    """Number the connected components of verified pairs: images of one component show the same thing."""
    leader: dict[Place, Place] = {}

    def lead(place: Place) -> Place:
        while (above := leader.setdefault(place, place)) != place:
            place = above
        return place

    for place, others in found.items():
        for other in others:
            leader[lead(other)] = lead(place)
    names = sorted({lead(place) for place in leader})
    return {place: names.index(lead(place)) for place in found}
