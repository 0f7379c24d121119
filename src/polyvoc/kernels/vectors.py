"""Nearest words of descriptors, their signatures, sums for k-means; cosines of global embeddings."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc.kernels.compiler import (
    LANES,
    POINTS,
    WORDS,
    beyond_lanes,
    bound_words,
    fast_kernel,
    kernel,
    largest_lane,
    lowest_bit,
    multiply_words,
    popcount,
)

# The bits of a half, moved to where a float has exponent and fraction, are that number times 2^-112: the exponents of the two
# count from -15 and from -127. The caller multiplies the other factor by COSINE_SCALE.
COSINE_SCALE = np.float32(2.0**112)
STRIDE = 8  # heads and points are padded to multiples of so many coordinates


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


class Blocks(NamedTuple):
    """A matrix [d, columns] by blocks of WORDS columns, and what is subtracted from the products with it."""

    values: npt.NDArray[np.float32]  # [blocks * d * WORDS]  each block [d, WORDS]
    offsets: npt.NDArray[np.float32]  # [blocks * WORDS]  infinite for padding


class Heads(NamedTuple):
    """The heads of words, or of centres of cells, as whole numbers."""

    values: npt.NDArray[np.int16]  # [rows * head]  by blocks of WORDS words, each [head / 2, WORDS, 2]
    unit: np.float32  # of the values


class Points(NamedTuple):
    """Descriptors in the coordinates of principal axes: the first few, their head, hold most of the variance.

    x.w of a point x and a word w of vocabulary k is offsets[k] plus the sum of x_i step_i row_i, with the steps of k and row
    of w in a `WordTable`.
    """

    heads: npt.NDArray[np.int16]  # [n, head]
    units: npt.NDArray[np.float32]  # [n]  of the heads
    tail: npt.NDArray[np.float32]  # [n]  norm of the coordinates behind the head
    rows: npt.NDArray[np.float32]  # [n, dimension]
    offsets: npt.NDArray[np.float32]  # [n, K]


class WordTable(NamedTuple):
    """Words in the coordinates of principal axes, grouped by cell, then by vocabulary.

    A group is padded to a multiple of WORDS with infinitely far words.
    """

    heads: Heads
    rows: npt.NDArray[np.generic]  # [rows, dimension]  float32, or bytes as the vocabulary stores them
    tail: npt.NDArray[np.float32]  # [rows]  norm of the coordinates behind the head
    half: npt.NDArray[np.float32]  # [rows]  half the squared norm, infinite for padding
    number: npt.NDArray[np.int32]  # [rows]  the word's number in its vocabulary
    start: npt.NDArray[np.int64]  # [cells * K + 1]  group of (cell, k) = rows start[cell * K + k] up to the next
    steps: npt.NDArray[np.float32]  # [K, dimension]  that the rows of vocabulary k are multiplied by


class Probes(NamedTuple):
    """Which descriptors probe which cell."""

    members: npt.NDArray[np.int32]  # [probes]  descriptor numbers, grouped by cell
    start: npt.NDArray[np.int64]  # [cells + 1]


@fast_kernel
def _product(x, i, y, j):
    """Return the scalar product of two rows, x[i] and y[j]; as views they would count references."""
    total = np.float32(0)
    for c in range(x.shape[1]):
        total += x[i, c] * y[j, c]
    return total


@fast_kernel
def _scaled_product(x, i, steps, k, rows, j):
    """Return the sum of the products of x[i], steps[k] and rows[j]."""
    total = np.float32(0)
    for c in range(rows.shape[1]):
        total += x[i, c] * steps[k, c] * np.float32(rows[j, c])
    return total


@kernel
def scan_cells(points, probes, table, best, nearest):
    """Update the nearest words of every point with those of the cells that it probes.

    The score x.w - |w|^2 / 2 is highest where |x - w| is smallest. It is computed only where its bound does not already rule
    the word out: the heads' product is exact, the tails' at most the product of their norms (Cauchy-Schwarz). out: best,
    nearest [n, K, A], from -inf and -1 on.
    """
    n_vocabularies, last = best.shape[1], best.shape[2] - 1
    x, steps, word_rows, half, number = points.rows, table.steps, table.rows, table.half, table.number
    (group, levels, masks), bounds = _new_group(), np.empty((POINTS, WORDS), np.float32)
    for cell in range(len(probes.start) - 1):
        for m in range(probes.start[cell], probes.start[cell + 1], POINTS):
            together = min(POINTS, probes.start[cell + 1] - m)
            for p in range(POINTS):
                group[p] = probes.members[m + min(p, together - 1)]
            for k in range(n_vocabularies):
                for p in range(POINTS):
                    levels[p] = best[group[p], k, last] if p < together else np.inf
                start = cell * n_vocabularies + k
                for first in range(table.start[start], table.start[start + 1], WORDS):
                    bound_words(table.heads.values, first // WORDS, table.heads.unit, points.heads, points.units, points.tail,
                                table.tail, half, group, levels, 0, bounds, masks)  # fmt: skip
                    for part in range(len(masks)):
                        mask = masks[part]
                        while mask != 0:
                            bit = part * LANES + lowest_bit(mask)
                            mask &= mask - np.uint64(1)
                            p, j = bit // WORDS, first + bit % WORDS
                            if bounds[p, j - first] <= levels[p]:
                                continue
                            i, rank = np.int64(group[p]), last
                            score = _scaled_product(x, i, steps, k, word_rows, j) + points.offsets[i, k] - half[j]
                            if score <= levels[p]:
                                continue
                            # Not in a function: a call would count the references of the arrays, which costs more.
                            while rank > 0 and score > best[i, k, rank - 1]:
                                best[i, k, rank], nearest[i, k, rank] = best[i, k, rank - 1], nearest[i, k, rank - 1]
                                rank -= 1
                            best[i, k, rank], nearest[i, k, rank] = score, number[j]
                            levels[p] = best[i, k, last]


@kernel
def _new_group():
    """Return what products of POINTS rows need: their numbers, their levels, and bits of what is above these."""
    return np.empty(POINTS, np.int32), np.empty(POINTS, np.float32), np.empty(POINTS * WORDS // LANES, np.uint64)


@kernel
def _start_group(first, n, group):
    """Write the numbers of POINTS rows of n from one on, the last again where there are fewer; return how many there are."""
    together = min(POINTS, n - first)
    for p in range(POINTS):
        group[p] = first + min(p, together - 1)
    return together


@kernel
def multiply(rows, blocks, products):
    """Write rows [n, d] times a matrix, minus its offsets. out: products [n, columns].

    Not a matrix product of NumPy: its library keeps its own threads spinning for a while, on the cores that ours need next.
    """
    (group, levels, masks), bounds = _new_group(), np.empty((POINTS, WORDS), np.float32)
    for first in range(0, len(rows), POINTS):
        together = _start_group(first, len(rows), group)
        for column in range(0, products.shape[1], WORDS):
            multiply_words(blocks.values, column // WORDS, rows, blocks.offsets, group, levels, 0, bounds, masks)
            for p in range(together):
                for j in range(min(WORDS, products.shape[1] - column)):
                    products[first + p, column + j] = bounds[p, j]


@kernel
def largest_products(rows, blocks, nearest):
    """Write the column of a matrix whose product with each row [n, d], minus its offset, is the largest. out: nearest [n]."""
    group, levels, masks = _new_group()
    products = np.full((POINTS, -(-len(blocks.offsets) // LANES) * LANES), -np.inf, np.float32)
    for first in range(0, len(rows), POINTS):
        together = _start_group(first, len(rows), group)
        for column in range(0, len(blocks.offsets), WORDS):
            multiply_words(blocks.values, column // WORDS, rows, blocks.offsets, group, levels, column, products, masks)
        for p in range(together):
            below, column = np.nextafter(_largest(products, p), np.float32(-np.inf)), 0
            while beyond_lanes(products, p, column, below) == 0:
                column += LANES
            nearest[first + p] = column + lowest_bit(beyond_lanes(products, p, column, below))


@kernel
def _largest(scores, p):
    """Return the largest of the scores of a row."""
    largest = largest_lane(scores, p, 0)
    for first in range(LANES, scores.shape[1], LANES):
        largest = max(largest, largest_lane(scores, p, first))
    return largest


@kernel
def _count_above(scores, p, level):
    """Count the scores of a row above a level."""
    above = 0
    for first in range(0, scores.shape[1], LANES):
        above += popcount(beyond_lanes(scores, p, first, level))
    return above


@fast_kernel
def _mean_of(scores, p, n_cells):
    """Return the mean of the first scores of a row."""
    total = np.float32(0)
    for cell in range(n_cells):
        total += scores[p, cell]
    return total / np.float32(n_cells)


@kernel
def _level_of(scores, p, n_cells, count, most):
    """Return a level that at least `count` and at most `most` scores of a row exceed, unless many are equal; by bisection.

    The scores behind the first are -inf.
    """
    level = _mean_of(scores, p, n_cells)
    if _count_above(scores, p, level) < count:
        level = scores[p, :n_cells].min()
    step = np.float32(0.5) * (_largest(scores, p) - level)
    for _ in range(24):
        above = _count_above(scores, p, level + step)
        if above >= count:
            level += step
            if above <= most:
                break
        step *= np.float32(0.5)
    return level


@kernel
def choose_cells(points, heads, halves, n_cells, count, most, chosen, counts):
    """Choose about `count` cells with the highest scores for each point, its best first.

    heads, halves: centres of cells, and half their squared norms. At least `count`, at most `most` are chosen, unless many are
    equal. out: chosen [n, most], counts [n].
    """
    scores = np.full((POINTS, -(-len(halves) // LANES) * LANES), -np.inf, np.float32)
    group, levels, masks = _new_group()
    no_tails, no_word_tails = np.zeros(len(counts), np.float32), np.zeros(len(halves), np.float32)
    for first in range(0, len(counts), POINTS):
        together = _start_group(first, len(counts), group)
        for cell in range(0, len(halves), WORDS):
            bound_words(heads.values, cell // WORDS, heads.unit, points.heads, points.units, no_tails, no_word_tails, halves,
                        group, levels, cell, scores, masks)  # fmt: skip
        for p in range(together):
            level = _level_of(scores, p, n_cells, count, most) if count < n_cells else np.float32(-np.inf)
            i, n = first + p, 0
            chosen[i, 0] = 0  # if all are equal
            for part in range(0, scores.shape[1], LANES):
                mask = beyond_lanes(scores, p, part, level)
                while mask != 0 and n < most:
                    chosen[i, n] = cell = part + lowest_bit(mask)
                    mask &= mask - np.uint64(1)
                    if scores[p, cell] > scores[p, chosen[i, 0]]:
                        chosen[i, 0], chosen[i, n] = chosen[i, n], chosen[i, 0]
                    n += 1
            counts[i] = max(n, 1)


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
def round_heads(rows, length, heads, units):
    """Write rows [n, head] as whole numbers, of this length. out: heads int16 [n, head]; units [n]."""
    for i in range(len(rows)):
        total = np.float32(0)
        for j in range(rows.shape[1]):
            total += rows[i, j] * rows[i, j]
        units[i] = max(np.sqrt(total), np.float32(1e-30)) / length
        factor = np.float32(1) / units[i]
        for j in range(rows.shape[1]):
            heads[i, j] = np.int16(np.rint(rows[i, j] * factor))


@fast_kernel
def centre_rows(rows, mean, lows, centred, offsets, squares):
    """Write rows with the mean as their origin, and the parts of their products with the lowest values of words. See `Points`.

    rows: [n, dimension]; mean: [dimension]; lows: [K, dimension]. out: centred [n, dimension], offsets [n, K], squares [n] of
    the norms.
    """
    for i in range(len(rows)):
        total = np.float32(0)
        for j in range(rows.shape[1]):
            x = rows[i, j] - mean[j]
            centred[i, j] = x
            total += x * x
        squares[i] = total
        for k in range(len(lows)):
            offset = np.float32(0)
            for j in range(rows.shape[1]):
                offset += centred[i, j] * (lows[k, j] - mean[j])
            offsets[i, k] = offset
