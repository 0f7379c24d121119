"""Scoring by codes: the default search. One scan of the lists of a query's fine words, no phase 1.

Every query feature visits the lists of its nearest words. The weight of a match is the idf^2 of the feature's nearest word
times a log-likelihood ratio, from a table by the relative distance of the visited word and the asymmetric distance of the
code (`kernels.codes`); of every image the best match of each query feature counts. Weights are whole numbers, so that sums do
not depend on the order of the query features, hence not on threads.
"""

from __future__ import annotations

import importlib.resources
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DamagedError, OptionError
from polyvoc.index.segment import Segment
from polyvoc.index.statistics import Statistics
from polyvoc.kernels.codes import vote_codes
from polyvoc.kernels.postings import read_ahead
from polyvoc.threads import count_threads, thread_map
from polyvoc.types import Array, CodeTable, Floats32, Floats64, Words
from polyvoc.vocabulary.codes import CodedQuery
from polyvoc.vocabulary.vocabulary import MAX_BITS

UNIT = 1 << 10  # a weight of 1 as a whole number
GAP = 1 << 14  # bytes between two lists: to read them takes an SSD about as long as to begin another piece
FORGET = 600.0  # seconds after which lists may have left the memory; to request all of a million images takes 0.1 s
TABLE_FORMAT = "polyvoc code table"


@dataclass(frozen=True, eq=False)
class CodeWeights:
    """What the segments need to vote with codes: the same for all of them."""

    idf_squared: Floats64  # [Q] of the nearest word of each query feature
    table: CodeTable
    threads: int | None = None  # that one segment may use

    @cached_property
    def values(self) -> npt.NDArray[np.int32]:
        """Return the weight of a match of each query feature by row of the table and distance [Q, rows, columns + 1]."""
        rows = np.maximum(np.array(self.table.rows), 0.0) * UNIT
        values = np.multiply.outer(self.idf_squared, rows)
        return np.asarray(np.rint(values, out=values), np.int32)


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


@dataclass(eq=False)
class RequestedLists:
    """Which lists of a segment were requested, and since when. May be shared by threads."""

    words: npt.NDArray[np.bool_]  # [fine + 1]; the last for words -1, which have no list
    since: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, segment: Segment) -> RequestedLists:
        """Return those of a segment; none after FORGET seconds."""
        found = _REQUESTED.get(segment)
        if found is None or time.monotonic() > found.since + FORGET:
            found = _REQUESTED[segment] = cls(np.arange(segment.fine + 1) == segment.fine)
        return found

    def add(self, words: Words) -> npt.NDArray[np.int64]:
        """Add the words of a query [Q, A]; return those that are new, in order."""
        wanted = words.ravel()
        new = np.unique(wanted[~self.words[wanted]]).astype(np.int64)
        self.words[new] = True
        return new


_REQUESTED: WeakKeyDictionary[Segment, RequestedLists] = WeakKeyDictionary()


def read_lists(segment: Segment, words: Words, threads: int | None = None) -> None:
    """Have the lists of a query's words [Q, A] read in large pieces before a scan reads them page by page.

    From a cold disk this is several times faster. A list is requested once in FORGET seconds, not for every query.
    """
    numbers, arrays = RequestedLists.of(segment).add(words), segment.arrays

    def read(part: npt.NDArray[np.int64]) -> None:
        for values in (*arrays["codes"], arrays["code_images"]):
            read_ahead(part, arrays["code_starts"], values, GAP // values.itemsize)

    if len(numbers):
        thread_map(read, np.array_split(numbers, count_threads(threads)), threads)


def read_features(segment: Segment, positions: Sequence[int] | Array) -> None:
    """Have what verification needs of images read in large pieces; their codes lie in lists that were scanned."""
    numbers, arrays = np.sort(np.asarray(positions, np.int64)), segment.arrays
    if segment.n_features:
        pairs = arrays["positions"].view(np.uint32).ravel(), arrays["shapes"].view(np.uint16).ravel()  # one number per feature
        for values in (arrays["code_words"], *pairs):
            read_ahead(numbers, arrays["feature_starts"], values, GAP // values.itemsize)


def score_codes(segment: Segment, query: CodedQuery, weights: CodeWeights) -> Floats32:
    """Score every image of a segment [n]: the sum of its votes over its norm; 0 for deleted ones."""
    arrays, rows = segment.arrays, table_rows(query, weights.table)
    votes = np.zeros(segment.n_images, np.int64)
    if segment.fine and segment.n_features:
        read_lists(segment, query.words, weights.threads)
        # Neighbouring words have neighbouring numbers: query features in this order visit lists that are still in the cache.
        order = np.argsort(query.words[:, 0], kind="stable")
        parts = [part for part in np.array_split(order, count_threads(weights.threads)) if len(part)]
        lists = arrays["code_starts"], arrays["codes"], arrays["code_images"]
        values = weights.values  # once, before the threads

        def vote(features: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            own = np.zeros(segment.n_images, np.int64)
            vote_codes(features, query.words, rows, query.codes, query.magnitudes, query.totals, values,
                       weights.table.reach, *lists, own)  # fmt: skip
            return own

        for own in thread_map(vote, parts, weights.threads):
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
