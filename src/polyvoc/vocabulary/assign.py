"""Assignment of descriptors to their nearest words in K vocabularies, with Hamming signatures.

Words are grouped into cells by a coarse k-means. A descriptor is compared with the words of its nearest cells, first by an
upper bound of the score from the first principal coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError, VocabularyError
from polyvoc.kernels.compiler import WORDS
from polyvoc.kernels.vectors import (
    STRIDE,
    Blocks,
    Heads,
    Points,
    Probes,
    WordTable,
    centre_rows,
    choose_cells,
    group_members,
    largest_products,
    multiply,
    round_heads,
    scan_cells,
    sign_words,
    sum_by_word,
)
from polyvoc.threads import count_threads, thread_map
from polyvoc.types import Array, Descriptors, Floats32, Signatures, Words
from polyvoc.vocabulary.products import make_blocks, rotate
from polyvoc.vocabulary.vocabulary import ByteTable, StoredCells, Vocabulary, check_vocabularies

_CELL_BATCH = 8192  # rows whose cells are found together
_BATCH = 2048  # descriptors taken together: enough to fill the cells, few enough to share among threads
_HEAD_SHARE = 0.965  # of the words' variance lies in their heads, the coordinates of the bounds
_LENGTH = np.float32((1 << 15) - 64)  # of the longest head in its units: the product of two, rounded, fits into 32 bits
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

    def quantise(self, descriptors: Descriptors, assignments: int = 1, effort: float = 1.0) -> tuple[Words, Signatures | None]:
        """Return words and signatures of descriptors [n, dimension]: [n, K], or [n, K, assignments] if more than one.

        effort: share of the usual search for the words.
        """
        words = self._assigner.assign(descriptors, assignments, effort)
        rotation = self.vocabularies[0].rotation
        if rotation is None or not self.signed:
            return words, None
        return words, sign(project(descriptors, rotation), words, self.vocabularies)


def project(descriptors: Descriptors, rotation: Floats32) -> Floats32:
    """Return the coordinates [n, bits] of `descriptors` [n, dimension] along the axes of the rotation."""
    table = np.asarray(descriptors, dtype=np.float32)
    if table.ndim != 2 or table.shape[1] != rotation.shape[1]:
        raise OptionError(f"descriptors of shape {table.shape} do not fit a rotation of {rotation.shape[1]} numbers")
    return rotate(table, rotation)


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
        self._bytes = [vocabulary.words for vocabulary in vocabularies]
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
                points = cells.axes.points_of(rows, [self._bytes[k] for k in ks])
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
        half = np.einsum("ij,ij->i", centres, centres) / 2
        heads = centres[:, : axes.head]  # near enough for cells
        self._blocks, (rounded, unit) = make_blocks(heads.T, half), round_words(heads)
        self._heads = Heads(block_words(np.pad(rounded, ((0, -len(heads) % WORDS), (0, 0)))), unit)

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

        def find(heads: Floats32) -> Words:
            nearest = np.empty(len(heads), np.int32)
            largest_products(np.ascontiguousarray(heads), self._blocks, nearest)
            return nearest

        return np.concatenate(thread_map(find, batches(rows[:, : self.axes.head], _CELL_BATCH)))

    def word_table(self, rows: Floats32) -> WordTable:
        """Return words in the coordinates of the axes, [size, padded], grouped by cell."""
        return _group_words([_WordPart.of_rows(rows, self.axes.head)], [self.of(rows)], self.count)

    def probe(self, points: Points, effort: float = 1.0) -> tuple[Probes, Probes]:
        """Return which of its nearest cells each point probes, `effort` times the usual number: its own, then the others.

        The sooner a near word is found, the fewer others need their exact score.
        """
        count = min(self.count, max(1, round(effort * max(_MIN_PROBES, _PROBES * self.count**0.5))))
        n, start = len(points.heads), np.empty((2, self.count + 1), np.int64)
        most = min(self.count, count + count // _SLACK)
        chosen, counts = np.empty((n, most), np.int32), np.empty(n, np.int64)
        choose_cells(points, self._heads, self._blocks.offsets, self.count, count, most, chosen, counts)
        members = np.empty(int(counts.sum()), np.int32)
        group_members(chosen, counts, members, start)
        return Probes(members[:n], start[0]), Probes(members[n:], start[1])

    def probe_all(self, points: Points) -> Probes:
        """Return probes of every cell by every point."""
        everyone = np.arange(len(points.heads), dtype=np.int32)
        return Probes(np.tile(everyone, self.count), np.arange(self.count + 1) * len(everyone))


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
    def stored(cls, mean: Floats32, axes: Floats32, words: ByteTable) -> PrincipalAxes:
        """Return stored axes of words, with the head that they need."""
        sample = (words.values(slice(None, None, -(-len(words.codes) // _AXES_SAMPLE))) - mean) @ axes
        share = np.cumsum((sample**2).sum(axis=0, dtype=np.float64))
        needed = int(np.searchsorted(share / max(share[-1], np.finfo(np.float64).tiny), _HEAD_SHARE)) + 1
        return cls(mean, axes, _padded(min(needed, len(mean))))

    def rotate(self, descriptors: Floats32) -> Floats32:
        """Return descriptors [n, dimension] in the coordinates of the axes [n, padded]."""
        return np.asarray((descriptors - self.mean) @ self.axes)

    def unrotate(self, rows: Floats32) -> Floats32:
        """Return rows [n, padded] in the coordinates of the descriptors."""
        return rows @ self.axes.T + self.mean

    def points(self, rows: Floats32) -> Points:
        """Return rows [n, padded], which are in these coordinates already, as points for words in these coordinates."""
        squares = np.einsum("ij,ij->i", rows, rows)
        return self._points(np.ascontiguousarray(rows[:, : self.head]), squares, rows, np.zeros((len(rows), 1), np.float32))

    def points_of(self, descriptors: Floats32, words: Sequence[ByteTable]) -> Points:
        """Return descriptors [n, dimension] as points for the words of K vocabularies."""
        n, lows = len(descriptors), np.stack([table.low for table in words])
        heads, squares = np.empty((n, self.head), np.float32), np.empty(n, np.float32)
        centred, offsets = np.empty(descriptors.shape, np.float32), np.empty((n, len(words)), np.float32)
        multiply(descriptors, self._head_blocks, heads)
        centre_rows(descriptors, self.mean, lows, centred, offsets, squares)
        return self._points(heads, squares, centred, offsets)

    def _points(self, heads: Floats32, squares: Floats32, rows: Floats32, offsets: Floats32) -> Points:
        whole, units = np.empty(heads.shape, np.int16), np.empty(len(heads), np.float32)
        round_heads(heads, _LENGTH, whole, units)
        return Points(whole, units, _tail_norms(squares, heads, squares), rows, offsets)

    @cached_property
    def _head_axes(self) -> Floats32:
        """Return the axes of the head [dimension, head]."""
        return np.ascontiguousarray(self.axes[:, : self.head])

    @cached_property
    def _head_blocks(self) -> Blocks:
        """Return them as the factor of a product that moves the origin, too."""
        return make_blocks(self._head_axes, self.mean @ self._head_axes)

    def word_part(self, vocabulary: Vocabulary) -> _WordPart:
        """Return the words of a vocabulary for a `WordTable`."""
        words = vocabulary.words
        heads, squares = np.empty((vocabulary.size, self.head), np.float32), np.empty(vocabulary.size, np.float32)

        def fill(part: slice) -> None:
            rows = words.values(part)
            multiply(rows, self._head_blocks, heads[part])
            centre_rows(rows, self.mean, words.low[None], rows, np.empty((len(rows), 1), np.float32), squares[part])

        thread_map(fill, words.parts())
        return _WordPart(heads, squares, words.codes, words.step)


def round_words(heads: Floats32) -> tuple[npt.NDArray[np.int16], np.float32]:
    """Return the heads of words [size, head] as whole numbers, and their unit."""
    unit = np.float32(np.sqrt(np.einsum("ij,ij->i", heads, heads).max(initial=np.finfo(np.float32).tiny)) / _LENGTH)
    return np.rint(heads / unit).astype(np.int16), unit


def block_words(heads: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """Return the heads of words [rows, head], rows a multiple of WORDS, by blocks, as `Heads` has them."""
    pairs = heads.view(np.int32)  # of coordinates
    return np.ascontiguousarray(pairs.reshape(-1, WORDS, pairs.shape[1]).transpose(0, 2, 1)).ravel().view(np.int16)


class _WordPart(NamedTuple):
    """The words of one vocabulary for a `WordTable`."""

    heads: Floats32  # [size, head]
    squares: Floats32  # [size] of their norms
    rows: Array  # [size, dimension] as the table keeps them
    steps: Floats32  # [dimension] that these are multiplied by

    @classmethod
    def of_rows(cls, rows: Floats32, head: int) -> _WordPart:
        """Return words in the coordinates of principal axes [size, padded]."""
        return cls(rows[:, :head], np.einsum("ij,ij->i", rows, rows), rows, np.ones(rows.shape[1], np.float32))


def _group_words(parts: Sequence[_WordPart], cells: Sequence[npt.NDArray[np.integer]], count: int) -> WordTable:
    """Group the words of K vocabularies by (cell, vocabulary); `cells[k]` [size] are those of k's words."""
    group = np.concatenate([cell.astype(np.int64) * len(parts) + k for k, cell in enumerate(cells)])
    sizes = np.bincount(group, minlength=count * len(parts))
    start = _starts(sizes + -sizes % WORDS)
    order = np.argsort(group, kind="stable")
    place = np.arange(len(group)) + (start - _starts(sizes))[group[order]]
    source = np.zeros(start[-1], np.int64)  # word of each row; padding repeats the first, infinitely far
    source[place] = order
    heads, squares, rows = (np.concatenate(column) for column in list(zip(*parts, strict=True))[:3])
    half, number = np.full(len(source), np.inf, np.float32), np.full(len(source), -1, np.int32)
    half[place] = squares[order] / 2
    number[place] = np.concatenate([np.arange(len(part.rows)) for part in parts])[order]
    rounded, unit = round_words(heads)
    tails, steps = _tail_norms(squares, heads, squares.max()), np.stack([part.steps for part in parts])
    return WordTable(Heads(block_words(rounded[source]), unit), rows[source], tails[source], half, number, start, steps)


def _tail_norms(squares: Floats32, heads: Floats32, largest: Floats32 | np.float32) -> Floats32:
    """Return the norms behind the heads [n], from the squared norms of all coordinates; enlarged, so that bounds hold.

    largest: squared norms, x^2 of points and w^2 of words, that the units of rounding come from. The product of two rounded
    heads is off by up to e x w with e = sqrt(head) / _LENGTH. For tails a, b: sqrt((a^2 + e x^2) (b^2 + e w^2)) >= a b + e x w.
    """
    rest = squares - np.einsum("ij,ij->i", heads, heads)
    error = 1.1 * heads.shape[1] ** 0.5 / _LENGTH  # and for sums of float32
    return np.asarray(np.sqrt(np.maximum(rest, 0) + np.float32(error) * largest), np.float32)


def batches(rows: Floats32, size: int = _BATCH, threads: int | None = None) -> list[Floats32]:
    """Cut rows into batches of at most `size`, and few rows into one for each thread (None: each core)."""
    return np.array_split(rows, max(-(-len(rows) // size), min(threads or count_threads(), len(rows) // 256), 1))


def _prepare(vocabularies: Sequence[Vocabulary]) -> tuple[Cells, WordTable]:
    """Return cells for vocabularies of about the same size, and their words grouped by cell."""
    stored = vocabularies[0].cells if len(vocabularies) == 1 else None
    if stored is not None:
        cells = Cells(stored.centres, PrincipalAxes.stored(stored.mean, stored.axes, vocabularies[0].words))
        return cells, _group_words([cells.axes.word_part(vocabularies[0])], [stored.cell_of], cells.count)
    sample = np.concatenate([one.centroids for one in vocabularies])[:: len(vocabularies)]  # of each; as many as one has
    axes = PrincipalAxes.of(sample)
    cells = Cells.among(axes.rotate(sample), axes)
    of_words = [cells.of(axes.rotate(one.centroids)) for one in vocabularies]
    return cells, _group_words([axes.word_part(one) for one in vocabularies], of_words, cells.count)


def prepare_cells(vocabulary: Vocabulary) -> StoredCells | None:
    """Return the cells of a vocabulary, to be stored with it; None for a small one, which has a single cell."""
    axes = PrincipalAxes.of(vocabulary.centroids)
    rows = axes.rotate(vocabulary.centroids)
    cells = Cells.among(rows, axes)
    if cells.count == 1:
        return None
    return StoredCells(axes.mean, axes.axes, cells.centres, cells.of(rows).astype(np.uint16))


def _nearest_words(points: Points, probes: Sequence[Probes], cells: Cells, table: WordTable, shape: tuple[int, int]) -> Words:
    """Return the nearest words of points in the probed cells: int32 [n, K, assignments] for shape = (K, assignments)."""
    nearest = _scan(points, probes, table, shape)
    missed = (nearest < 0).any(axis=(1, 2))  # their cells hold too few words: scan all cells
    if missed.any():
        rest = Points._make(part[missed] for part in points)
        nearest[missed] = _scan(rest, [cells.probe_all(rest)], table, shape)
    return nearest


def _scan(points: Points, probes: Sequence[Probes], table: WordTable, shape: tuple[int, int]) -> Words:
    """Return the nearest words of points in the probed cells, -1 where these hold too few."""
    best = np.full((len(points.heads), *shape), -np.inf, dtype=np.float32)
    nearest = np.full(best.shape, -1, dtype=np.int32)
    for probe in probes:
        scan_cells(points, probe, table, best, nearest)
    return nearest


def _starts(counts: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Return where each group starts, and the total: [0, c0, c0 + c1, ...]."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _padded(count: int) -> int:
    return -(-count // STRIDE) * STRIDE
