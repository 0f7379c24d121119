"""Fit of the table of codes: log-likelihood ratios of matches by the distance of the visited word and that of the code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.experiments.fit.likelihood import BACKGROUND, MIN_MATCHES, log_ratio
from polyvoc.experiments.fit.true_matches import Pairs, draw, relevant_images
from polyvoc.experiments.report.figures import Figure, Panel, Series
from polyvoc.experiments.workbench import QuantisedDataset, no_progress
from polyvoc.index.segment import MAX_IMAGES, Segment
from polyvoc.index.writer import IndexWriter
from polyvoc.kernels.codes import tally_codes
from polyvoc.scoring.codes import code_table_as_dict
from polyvoc.search.index import Index
from polyvoc.types import CodeTable, Progress
from polyvoc.vocabulary.codes import CodedQuery

Counts = npt.NDArray[np.int64]
EDGES = (1.0, 1.05, 1.1, 1.15)  # of the relative distance of a visited word; the first row is the nearest word alone
REACH = 13 / 32  # of the bits: codes beyond this Hamming distance are passed over, 9 % of the postings are within
UNRELATED, RELATED, NOT_COUNTED = 0, 1, -1  # kinds of images


def tally_dataset(bench: QuantisedDataset, progress: Progress = no_progress) -> Counts:
    """Return the matches of all questions of a dataset, of unrelated and related images [2, rows, bits + 1]."""
    dataset, found = bench.dataset, []
    truths = dataset.truths[dataset.main_level]
    for number, (question, truth) in enumerate(zip(dataset.questions, truths, strict=True)):
        kinds = np.full(bench.n_images, UNRELATED)
        kinds[relevant_images(truth, question.image)] = RELATED
        kinds[[*truth.junk, *([] if question.image is None else [question.image])]] = NOT_COUNTED
        parts = [kinds[first : first + MAX_IMAGES] for first in range(0, len(kinds), MAX_IMAGES)]
        codes = bench.query(number).codes
        if codes is None:
            raise OptionError("a table of codes needs a fine vocabulary; give one with a decoder")
        found.append(tally_query(bench.engine.segments, codes, parts))
        progress(f"codes: {dataset.name}", number + 1, len(truths))
    return np.asarray(np.sum(found, axis=0), np.int64)


def tally_query(segments: Sequence[Segment], query: CodedQuery, kinds: Sequence[Counts]) -> Counts:
    """Return the matches of one query by kind of image [2, rows, bits + 1]. kinds: of the images of each segment."""
    bits = 64 * query.codes.shape[2]
    counts = np.zeros((2, len(EDGES) + 1, bits + 1), np.int64)
    rows = np.searchsorted(np.array(EDGES), query.ratios)
    for segment, of_images in zip(segments, kinds, strict=True):
        lists = (segment.arrays[name] for name in ("code_starts", "codes", "code_images"))
        tally_codes(query.words, rows, query.codes, query.magnitudes, query.totals, round(REACH * bits), *lists,
                    np.asarray(of_images, np.int64), counts)  # fmt: skip
    return counts


def fit_code_table(counts: Counts, source: str = "") -> CodeTable:
    """Return the table of counts [2, rows, bits + 1]."""
    for kind, more in ((RELATED, "of the same objects"), (UNRELATED, "of other objects")):
        if counts[kind].sum() < MIN_MATCHES:
            raise OptionError(f"{counts[kind].sum()} matches are too few for a likelihood table; {MIN_MATCHES} are needed: "
                              f"give more photographs {more}")  # fmt: skip
    bits = counts.shape[2] - 1
    rows = np.zeros(counts.shape[1:])
    for row in range(len(rows)):
        ratio = log_ratio(counts[:, row], np.ones(2))  # how many pairs could have matched shifts all distances alike
        rows[row, : len(ratio)] = ratio - ratio[-1]
    return CodeTable(EDGES, tuple(tuple(np.round(row, 3).tolist()) for row in rows), round(REACH * bits), source)


def fit_code_table_pairs(index: Index, pairs: Pairs, progress: Progress = no_progress) -> CodeTable:
    """Fit a table to related images of an index, and to a random sample of unrelated ones."""
    pairs.require(len(index))
    segments, source = index.engine.segments, index.stored_queries
    background = draw(index, BACKGROUND, np.random.default_rng([pairs.sampling.seed, BACKGROUND]))
    total = np.zeros((2, len(EDGES) + 1, index.engine.code_bits + 1), np.int64)
    for done, (ref, related) in enumerate(pairs.related.items(), start=1):
        kinds = [np.full(segment.n_images, NOT_COUNTED) for segment in segments]
        near = {ref, *related, *pairs.doubtful[ref]}
        for segment, position in background:
            same = pairs.groups.get((segment, position), -1) == pairs.groups[ref]
            if (segment, position) not in near and not same:
                kinds[segment][position] = UNRELATED
        for segment, position in related:
            kinds[segment][position] = RELATED
        codes = source.of(ref).codes
        assert codes is not None
        total += tally_query(segments, codes, kinds)
        progress("codes", done, len(pairs.related))
    text = f"{pairs.count:,} verified pairs of {len(pairs.queries):,} among {len(index):,} photographs"
    return fit_code_table(total, f"{text}, {index.engine.code_bits} bits")


def save_code_table(writer: IndexWriter, table: CodeTable) -> None:
    """Save a table in an index, for its searches."""
    if not writer.folder.code_bits:
        raise OptionError(f"{writer.folder.path} holds no codes, which a table could be for; index again")
    writer.save_settings({"code_table": code_table_as_dict(table)})


def code_table_figure(table: CodeTable, title: str) -> Figure:
    """Return a plot of a table by distance, one line per row."""
    bits = len(table.rows[0]) - 1
    names = ["nearest word", *(f"word up to {edge:g} x as far" for edge in (*table.edges[1:], 1.2))]
    series = [Series(name, np.arange(bits + 1), np.array(row)) for name, row in zip(names, table.rows, strict=True)]
    return Figure(title, [Panel("asymmetric distance", "nats", series)])
