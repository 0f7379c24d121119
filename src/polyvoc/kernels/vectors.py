"""Nearest words of descriptors, their signatures, sums for k-means; cosines of global embeddings."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc.kernels.compiler import fast_kernel, kernel

# The bits of a half, moved to where a float has exponent and fraction, are that number times 2^-112: the exponents of the two
# count from -15 and from -127. The caller multiplies the other factor by COSINE_SCALE.
COSINE_SCALE = np.float32(2.0**112)
STRIDE = 8  # coordinates that `_bound_scores` takes at a time; heads and points are padded to multiples of it
BLOCK = 32  # cells are padded to multiples of this many words, so that its inner loop has no remainder


@fast_kernel
def cosine_products(rows, vector, products):
    """Write the inner product of each row of float16 with a vector; -inf for a row of zeros.

    rows: uint16 [n, d], the bits of float16; vector: float32 [d] times COSINE_SCALE. out: products float32 [n].
    """
    for i in range(len(rows)):
        total, bits = np.float32(0), np.uint32(0)
        for j in range(len(vector)):
            half = np.uint32(rows[i, j])
            sign = (half & np.uint32(0x8000)) << np.uint32(16)
            rest = (half & np.uint32(0x7FFF)) << np.uint32(13)
            total += np.uint32(sign | rest).view(np.float32) * vector[j]
            bits |= rest
        products[i] = total if bits else -np.inf


class Points(NamedTuple):
    """Descriptors in the coordinates of principal axes: the first few, their head, hold most of the variance."""

    rows: npt.NDArray[np.float32]  # [n, dimension]
    tail: npt.NDArray[np.float32]  # [n]  norm of the coordinates behind the head


class WordTable(NamedTuple):
    """Words in the coordinates of principal axes, grouped by cell, then by vocabulary. Cells end with infinitely far words."""

    heads: npt.NDArray[np.float32]  # [rows * head]  cell by cell, each [head, words]
    rows: npt.NDArray[np.float32]  # [rows, dimension]
    tail: npt.NDArray[np.float32]  # [rows]  norm of the coordinates behind the head
    half: npt.NDArray[np.float32]  # [rows]  half the squared norm, infinite for padding
    number: npt.NDArray[np.int32]  # [rows]  the word's number in its vocabulary
    start: npt.NDArray[np.int64]  # [cells * K + 1]  group of (cell, k) = rows start[cell * K + k] up to the next


class Probes(NamedTuple):
    """Which descriptors probe which cell."""

    members: npt.NDArray[np.int32]  # [probes]  descriptor numbers, grouped by cell
    start: npt.NDArray[np.int64]  # [cells + 1]


class Cell(NamedTuple):
    """The words of one cell: a part of a `WordTable`."""

    heads: npt.NDArray[np.float32]  # [head, words]
    tail: npt.NDArray[np.float32]  # [words]
    half: npt.NDArray[np.float32]  # [words]


@kernel
def _cell_of(table, first, last):
    """Return rows `first` to `last` of a table."""
    head = len(table.heads) // len(table.rows)
    heads = table.heads[first * head : last * head].reshape(head, last - first)
    return Cell(heads, table.tail[first:last], table.half[first:last])


@fast_kernel
def _bound_scores(points, i, cell, bounds, row):
    """Write an upper bound of the score x.w - |w|^2 / 2 of point i with each word of a cell into `bounds[row]`.

    The heads' product is exact, the tails' at most the product of their norms (Cauchy-Schwarz). Counting the references of a
    view would cost more than the arithmetic.
    """
    x, w, tail = points.rows, cell.heads, points.tail[i]
    for j in range(w.shape[1]):
        bounds[row, j] = tail * cell.tail[j] - cell.half[j]
    for c in range(0, w.shape[0], STRIDE):
        x0, x1, x2, x3 = x[i, c], x[i, c + 1], x[i, c + 2], x[i, c + 3]
        x4, x5, x6, x7 = x[i, c + 4], x[i, c + 5], x[i, c + 6], x[i, c + 7]
        for j in range(w.shape[1]):
            bounds[row, j] += (x0 * w[c, j] + x1 * w[c + 1, j] + x2 * w[c + 2, j] + x3 * w[c + 3, j]) + (
                x4 * w[c + 4, j] + x5 * w[c + 5, j] + x6 * w[c + 6, j] + x7 * w[c + 7, j]
            )


@fast_kernel
def _product(x, y):
    """Return the scalar product of two rows."""
    total = np.float32(0)
    for i in range(len(x)):
        total += x[i] * y[i]
    return total


@kernel
def _any_above(bounds, count, level):
    """Return whether one of the first `count` bounds exceeds a level; counting them all is faster than stopping early."""
    above = np.int32(0)
    for j in range(count):
        above += np.int32(bounds[0, j] > level)
    return above > 0


@kernel
def _insert(best, nearest, score, word):
    """Insert a word into the nearest ones, best first, if its score is higher than the last one's."""
    rank = len(best) - 1
    if score > best[rank]:
        while rank > 0 and score > best[rank - 1]:
            best[rank], nearest[rank] = best[rank - 1], nearest[rank - 1]
            rank -= 1
        best[rank], nearest[rank] = score, word


@kernel
def scan_cells(points, probes, table, best, nearest):
    """Update the nearest words of every point with those of the cells that it probes.

    The score x.w - |w|^2 / 2 is highest where |x - w| is smallest. It is computed only where its bound, from the heads, does
    not already rule the word out: for one rootSIFT word in two hundred. out: best, nearest [n, K, A], from -inf and -1 on.
    """
    vocabularies = best.shape[1]
    bounds = np.empty((1, len(table.rows)), dtype=np.float32)
    for number in range(len(probes.start) - 1):
        first = table.start[number * vocabularies]
        cell = _cell_of(table, first, table.start[(number + 1) * vocabularies])
        for m in range(probes.start[number], probes.start[number + 1]):
            i = probes.members[m]
            _bound_scores(points, i, cell, bounds, 0)
            level = best[i, 0, -1]
            for k in range(1, vocabularies):
                level = min(level, best[i, k, -1])
            if not _any_above(bounds, len(cell.half), level):
                continue
            for k in range(vocabularies):
                group = number * vocabularies + k
                for j in range(table.start[group], table.start[group + 1]):
                    if bounds[0, j - first] > best[i, k, -1]:
                        score = _product(points.rows[i], table.rows[j]) - table.half[j]
                        _insert(best[i, k], nearest[i, k], score, table.number[j])


@kernel
def bound_all(points, table, bounds):
    """Write an upper bound of the score of each point with each word of a table that is one cell. out: bounds [n, rows]."""
    cell = _cell_of(table, 0, len(table.rows))
    for i in range(len(bounds)):
        _bound_scores(points, i, cell, bounds, i)


@kernel
def group_by_cell(scores, least, members, start):
    """Write, for each cell, the points whose score [n, cells] there is at least the point's `least` [n]. out: see `Probes`."""
    start[:] = 0
    for i in range(scores.shape[0]):
        for cell in range(scores.shape[1]):
            start[cell + 1] += scores[i, cell] >= least[i]
    start[1:] = np.cumsum(start[1:])
    filled = start[:-1].copy()
    for i in range(scores.shape[0]):
        for cell in range(scores.shape[1]):
            if scores[i, cell] >= least[i]:
                members[filled[cell]] = i
                filled[cell] += 1


@kernel
def score_words(points, words, centroids, scores):
    """Write the score x.w - |w|^2 / 2 of every point x [n, dimension] with its word w. out: scores [n]."""
    for i in range(len(words)):
        row = centroids[words[i]]
        scores[i] = _product(points[i], row) - _product(row, row) / np.float32(2)


@kernel
def sum_by_word(descriptors, words, sums):
    """Add every descriptor to the sum of its word, in order, so that threads do not matter. out: sums [size, dimension]."""
    for row in range(len(words)):
        word = words[row]
        for i in range(descriptors.shape[1]):
            sums[word, i] += descriptors[row, i]


@kernel
def sign_words(z, words, thresholds, signatures):
    """Write the signature of each descriptor z [n, bits] under each of its words [n, A], -1 for none.

    Bit i is z_i > threshold_i of the word. out: signatures [n, A, planes of 64 bits].
    """
    bits = z.shape[1]
    for row in range(words.shape[0]):
        for column in range(words.shape[1]):
            word = words[row, column]
            for plane in range(signatures.shape[2]):
                signature = np.uint64(0)
                if word >= 0:
                    first = 64 * plane
                    for i in range(first, min(first + 64, bits)):
                        signature |= np.uint64(z[row, i] > thresholds[word, i]) << np.uint64(i - first)
                signatures[row, column, plane] = signature


@fast_kernel
def nearest_parts(rows, values, half, nearest):
    """Write the nearest value of each part of rows [n, parts * width]. values: [parts, width, values]; half: [parts, values]
    half their squared norms. out: nearest uint8 [n, parts]."""
    n_parts, width, n_values = values.shape
    scores = np.empty(n_values, np.float32)
    for i in range(len(rows)):
        for part in range(n_parts):
            for v in range(n_values):
                scores[v] = -half[part, v]
            for j in range(width):
                x = rows[i, part * width + j]
                for v in range(n_values):
                    scores[v] += x * values[part, j, v]
            best = 0
            for v in range(1, n_values):
                if scores[v] > scores[best]:
                    best = v
            nearest[i, part] = best


@fast_kernel
def rotate_rows(rows, mean, axes, rotated):
    """Shift and rotate rows [n, dimension]. out: rotated [n, padded].

    Not a matrix product of NumPy: its library keeps its own threads spinning for a while, on the cores that ours need next.
    """
    for i in range(len(rows)):
        out = rotated[i]
        out[:] = 0
        for j in range(rows.shape[1]):
            x = rows[i, j] - mean[j]
            for k in range(len(out)):
                out[k] += x * axes[j, k]
