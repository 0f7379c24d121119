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
def _product(x, i, y, j):
    """Return the scalar product of two rows, x[i] and y[j]; as views they would count references."""
    total = np.float32(0)
    for c in range(x.shape[1]):
        total += x[i, c] * y[j, c]
    return total


@fast_kernel
def _bound_scores_of_four(points, members, cell, bounds):
    """Write the bounds of four points at once: `bounds[0]` to `bounds[3]`. As `_bound_scores`, but words are loaded once."""
    x, w = points.rows, cell.heads
    a, b, c, d = members[0], members[1], members[2], members[3]
    ta, tb, tc, td = points.tail[a], points.tail[b], points.tail[c], points.tail[d]
    for j in range(w.shape[1]):
        tail, half = cell.tail[j], cell.half[j]
        bounds[0, j] = ta * tail - half
        bounds[1, j] = tb * tail - half
        bounds[2, j] = tc * tail - half
        bounds[3, j] = td * tail - half
    for k in range(0, w.shape[0], 4):
        a0, a1, a2, a3 = x[a, k], x[a, k + 1], x[a, k + 2], x[a, k + 3]
        b0, b1, b2, b3 = x[b, k], x[b, k + 1], x[b, k + 2], x[b, k + 3]
        c0, c1, c2, c3 = x[c, k], x[c, k + 1], x[c, k + 2], x[c, k + 3]
        d0, d1, d2, d3 = x[d, k], x[d, k + 1], x[d, k + 2], x[d, k + 3]
        for j in range(w.shape[1]):
            w0, w1, w2, w3 = w[k, j], w[k + 1, j], w[k + 2, j], w[k + 3, j]
            bounds[0, j] += (a0 * w0 + a1 * w1) + (a2 * w2 + a3 * w3)
            bounds[1, j] += (b0 * w0 + b1 * w1) + (b2 * w2 + b3 * w3)
            bounds[2, j] += (c0 * w0 + c1 * w1) + (c2 * w2 + c3 * w3)
            bounds[3, j] += (d0 * w0 + d1 * w1) + (d2 * w2 + d3 * w3)


@kernel
def _mark_above(bounds, row, count, level, marks):
    """Count the bounds of each BLOCK that exceed a level; return how many do. out: marks [blocks]."""
    total = np.int32(0)
    for block in range(count // BLOCK):
        above = np.int32(0)
        for j in range(block * BLOCK, (block + 1) * BLOCK):
            above += np.int32(bounds[row, j] > level)
        marks[block] = above
        total += above
    return total


@kernel
def _insert(best, nearest, i, k, score, word):
    """Insert a word into the nearest ones of point i in vocabulary k, best first, if its score is above that of the last."""
    rank = best.shape[2] - 1
    if score > best[i, k, rank]:
        while rank > 0 and score > best[i, k, rank - 1]:
            best[i, k, rank], nearest[i, k, rank] = best[i, k, rank - 1], nearest[i, k, rank - 1]
            rank -= 1
        best[i, k, rank], nearest[i, k, rank] = score, word


@kernel
def _insert_words(points, i, row, first, number, table, bounds, marks, best, nearest):
    """Update the nearest words of point i with those of a cell whose bounds, `bounds[row]`, do not rule them out."""
    vocabularies = best.shape[1]
    for k in range(vocabularies):
        begin, end = table.start[number * vocabularies + k], table.start[number * vocabularies + k + 1]
        for block in range((begin - first) // BLOCK, (end - first + BLOCK - 1) // BLOCK):
            if marks[block] == 0:
                continue
            for j in range(max(begin, first + block * BLOCK), min(end, first + (block + 1) * BLOCK)):
                if bounds[row, j - first] > best[i, k, -1]:
                    score = _product(points.rows, i, table.rows, j) - table.half[j]
                    _insert(best, nearest, i, k, score, table.number[j])


@kernel
def scan_cells(points, probes, table, best, nearest):
    """Update the nearest words of every point with those of the cells that it probes.

    The score x.w - |w|^2 / 2 is highest where |x - w| is smallest. It is computed only where its bound, from the heads, does
    not already rule the word out: for one rootSIFT word in a hundred. out: best, nearest [n, K, A], from -inf and -1 on.
    """
    vocabularies = best.shape[1]
    bounds, marks = np.empty((4, len(table.rows)), np.float32), np.empty(len(table.rows) // BLOCK + 1, np.int32)
    for number in range(len(probes.start) - 1):
        first = table.start[number * vocabularies]
        cell = _cell_of(table, first, table.start[(number + 1) * vocabularies])
        m, last = probes.start[number], probes.start[number + 1]
        while m < last:
            together = 4 if m + 4 <= last else 1
            if together == 4:
                _bound_scores_of_four(points, probes.members[m : m + 4], cell, bounds)
            else:
                _bound_scores(points, probes.members[m], cell, bounds, 0)
            for row in range(together):
                i = probes.members[m + row]
                level = best[i, 0, -1]
                for k in range(1, vocabularies):
                    level = min(level, best[i, k, -1])
                if _mark_above(bounds, row, len(cell.half), level, marks) > 0:
                    _insert_words(points, i, row, first, number, table, bounds, marks, best, nearest)
            m += together


@kernel
def _count_above(scores, i, level):
    """Count the scores of a row above a level."""
    above = np.int32(0)
    for cell in range(scores.shape[1]):
        above += np.int32(scores[i, cell] > level)
    return above


@kernel
def choose_cells(scores, count, most, chosen, counts):
    """Choose about `count` cells with the highest scores [n, cells] for each point, its best first.

    The level above which they lie is found by bisection: at least `count`, at most `most` of them, unless many are equal. out:
    chosen [n, most], counts [n].
    """
    for i in range(scores.shape[0]):
        best = 0
        low = high = scores[i, 0]
        for cell in range(scores.shape[1]):
            low = min(low, scores[i, cell])
            if scores[i, cell] > high:
                best, high = cell, scores[i, cell]
        level, step = low - np.float32(1), np.float32(0.5) * (high - low)
        if count < scores.shape[1]:
            level = low
            for _ in range(24):
                if _count_above(scores, i, level + step) >= count:
                    level += step
                    if _count_above(scores, i, level) <= most:
                        break
                step *= np.float32(0.5)
        chosen[i, 0], n = best, 1
        for cell in range(scores.shape[1]):
            if scores[i, cell] > level and cell != best and n < most:
                chosen[i, n] = cell
                n += 1
        counts[i] = n


@kernel
def group_members(chosen, counts, members, start):
    """Group points by the cells that they chose: first by their best cells, then by the others.

    chosen: [n, most], counts: [n]. out: members [sum of counts]; start [2, cells + 1].
    """
    n, n_cells = len(counts), start.shape[1] - 1
    start[:] = 0
    for i in range(n):
        for rank in range(counts[i]):
            start[min(rank, 1), chosen[i, rank] + 1] += 1
    for part in range(2):
        for cell in range(n_cells):
            start[part, cell + 1] += start[part, cell]
    filled = start[:, :-1].copy()
    filled[1] += n
    for i in range(n):
        for rank in range(counts[i]):
            part = min(rank, 1)
            members[filled[part, chosen[i, rank]]] = i
            filled[part, chosen[i, rank]] += 1


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
        norm = _product(centroids, words[i], centroids, words[i])
        scores[i] = _product(points, i, centroids, words[i]) - norm / np.float32(2)


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
