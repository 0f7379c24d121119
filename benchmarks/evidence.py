"""What more the codes of the search could tell at 16 to 32 bytes per feature: length, learnt axes, aggregation, the word's distance.

    python benchmarks/evidence.py PHOTOGRAPHS DATA [--cache FOLDER] [--photographs 256] [--step 1]

Axes are learnt from some of PHOTOGRAPHS, drawn at random. DATA holds the folders holidays150, ukbench500 and photos1200. One thing at
a time departs from the usual search. Every photograph of a group is a query (`--step 2`: every other), without geometry, among the
1,200 others; tables are fitted on the other set, anew for each way. Differences are to the usual search, with 95 % intervals (bootstrap
over groups). Milliseconds are processor time of scoring a collection that holds each photograph of Holidays 20 times, on one thread,
in turn with the usual search. Features and values are cached: an interrupted run goes on where it was.

Codes of more than 128 bits are rejected early by their first 128. Aggregation: all features of an image with the same word are one
code, the signs of the sum of their residuals (Tolias, Avrithis, Jegou, ICCV 2013).
"""

from __future__ import annotations

import argparse
import statistics as st
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from codes import SETS, all_queries
from limits import entry
from machine import write_result
from polyvoc.experiments.cache import default_cache
from polyvoc.experiments.datasets.feature_cache import FeatureStore
from polyvoc.experiments.datasets.readers import READERS
from polyvoc.experiments.fit import code_table
from polyvoc.experiments.fit.likelihood import log_ratio
from polyvoc.experiments.measures import MEASURES, rank
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.index.codes import build_codes
from polyvoc.index.segment import Segment
from polyvoc.index.statistics import Statistics
from polyvoc.kernels.codes import LINE, factor_of, sign_codes, sign_query, tally_codes
from polyvoc.kernels.compiler import LANES, kernel, lowest_bit, near_long_lanes, popcount, prefetch, sum_lanes, sum_long_lanes
from polyvoc.options import CODE_ASSIGNMENTS, CODE_CUT
from polyvoc.scoring.codes import UNIT, CodeWeights, score_codes, weigh_codes
from polyvoc.threads import thread_map
from polyvoc.types import CodeTable, FeatureCodes, Floats32
from polyvoc.vocabulary.assign import Assigner
from polyvoc.vocabulary.codes import CodedQuery, planes_of
from polyvoc.vocabulary.products import rotate
from polyvoc.vocabulary.vocabulary import Vocabulary, code_axes, default_fine_vocabulary, full_rotation
from words import TIMED, copied, training_photographs

HEAD = 128  # bits by which codes are rejected early
REACH = round(code_table.REACH * HEAD)
SAMPLE, ROUNDS = 200_000, 50  # descriptors that axes are learnt from, rounds of iterative quantisation
COPIES = 20  # of the collection whose scoring is timed
EDGES = code_table.EDGES
MIDDLE = 1.1  # of the ratios of visited words: their distances are so much larger than that of the nearest


@dataclass(frozen=True)
class Way:
    """A search by codes; the defaults are the usual one."""

    bits: int = 128
    axes: str = "random"  # or learnt: see `Learnt`
    reach: int = REACH  # of the first 128 bits: codes that differ in more are passed over
    collection: str = "features"  # what is one code: a feature, or all of an image with the same word: "words"
    norm: str = "own"  # of an image: of its codes, or of its "features"
    query: str = "features"  # what visits words: a feature, all with the same "nearest" word, all that visit a word: "visited"
    rows: str = "ratio"  # what the rows of the table go by: see `Rows`


USUAL = Way()
WAYS = (
    USUAL,
    *(replace(USUAL, bits=bits) for bits in (64, 192, 256)),
    *(replace(USUAL, axes=axes) for axes in ("quantised", "whitened", "half whitened")),
    *(replace(USUAL, axes="half whitened", reach=reach) for reach in (54, 56)),
    replace(USUAL, collection="words"),
    replace(USUAL, collection="words", norm="features"),
    replace(USUAL, query="nearest"),
    replace(USUAL, collection="words", query="nearest"),
    replace(USUAL, collection="words", query="visited"),
    *(replace(USUAL, rows=rows) for rows in ("one", "distance", "both", "shares")),
    replace(USUAL, axes="half whitened", query="nearest", rows="distance"),
)


def report(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


# -- axes


class Visits(NamedTuple):
    """The words that the features of a query visit."""

    words: np.ndarray  # [Q, A] nearest first, -1 where there is none
    ratios: np.ndarray  # [Q, A] distance relative to that of the nearest


@dataclass(frozen=True, eq=False)
class Axes:
    """Axes of codes, and the words in their coordinates."""

    axes: Floats32  # [bits, dimension]
    centres: Floats32  # [size, bits]

    @classmethod
    def of(cls, fine: Vocabulary, axes: Floats32) -> Axes:
        return cls(axes, rotate(fine.centroids, axes))

    def sign(self, descriptors: Floats32, words: np.ndarray) -> np.ndarray:
        """Return the codes [n, planes] of descriptors relative to their words."""
        codes = np.empty((len(descriptors), planes_of(len(self.axes))), np.uint64)
        sign_codes(rotate(descriptors, self.axes), words, self.centres, len(self.axes), codes)
        return codes

    def sign_query(self, descriptors: Floats32, visits: Visits) -> CodedQuery:
        """Return a query that visits some words."""
        codes = np.empty((*visits.words.shape, planes_of(len(self.axes))), np.uint64)
        magnitudes = np.empty((visits.words.size, LANES * codes.shape[2]), np.uint8)
        totals = np.empty(visits.words.shape, np.int64)
        z = rotate(descriptors, self.axes)
        sign_query(z, visits.words, self.centres, len(self.axes), codes, magnitudes, totals)
        return CodedQuery(visits.words, visits.ratios, codes, magnitudes, totals)


class Learnt:
    """What training photographs tell: axes, and how far features are from their words."""

    def __init__(self, store: FeatureStore, fine: Vocabulary) -> None:
        rows = store.sample(SAMPLE, 0)
        left = rows - fine.centroids[Assigner([fine]).assign(rows)[:, 0]]
        self.distances = np.linalg.norm(left, axis=1)  # of features to their nearest words
        self._residuals = left / np.maximum(self.distances, np.finfo(np.float32).tiny)[:, None]
        self._fine = fine

    @cache  # noqa: B019 (one instance)
    def axes(self, kind: str, bits: int) -> Axes:
        """Return axes of a kind."""
        make = {"random": partial(self._random, bits), "quantised": self._quantised,
                "half whitened": partial(self._whitened, 0.5), "whitened": partial(self._whitened, 1.0)}  # fmt: skip
        return Axes.of(self._fine, np.ascontiguousarray(make[kind](), np.float32))

    def _random(self, bits: int) -> Floats32:
        """Return the first axes of a random rotation, beyond it those of another."""
        return code_axes(self._fine.dimension, bits)[:bits]

    def _quantised(self) -> Floats32:
        """Return the rotation that brings residuals nearest to their signs (Gong, Lazebnik, CVPR 2011)."""
        rotation = full_rotation(self._fine.dimension)
        for _ in range(ROUNDS):
            left, _, right = np.linalg.svd(self._residuals.T @ np.sign(self._residuals @ rotation.T))
            rotation = (left @ right).T
        return rotation

    def _whitened(self, power: float) -> Floats32:
        """Return a random rotation of residuals whose principal variances are raised to 1 - power."""
        variances, principal = np.linalg.eigh(np.cov(self._residuals.T))
        return full_rotation(self._fine.dimension) @ ((variances ** (-power / 2))[:, None] * principal.T)


# -- collections and queries


def merged(descriptors: Floats32, words: np.ndarray) -> tuple[Floats32, np.ndarray]:
    """Return the mean of the descriptors [n, dimension] of each word [n]: relative to it, that has the signs of their sum."""
    if not len(words):
        return descriptors, words
    distinct, first, counts = np.unique(np.sort(words), return_index=True, return_counts=True)
    sums = np.add.reduceat(descriptors[np.argsort(words, kind="stable")], first, axis=0)
    return np.asarray(sums / counts[:, None], np.float32), distinct


@cache
def collection(bench: QuantisedDataset, axes: Axes, kind: str, norm: str) -> Segment:
    """Return the photographs of a dataset as codes. kind, norm: as `Way.collection` and `Way.norm`."""
    (usual,) = bench.engine.segments
    starts = usual.arrays["feature_starts"].astype(np.int64)

    def encode(image: int) -> tuple[np.ndarray, np.ndarray]:
        rows, words = bench.store.descriptors(image), usual.arrays["code_words"][starts[image] : starts[image + 1]]
        if kind == "words":
            rows, words = merged(rows, words)
        return words, axes.sign(rows, words)

    images = thread_map(encode, range(usual.n_images))
    words, codes = (np.concatenate(column) for column in zip(*images, strict=True))
    firsts = np.concatenate([[0], np.cumsum([len(own) for own, _ in images])])
    coded = FeatureCodes(words.astype(np.uint32), codes, np.empty((len(words), 0), np.uint8))
    arrays = {"feature_starts": firsts.astype(np.uint32), **build_codes(coded, firsts, usual.fine)}
    if norm == "features":
        arrays["code_norms"] = usual.arrays["code_norms"]
    return Segment((), usual.ids, arrays)


def visits_of(bench: QuantisedDataset, descriptors: Floats32) -> Visits:
    """Return the words that descriptors visit."""
    assert bench.coder is not None
    query = bench.coder.query(descriptors, CODE_ASSIGNMENTS, CODE_CUT)
    return Visits(query.words, query.ratios)


@cache
def visits_of_question(bench: QuantisedDataset, number: int) -> Visits:
    """Return the words that the features of a question visit."""
    return visits_of(bench, bench.descriptors(number))


def visiting(bench: QuantisedDataset, number: int, kind: str) -> tuple[Floats32, Visits]:
    """Return the descriptors of a question, and the words that they visit. kind: as `Way.query`."""
    rows, visits = bench.descriptors(number), visits_of_question(bench, number)
    if kind == "nearest":
        rows, _ = merged(rows, visits.words[:, 0])
        return rows, visits_of(bench, rows)
    return merged_visits(rows, visits) if kind == "visited" else (rows, visits)


def merged_visits(descriptors: Floats32, visits: Visits) -> tuple[Floats32, Visits]:
    """Return the mean of all features that visit a word, for each such word; its ratio is the least of theirs."""
    places = np.flatnonzero(visits.words.ravel() >= 0)
    words, ratios = visits.words.ravel()[places], visits.ratios.ravel()[places]
    rows, distinct = merged(descriptors[places // visits.words.shape[1]], words)
    order = np.argsort(words, kind="stable")
    least = np.minimum.reduceat(ratios[order], np.searchsorted(words[order], distinct))
    return rows, Visits(distinct[:, None], least[:, None])


@dataclass(frozen=True, eq=False)
class Rows:
    """What the rows of a table go by: the usual "ratio" of the visited word's distance to that of the nearest; "one" for all; the
    "distance" itself; "both" the ratio and the distance of the nearest word; "shares": the ratio, and rows tell by themselves.
    """

    kind: str
    distances: tuple[float, ...]  # between parts of nearest words, by distance

    @classmethod
    def of(cls, kind: str, learnt: Learnt) -> Rows:
        shares = (1 / 3, 2 / 3) if kind == "both" else np.arange(1, len(EDGES) + 1) / (len(EDGES) + 1)
        return cls(kind, tuple(np.quantile(learnt.distances, shares).tolist()))

    @property
    def edges(self) -> tuple[float, ...]:
        """Return what lies between the rows."""
        if self.kind == "distance":
            return tuple(MIDDLE * edge for edge in self.distances)
        n_rows = {"one": 1, "both": (len(EDGES) + 1) * (len(self.distances) + 1)}.get(self.kind)
        return EDGES if n_rows is None else tuple(np.arange(n_rows - 1) + 0.5)

    def placed(self, query: CodedQuery, nearest: Floats32) -> CodedQuery:
        """Return a query with what the rows go by instead of ratios. nearest: [Q] distances of the nearest words."""
        if self.kind == "distance":
            return replace(query, ratios=query.ratios * nearest[:, None])
        if self.kind == "both":
            parts = np.searchsorted(self.distances, nearest)[:, None]
            return replace(query, ratios=parts * (len(EDGES) + 1) + np.searchsorted(EDGES, query.ratios))
        return query


@dataclass(frozen=True, eq=False)
class Trial:
    """A dataset searched in one way."""

    bench: QuantisedDataset
    way: Way
    axes: Axes
    rows: Rows
    segment: Segment
    statistics: Statistics

    @classmethod
    def of(cls, bench: QuantisedDataset, way: Way, learnt: Learnt) -> Trial:
        axes = learnt.axes(way.axes, way.bits)
        segment = collection(bench, axes, way.collection, way.norm)
        return cls(bench, way, axes, Rows.of(way.rows, learnt), segment, Statistics.of_segments([segment], ()))

    @property
    def n_questions(self) -> int:
        return len(self.bench.dataset.questions)

    @property
    def reach(self) -> int:
        """Return the bits of the first planes beyond which codes are passed over."""
        return self.way.reach * min(self.way.bits, HEAD) // HEAD

    @property
    def bytes_scanned(self) -> float:
        """Return the bytes of codes and their images, per feature of the photographs."""
        return (8 * self.segment.code_planes + 2) * self.segment.n_features / self.bench.n_features

    def query(self, number: int) -> CodedQuery:
        """Return a question."""
        rows, visits = visiting(self.bench, number, self.way.query)
        nearest = np.linalg.norm(rows - self.bench.coder.vocabulary.centroids[visits.words[:, 0]], axis=1)
        return self.rows.placed(self.axes.sign_query(rows, visits), nearest)

    def tally(self) -> dict[str, Any]:
        """Return the matches of all questions by kind of image, row and distance, and the features of these images."""
        found = thread_map(self._tally, range(self.n_questions))
        counts, features = (np.sum(column, axis=0).tolist() for column in zip(*found, strict=True))
        return {"counts": counts, "features": features}

    def _tally(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        kinds, truth = np.full(self.bench.n_images, code_table.UNRELATED), self.bench.dataset.truths[""][number]
        kinds[sorted(truth.relevant)] = code_table.RELATED
        kinds[sorted(truth.junk)] = code_table.NOT_COUNTED
        query, arrays, edges = self.query(number), self.segment.arrays, self.rows.edges
        counts = np.zeros((2, len(edges) + 1, LANES * query.codes.shape[2] + 1), np.int64)
        rows = np.searchsorted(np.array(edges), query.ratios)
        lists = arrays["code_starts"], arrays["codes"], arrays["code_images"]
        tally = tally_long if query.codes.shape[2] > 2 else tally_codes
        tally(query.words, rows, query.codes, query.magnitudes, query.totals, self.reach, *lists, kinds, counts)
        lengths = np.diff(self.segment.arrays["feature_starts"].astype(np.float64))
        features = [len(query.words) * lengths[kinds == kind].sum() for kind in (code_table.UNRELATED, code_table.RELATED)]
        return counts, np.array(features)

    def fit(self, tallied: dict[str, Any]) -> CodeTable:
        """Return the table of what was counted in another set."""
        counts = np.array(tallied["counts"])
        table = np.zeros(counts.shape[1:])
        for row, values in enumerate(table):
            shares = self.rows.kind == "shares"
            ratio = log_ratio(counts[:, row], np.array(tallied["features"]) if shares else np.ones(2))
            values[: len(ratio)] = ratio if shares else ratio - ratio[-1]
        return CodeTable(self.rows.edges, tuple(map(tuple, table.tolist())), self.reach)

    def measure(self, table: CodeTable) -> list[float]:
        """Return the measure of every question."""
        judge = MEASURES[self.bench.dataset.measure]

        def one(number: int) -> float:
            scores = score(self.segment, *self.weighed(number, table))
            return float(judge(rank(scores), self.bench.dataset.truths[""][number]) or 0.0)

        return thread_map(one, range(self.n_questions))

    def weighed(self, number: int, table: CodeTable) -> tuple[CodedQuery, CodeWeights]:
        """Return a question and its weights."""
        query = self.query(number)
        return query, weigh_codes(query, self.statistics, table, 1)


# -- codes of more than two planes


def score(segment: Segment, query: CodedQuery, weights: CodeWeights) -> Floats32:
    """Score every image of a segment on one thread, as `score_codes`, also by codes of three or four planes."""
    if segment.code_planes <= 2:
        return score_codes(segment, query, weights)
    parts, (words, rows, codes, magnitudes, totals, values) = weights.scan_of(query)
    arrays, votes, planes = segment.arrays, np.zeros(segment.n_images, np.int64), magnitudes.reshape(-1, LANES)
    lists, reach = (arrays["code_starts"], arrays["codes"], arrays["code_images"]), weights.table.reach
    for visits in parts:  # one, or none of a query without features
        vote_long(visits, query.words.shape[1], words, rows, codes, planes, totals, values, reach, *lists, votes)
    norms = arrays["code_norms"].astype(np.float64)
    return np.divide(votes, UNIT * norms, out=np.zeros(len(votes)), where=norms > 0).astype(np.float32)


@kernel
def vote_long(  # noqa: PLR0913, PLR0917
    visits, n_words, words, rows, query_codes, magnitudes, totals, values, threshold, starts, codes, images, scores
):
    """Vote as `vote_codes` by codes of three or four planes. threshold: of the first two; magnitudes: [.. planes, LANES]."""
    columns, end, n_planes = values.shape[2] - 1, len(visits), len(codes)
    one, two, three, four = codes[0], codes[1], codes[2], codes[-1]
    best, touched = np.zeros(len(scores), np.int32), np.empty(len(scores) + 1, np.int32)
    n = 0
    for place in range(end):
        visit, q = visits[place], visits[place] // n_words
        first, other, line = query_codes[visit, 0], query_codes[visit, 1], rows[visit]
        third, fourth = query_codes[visit, 2], query_codes[visit, -1]
        factor, last = factor_of(totals[visit], columns), np.int64(starts[words[visit] + 1])
        ahead = np.int64(starts[words[visits[min(place + 1, end - 1)]]])
        for block in range(np.int64(starts[words[visit]]), last, LANES):
            for line_start in range(0, LANES, LINE):
                prefetch(one, ahead + line_start)
                prefetch(two, ahead + line_start)
            prefetch(images, ahead)
            prefetch(images, ahead + LANES // 2)
            ahead += LANES
            near = np.uint64(0)
            if block + LANES <= len(one):
                near = near_long_lanes(one, two, block, first, other, threshold)
                if last - block < LANES:
                    near &= (np.uint64(1) << np.uint64(last - block)) - np.uint64(1)
            else:
                for p in range(block, last):
                    h = popcount(one[p] ^ first) + popcount(two[p] ^ other)
                    near |= np.uint64(h <= threshold) << np.uint64(p - block)
            while near != 0:
                p = block + lowest_bit(near)
                near &= near - np.uint64(1)
                total = sum_long_lanes(magnitudes, n_planes * visit, one[p] ^ first, two[p] ^ other)
                if n_planes == 4:
                    total += sum_long_lanes(magnitudes, n_planes * visit + 2, three[p] ^ third, four[p] ^ fourth)
                else:
                    total += sum_lanes(magnitudes, n_planes * visit + 2, three[p] ^ third)
                value, image = values[q, line, (total * factor) >> 32], images[p]
                touched[n] = image
                n += np.int64((best[image] == 0) & (value > 0))
                best[image] = max(best[image], value)
        if place + 1 == end or visits[place + 1] // n_words != q:
            for i in range(n):
                scores[touched[i]] += best[touched[i]]
                best[touched[i]] = 0
            n = 0


@kernel
def tally_long(  # noqa: PLR0913, PLR0917
    words, rows, query_codes, magnitudes, totals, reach, starts, codes, images, kinds, counts
):
    """Count matches as `tally_codes`, of codes of three or four planes; `reach` is for the first two."""
    columns = counts.shape[2] - 1
    for q in range(words.shape[0]):
        for a in range(words.shape[1]):
            if words[q, a] < 0:
                continue
            row, factor = q * words.shape[1] + a, factor_of(totals[q, a], columns)
            for p in range(starts[words[q, a]], starts[words[q, a] + 1]):
                kind = kinds[images[p]]
                h = popcount(codes[0, p] ^ query_codes[q, a, 0]) + popcount(codes[1, p] ^ query_codes[q, a, 1])
                if kind < 0 or h > reach:
                    continue
                total = 0
                for plane in range(len(codes)):
                    differing = codes[plane, p] ^ query_codes[q, a, plane]
                    while differing != 0:
                        total += magnitudes[row, LANES * plane + lowest_bit(differing)]
                        differing &= differing - np.uint64(1)
                counts[kind, rows[q, a], (total * factor) >> 32] += 1


# -- time


@lru_cache(maxsize=2)
def copies(segment: Segment) -> Segment:
    """Return a segment with every image several times."""
    return copied(segment, COPIES)


def milliseconds(trial: Trial, usual: Trial, tables: tuple[CodeTable, CodeTable]) -> dict[str, float]:
    """Return the median time of scoring many copies of a collection, and the median of its ratio to that of the usual way."""
    pairs = []
    trials = [(one, copies(one.segment), table) for one, table in zip((trial, usual), tables, strict=True)]
    every = range(0, trial.n_questions, -(-trial.n_questions // TIMED))
    for number in (every[0], *every):  # the first once more: it compiles
        took = []
        for one, segment, table in trials:
            asked = one.weighed(number, table)
            begin = time.thread_time()
            score(segment, *asked)
            took.append(1000 * (time.thread_time() - begin))
        pairs.append(took)
    return {"milliseconds": st.median(own for own, _ in pairs[1:]), "times": st.median(own / base for own, base in pairs[1:])}


# -- all ways


@dataclass(frozen=True, eq=False)
class Measured:
    """What all ways have in common."""

    workbench: Workbench
    benches: dict[str, QuantisedDataset]
    learnt: Learnt
    training: str  # digest of the training photographs

    def remember(self, what: str, name: str, way: Way, make: Callable[[], Any]) -> Any:
        inputs = [what, [bench.name for bench in self.benches.values()], asdict(way), self.training]
        return self.workbench.remember(f"evidence {what} {name}", [*inputs, name], make)

    def tables(self, way: Way) -> tuple[dict[str, Trial], dict[str, CodeTable]]:
        """Return the trials of a way, and for each set the table fitted on the other."""
        trials = {name: Trial.of(bench, way, self.learnt) for name, bench in self.benches.items()}
        counts = {name: self.remember("counts", name, way, trial.tally) for name, trial in trials.items()}
        return trials, {name: trials[name].fit(counts[next(one for one in SETS if one != name)]) for name in SETS}

    def values(self, way: Way, trials: dict[str, Trial], tables: dict[str, CodeTable]) -> dict[str, list[float]]:
        """Return the measure of every question of each set."""
        return {name: self.remember("values", name, way, partial(trials[name].measure, tables[name])) for name in SETS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--photographs", dest="count", type=int, default=256)
    parser.add_argument("--step", type=int, default=1)
    arguments = parser.parse_args()
    workbench, fine = Workbench(arguments.cache), default_fine_vocabulary()
    store = workbench.store(training_photographs(arguments.photographs, arguments.count))
    read = {name: READERS[name](arguments.data / folder) for name, folder in SETS.items()}
    benches = {
        name: workbench.bench(all_queries(one, arguments.data / "photos1200", arguments.step), (), fine)
        for name, one in read.items()
    }
    measured = Measured(workbench, benches, Learnt(store, fine), store.digest)
    usual, usual_tables = measured.tables(USUAL)
    base = measured.values(USUAL, usual, usual_tables)
    result: dict[str, Any] = {"step": arguments.step, "training": len(store), "copies": COPIES, "ways": []}
    for way in WAYS:
        trials, tables = measured.tables(way)
        values = measured.values(way, trials, tables)
        one = {
            **asdict(way), "bytes": trials["holidays"].bytes_scanned,
            **milliseconds(trials["holidays"], usual["holidays"], (tables["holidays"], usual_tables["holidays"])),
            "sets": {name: entry(bench.dataset, values[name], base[name]) for name, bench in benches.items()},
        }  # fmt: skip
        result["ways"].append(one)
        report(f"{way}: {one['bytes']:.1f} bytes, {one['milliseconds']:.1f} ms, {one['times']:.2f} times the usual")
        for name, each in one["sets"].items():
            report(f"    {name}: {each['all']}")
    print(write_result("evidence", result))


if __name__ == "__main__":
    main()
