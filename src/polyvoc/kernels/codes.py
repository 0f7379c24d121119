"""Codes: sign descriptors relative to words, scan posting lists of codes, match the features of two images.

A feature has one code, relative to its word: bit i says whether coordinate i of the descriptor lies above that of the word. A
query feature visits the lists of several words, and is signed relative to each. Its distance to a feature of such a list is
asymmetric: the sum of |coordinate - coordinate of the word| over the bits that differ, relative to the sum over all bits (0 to
`columns`, a whole number). A table gives the weight of a match by the row of the visited word and this distance.
"""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import (
    LANES,
    above_lanes,
    fast_kernel,
    inlined,
    kernel,
    lowest_bit,
    near_lanes,
    near_long_lanes,
    popcount,
    prefetch,
    sum_lanes,
    sum_long_lanes,
)

LINE = 8  # codes of 64 bits in a cache line
LARGEST = 255  # magnitude, that of the largest difference of a query feature to a word


@inlined
def sign_plane(z, row, centres, word, plane, bits):
    """Return 64 bits of the code of a descriptor z[row] relative to a word: bit i is z_i > centre_i."""
    first = LANES * plane
    if first + LANES <= bits:
        return above_lanes(z, row, centres, word, first)
    code = np.uint64(0)
    for i in range(first, bits):
        code |= np.uint64(z[row, i] > centres[word, i]) << np.uint64(i - first)
    return code


@kernel
def sign_codes(z, words, centres, bits, codes):
    """Write the code of each descriptor relative to its word. z: [n, >= bits], centres: [size, >= bits]. out: codes [n, B]."""
    for row in range(len(words)):
        for plane in range(codes.shape[1]):
            codes[row, plane] = sign_plane(z, row, centres, np.int64(words[row]), plane, bits)


@kernel
def write_signs(codes, signs):
    """Write the bits of codes [n, B] as -1 and 1. out: signs [n, bits]."""
    for row in range(len(codes)):
        for i in range(signs.shape[1]):
            bit = codes[row, i // LANES] >> np.uint64(i % LANES) & np.uint64(1)
            signs[row, i] = np.float32(2) * np.float32(bit) - np.float32(1)


@kernel
def subtract_decoded(z, words, centres, decoded):
    """Write what words and codes leave of descriptors z [n, >= dimension].

    decoded: [n, dimension] what the codes tell. out: the same array.
    """
    for row in range(len(words)):
        for i in range(decoded.shape[1]):
            decoded[row, i] = z[row, i] - centres[words[row], i] - decoded[row, i]


@fast_kernel
def squared_distance(z, q, centres, word):
    """Return the squared distance of z[q] to a word."""
    total = np.float32(0)
    for i in range(z.shape[1]):
        difference = z[q, i] - centres[word, i]
        total += difference * difference
    return total


@kernel
def relative_distances(z, words, centres, cut, ratios):
    """Write the distance of each word of a query feature relative to that of the first; drop words beyond `cut`.

    z: [Q, dimension], centres: [size, dimension]; words: [Q, A], nearest first, dropped ones become -1. out: ratios [Q, A].
    """
    for q in range(words.shape[0]):
        nearest = np.float32(0)
        for a in range(words.shape[1]):
            ratios[q, a] = 1
            if words[q, a] < 0:
                continue
            distance = np.sqrt(squared_distance(z, q, centres, words[q, a]))
            if a == 0:
                nearest = distance
            elif nearest > 0:
                ratios[q, a] = max(distance / nearest, np.float32(1))
            if ratios[q, a] > cut or (a > 0 and nearest == 0):
                words[q, a] = -1


@fast_kernel
def write_magnitudes(z, q, centres, word, bits, magnitudes, row):
    """Write |z[q] - centre| of a word in units of the largest / LARGEST into a row of magnitudes; return their sum."""
    largest = np.float32(0)
    for i in range(bits):
        largest = max(largest, abs(z[q, i] - centres[word, i]))
    unit = np.float32(LARGEST) / largest if largest > 0 else np.float32(0)
    total = np.int32(0)
    for i in range(bits):
        size = np.uint8(np.int32(abs(z[q, i] - centres[word, i]) * unit + np.float32(0.5)))
        magnitudes[row, i] = size
        total += np.int32(size)
    return total


@kernel
def sign_query(z, words, centres, bits, codes, magnitudes, totals):
    """Write what the scan needs of query features relative to each of their words.

    z: [Q, >= bits]; words: [Q, A], -1 for none; centres: [size, >= bits]. out: codes [Q, A, B], magnitudes uint8 [Q A, 64 B]
    |z - centre| in units of the largest / LARGEST, totals [Q, A] their sums.
    """
    magnitudes[:] = 0
    codes[:] = 0
    totals[:] = 0
    for q in range(words.shape[0]):
        for a in range(words.shape[1]):
            word = np.int64(words[q, a])
            if word >= 0:
                for plane in range(codes.shape[2]):
                    codes[q, a, plane] = sign_plane(z, q, centres, word, plane, bits)
                totals[q, a] = write_magnitudes(z, q, centres, word, bits, magnitudes, q * words.shape[1] + a)


@inlined
def asymmetric(magnitudes, row, first, other, factor):
    """Return the relative asymmetric distance of a query feature to a code by the bits that differ. factor: of `factor_of`."""
    total = sum_long_lanes(magnitudes, row, first, other) if magnitudes.shape[1] > LANES else sum_lanes(magnitudes, row, first)
    return (total * factor) >> 32


@inlined
def factor_of(total, columns):
    """Return what a sum of magnitudes is multiplied by, in 2^-32, to be a distance from 0 to `columns`."""
    return (columns << 32) // total if total > 0 else 0


@kernel
def weigh_matches(idf_squared, rows, values):
    """Write the weight of a match of each query feature by row of the table and distance, as a whole number.

    idf_squared: [Q]; rows: [rows, columns + 1]. out: values int32 [Q, rows, columns + 1].
    """
    for q in range(len(idf_squared)):
        for row in range(rows.shape[0]):
            for column in range(rows.shape[1]):
                values[q, row, column] = np.int32(np.rint(idf_squared[q] * rows[row, column]))


@kernel
def vote_codes(visits, n_words, words, rows, query_codes, magnitudes, totals, values, threshold, starts, codes, images, scores):
    """Scan the lists of some query features; of each the best match of every image votes.

    A visit is a query feature q at the list of its word a: q n_words + a. visits: [n], those of a feature together; words, rows
    of the table, totals: by visit; query_codes: [.., B], magnitudes: [.., bits] by visit; values: int32 [Q, rows, columns + 1]
    weight of a match. Features beyond the Hamming distance `threshold` are passed over. starts: [size + 1], codes: [B, F],
    images: [F] of the segment. out: scores int64 [n_images].
    """
    long, columns, end = len(codes) > 1, values.shape[2] - 1, len(visits)
    one, two = codes[0], codes[-1]
    best, touched = np.zeros(len(scores), np.int32), np.empty(len(scores) + 1, np.int32)
    n = 0
    for place in range(end):
        visit, q = visits[place], visits[place] // n_words
        first, other, line = query_codes[visit, 0], query_codes[visit, -1], rows[visit]
        factor, last = factor_of(totals[visit], columns), np.int64(starts[words[visit] + 1])
        ahead = np.int64(starts[words[visits[min(place + 1, end - 1)]]])
        for block in range(np.int64(starts[words[visit]]), last, LANES):
            # The next list is loaded while this one is compared: the start of a list is not foreseen by the processor.
            for line_start in range(0, LANES, LINE):
                prefetch(one, ahead + line_start)
                prefetch(two, ahead + line_start)
            prefetch(images, ahead)
            prefetch(images, ahead + LANES // 2)
            ahead += LANES
            near = np.uint64(0)
            if block + LANES <= len(one):
                if long:
                    near = near_long_lanes(one, two, block, first, other, threshold)
                else:
                    near = near_lanes(one, block, first, threshold)
                if last - block < LANES:
                    near &= (np.uint64(1) << np.uint64(last - block)) - np.uint64(1)
            else:
                for p in range(block, last):
                    h = popcount(one[p] ^ first) + (popcount(two[p] ^ other) if long else 0)
                    near |= np.uint64(h <= threshold) << np.uint64(p - block)
            while near != 0:
                p = block + lowest_bit(near)
                near &= near - np.uint64(1)
                # As `asymmetric`, and without branches that cannot be predicted.
                if long:
                    total = sum_long_lanes(magnitudes, visit, one[p] ^ first, two[p] ^ other)
                else:
                    total = sum_lanes(magnitudes, visit, one[p] ^ first)
                value, image = values[q, line, (total * factor) >> 32], images[p]
                touched[n] = image
                n += np.int64((best[image] == 0) & (value > 0))
                best[image] = max(best[image], value)
        if place + 1 == end or visits[place + 1] // n_words != q:
            for i in range(n):
                scores[touched[i]] += best[touched[i]]
                best[touched[i]] = 0
            n = 0


@kernel
def find_places(words, position, starts, images, features, places):
    """Find where the codes of some features of an image lie, by bisection: those of one word follow one another in its list.

    words: [n] of the image at a position; features: numbers of those wanted. out: places [n], of these.
    """
    for f in features:
        first, last = np.int64(starts[words[f]]), np.int64(starts[words[f] + 1])
        while first < last:
            middle = (first + last) >> 1
            if images[middle] < position:
                first = middle + 1
            else:
                last = middle
        # The next code belongs to the same image only if the word does so, too: then earlier features come first.
        if first + 1 < np.int64(starts[words[f] + 1]) and images[first + 1] == position:
            for earlier in range(f):
                first += words[earlier] == words[f]
        places[f] = min(first, len(images) - 1)  # of a list that lacks the image, as only a forged one does


@kernel
def tally_codes(words, rows, query_codes, magnitudes, totals, reach, starts, codes, images, kinds, counts):
    """Count the matches of a query by kind of image, row of the table and distance, for the fit of a table.

    kinds: [n_images], below 0: not counted; the others as in `vote_codes`. out: counts [kinds, rows, columns + 1].
    """
    columns, last_plane = counts.shape[2] - 1, len(codes) - 1
    for q in range(words.shape[0]):
        for a in range(words.shape[1]):
            if words[q, a] < 0:
                continue
            row, factor = q * words.shape[1] + a, factor_of(totals[q, a], columns)
            for p in range(starts[words[q, a]], starts[words[q, a] + 1]):
                kind = kinds[images[p]]
                first, other = codes[0, p] ^ query_codes[q, a, 0], codes[last_plane, p] ^ query_codes[q, a, -1]
                h = popcount(first) + (popcount(other) if last_plane > 0 else 0)
                if kind >= 0 and h <= reach:
                    counts[kind, rows[q, a], asymmetric(magnitudes, row, first, other, factor)] += 1
