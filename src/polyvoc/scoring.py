"""A query's words against segments, in two phases: count the sets everywhere, then vote with the common weights.

Each phase is a function of one segment, and what passes between the phases is small, so one segment, many segments and many
machines give the same scores.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from polyvoc import merging, weighting
from polyvoc.errors import OptionError
from polyvoc.kernels import evidence, lookup, matches, score
from polyvoc.kernels import votes as kinds
from polyvoc.records import Burstiness, SearchOptions
from polyvoc.segment import Segment, bases_of, with_planes
from polyvoc.weighting import Statistics

Array = npt.NDArray[Any]
BURSTINESS: dict[Burstiness, int] = {
    "none": kinds.NONE, "best": kinds.BEST, "intra": kinds.INTRA, "inter": kinds.INTER, "both": kinds.BOTH
}  # fmt: skip
MAX_CODES = 1 << 20  # (assignments + 1)^K: combinations of assigned words that the general kernel tells apart


@dataclass(frozen=True, eq=False)
class Query:
    """The words of a query's features: [Q, K, A], -1 where there is none; signatures [Q, K, A, B], or None."""

    words: npt.NDArray[np.int64]
    signatures: npt.NDArray[np.uint64] | None
    sizes: tuple[int, ...]
    key: str = field(default_factory=lambda: uuid4().hex)  # tells it from others wherever it travels

    @classmethod
    def of(cls, words: Array, signatures: Array | None, sizes: tuple[int, ...], options: SearchOptions) -> Query:
        """Check words [Q, K] or [Q, K, A] against the vocabularies; b0 keeps the first vocabulary only."""
        words = np.asarray(words)
        wanted = f"[Q, {len(sizes)}] or [Q, {len(sizes)}, A]"
        if words.ndim not in (2, 3) or words.shape[1] != len(sizes) or (words.size and words.dtype.kind not in "iu"):
            raise OptionError(f"query words {words.dtype}{list(words.shape)} should be integers {wanted}")
        if signatures is not None and np.shape(signatures)[: words.ndim] != words.shape:
            raise OptionError(
                f"query signatures {list(np.shape(signatures))} should have the shape of the words {list(words.shape)}"
            )
        signatures = None if signatures is None else with_planes(np.asarray(signatures, np.uint64), words.ndim)
        words = words.astype(np.int64)  # unsigned words have no room for -1
        words = _distinct(words if words.ndim == 3 else words[:, :, None])
        if not options.signed:
            signatures = None
        elif signatures is None:
            raise OptionError(f"{asking(options)} needs the signatures of the query; none were given")
        else:
            signatures = np.ascontiguousarray(signatures.reshape(*words.shape, signatures.shape[-1]))
        too_large = words.max(axis=(0, 2), initial=-1) >= np.array(sizes)
        if too_large.any() or words.min(initial=0) < -1:
            raise OptionError(f"query words outside the vocabularies of sizes {list(sizes)}; quantise with those of the index")
        if options.merge == "b0":
            words, sizes = words[:, :1], sizes[:1]
            signatures = None if signatures is None else signatures[:, :1]
        if (words.shape[2] + 1) ** len(sizes) > MAX_CODES:
            raise OptionError(f"{words.shape[2]} assignments with {len(sizes)} vocabularies are too many; lower assignments")
        return cls(np.ascontiguousarray(words, np.int64), signatures, sizes)

    @property
    def bits(self) -> int:
        """Give the length of the signatures, 0 without."""
        return 0 if self.signatures is None else 64 * self.signatures.shape[3]

    @cached_property
    def bases(self) -> npt.NDArray[np.int64]:
        """Give the number of the first word of each vocabulary."""
        return bases_of(self.sizes)

    @cached_property
    def numbers(self) -> npt.NDArray[np.int64]:
        """Give the number of each word among all vocabularies [Q, K, A], -1 where there is none."""
        return np.where(self.words >= 0, self.words + self.bases[:, None], -1)

    @cached_property
    def order(self) -> npt.NDArray[np.int64]:
        """Give the query features by their word in the last of the first two vocabularies, those without one first."""
        order: npt.NDArray[np.int64] = np.argsort(self.words[:, :2, 0][:, -1], kind="stable")
        return order

    @cached_property
    def run_order(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Give the lists of vocabulary 1, ascending, and the query feature of each."""
        numbers = self.numbers[self.order, 1, 0]
        missing = np.count_nonzero(numbers < 0)
        return numbers[missing:], self.order[missing:]

    @cached_property
    def masks(self) -> npt.NDArray[np.int64]:
        """Tabulate the vocabularies that take part in each combination of assigned words [(A + 1)^K]."""
        base = self.words.shape[2] + 1
        codes = np.arange(base ** len(self.sizes))
        return sum(((codes // base**k % base > 0).astype(np.int64) << k for k in range(len(self.sizes))), np.int64(0) * codes)


def asking(options: SearchOptions) -> str:
    """Name the option that asks for signatures."""
    return "merge='likelihood'" if options.merge == "likelihood" else f"hamming={options.hamming}"


def _distinct(words: Array) -> Array:
    """Take back words that a query feature is given twice in one vocabulary: its lists are united, each counts once."""
    n_assignments = words.shape[2]
    earlier = np.tri(n_assignments, k=-1, dtype=bool)  # [later, earlier]
    repeated = ((words[:, :, :, None] == words[:, :, None, :]) & earlier).any(axis=3)
    return np.where(repeated, -1, words)


@dataclass(frozen=True, eq=False)
class Weights:
    """What the segments need to vote: the same for all of them."""

    factors: npt.NDArray[np.float32]  # [Q, 2^K] of the rule
    numbers: npt.NDArray[np.int64]  # [Q, K, A] of the words, -1 for none
    idf: npt.NDArray[np.float32]  # [Q, K, A] idf^2
    closeness: npt.NDArray[np.float32]  # [bits + 1] of Hamming distances
    cells: npt.NDArray[np.int64]  # [Q, 2^K] row of the table for each set; [0, 0] for rules that sum over lists
    table: npt.NDArray[np.float32]  # [rows, bits + 1] joint evidence
    totals: npt.NDArray[np.float64]  # [Q] sums over all images, for burstiness across images
    on_difference: bool  # burstiness on the difference set only

    @cached_property
    def singles(self) -> npt.NDArray[np.float64]:
        """Give the weight of a feature in one list only, for each list [Q, K]; one assignment."""
        bits = 1 << np.arange(self.idf.shape[1])
        return self.idf[:, :, 0].astype(np.float64) * self.factors[:, bits]

    @cached_property
    def delta(self) -> npt.NDArray[np.floating[Any]]:
        """Give what a shared feature gets beyond the sum of its single weights [Q, 2^K]; one assignment."""
        masks = np.arange(self.factors.shape[1])
        held = (masks[:, None] >> np.arange(self.idf.shape[1]) & 1).astype(np.float64)  # [2^K, K]
        singles = self.singles @ held.T
        wanted = self.factors * (self.idf[:, :, 0] @ held.T)
        # Where a shared feature is worth next to nothing, delta cancels the single weights: float32 would leave noise.
        cancels = bool(((wanted > 0) & (wanted < 1e-3 * singles)).any())
        return np.asarray(wanted - singles, np.float64 if cancels else np.float32)

    @cached_property
    def lists(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.floating[Any]]]:
        """Give the distinct words, ascending, and the sum of their single weights: each list is scanned once."""
        present = self.numbers[:, :, 0] >= 0
        numbers, inverse = np.unique(self.numbers[:, :, 0][present], return_inverse=True)
        sums = np.bincount(inverse, weights=self.singles[present], minlength=len(numbers))
        return numbers, sums.astype(self.delta.dtype)


Path = Literal["lists", "signed lists", "near matches", "matches"]


def path_of(query: Query, options: SearchOptions) -> Path:
    """Choose the kernels: gathering every match one by one is the last resort."""
    bursts = options.burstiness != "none"
    if query.words.shape[2] > 1 or options.sets == "image" or (bursts and query.signatures is None):
        return "matches"
    if query.signatures is None:
        return "lists"
    return "near matches" if bursts or options.merge == "likelihood" else "signed lists"


@dataclass(frozen=True, eq=False)
class Runs:
    """Where in each list of a query stand the features that share the partner's word: begins, ends [Q, K]."""

    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


def find_runs(segment: Segment, query: Query) -> Runs:
    """Look up the runs of a query with one assignment in one segment; they serve both phases."""
    if len(query.sizes) == 1:
        nothing = np.zeros((len(query.words), 1), np.int64)
        return Runs(nothing, nothing)
    first = 0 if query.signatures is not None else 1  # without signatures nobody asks for the runs of vocabulary 0
    return Runs(*lookup.find_runs(query.words[:, :, 0], query.order, query.bases, *_run_arrays(segment)[:4], first))


def _run_arrays(segment: Segment) -> tuple[Array, ...]:
    names = ("starts", "run_starts", "run_words", "run_lengths", "columns", "postings")
    return tuple(segment.arrays[name] for name in names)


def count(segment: Segment, query: Query, options: SearchOptions, runs: Runs | None) -> npt.NDArray[np.int64]:
    """Phase 1: count the live features of every exact mask of two or more lists [Q, 2^K] in one segment.

    With several assignments, or with sets of images (which are then counted), also of the masks of one list.
    """
    n_vocabularies = len(query.sizes)
    counts = np.zeros((len(query.words), 1 << n_vocabularies), np.int64)
    if query.words.shape[2] > 1 or options.sets == "image":
        matches.count_matches(query.words, query.bases, *_run_arrays(segment), segment.alive, query.masks,
                            options.sets == "image", counts)  # fmt: skip
        return counts
    runs = runs or find_runs(segment, query)
    if n_vocabularies == 2 and len(segment.alive) == 0:
        counts[:, 3] = runs.ends[:, 1] - runs.begins[:, 1]
    else:
        score.count_shared(*_shared_arrays(segment, query, runs), segment.alive, counts)
    return counts


def vote(segment: Segment, query: Query, weights: Weights, options: SearchOptions,
         runs: Runs | None = None) -> npt.NDArray[np.float32]:  # fmt: skip
    """Phase 2: sum the votes for every image of one segment [n_images], before the norm."""
    scores = np.zeros(segment.n_images, np.float32)
    path = path_of(query, options)
    if path == "matches":
        _vote_matches(segment, query, weights, options, scores, weights.totals)
    elif path == "near matches":
        _vote_near(segment, query, weights, options, scores, weights.totals, runs)
    elif path == "lists":
        return _vote_lists(segment, query, weights, runs)
    else:
        runs = runs or find_runs(segment, query)
        score.vote_hamming(*_shared_arrays(segment, query, runs), *_signature_arrays(segment, query),
                           weights.idf[:, :, 0], weights.factors, weights.closeness, scores)  # fmt: skip
    return scores


def total(segment: Segment, query: Query, weights: Weights, options: SearchOptions,
          runs: Runs | None = None) -> npt.NDArray[np.float64]:  # fmt: skip
    """Between the phases, for burstiness across images: sum the votes of every query feature in one segment [Q]."""
    totals, nothing = np.zeros(len(query.words)), np.empty(0, np.float32)
    if path_of(query, options) == "matches":
        _vote_matches(segment, query, weights, options, nothing, totals)
    else:
        _vote_near(segment, query, weights, options, nothing, totals, runs)
    return totals


def _vote_lists(segment: Segment, query: Query, weights: Weights, runs: Runs | None) -> npt.NDArray[np.float32]:
    """Add each list once with the summed weight of its query features, then correct the features that lists share."""
    scores = np.zeros(segment.n_images, weights.delta.dtype)
    lists = (*weights.lists, segment.arrays["starts"])
    postings = segment.arrays["postings"]
    if not weights.delta.any():
        score.add_lists(*lists, postings, scores)
        return scores.astype(np.float32, copy=False)
    runs = runs or find_runs(segment, query)
    if len(query.sizes) == 2:
        shared = (*query.run_order, runs.begins, runs.ends, weights.delta)
        score.add_lists_and_runs(*lists, *shared, postings, scores)
    else:
        score.add_lists(*lists, postings, scores)
        score.vote_shared(*_shared_arrays(segment, query, runs), weights.delta, scores)
    return scores.astype(np.float32, copy=False)


def _shared_arrays(segment: Segment, query: Query, runs: Runs) -> tuple[Array, ...]:
    lists = tuple(segment.arrays[name] for name in ("starts", "columns", "postings"))
    return (query.words[:, :, 0], query.bases, runs.begins, runs.ends, *lists)


def _signature_arrays(segment: Segment, query: Query) -> tuple[Array, Array]:
    assert query.signatures is not None
    return segment.arrays["signatures"], query.signatures[:, :, 0]


def _vote_near(segment: Segment, query: Query, weights: Weights, options: SearchOptions, scores: npt.NDArray[np.float32],
               totals: npt.NDArray[np.float64], runs: Runs | None) -> None:  # fmt: skip
    runs = runs or find_runs(segment, query)
    evidence.vote_near(*_shared_arrays(segment, query, runs), *_signature_arrays(segment, query), weights.idf[:, :, 0],
                       weights.factors, weights.closeness, weights.cells, weights.table, segment.alive,
                       BURSTINESS[options.burstiness], weights.on_difference, totals, scores)  # fmt: skip


def _vote_matches(segment: Segment, query: Query, weights: Weights, options: SearchOptions, scores: npt.NDArray[np.float32],
                  totals: npt.NDArray[np.float64]) -> None:  # fmt: skip
    signatures, query_signatures = segment.arrays["signatures"], query.signatures
    if query_signatures is None:
        signatures, query_signatures = np.empty((0, 0), np.uint64), np.empty((*query.words.shape, 0), np.uint64)
    matches.vote_matches(query.words, query.bases, *_run_arrays(segment), signatures, query_signatures, weights.idf,
                         weights.factors, weights.closeness, weights.cells, weights.table, segment.alive, query.masks,
                         options.sets == "image", BURSTINESS[options.burstiness], weights.on_difference, totals,
                         scores)  # fmt: skip


def complete(counts: npt.NDArray[np.int64], query: Query, statistics: Statistics, options: SearchOptions) -> None:
    """Put what phase 1 need not count into its sum over all segments [Q, 2^K]: the features in one list only."""
    if query.words.shape[2] > 1 or options.sets == "image":
        return  # counted as well
    words = query.words[:, :, 0]
    lengths = np.where(words >= 0, statistics.occurrences[query.numbers[:, :, 0]], 0)
    masks = np.arange(counts.shape[1])
    for k in range(len(query.sizes)):  # its length, less all that it shares
        shared = masks[(masks >> k & 1 == 1) & (masks != 1 << k)]
        counts[:, 1 << k] = lengths[:, k] - counts[:, shared].sum(axis=1)


def weigh(query: Query, counts: npt.NDArray[np.int64], statistics: Statistics, options: SearchOptions) -> Weights:
    """Turn the counts of the whole collection into the weights that every segment votes with."""
    squares = statistics.squares_of(options.idf)
    on = options.burstiness_on
    cells, table = joint_evidence(query, counts, options)
    return Weights(
        factors=merging.factors(counts, options, statistics.n_images),
        numbers=query.numbers,
        idf=np.where(query.words >= 0, squares[query.numbers], 0.0).astype(np.float32),
        closeness=weighting.closeness(options, query.bits),
        cells=cells,
        table=table,
        totals=np.zeros(len(query.words)),
        on_difference=on == "difference" or (on == "auto" and options.merge == "bayes"),
    )


def joint_evidence(query: Query, counts: npt.NDArray[np.int64],
                   options: SearchOptions) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:  # fmt: skip
    """Give, for `likelihood`, the row of the table for every query feature and set [Q, 2^K], and the table."""
    if options.merge != "likelihood":
        return np.empty((0, 0), np.int64), np.empty((0, 0), np.float32)
    held = options.evidence
    assert held is not None, "the engine gives the options their table"
    bins = np.zeros(counts.shape, np.int64)
    if held.edges:
        ratios = merging.ratios(counts)
        singles = 1 << np.arange(held.n_vocabularies)
        ratios[:, singles] = ratios[:, -1:]
        bins = np.searchsorted(held.edges, ratios)
    table = np.array(held.rows, np.float32)
    if options.hamming is not None:
        table[:, options.hamming + 1 :] = 0
    return np.array(held.groups) * (len(held.edges) + 1) + bins, table
