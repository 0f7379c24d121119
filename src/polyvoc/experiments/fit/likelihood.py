"""Fit of likelihood tables: log-likelihood ratios of matches by set of lists, cardinality ratio and Hamming distance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.experiments.fit.true_matches import Pairs, draw, hamming, read_words, relevant_images, set_counts, sharing_of
from polyvoc.experiments.match_table import Matcher, MatchTable
from polyvoc.experiments.report.figures import Figure, Panel, Series
from polyvoc.experiments.workbench import QuantisedDataset, no_progress
from polyvoc.index.writer import IndexWriter
from polyvoc.scoring.rules import cardinality_ratios, group_names, groups_by_size, table_as_dict
from polyvoc.search.index import Index
from polyvoc.types import Floats64, ImageFeatures, ImageRef, Keypoints, LikelihoodTable, Progress

Counts = npt.NDArray[np.int64]
REACH = 0.43  # of the bits: beyond this distance a match is as good as chance (of 128 fair coins 55 or fewer fall heads in 6 %)
HALF = 0.5  # of a match is added to every count, so that no ratio is infinite
MIN_MATCHES = 1000  # of either kind, for a table
BACKGROUND = 400  # images that represent all those unrelated to a query, without ground truth
UNRELATED, RELATED, NOT_COUNTED = range(3)  # kinds of images


@dataclass(frozen=True, eq=False)
class Tally:
    """Matches of unrelated [0] and related [1] images, by set of lists, bin of the ratio and mean Hamming distance."""

    counts: Counts  # [2, 2^K, bins, bits + 1]
    pairs: Floats64  # [2] pairs of features that could have matched
    edges: tuple[float, ...]  # between the bins of the ratio

    def __add__(self, other: Tally) -> Tally:
        """Return the sum of two tallies."""
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
    """Return the matches of all questions of a dataset with its ground truth; the query's own image is left out."""
    return together(tally_groups(bench, edges, progress))


def together(tallies: Sequence[Tally]) -> Tally:
    """Return the sum of one tally or more."""
    return sum(tallies[1:], tallies[0])


def tally_groups(bench: QuantisedDataset, edges: Sequence[float] = (), progress: Progress = no_progress) -> list[Tally]:
    """Return the matches of a dataset with its ground truth, one tally per group of questions: groups are independent."""
    if bench.signatures is None:
        raise OptionError("a likelihood table needs vocabularies with signatures; train them with --bits 64 or 128")
    dataset, matcher = bench.dataset, Matcher(bench)
    lengths = np.diff(bench.store.starts[: bench.n_images + 1]).astype(np.float64)
    truths = dataset.truths[dataset.main_level]
    groups: dict[str, Tally] = {}
    for number, (question, truth) in enumerate(zip(dataset.questions, truths, strict=True)):
        table = matcher.table(number)
        kind = np.full(bench.n_images, UNRELATED)
        kind[relevant_images(truth, question.image)] = RELATED
        kind[[*truth.junk, *([] if question.image is None else [question.image])]] = NOT_COUNTED
        bins = _bins(table.features.ratios, edges) if edges else None
        counted = _tally(table, kind, lengths, bins, _Shape(bench.bits, tuple(edges)))
        name = question.group or question.name
        groups[name] = groups[name] + counted if name in groups else counted
        progress(f"matches: {dataset.name}", number + 1, len(truths))
    return list(groups.values())


@dataclass(frozen=True)
class _Shape:
    """The length of the signatures and the edges between bins of the ratio of a tally."""

    bits: int
    edges: tuple[float, ...]


def _bins(ratios: Floats64, edges: Sequence[float]) -> Counts:
    """Return the bin of every query feature and set [Q, 2^K]; for features in one list only the ratio of all K decides."""
    used = ratios.copy()
    used[:, 1 << np.arange(ratios.shape[1].bit_length() - 1)] = ratios[:, -1:]
    return np.searchsorted(edges, used)


def _tally(table: MatchTable, kind: Counts, lengths: Floats64, bins: Counts | None, shape: _Shape) -> Tally:
    """Return the matches of one query; kind, lengths: [N] of each image, and its features."""
    assert table.distance is not None
    kinds = kind[table.image]
    used = kinds != NOT_COUNTED
    bin_of = np.zeros(len(kinds), np.int64) if bins is None else bins[table.query, table.mask]
    cells = (2, 1 << table.n_vocabularies, len(shape.edges) + 1, shape.bits + 1)
    distance = mean_distance(table.shared, table.distance)
    flat = np.ravel_multi_index((kinds[used], table.mask[used], bin_of[used], distance[used]), cells)
    counts = np.bincount(flat, minlength=int(np.prod(cells))).reshape(cells)
    pairs = len(table.words) * np.bincount(kind, weights=lengths, minlength=3)[:2].astype(np.float64)
    return Tally(np.asarray(counts, np.int64), pairs, shape.edges)


def mean_distance(shared: npt.NDArray[np.bool_], distance: npt.NDArray[np.integer]) -> Counts:
    """Return the mean over the shared words of Hamming distances [m, K], rounded as the kernels do (half up) [m]."""
    order = shared.sum(axis=1)
    total = np.where(shared, distance, 0).sum(axis=1, dtype=np.int64)
    return np.asarray((2 * total + order) // (2 * order), np.int64)


def fit_table(counted: Tally, groups: Sequence[int] | None = None, source: str = "") -> LikelihoodTable:
    """Return the table of counts. `groups`: which sets are counted together; default: those of equally many lists."""
    groups = groups_by_size(counted.n_vocabularies) if groups is None else tuple(groups)
    for kind, more in (("related", "of the same objects"), ("unrelated", "of other objects")):
        found = int(counted.counts[RELATED if kind == "related" else UNRELATED].sum())
        if found < MIN_MATCHES:
            raise OptionError(f"{found} matches of {kind} images are too few for a likelihood table; {MIN_MATCHES} are needed: "
                              f"give more photographs {more}")  # fmt: skip
    rows = []
    for group in range(max(groups) + 1):
        members = [mask for mask in range(1, len(groups)) if groups[mask] == group]
        for number in range(len(counted.edges) + 1):
            rows.append(_row(counted.counts[:, members, number].sum(axis=1), counted.pairs))
    return LikelihoodTable(groups, counted.edges, tuple(tuple(np.round(row, 3).tolist()) for row in rows), source)


def _row(counts: Counts, pairs: Floats64) -> Floats64:
    """Return the log-likelihood ratio at every distance [bits + 1] from counts [2, bits + 1]: falling, and 0 from REACH on."""
    row = np.zeros(counts.shape[1])
    ratio = log_ratio(counts, pairs)
    row[: len(ratio)] = ratio - ratio[-1]
    return row


def log_ratio(counts: Counts, pairs: Floats64) -> Floats64:
    """Return the falling logarithm of the ratio of shares at distances up to REACH, the last one that of chance matches."""
    reach = int(REACH * (counts.shape[1] - 1))
    smoothed = counts[:, : reach + 1] + HALF
    ratio = np.log(smoothed[1] / pairs[1]) - np.log(smoothed[0] / pairs[0])
    weight = 1 / (1 / smoothed[0] + 1 / smoothed[1])  # the inverse of the variance of the logarithm
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


def table_figure(tables: Mapping[str, LikelihoodTable], title: str = "Log-likelihood ratio of a match") -> Figure:
    """Return a plot of tables by distance and number of lists, one panel per table."""
    panels = []
    for name, table in tables.items():
        bins = len(table.edges) + 1
        rows = np.array(table.rows).reshape(-1, bins, table.bits + 1)
        series = [
            Series(lists if bins == 1 else f"{lists}, ratio {number + 1}", np.arange(table.bits + 1), row)
            for lists, group in zip(group_names(table), rows, strict=True)
            for number, row in enumerate(group)
        ]
        panels.append(Panel("mean Hamming distance", "nats", series, name))
    return Figure(title, panels)


def fit_table_pairs(index: Index, pairs: Pairs, progress: Progress = no_progress) -> LikelihoodTable:
    """Fit a table to related images of an index."""
    pairs.require(len(index))
    words = " + ".join(f"{size:,}" for size in index.engine.sizes)
    source = f"{pairs.count:,} verified pairs of {len(pairs.queries):,} among {len(index):,} photographs"
    return fit_table(tally_pairs(index, pairs, progress), source=f"{source}, words {words}, {index.engine.bits} bits")


def save_likelihood_table(writer: IndexWriter, table: LikelihoodTable) -> None:
    """Save a table in an index, for its searches."""
    n_vocabularies = len(writer.folder.fixed["vocabularies"])
    if table.n_vocabularies != n_vocabularies:
        raise OptionError(f"a table for {table.n_vocabularies} vocabularies does not fit an index with {n_vocabularies}; "
                          f"fit one: polyvoc calibrate --index {writer.folder.path} --save")  # fmt: skip
    writer.save_settings({"likelihood_table": table_as_dict(table)})


def tally_pairs(index: Index, pairs: Pairs, progress: Progress = no_progress, edges: Sequence[float] = ()) -> Tally:
    """Return the matches of queries with their related images, and with a random sample of unrelated ones.

    Verified pairs are the easier ones, chosen by near matches, which could bias the table. Measured, in nats over matches of
    related images: 0.05 to 0.24 from the table of the same photographs with ground truth, on average from 0.07 below it to
    0.09 above; two halves with ground truth are 0.36 apart, two datasets 0.5 to 0.9 (Holidays, Ukbench; 64 and 128 bits).
    """
    engine, shape = index.engine, _Shape(index.engine.bits, tuple(edges))
    cells = (2, 1 << len(engine.sizes), len(edges) + 1, engine.bits + 1)
    total = Tally(np.zeros(cells, np.int64), np.zeros(2), shape.edges)
    background = _ImageSet.of(index, draw(index, BACKGROUND, np.random.default_rng([pairs.sampling.seed, BACKGROUND])))
    groups = np.array([pairs.groups.get(ref, -1) for ref in background.refs])
    for done, (ref, related) in enumerate(pairs.related.items(), start=1):
        query = read_words(index, ref)
        bins = _bins(cardinality_ratios(set_counts(index, query)), edges) if edges else None
        near = {ref, *related, *pairs.doubtful[ref]}
        known = np.array([other in near for other in background.refs]) | (groups == pairs.groups[ref])
        kinds = np.where(known, NOT_COUNTED, UNRELATED)
        total += _tally(background.table(query), kinds, background.lengths, bins, shape)
        same = _ImageSet.of(index, related)
        total += _tally(same.table(query), np.full(len(related), RELATED), same.lengths, bins, shape)
        progress("matches", done, len(pairs.related))
    return total


@dataclass(frozen=True, eq=False)
class _ImageSet:
    """Some images of an index, concatenated: a query is compared with all of them at once."""

    refs: Sequence[ImageRef]
    words: ImageFeatures
    lengths: Floats64  # [N] features of each image

    @classmethod
    def of(cls, index: Index, refs: Sequence[ImageRef]) -> _ImageSet:
        """Read images."""
        images = [read_words(index, ref) for ref in refs]
        used = [image for image in images if len(image.words)] or images[:1]
        words, signatures = (np.concatenate([getattr(image, name) for image in used]) for name in ("words", "signatures"))
        parts = (np.concatenate([getattr(image.keypoints, name) for image in used]) for name in ("xy", "scale", "angle"))
        lengths = np.array([len(image.words) for image in images], np.float64)
        return cls(refs, ImageFeatures(words, signatures, Keypoints(*parts)), lengths)

    def table(self, query: ImageFeatures) -> MatchTable:
        """Return every match of a query."""
        q, f, shared = sharing_of(query, self.words, range(query.words.shape[1]))
        distance = hamming(query, self.words, q, f).astype(np.uint8)
        image = np.repeat(np.arange(len(self.refs), dtype=np.int32), self.lengths.astype(np.int64))[f]
        return MatchTable(q.astype(np.int32), f, image, shared, distance, query.words.astype(np.int32), len(self.refs))
