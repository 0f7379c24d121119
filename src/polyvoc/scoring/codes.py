"""Scoring by codes: the default search. One scan of the lists of a query's fine words, no phase 1.

Every query feature visits the lists of its nearest words. The weight of a match is the idf^2 of the feature's nearest word
times a log-likelihood ratio, from a table by the relative distance of the visited word and the asymmetric distance of the
code (`kernels.codes`); of every image the best match of each query feature counts. Weights are whole numbers, so that sums do
not depend on the order of the query features, hence not on threads.
"""

from __future__ import annotations

import importlib.resources
import json
import threading
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DamagedError, OptionError
from polyvoc.index.reading import read_lists
from polyvoc.index.segment import Segment
from polyvoc.index.statistics import Statistics
from polyvoc.kernels.codes import vote_codes, weigh_matches
from polyvoc.threads import count_threads, thread_map
from polyvoc.types import Array, CodeTable, Floats32, Floats64
from polyvoc.vocabulary.codes import CodedQuery
from polyvoc.vocabulary.vocabulary import MAX_BITS

UNIT = 1 << 10  # a weight of 1 as a whole number
TABLE_FORMAT = "polyvoc code table"
_MAKING = threading.Lock()  # of scans


@dataclass(frozen=True, eq=False)
class CodeWeights:
    """What the segments need to vote with codes: the same for all of them."""

    idf_squared: Floats64  # [Q] of the nearest word of each query feature
    table: CodeTable
    threads: int | None = None  # that one segment may use

    def scan_of(self, query: CodedQuery) -> Scan:
        """Return what scans read of the query that these weights belong to: made once, for the segments of this process."""
        with _MAKING:
            if "_scan" not in vars(self):
                vars(self)["_scan"] = Scan.of(query, self)
            scan: Scan = vars(self)["_scan"]
        return scan


class Scan(NamedTuple):
    """A query as `vote_codes` takes it."""

    parts: list[npt.NDArray[np.int64]]  # visits, for each thread
    arrays: tuple[Array, ...]  # by visit: words, rows, codes, magnitudes, totals; weights of matches [Q, rows, columns + 1]

    @classmethod
    def of(cls, query: CodedQuery, weights: CodeWeights) -> Scan:
        """Return the visits of a query, shared among the threads, and its arrays."""
        parts = [part for part in np.array_split(query.scan_order(), count_threads(weights.threads)) if len(part)]
        rows = np.array(weights.table.rows)
        values = np.empty((len(weights.idf_squared), *rows.shape), np.int32)
        weigh_matches(weights.idf_squared, np.maximum(rows, 0.0) * UNIT, values)
        codes, of_words = query.codes.reshape(-1, query.codes.shape[2]), table_rows(query, weights.table)
        by_visit = query.words.ravel(), of_words.ravel(), codes, query.magnitudes, query.totals.ravel()
        return cls([query.visits(part) for part in parts], (*by_visit, values))


def weigh_codes(query: CodedQuery, statistics: Statistics, table: CodeTable, threads: int | None) -> CodeWeights:
    """Return the weights that every segment votes with."""
    return CodeWeights(code_idf_squared(query, statistics), table, threads)


def code_idf_squared(query: CodedQuery, statistics: Statistics) -> Floats64:
    """Return the squared idf of the nearest word of each query feature [Q], 0 for one without words."""
    nearest = query.words[:, 0] if query.words.shape[1] else np.full(len(query.words), -1)
    return np.where(nearest >= 0, statistics.code_idf_squared[nearest], 0.0) if len(nearest) else np.zeros(0)


def table_rows(query: CodedQuery, table: CodeTable) -> npt.NDArray[np.int64]:
    """Return the row of the table for each visited word [Q, A]."""
    return np.searchsorted(np.array(table.edges), query.ratios)


def score_codes(segment: Segment, query: CodedQuery, weights: CodeWeights) -> Floats32:
    """Score every image of a segment [n]: the sum of its votes over its norm; 0 for deleted ones."""
    arrays = segment.arrays
    votes = np.zeros(segment.n_images, np.int64)
    if segment.fine and segment.n_features:
        read_lists(segment, query.words, weights.threads)
        scan, n_words = weights.scan_of(query), query.words.shape[1]
        lists = arrays["code_starts"], arrays["codes"], arrays["code_images"]

        def vote(visits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            own = np.zeros(segment.n_images, np.int64)
            vote_codes(visits, n_words, *scan.arrays, weights.table.reach, *lists, own)
            return own

        for own in thread_map(vote, scan.parts, weights.threads):
            votes += own
    norms = arrays["code_norms"].astype(np.float64)
    scores = np.divide(votes, UNIT * norms, out=np.zeros(len(votes)), where=norms > 0).astype(np.float32)
    if len(segment.alive):
        scores[segment.alive == 0] = 0
    return scores


# -- tables and their files


@cache
def default_code_table(bits: int) -> CodeTable:
    """Return the shipped table for codes of a length, else that of the longest codes, with reach and nats in proportion.

    Distances are relative, so that its columns serve any length; at the same relative distance fewer bits are less evidence.
    """
    folder = importlib.resources.files("polyvoc") / "data" / "likelihood"
    file = folder / f"codes-{bits}.json"
    if file.is_file():
        return code_table_from_dict(json.loads(file.read_text(encoding="utf-8")), str(file))
    longest, share = default_code_table(MAX_BITS), bits / MAX_BITS
    rows = np.round(share * np.array(longest.rows), 3)
    return CodeTable(longest.edges, tuple(map(tuple, rows.tolist())), round(share * longest.reach), longest.source)


def code_table_as_dict(table: CodeTable) -> dict[str, Any]:
    """Return plain values for JSON."""
    rows = [list(row) for row in table.rows]
    return {"format": TABLE_FORMAT, "source": table.source, "edges": list(table.edges), "reach": table.reach, "rows": rows}


def code_table_from_dict(values: Any, where: str) -> CodeTable:
    """Read what `code_table_as_dict` returned; raise DamagedError, which names the file `where`, if it is something else."""
    try:
        if values["format"] != TABLE_FORMAT:
            raise ValueError
        rows = tuple(tuple(map(float, row)) for row in values["rows"])
        return CodeTable(tuple(map(float, values["edges"])), rows, int(values["reach"]), str(values["source"]))
    except (KeyError, TypeError, ValueError, OptionError):
        raise DamagedError(
            f"{where}: not a likelihood table of codes; fit one: polyvoc calibrate --index INDEX --save"
        ) from None
