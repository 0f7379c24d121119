"""Vote by scanning whole lists: the rules whose vote depends on the list and the mask alone. See `postings` for the arrays."""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import LANES, kernel, lowest_bit
from polyvoc.kernels.postings import column_of, distance, equal_words, largest_distance, longest_query, near_block


@kernel
def add_lists(numbers, weights, starts, postings, scores):
    """Add a constant per list to the images in it. out: scores [n_images]."""
    for i in range(len(numbers)):
        weight = weights[i]
        if weight == 0:
            continue
        for p in range(np.int64(starts[numbers[i]]), np.int64(starts[numbers[i] + 1])):
            scores[postings[p]] += weight


@kernel
def add_lists_and_runs(numbers, weights, starts, run_numbers, order, begins, ends, delta, postings, scores):
    """Add a constant per list and another per run, each run while its list is in the cache. out: scores [n_images].

    numbers: of the lists, ascending; run_numbers: of the list of each run, ascending too; order: the query feature of each;
    begins, ends: [Q, K]; delta: [Q, 4].
    """
    run = 0
    for i in range(len(numbers)):
        first, last = np.int64(starts[numbers[i]]), np.int64(starts[numbers[i] + 1])
        begin = end = first
        weight = inside = weights[i]
        if run < len(order) and run_numbers[run] == numbers[i]:
            begin, end = begins[order[run], 1], ends[order[run], 1]
            inside = weight + delta[order[run], 3]
            run += 1
        if weight != 0:
            for p in range(first, begin):
                scores[postings[p]] += weight
        for p in range(begin, end):
            scores[postings[p]] += inside
        if weight != 0:
            for p in range(end, last):
                scores[postings[p]] += weight
        while run < len(order) and run_numbers[run] == numbers[i]:
            more = delta[order[run], 3]
            for p in range(begins[order[run], 1], ends[order[run], 1]):
                scores[postings[p]] += more
            run += 1


@kernel
def gather_shared(row, bases, begins, ends, starts, columns, postings, images, masks):
    """Gather every feature that two or more lists of one query feature share, once.

    row: [K] words, -1 for none; begins, ends: [K] of `find_runs`. out: images, masks [n]; returns n. A mask of 0 marks a
    repetition. Features that share vocabulary 0 are in the runs of the other lists, the rest is found by comparing columns.
    """
    n = 0
    for k in range(1, len(row)):
        if row[k] < 0:
            continue
        begin, end, before = begins[k], ends[k], n - begins[k]
        for p in range(begin, end):
            images[before + p], masks[before + p] = postings[p], 1 | 1 << k
        n += end - begin
        first, last = np.int64(starts[bases[k] + row[k]]), np.int64(starts[bases[k] + row[k] + 1])
        for m in range(1, len(row)):
            if m == k or row[m] < 0:
                continue
            column = columns[column_of(k, m)]
            for block in range(begin, end, LANES):
                equal = equal_words(column, block, end, row[m])
                while equal != 0:
                    p = block + lowest_bit(equal)
                    equal &= equal - np.uint64(1)
                    masks[before + p] = masks[before + p] | 1 << m if m > k and masks[before + p] > 0 else 0
            if m < k:
                continue
            for part in range(2):  # before the run, and after it
                stop = begin if part == 0 else last
                for block in range(first if part == 0 else end, stop, LANES):
                    equal = equal_words(column, block, stop, row[m])
                    while equal != 0:
                        p = block + lowest_bit(equal)
                        equal &= equal - np.uint64(1)
                        mask = 1 << k | 1 << m
                        for j in range(1, len(row)):
                            other = j not in (k, m) and row[j] >= 0
                            if other and np.int64(columns[column_of(k, j), p]) == row[j]:
                                mask |= 1 << j
                        if mask & ((1 << k) - 1) == 0 and mask & ((1 << m) - (2 << k)) == 0:
                            images[n], masks[n] = postings[p], mask  # not in an earlier list or column
                            n += 1
    return n


@kernel
def count_shared(words, bases, begins, ends, starts, columns, postings, alive, counts):
    """Count the features that several lists of a query feature share, by exact mask; live images only. out: counts."""
    images = np.empty(longest_query(words.reshape((*words.shape, 1)), bases, starts), np.uint16)
    masks = np.empty(len(images), np.uint16)
    for q in range(len(words)):
        n = gather_shared(words[q], bases, begins[q], ends[q], starts, columns, postings, images, masks)
        for i in range(n):
            if len(alive) == 0 or alive[images[i]]:
                counts[q, masks[i]] += 1
        counts[q, 0] = 0


@kernel
def vote_shared(words, bases, begins, ends, starts, columns, postings, delta, scores):
    """Vote delta[q, mask] for every feature that several lists of a query feature share; delta[q, 0] is 0. out: scores."""
    images = np.empty(longest_query(words.reshape((*words.shape, 1)), bases, starts), np.uint16)
    masks = np.empty(len(images), np.uint16)
    for q in range(len(words)):
        n = gather_shared(words[q], bases, begins[q], ends[q], starts, columns, postings, images, masks)
        of_mask = delta[q]
        for i in range(n):
            scores[images[i]] += of_mask[masks[i]]


@kernel
def vote_hamming(
    words, bases, begins, ends, starts, columns, postings, signatures, query_signatures, weights, factors, hamming_weights,
    scores
):  # fmt: skip
    """Vote with Hamming Embedding and without burstiness: each list adds its own term of the sum over M.

    query_signatures: [Q, K, B]; weights: [Q, K] idf^2; factors: [Q, 2^K] of the rule; hamming_weights: [bits + 1] by Hamming
    distance, 0 beyond the threshold. out: scores.
    """
    threshold = largest_distance(hamming_weights)
    equal = np.zeros(words.shape[1], np.uint64)
    for q in range(len(words)):
        row = words[q]
        for k in range(len(row)):
            if row[k] < 0 or weights[q, k] == 0:
                continue
            first, last = np.int64(starts[bases[k] + row[k]]), np.int64(starts[bases[k] + row[k] + 1])
            begin, end = begins[q, k], ends[q, k]
            equal[:] = 0
            signature, weight = query_signatures[q, k], weights[q, k]
            for block in range(first, last, LANES):
                near = near_block(signatures, block, last, signature, threshold)
                if near == 0:
                    continue
                for m in range(1, len(row)):
                    if m != k and m + k > 1:  # neither its own nor the partner's
                        equal[m] = equal_words(columns[column_of(k, m)], block, min(block + LANES, last), row[m])
                while near != 0:
                    lane = lowest_bit(near)
                    p = block + lane
                    near &= near - np.uint64(1)
                    mask = 1 << k
                    if begin <= p < end:
                        mask |= 2 if k == 0 else 1
                    for m in range(1, len(row)):
                        mask |= np.int64(equal[m] >> np.uint64(lane) & np.uint64(1)) << m
                    scores[postings[p]] += weight * hamming_weights[distance(signatures, p, signature)] * factors[q, mask]


@kernel
def add_squares(starts, postings, idf_squared, first_word, last_word, norms):
    """Add idf^2 for every posting of words first_word .. last_word to its image. out: norms [n_images] float64."""
    for number in range(first_word, last_word):
        square = idf_squared[number]
        if square > 0:
            for p in range(np.int64(starts[number]), np.int64(starts[number + 1])):
                norms[postings[p]] += square
