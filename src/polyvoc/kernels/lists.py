"""Vote by scanning whole lists: the rules whose vote depends on the list and the mask alone. See `postings` for the arrays."""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import LANES, equal_lanes, kernel, lowest_bit, popcount
from polyvoc.kernels.postings import column_of, distance, equal_words, largest_distance, near_block, prefetch_list

ONE = np.uint64(1)


@kernel
def add_lists(numbers, weights, starts, postings, scores):
    """Add a constant per list to the images in it. out: scores [n_images]."""
    for i in range(len(numbers)):
        if i + 1 < len(numbers) and weights[i + 1] != 0:
            prefetch_list(postings, np.int64(starts[numbers[i + 1]]), np.int64(starts[numbers[i + 1] + 1]))
        weight = weights[i]
        if weight == 0:
            continue
        for p in range(np.int64(starts[numbers[i]]), np.int64(starts[numbers[i] + 1])):
            scores[postings[p]] += weight


@kernel
def add_lists_and_shared(
    numbers, weights, starts, own_numbers, features, vocabularies, begins, ends, words, columns, bits, run_weights, delta,
    postings, scores
):  # fmt: skip
    """Add a constant per list, and more to what lists share, while the list is in the cache. out: scores [n_images].

    numbers: of the lists, ascending; own_numbers .. bits: of `share_features`; run_weights: [n] what the run of each own list
    gets; delta: [Q, 2^K] what marked features get, by mask. One loop without functions: a call for each list would count
    references to all arrays.
    """
    n_own, after, at = len(own_numbers), 0, 0
    for i in range(len(numbers)):
        if i + 1 < len(numbers) and weights[i + 1] != 0:
            prefetch_list(postings, np.int64(starts[numbers[i + 1]]), np.int64(starts[numbers[i + 1] + 1]))
        first, last = np.int64(starts[numbers[i]]), np.int64(starts[numbers[i] + 1])
        begin = end = first
        weight = inside = weights[i]
        number = after
        if number < n_own and own_numbers[number] == numbers[i]:
            begin, end, inside = begins[number], ends[number], weight + run_weights[number]
        if weight != 0:
            for p in range(first, begin):
                scores[postings[p]] += weight
        for p in range(begin, end):
            scores[postings[p]] += inside
        if weight != 0:
            for p in range(end, last):
                scores[postings[p]] += weight
        while after < n_own and own_numbers[after] == numbers[i]:
            begin, end, more = begins[after], ends[after], run_weights[after]
            if after > number:
                for p in range(begin, end):
                    scores[postings[p]] += more
            q, k = features[after], vocabularies[after]
            after += 1
            if k < 2:
                continue
            outside, inside = delta[q, 2 | 1 << k], delta[q, 3 | 1 << k]
            for block in range(first, last, LANES):
                marked = bits[at]
                at += 1
                while marked != 0:
                    place = np.uint64(block + lowest_bit(marked))
                    marked &= marked - ONE
                    vote = inside if (place >= np.uint64(begin)) & (place < np.uint64(end)) else outside  # no branch
                    if k > 2:
                        mask = 1 << k | np.int64(np.uint64(begin) <= place < np.uint64(end))
                        for j in range(1, k):
                            mask |= np.int64(np.int64(columns[column_of(k, j), place]) == words[q, j]) << j
                        vote = delta[q, mask]
                    scores[postings[place]] += vote


@kernel
def count_blocks(own_numbers, vocabularies, starts):
    """Return the number of blocks of LANES postings that `share_features` marks."""
    total = 0
    for i in range(len(own_numbers)):
        if vocabularies[i] > 1:
            length = np.int64(starts[own_numbers[i] + 1]) - np.int64(starts[own_numbers[i]])
            total += (length + LANES - 1) // LANES
    return total


@kernel
def mark_others(row, k, first, last, columns, bits):
    """Mark also what a list of vocabulary k shares with those of 2 .. k - 1, and unmark what later ones share. out: bits."""
    for j in range(2, len(row)):
        for i in range(len(bits) if j != k else 0):
            equal = equal_words(columns[column_of(k, j)], first + i * LANES, last, row[j])
            bits[i] = bits[i] | equal if j < k else bits[i] & ~equal


@kernel
def count_between(bits, begin, end):
    """Return the number of marks at positions begin .. end."""
    total = 0
    for i in range(begin // LANES, (end + LANES - 1) // LANES if begin < end else 0):
        left, right = max(begin - i * LANES, 0), min(end - i * LANES, LANES)
        total += popcount(bits[i] >> np.uint64(left) << np.uint64(LANES - right + left))
    return total


@kernel
def count_marked(row, k, first, begin, end, columns, postings, alive, bits, counts):
    """Count the live features that are marked in a list of vocabulary k, by exact mask. out: counts [2^K]."""
    for i in range(len(bits)):
        marked = bits[i]
        while marked != 0:
            p = first + i * LANES + lowest_bit(marked)
            marked &= marked - ONE
            mask = 1 << k | np.int64(begin <= p < end)
            for j in range(1, k):
                mask |= np.int64(np.int64(columns[column_of(k, j), p]) == row[j]) << j
            counts[mask] += len(alive) == 0 or alive[postings[p]] != 0


@kernel
def count_live_runs(features, vocabularies, begins, ends, postings, alive, counts):
    """Count the live features that only the list of vocabulary 0 and one other share. counts: of larger sets. out: counts."""
    for i in range(len(features)):
        q, pair, total = features[i], 1 | 1 << vocabularies[i], ends[i] - begins[i]
        if len(alive) > 0:
            for p in range(begins[i], ends[i]):
                total -= np.int64(alive[postings[p]] == 0)
        for mask in range(2, counts.shape[1]):
            if mask & pair == pair and mask != pair:
                total -= counts[q, mask]
        counts[q, pair] = total


@kernel
def share_features(own_numbers, features, vocabularies, begins, ends, words, columns, starts, postings, alive, bits, counts):
    """Mark the features that several lists of a query feature share, and count them by exact mask; live images only.

    own_numbers: of the lists of vocabularies 1 .. K - 1 of all query features [n], ascending, with the query feature and
    vocabulary of each; begins, ends: its run of `find_runs`, which vocabulary 0 shares [n]; words: [Q, K], -1 for none;
    alive: [n_images], empty for all. out: bits [count_blocks], for each list from vocabulary 2 on one bit per posting: whether
    an earlier vocabulary other than 0 shares it, and no later one; counts: [Q, 2^K].
    """
    end = 0
    for i in range(len(own_numbers)):
        q, k = features[i], vocabularies[i]
        if i + 1 < len(own_numbers) and vocabularies[i + 1] > 1:
            later = own_numbers[i + 1]
            prefetch_list(columns[0], np.int64(starts[later]), np.int64(starts[later + 1]))
        if k < 2:
            continue
        first, last = np.int64(starts[own_numbers[i]]), np.int64(starts[own_numbers[i] + 1])
        column, word, begin, total = columns[0], words[q, 1], end, 0  # of words of vocabulary 1
        for block in range(first, last, LANES):
            equal = np.uint64(0)
            if block + LANES > len(column):
                equal = equal_words(column, block, last, word)
            elif word >= 0:  # the same, without counting references to the column
                equal = equal_lanes(column, block, word) & ~np.uint64(0) >> np.uint64(max(LANES - (last - block), 0))
            bits[end] = equal
            total += popcount(equal)
            end += 1
        if words.shape[1] == 3 and len(alive) == 0:
            inside = count_between(bits[begin:end], begins[i] - first, ends[i] - first)
            counts[q, 6], counts[q, 7] = total - inside, inside
            continue
        mark_others(words[q], k, first, last, columns, bits[begin:end])
        count_marked(words[q], k, first, begins[i], ends[i], columns, postings, alive, bits[begin:end], counts[q])
    count_live_runs(features, vocabularies, begins, ends, postings, alive, counts)


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
