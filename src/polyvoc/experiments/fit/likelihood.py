"""How much does a match say for "the same thing"? Log-likelihood ratios by set, cardinality ratio and Hamming distance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.experiments.fit.true_matches import (
    Pairs,
    Place,
    Sampling,
    draw,
    find_pairs,
    hamming,
    read_sketch,
    relevant_images,
    set_counts,
    sharing_of,
)
from polyvoc.experiments.match_table import Matcher, MatchTable
from polyvoc.experiments.report.figures import Figure, Panel, Series
from polyvoc.experiments.workbench import QuantisedDataset, no_progress
from polyvoc.scoring.rules import cardinality_ratios, group_names, groups_by_size
from polyvoc.search.index import Index
from polyvoc.types import Floats64, ImageWords, Keypoints, LikelihoodTable, Progress

Counts = npt.NDArray[np.int64]
REACH = 0.43  # of the bits: beyond this distance a match is as good as chance (of 128 fair coins 55 or fewer fall heads in 6 %)
HALF = 0.5  # of a match is added to every count, so that no ratio is infinite
LEAST = 1000  # matches of either kind that a table needs
CROWD = 400  # images that stand for all that are unrelated to a query, where there is no ground truth
UNRELATED, RELATED, NOT_COUNTED = range(3)  # kinds of images


@dataclass(frozen=True, eq=False)
class Tally:
    """Matches of unrelated [0] and of related [1] images, by set of lists, bin of the ratio and mean Hamming distance."""

    counts: Counts  # [2, 2^K, bins, bits + 1]
    pairs: Floats64  # [2] pairs of features that could have matched
    edges: tuple[float, ...]  # between the bins of the ratio

    def __add__(self, other: Tally) -> Tally:
        """Count two sets together."""
        if (self.counts.shape, self.edges) != (other.counts.shape, other.edges):
            raise OptionError("tallies of other vocabularies, bits or bins of the ratio cannot be added; count all alike")
        return Tally(self.counts + other.counts, self.pairs + other.pairs, self.edges)

    @property
    def bits(self) -> int:
        """Return the length of the signatures."""
        return int(self.counts.shape[3]) - 1

    @property
    def n_vocabularies(self) -> int:
        """Return the number of vocabularies."""
        return int(self.counts.shape[1]).bit_length() - 1


def tally(bench: QuantisedDataset, edges: Sequence[float] = (), progress: Progress = no_progress) -> Tally:
    """Count the matches of all questions of a dataset with its ground truth; the query's own image is left out."""
    return together(tally_groups(bench, edges, progress))


def together(tallies: Sequence[Tally]) -> Tally:
    """Count one tally or more together."""
    return sum(tallies[1:], tallies[0])


def tally_groups(bench: QuantisedDataset, edges: Sequence[float] = (), progress: Progress = no_progress) -> list[Tally]:
    """Count the matches of a dataset with its ground truth, each group of questions by itself: groups are independent."""
    if bench.signatures is None:
        raise OptionError("a table of evidence needs vocabularies with signatures; train them with --bits 64 or 128")
    dataset, matcher = bench.dataset, Matcher(bench)
    lengths = np.diff(bench.store.starts[: bench.n_images + 1]).astype(np.float64)
    truths = dataset.truths["medium" if "medium" in dataset.truths else next(iter(dataset.truths))]
    groups: dict[str, Tally] = {}
    for number, (question, truth) in enumerate(zip(dataset.questions, truths, strict=True)):
        table = matcher.table(number)
        kind = np.full(bench.n_images, UNRELATED)
        kind[relevant_images(truth, question.image)] = RELATED
        kind[[*truth.junk, *([] if question.image is None else [question.image])]] = NOT_COUNTED
        bins = _bins(table.ratios, edges) if edges else None
        counted = _tally(table, kind, lengths, bins, _Shape(bench.bits, tuple(edges)))
        name = question.group or question.name
        groups[name] = groups[name] + counted if name in groups else counted
        progress(f"matches: {dataset.name}", number + 1, len(truths))
    return list(groups.values())


@dataclass(frozen=True)
class _Shape:
    """What a tally tells apart beside the sets: the length of the signatures, and bins of the ratio."""

    bits: int
    edges: tuple[float, ...]


def _bins(ratios: Floats64, edges: Sequence[float]) -> Counts:
    """Return the bin of every query feature and set [Q, 2^K]; for features in one list only the ratio of all K decides."""
    used = ratios.copy()
    used[:, 1 << np.arange(ratios.shape[1].bit_length() - 1)] = ratios[:, -1:]
    return np.searchsorted(edges, used)


def _tally(table: MatchTable, kind: Counts, lengths: Floats64, bins: Counts | None, shape: _Shape) -> Tally:
    """Count the matches of one query; kind, lengths: [N] of each image, and its features."""
    assert table.distance is not None
    of = kind[table.image]
    used = of != NOT_COUNTED
    place = np.zeros(len(of), np.int64) if bins is None else bins[table.query, table.mask]
    cells = (2, 1 << table.n_vocabularies, len(shape.edges) + 1, shape.bits + 1)
    distance = mean_distance(table.shared, table.distance)
    flat = np.ravel_multi_index((of[used], table.mask[used], place[used], distance[used]), cells)
    counts = np.bincount(flat, minlength=int(np.prod(cells))).reshape(cells)
    pairs = len(table.words) * np.bincount(kind, weights=lengths, minlength=3)[:2].astype(np.float64)
    return Tally(np.asarray(counts, np.int64), pairs, shape.edges)


def mean_distance(shared: npt.NDArray[np.bool_], distance: npt.NDArray[np.integer]) -> Counts:
    """Return the mean over the shared words of Hamming distances [m, K], rounded as the kernels do (half up) [m]."""
    order = shared.sum(axis=1)
    total = np.where(shared, distance, 0).sum(axis=1, dtype=np.int64)
    return np.asarray((2 * total + order) // (2 * order), np.int64)


def fit_table(counted: Tally, groups: Sequence[int] | None = None, source: str = "") -> LikelihoodTable:
    """Turn counts into a table. `groups`: which sets are counted together; unless given, those of equally many lists."""
    groups = groups_by_size(counted.n_vocabularies) if groups is None else tuple(groups)
    for kind, more in (("related", "of the same things"), ("unrelated", "of other things")):
        found = int(counted.counts[RELATED if kind == "related" else UNRELATED].sum())
        if found < LEAST:
            raise OptionError(f"{found} matches of {kind} images are too few for a table of evidence; {LEAST} are needed: "
                              f"give more photographs {more}")  # fmt: skip
    rows = []
    for group in range(max(groups) + 1):
        members = [mask for mask in range(1, len(groups)) if groups[mask] == group]
        for place in range(len(counted.edges) + 1):
            rows.append(_row(counted.counts[:, members, place].sum(axis=1), counted.pairs))
    return LikelihoodTable(groups, counted.edges, tuple(tuple(np.round(row, 3).tolist()) for row in rows), source)


def _row(counts: Counts, pairs: Floats64) -> Floats64:
    """Return the evidence at every distance [bits + 1], from counts [2, bits + 1]: falling, and 0 from REACH on."""
    row = np.zeros(counts.shape[1])
    ratio = log_ratio(counts, pairs)
    row[: len(ratio)] = ratio - ratio[-1]
    return row


def log_ratio(counts: Counts, pairs: Floats64) -> Floats64:
    """Return the falling logarithm of the ratio of shares at distances up to REACH, the last one that of chance matches."""
    reach = int(REACH * (counts.shape[1] - 1))
    seen = counts[:, : reach + 1] + HALF
    ratio = np.log(seen[1] / pairs[1]) - np.log(seen[0] / pairs[0])
    weight = 1 / (1 / seen[0] + 1 / seen[1])  # the inverse of the variance of the logarithm
    return falling(ratio, weight)


def falling(values: Floats64, weights: Floats64) -> Floats64:
    """Return the falling sequence nearest to values, in weighted squares (pool adjacent violators, Ayer et al. 1955)."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, total, length = value, weight, 1
        while pools and pools[-1][0] <= mean:
            before, heavy, long = pools.pop()
            mean, total, length = (before * heavy + mean * total) / (heavy + total), heavy + total, length + long
        pools.append((mean, total, length))
    return np.repeat([mean for mean, _, _ in pools], [length for _, _, length in pools])


def table_figure(tables: Mapping[str, LikelihoodTable], title: str = "Evidence of a match") -> Figure:
    """Draw what matches say by their distance and the lists that hold them, one panel per table."""
    panels = []
    for name, table in tables.items():
        bins = len(table.edges) + 1
        rows = np.array(table.rows).reshape(-1, bins, table.bits + 1)
        series = [
            Series(lists if bins == 1 else f"{lists}, ratio {place + 1}", np.arange(table.bits + 1), row)
            for lists, group in zip(group_names(table), rows, strict=True)
            for place, row in enumerate(group)
        ]
        panels.append(Panel("mean Hamming distance", "nats", series, name))
    return Figure(title, panels)


def tally_verified(
    index: Index,
    sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
    progress: Progress = no_progress,
    edges: Sequence[float] = (),
) -> Tally:
    """Count the matches of images of an index: with those that geometry confirms, and with a crowd of others."""
    return tally_pairs(index, find_pairs(index, sampling, progress), progress, edges)


def fit_table_pairs(index: Index, pairs: Pairs, progress: Progress = no_progress) -> LikelihoodTable:
    """Fit a table to images of an index that show the same thing."""
    pairs.require(len(index))
    words = " + ".join(f"{size:,}" for size in index.engine.sizes)
    asked = f"{pairs.count:,} verified pairs of {len(pairs.asked):,} among {len(index):,} photographs"
    return fit_table(tally_pairs(index, pairs, progress), source=f"{asked}, words {words}, {index.engine.bits} bits")


def tally_pairs(index: Index, pairs: Pairs, progress: Progress = no_progress, edges: Sequence[float] = ()) -> Tally:
    """Count the matches of images with those found to be related, and with the crowd of those that nothing relates to them.

    Geometry confirms the easier pairs, chosen by near matches: is the table too sure? Measured, in nats over matches of related
    images: 0.05 to 0.24 from the table of the same photographs with ground truth, on average from 0.07 below it to 0.09 above;
    two halves with ground truth are 0.36 apart, two datasets 0.5 to 0.9 (Holidays, Ukbench; 64 and 128 bits).
    """
    engine, shape = index.engine, _Shape(index.engine.bits, tuple(edges))
    cells = (2, 1 << len(engine.sizes), len(edges) + 1, engine.bits + 1)
    total = Tally(np.zeros(cells, np.int64), np.zeros(2), shape.edges)
    crowd = _Crowd.of(index, draw(index, CROWD, np.random.default_rng([pairs.sampling.seed, CROWD])))
    groups = np.array([pairs.groups.get(place, -1) for place in crowd.places])
    for done, (place, related) in enumerate(pairs.related.items(), start=1):
        query = read_sketch(index, place)
        bins = _bins(cardinality_ratios(set_counts(index, query)), edges) if edges else None
        near = {place, *related, *pairs.doubtful[place]}
        known = np.array([other in near for other in crowd.places]) | (groups == pairs.groups[place])
        others = np.where(known, NOT_COUNTED, UNRELATED)
        total += _tally(crowd.table(query), others, crowd.lengths, bins, shape)
        shown = _Crowd.of(index, related)
        total += _tally(shown.table(query), np.full(len(related), RELATED), shown.lengths, bins, shape)
        progress("matches", done, len(pairs.related))
    return total


@dataclass(frozen=True, eq=False)
class _Crowd:
    """Some images of an index as one long sketch: a query is compared with all of them at once."""

    places: Sequence[Place]
    sketch: ImageWords
    lengths: Floats64  # [N] features of each image

    @classmethod
    def of(cls, index: Index, places: Sequence[Place]) -> _Crowd:
        """Read images."""
        read = [read_sketch(index, place) for place in places]
        held = [one for one in read if len(one.words)] or read[:1]
        columns = {name: np.concatenate([getattr(one, name) for one in held]) for name in ("words", "signatures")}
        frames = {name: np.concatenate([getattr(one.keypoints, name) for one in held]) for name in ("xy", "scale", "angle")}
        return cls(
            places, ImageWords(**columns, keypoints=Keypoints(**frames)), np.array([len(one.words) for one in read], np.float64)
        )

    def table(self, query: ImageWords) -> MatchTable:
        """Write out every match of a query."""
        q, f, shared = sharing_of(query, self.sketch, range(query.words.shape[1]))
        distance = hamming(query, self.sketch, q, f).astype(np.uint8)
        image = np.repeat(np.arange(len(self.places), dtype=np.int32), self.lengths.astype(np.int64))[f]
        return MatchTable(q.astype(np.int32), f, image, shared, distance, query.words.astype(np.int32), len(self.places))
