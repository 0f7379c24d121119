"""Descriptor -> nearest words (and signatures)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError, VocabularyError
from polyvoc.kernels.vectors import (
    BLOCK,
    STRIDE,
    Points,
    Probes,
    WordTable,
    bound_all,
    group_by_cell,
    rotate_rows,
    scan_cells,
    sum_by_word,
)
from polyvoc.threads import _cores, map_in_threads
from polyvoc.types import Descriptors, Floats32, Signatures, Words
from polyvoc.vocabulary.vocabulary import Vocabulary, project, shared_rotation, sign

_BATCH = 2048  # descriptors taken together: enough to fill the cells, few enough to share among threads
_HEAD_SHARE = 0.93  # of the words' variance lies in their heads
_WORDS_PER_CELL = 80
_MAX_CELLS = 2048
_EXACT = 2048  # vocabularies up to this size are searched exhaustively
_PROBES = 2.0  # cells probed, over the square root of their number: agreement with the exact nearest word 0.996 to 0.999
_MIN_PROBES = 40  # the least: small vocabularies can afford a larger share
_ROUNDS = 4  # of the k-means that places the cells
_SAMPLE = 8  # words per cell which that k-means looks at
_AXES_SAMPLE = 4096  # words that the basis looks at


@dataclass(frozen=True, eq=False)
class PrincipalAxes:
    """Principal axes of a vocabulary's words: a shift and a turn, which leave distances as they are."""

    mean: Floats32  # [dimension]
    axes: Floats32  # [dimension, padded]  columns are orthonormal; padded with zeros to a multiple of STRIDE
    head: int  # coordinates in the head, a multiple of STRIDE

    @classmethod
    def of(cls, words: Floats32) -> PrincipalAxes:
        """Find the axes of words [n, dimension], in the order of their variance."""
        some = words[:: -(-len(words) // _AXES_SAMPLE)]
        mean = some.mean(axis=0, dtype=np.float64)
        centred = some - mean
        variance, axes = np.linalg.eigh(centred.T @ centred)  # ascending
        share = np.cumsum(variance[::-1]) / max(variance.sum(), np.finfo(np.float64).tiny)
        needed = int(np.searchsorted(share, _HEAD_SHARE)) + 1
        dimension = words.shape[1]
        padded = np.zeros((dimension, _padded(dimension)), dtype=np.float32)
        padded[:, :dimension] = axes[:, ::-1]
        return cls(mean.astype(np.float32), padded, _padded(min(needed, dimension)))

    def turn(self, descriptors: Floats32) -> Points:
        """Give descriptors [n, dimension] in the coordinates of the basis."""
        rows = np.empty((len(descriptors), self.axes.shape[1]), dtype=np.float32)
        rotate_rows(np.ascontiguousarray(descriptors, dtype=np.float32), self.mean, self.axes, rows)
        return self.points(rows)

    def points(self, rows: Floats32) -> Points:
        """Give rows [n, padded], which are in these coordinates already, with the norms of their tails."""
        tail = rows[:, self.head :]
        return Points(rows, np.sqrt(np.einsum("ij,ij->i", tail, tail)))

    def back(self, rows: Floats32) -> Floats32:
        """Give rows [n, padded] in the coordinates of the descriptors."""
        return rows @ self.axes.T + self.mean

    def arrange(self, vocabularies: Sequence[Floats32], cells: Sequence[npt.NDArray[np.integer]], count: int) -> WordTable:
        """Group words [size, padded] of K vocabularies by (cell, vocabulary); `cells[k]` [size] are those of k's words."""
        kinds = len(vocabularies)
        group = np.concatenate([cell.astype(np.int64) * kinds + k for k, cell in enumerate(cells)])
        held = np.bincount(group, minlength=count * kinds)
        padded = held.reshape(count, kinds).copy()
        padded[:, -1] += -padded.sum(axis=1) % BLOCK
        start = _starts(padded.ravel())
        order = np.argsort(group, kind="stable")
        place = np.arange(len(group)) + (start - _starts(held))[group[order]]
        words = np.concatenate(vocabularies)
        rows = np.zeros((start[-1], words.shape[1]), dtype=np.float32)
        rows[place] = words[order]
        half = np.full(len(rows), np.inf, dtype=np.float32)
        half[place] = np.einsum("ij,ij->i", words, words)[order] / 2
        number = np.full(len(rows), -1, dtype=np.int32)
        number[place] = np.concatenate([np.arange(len(words)) for words in vocabularies])[order]
        parts = np.split(rows[:, : self.head], start[kinds:-1:kinds])
        heads = np.concatenate([part.T.ravel() for part in parts])
        return WordTable(heads, rows, self.points(rows).tail, half, number, start)


class Cells:
    """A coarse partition of the space, in the coordinates of a basis: a point belongs to the nearest of the centres."""

    def __init__(self, centres: Floats32, basis: PrincipalAxes) -> None:
        """Partition by centres [cells, padded]."""
        self.count = len(centres)
        self.basis = basis
        table = basis.arrange([centres], [np.zeros(len(centres), dtype=np.int64)], 1)
        self._table = table._replace(tail=np.zeros_like(table.tail))  # heads alone are near enough for cells

    @classmethod
    def among(cls, words: Floats32, basis: PrincipalAxes) -> Cells:
        """Place cells by a short k-means of words [n, padded]; one single cell if they are few."""
        if len(words) <= _EXACT:
            return cls(words[:1], basis)
        count = min(_MAX_CELLS, 1 << round(np.log2(len(words) / _WORDS_PER_CELL)))
        sample = words[np.random.default_rng(0).permutation(len(words))[: _SAMPLE * count]]
        centres = sample[:count].copy()
        for _ in range(_ROUNDS):
            cell = cls(centres, basis).of(sample)
            sums = np.zeros(centres.shape, dtype=np.float64)
            sum_by_word(sample, cell, sums)
            held = np.bincount(cell, minlength=count)
            centres[held > 0] = sums[held > 0] / held[held > 0, None]
        return cls(centres, basis)

    def of(self, rows: Floats32) -> Words:
        """Give the cell of each of rows [n, padded]: int32 [n]."""

        def cell(batch: Floats32) -> Words:
            cells: Words = self._scores(self.basis.points(batch)).argmax(axis=1).astype(np.int32)
            return cells

        return np.concatenate(map_in_threads(cell, batches(rows)))

    def arrange(self, vocabularies: Sequence[Floats32]) -> WordTable:
        """Sort the words [size, padded] of several vocabularies into the cells."""
        return self.basis.arrange(vocabularies, [self.of(words) for words in vocabularies], self.count)

    def probe(self, points: Points, effort: float = 1.0) -> tuple[Probes, Probes]:
        """Let each point look into its nearest cells, `effort` times the usual number: first its own, then the others.

        Its own cell first, because the sooner a near word is known, the fewer others need a second look.
        """
        count = min(self.count, round(effort * max(_MIN_PROBES, _PROBES * self.count**0.5)))
        scores = self._scores(points)
        least = np.partition(scores, self.count - count, axis=1)[:, self.count - count]
        nearest = scores.max(axis=1)
        own = self._group(scores, nearest)
        scores[scores == nearest[:, None]] = -np.inf
        return own, self._group(scores, least)

    def probe_all(self, points: Points) -> Probes:
        """Let each point look into every cell."""
        return self._group(self._scores(points), np.full(len(points.rows), -np.inf, dtype=np.float32))

    def _scores(self, points: Points) -> Floats32:
        """Give how near each cell is: [n, cells], higher is nearer."""
        scores = np.empty((len(points.rows), len(self._table.rows)), dtype=np.float32)
        bound_all(points, self._table, scores)
        return scores[:, : self.count]

    def _group(self, scores: Floats32, least: Floats32) -> Probes:
        """Let each point look into the cells where its score, [n, cells], is at least `least` [n]."""
        members = np.empty(np.count_nonzero(scores >= least[:, None]), dtype=np.int32)
        start = np.empty(self.count + 1, dtype=np.int64)
        group_by_cell(scores, least, members, start)
        return Probes(members, start)


class Assigner:
    """Finds the nearest words of descriptors in K vocabularies. Safe to share between threads."""

    def __init__(self, vocabularies: Sequence[Vocabulary], threads: int | None = None) -> None:
        """Prepare the search, on so many threads; the vocabularies may differ in size but not in kind."""
        self._threads = threads
        if not vocabularies:
            raise OptionError("no vocabulary given: give at least one")
        kinds = {vocabulary.kind: None for vocabulary in vocabularies}
        if len(kinds) > 1:
            raise VocabularyError(
                f"vocabularies of {' and '.join(map(str, kinds))} do not go together: train all on the same features"
            )
        self.dimension = vocabularies[0].dimension
        self.sizes = tuple(vocabulary.size for vocabulary in vocabularies)
        # Cells fine enough for a large vocabulary would part a descriptor from its word in a small one.
        groups: dict[int, list[int]] = {}
        for k, size in enumerate(self.sizes):
            groups.setdefault(0 if size <= _EXACT else round(np.log2(size)), []).append(k)
        self._groups = [(ks, *_prepare([vocabularies[k].centroids for k in ks])) for ks in groups.values()]

    def assign(self, descriptors: npt.ArrayLike, assignments: int = 1) -> Words:
        """Give the nearest word of each descriptor [n, dimension] in each vocabulary: int32 [n, K].

        With `assignments` A > 1, give the A nearest words, nearest first: int32 [n, K, A].
        """
        if not 1 <= assignments <= min(self.sizes):
            raise OptionError(
                f"assignments={assignments!r} should be 1 to {min(self.sizes)}, the size of the smallest vocabulary"
            )
        table = self._checked(descriptors)

        def batch(rows: Floats32) -> Words:
            words = np.empty((len(rows), len(self.sizes), assignments), dtype=np.int32)
            for ks, cells, layout in self._groups:
                words[:, ks] = _nearest_words(cells.basis.turn(rows), cells, layout, (len(ks), assignments))
            return words

        words = np.concatenate(map_in_threads(batch, batches(table), self._threads))
        return words[:, :, 0] if assignments == 1 else words

    def _checked(self, descriptors: npt.ArrayLike) -> Floats32:
        table = np.ascontiguousarray(descriptors, dtype=np.float32)
        if table.ndim != 2 or table.shape[1] != self.dimension:
            raise VocabularyError(
                f"descriptors of shape {table.shape} do not fit vocabularies of dimension {self.dimension}: "
                "use the same features"
            )
        if not np.isfinite(table).all():
            raise OptionError("descriptors: some values are not finite; extract them again")
        return table


def batches(rows: Floats32, size: int = _BATCH) -> list[Floats32]:
    """Cut rows into batches of at most `size`, and small ones into one for each core."""
    count = max(-(-len(rows) // size), min(_cores(), len(rows) // 256), 1)
    return np.array_split(rows, count)


def _prepare(vocabularies: Sequence[Floats32]) -> tuple[Cells, WordTable]:
    """Find a basis and place cells for vocabularies of about the same size, and sort their words into them."""
    some = np.concatenate(vocabularies)[:: len(vocabularies)]  # of every one; together as many as one has
    basis = PrincipalAxes.of(some)
    cells = Cells.among(basis.turn(some).rows, basis)
    return cells, cells.arrange([basis.turn(words).rows for words in vocabularies])


def _nearest_words(points: Points, cells: Cells, table: WordTable, shape: tuple[int, int]) -> Words:
    """Give the nearest words of points: int32 [n, K, assignments] for shape = (K, assignments)."""
    best = np.full((len(points.rows), *shape), -np.inf, dtype=np.float32)
    nearest = np.full(best.shape, -1, dtype=np.int32)
    for probes in cells.probe(points):
        scan_cells(points, probes, table, best, nearest)
    missed = (nearest < 0).any(axis=(1, 2))  # their cells hold too few words: look everywhere
    if missed.any():
        lost = Points(points.rows[missed], points.tail[missed])
        best = np.full((len(lost.rows), *shape), -np.inf, dtype=np.float32)
        found = np.full(best.shape, -1, dtype=np.int32)
        scan_cells(lost, cells.probe_all(lost), table, best, found)
        nearest[missed] = found
    return nearest


def _starts(counts: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Give where each group starts, and the total: [0, c0, c0 + c1, ...]."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _padded(count: int) -> int:
    return -(-count // STRIDE) * STRIDE


class Quantiser:
    """K vocabularies ready to use: nearest words and Hamming signatures. May be shared by threads."""

    def __init__(self, vocabularies: Sequence[Vocabulary], threads: int | None = None) -> None:
        """Prepare the vocabularies; those of one index have the same rotation, or none has signatures.

        threads: to use at most, None for all cores.
        """
        self.vocabularies = tuple(vocabularies)
        self._assigner = Assigner(self.vocabularies, threads)
        signed = all(vocabulary.bits > 0 for vocabulary in self.vocabularies)
        self._rotation = shared_rotation(self.vocabularies) if signed else None

    @property
    def signed(self) -> bool:
        """Tell whether the vocabularies give signatures."""
        return self._rotation is not None

    def quantise(self, descriptors: Descriptors, assignments: int = 1) -> tuple[Words, Signatures | None]:
        """Give words and signatures of descriptors [n, dimension]: [n, K], or [n, K, assignments] if more than one."""
        words = self._assigner.assign(descriptors, assignments)
        if self._rotation is None:
            return words, None
        return words, sign(project(descriptors, self._rotation), words, self.vocabularies)
