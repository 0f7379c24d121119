"""Assignment of descriptors to their nearest words in K vocabularies, with Hamming signatures.

Words are grouped into cells by a coarse k-means. A descriptor is compared with the words of its nearest cells, first by an
upper bound of the score from the first principal coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError, VocabularyError
from polyvoc.kernels.compiler import WORDS
from polyvoc.kernels.vectors import (
    STRIDE,
    Points,
    Probes,
    WordTable,
    bound_all,
    choose_cells,
    group_by_cell,
    group_members,
    rotate_rows,
    scan_cells,
    sign_words,
    sum_by_word,
)
from polyvoc.threads import count_threads, thread_map
from polyvoc.types import Descriptors, Floats32, Signatures, Words
from polyvoc.vocabulary.vocabulary import StoredCells, Vocabulary, check_vocabularies

_CELL_BATCH = 8192  # rows whose cells are found together
_BATCH = 2048  # descriptors taken together: enough to fill the cells, few enough to share among threads
_HEAD_SHARE = 0.965  # of the words' variance lies in their heads: more coordinates cost more than they rule out
_WORDS_PER_CELL = 80
_MAX_CELLS = 2048
_EXACT = 2048  # vocabularies up to this size are searched exhaustively
_PROBES = 2.0  # cells probed, over the square root of their number: agreement with the exact nearest word 0.996 to 0.999
_SLACK = 8  # up to one cell in so many more is probed than wanted: choosing exactly would take longer
_MIN_PROBES = 40  # small vocabularies can afford a larger share
_ROUNDS = 4  # of the k-means that places the cells
_SAMPLE = 8  # words per cell in that k-means
_AXES_SAMPLE = 4096  # words that the principal axes are computed from


class Quantiser:
    """K vocabularies ready to use: nearest words and Hamming signatures. May be shared by threads."""

    def __init__(self, vocabularies: Sequence[Vocabulary], threads: int | None = None, signed: bool | None = None) -> None:
        """Prepare the vocabularies (see `check_vocabularies`) for at most so many threads, None: one per core.

        signed: whether signatures are made; None: if all vocabularies have bits.
        """
        self.vocabularies = tuple(vocabularies)
        self._assigner = Assigner(self.vocabularies, threads)
        possible = all(vocabulary.bits > 0 for vocabulary in self.vocabularies)
        self.signed = possible if signed is None else signed  # whether signatures are made

    def quantise(self, descriptors: Descriptors, assignments: int = 1) -> tuple[Words, Signatures | None]:
        """Return words and signatures of descriptors [n, dimension]: [n, K], or [n, K, assignments] if more than one."""
        words = self._assigner.assign(descriptors, assignments)
        rotation = self.vocabularies[0].rotation
        if rotation is None or not self.signed:
            return words, None
        return words, sign(project(descriptors, rotation), words, self.vocabularies)


def project(descriptors: Descriptors, rotation: Floats32) -> Floats32:
    """Return the coordinates [n, bits] of `descriptors` [n, dimension] along the axes of the rotation."""
    table = np.asarray(descriptors, dtype=np.float32)
    if table.ndim != 2 or table.shape[1] != rotation.shape[1]:
        raise OptionError(f"descriptors of shape {table.shape} do not fit a rotation of {rotation.shape[1]} numbers")
    return table @ rotation.T


def sign(z: Floats32, words: npt.NDArray[np.integer], vocabularies: Sequence[Vocabulary]) -> Signatures:
    """Return the signatures of descriptors with coordinates `z` [n, bits]: uint64, one for each word, or two beyond 64 bits.

    `words` is [n, K] or [n, K, assignments], for K vocabularies; two uint64 are one more axis at the end. Bit i is set if z_i
    lies strictly above the word's median. The word -1 (none) has the signature 0.
    """
    if words.ndim not in (2, 3) or words.shape[:2] != (len(z), len(vocabularies)):
        raise OptionError(f"words {words.shape} do not fit {len(z)} descriptors and {len(vocabularies)} vocabularies")
    assigned = words if words.ndim == 3 else words[:, :, None]  # [n, K, assignments]
    points = np.ascontiguousarray(z, dtype=np.float32)
    planes = (z.shape[1] + 63) // 64
    signatures: Signatures = np.empty((*assigned.shape, planes), dtype=np.uint64)
    for k, vocabulary in enumerate(vocabularies):
        thresholds = vocabulary.thresholds
        if thresholds is None or thresholds.shape[1] != z.shape[1]:
            bits = f"{vocabulary.bits} bits, not {z.shape[1]}"
            raise VocabularyError(f"vocabulary {k} has signatures of {bits}: train all with the same bits")
        of_k = np.ascontiguousarray(assigned[:, k], dtype=np.int32)
        if of_k.size and not -1 <= of_k.min() <= of_k.max() < len(thresholds):
            raise OptionError(f"words of vocabulary {k} should be -1 to {len(thresholds) - 1}")
        signed = np.empty((*of_k.shape, planes), dtype=np.uint64)
        sign_words(points, of_k, thresholds, signed)
        signatures[:, k] = signed
    return signatures.reshape(words.shape if planes == 1 else (*words.shape, planes))


class Assigner:
    """Finds the nearest words of descriptors in K vocabularies. May be shared by threads."""

    def __init__(self, vocabularies: Sequence[Vocabulary], threads: int | None = None) -> None:
        """Prepare the vocabularies (see `check_vocabularies`) for at most so many threads, None: one per core."""
        check_vocabularies(vocabularies)
        self._threads = count_threads(threads)
        self.dimension = vocabularies[0].dimension
        self.sizes = tuple(vocabulary.size for vocabulary in vocabularies)
        # Cells fine enough for a large vocabulary would separate a descriptor from its word in a small one.
        groups: dict[int, list[int]] = {}
        for k, size in enumerate(self.sizes):
            groups.setdefault(0 if size <= _EXACT else round(np.log2(size)), []).append(k)
        self._groups = [(ks, *_prepare([vocabularies[k] for k in ks])) for ks in groups.values()]

    def assign(self, descriptors: npt.ArrayLike, assignments: int = 1, effort: float = 1.0) -> Words:
        """Return the nearest word of each descriptor [n, dimension] in each vocabulary: int32 [n, K].

        With `assignments` A > 1, return the A nearest words, nearest first: int32 [n, K, A]. effort: share of the usual probes.
        """
        if not 1 <= assignments <= min(self.sizes):
            limit = f"{min(self.sizes)}, the size of the smallest vocabulary"
            raise OptionError(f"assignments={assignments!r} should be 1 to {limit}")

        def assign_batch(rows: Floats32) -> Words:
            words = np.empty((len(rows), len(self.sizes), assignments), dtype=np.int32)
            for ks, cells, table in self._groups:
                points = cells.axes.rotate(rows)
                words[:, ks] = _nearest_words(points, cells.probe(points, effort), cells, table, (len(ks), assignments))
            return words

        parts = batches(self._checked(descriptors), _BATCH, self._threads)
        words = np.concatenate(thread_map(assign_batch, parts, self._threads))
        return words[:, :, 0] if assignments == 1 else words

    def _checked(self, descriptors: npt.ArrayLike) -> Floats32:
        table = np.ascontiguousarray(descriptors, dtype=np.float32)
        if table.ndim != 2 or table.shape[1] != self.dimension:
            fit = f"do not fit vocabularies of dimension {self.dimension}"
            raise VocabularyError(f"descriptors of shape {table.shape} {fit}: use the same features")
        if not np.isfinite(table).all():
            raise OptionError("descriptors: some values are not finite; extract them again")
        return table


class Cells:
    """A coarse partition of the space, in the coordinates of principal axes: a point belongs to the nearest of the centres."""

    def __init__(self, centres: Floats32, axes: PrincipalAxes) -> None:
        """Partition by centres [cells, padded]."""
        self.count = len(centres)
        self.centres = centres
        self.axes = axes
        table = axes.word_table([centres], [np.zeros(len(centres), dtype=np.int64)], 1)
        self._table = table._replace(tail=np.zeros_like(table.tail))  # heads alone are near enough for cells

    @classmethod
    def among(cls, words: Floats32, axes: PrincipalAxes) -> Cells:
        """Place cells by a short k-means of words [n, padded]; one single cell if they are few."""
        if len(words) <= _EXACT:
            return cls(words[:1], axes)
        count = min(_MAX_CELLS, 1 << round(np.log2(len(words) / _WORDS_PER_CELL)))
        sample = words[np.random.default_rng(0).permutation(len(words))[: _SAMPLE * count]]
        centres = sample[:count].copy()
        for _ in range(_ROUNDS):
            cell = cls(centres, axes).of(sample)
            sums = np.zeros(centres.shape, dtype=np.float64)
            sum_by_word(sample, cell, sums)
            sizes = np.bincount(cell, minlength=count)
            centres[sizes > 0] = sums[sizes > 0] / sizes[sizes > 0, None]
        return cls(centres, axes)

    def of(self, rows: Floats32) -> Words:
        """Return the cell of each of rows [n, padded]: int32 [n]."""
        parts = thread_map(lambda batch: self._scores(self.axes.points(batch)).argmax(axis=1), batches(rows, _CELL_BATCH))
        return np.concatenate(parts).astype(np.int32)

    def word_table(self, vocabularies: Sequence[Floats32]) -> WordTable:
        """Return the words [size, padded] of several vocabularies, grouped by cell."""
        return self.axes.word_table(vocabularies, [self.of(words) for words in vocabularies], self.count)

    def probe(self, points: Points, effort: float = 1.0) -> tuple[Probes, Probes]:
        """Return which of its nearest cells each point probes, `effort` times the usual number: its own, then the others.

        The sooner a near word is found, the fewer others need their exact score.
        """
        count = min(self.count, max(1, round(effort * max(_MIN_PROBES, _PROBES * self.count**0.5))))
        n, start = len(points.rows), np.empty((2, self.count + 1), np.int64)
        most = min(self.count, count + count // _SLACK)
        chosen, counts = np.empty((n, most), np.int32), np.empty(n, np.int64)
        choose_cells(self._scores(points), count, most, chosen, counts)
        members = np.empty(int(counts.sum()), np.int32)
        group_members(chosen, counts, members, start)
        return Probes(members[:n], start[0]), Probes(members[n:], start[1])

    def probe_all(self, points: Points) -> Probes:
        """Return probes of every cell by every point."""
        return self._group(self._scores(points), np.full(len(points.rows), -np.inf, dtype=np.float32))

    def _scores(self, points: Points) -> Floats32:
        """Return how near each cell is to each point: [n, cells], higher is nearer."""
        scores = np.empty((len(points.rows), len(self._table.rows)), dtype=np.float32)
        bound_all(points, self._table, scores)
        return scores[:, : self.count]

    def _group(self, scores: Floats32, least: Floats32) -> Probes:
        """Return probes of the cells where a point's score, [n, cells], is at least `least` [n]."""
        members = np.empty(np.count_nonzero(scores >= least[:, None]), dtype=np.int32)
        start = np.empty(self.count + 1, dtype=np.int64)
        group_by_cell(scores, least, members, start)
        return Probes(members, start)


@dataclass(frozen=True, eq=False)
class PrincipalAxes:
    """Principal axes of a vocabulary's words: a shift and a rotation, which keep distances."""

    mean: Floats32  # [dimension]
    axes: Floats32  # [dimension, padded]  columns are orthonormal; padded with zeros to a multiple of STRIDE
    head: int  # coordinates in the head, a multiple of STRIDE

    @classmethod
    def of(cls, words: Floats32) -> PrincipalAxes:
        """Return the axes of words [n, dimension], in the order of their variance."""
        sample = words[:: -(-len(words) // _AXES_SAMPLE)]
        mean = sample.mean(axis=0, dtype=np.float64)
        centred = sample - mean
        variance, axes = np.linalg.eigh(centred.T @ centred)  # ascending
        share = np.cumsum(variance[::-1]) / max(variance.sum(), np.finfo(np.float64).tiny)
        needed, dimension = int(np.searchsorted(share, _HEAD_SHARE)) + 1, words.shape[1]
        padded = np.zeros((dimension, _padded(dimension)), dtype=np.float32)
        padded[:, :dimension] = axes[:, ::-1]
        return cls(mean.astype(np.float32), padded, _padded(min(needed, dimension)))

    @classmethod
    def stored(cls, mean: Floats32, axes: Floats32, words: Floats32) -> PrincipalAxes:
        """Return stored axes of words [n, dimension], with the head that they need."""
        sample = (words[:: -(-len(words) // _AXES_SAMPLE)] - mean) @ axes
        share = np.cumsum((sample**2).sum(axis=0, dtype=np.float64))
        needed = int(np.searchsorted(share / max(share[-1], np.finfo(np.float64).tiny), _HEAD_SHARE)) + 1
        return cls(mean, axes, _padded(min(needed, len(mean))))

    def rotate(self, descriptors: Floats32) -> Points:
        """Return descriptors [n, dimension] in the coordinates of the axes."""
        rows = np.empty((len(descriptors), self.axes.shape[1]), dtype=np.float32)
        rotate_rows(np.ascontiguousarray(descriptors, dtype=np.float32), self.mean, self.axes, rows)
        return self.points(rows)

    def unrotate(self, rows: Floats32) -> Floats32:
        """Return rows [n, padded] in the coordinates of the descriptors."""
        return rows @ self.axes.T + self.mean

    def points(self, rows: Floats32) -> Points:
        """Return rows [n, padded], which are in these coordinates already, with the norms of their tails."""
        return Points(rows, self._tails(rows))

    def _tails(self, rows: Floats32) -> Floats32:
        """Return the norms of the coordinates behind the head [n]."""
        tail = rows[:, self.head :]
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", tail, tail)))

    def word_table(self, vocabularies: Sequence[Floats32], cells: Sequence[npt.NDArray[np.integer]], count: int) -> WordTable:
        """Group words [size, padded] of K vocabularies by (cell, vocabulary); `cells[k]` [size] are those of k's words."""
        n_vocabularies = len(vocabularies)
        group = np.concatenate([cell.astype(np.int64) * n_vocabularies + k for k, cell in enumerate(cells)])
        sizes = np.bincount(group, minlength=count * n_vocabularies)
        start = _starts(sizes + -sizes % WORDS)
        order = np.argsort(group, kind="stable")
        row = np.arange(len(group)) + (start - _starts(sizes))[group[order]]
        words = np.concatenate(vocabularies)
        rows = np.zeros((start[-1], words.shape[1]), dtype=np.float32)
        rows[row] = words[order]
        half, number = np.full(len(rows), np.inf, dtype=np.float32), np.full(len(rows), -1, dtype=np.int32)
        half[row] = np.einsum("ij,ij->i", words, words)[order] / 2
        number[row] = np.concatenate([np.arange(len(words)) for words in vocabularies])[order]
        heads = rows[:, : self.head].reshape(-1, WORDS, self.head).transpose(0, 2, 1)
        return WordTable(heads.ravel(), rows, self._tails(rows), half, number, start)


def batches(rows: Floats32, size: int = _BATCH, threads: int | None = None) -> list[Floats32]:
    """Cut rows into batches of at most `size`, and few rows into one for each thread (None: each core)."""
    return np.array_split(rows, max(-(-len(rows) // size), min(threads or count_threads(), len(rows) // 256), 1))


def _prepare(vocabularies: Sequence[Vocabulary]) -> tuple[Cells, WordTable]:
    """Return cells for vocabularies of about the same size, and their words grouped by cell."""
    stored = vocabularies[0].cells if len(vocabularies) == 1 else None
    if stored is not None:
        axes = PrincipalAxes.stored(stored.mean, stored.axes, vocabularies[0].centroids)
        rows = axes.rotate(vocabularies[0].centroids).rows
        return (cells := Cells(stored.centres, axes)), axes.word_table([rows], [stored.cell_of], cells.count)
    words = [vocabulary.centroids for vocabulary in vocabularies]
    sample = np.concatenate(words)[:: len(words)]  # of each; together as many as one has
    axes = PrincipalAxes.of(sample)
    rotated = [axes.rotate(part).rows for part in words]
    cells = Cells.among(rotated[0] if len(words) == 1 else axes.rotate(sample).rows, axes)
    return cells, cells.word_table(rotated)


def prepare_cells(vocabulary: Vocabulary) -> StoredCells | None:
    """Return the cells of a vocabulary, to be stored with it; None for a small one, which has a single cell."""
    axes = PrincipalAxes.of(vocabulary.centroids)
    rows = axes.rotate(vocabulary.centroids).rows
    cells = Cells.among(rows, axes)
    if cells.count == 1:
        return None
    return StoredCells(axes.mean, axes.axes, cells.centres, cells.of(rows).astype(np.uint16))


def _nearest_words(points: Points, probes: Sequence[Probes], cells: Cells, table: WordTable, shape: tuple[int, int]) -> Words:
    """Return the nearest words of points in the probed cells: int32 [n, K, assignments] for shape = (K, assignments)."""
    nearest = _scan(points, probes, table, shape)
    missed = (nearest < 0).any(axis=(1, 2))  # their cells hold too few words: scan all cells
    if missed.any():
        rest = Points(points.rows[missed], points.tail[missed])
        nearest[missed] = _scan(rest, [cells.probe_all(rest)], table, shape)
    return nearest


def _scan(points: Points, probes: Sequence[Probes], table: WordTable, shape: tuple[int, int]) -> Words:
    """Return the nearest words of points in the probed cells, -1 where these hold too few."""
    best = np.full((len(points.rows), *shape), -np.inf, dtype=np.float32)
    nearest = np.full(best.shape, -1, dtype=np.int32)
    for probe in probes:
        scan_cells(points, probe, table, best, nearest)
    return nearest


def _starts(counts: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Return where each group starts, and the total: [0, c0, c0 + c1, ...]."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _padded(count: int) -> int:
    return -(-count // STRIDE) * STRIDE
