"""Where in a segment stand the postings that a query asks for?

The arrays of a segment are described in `segment.py`. In short: the inverted files of the K vocabularies stand one behind the
other in `postings`; word w of vocabulary k has the number bases[k] + w and the list starts[number] .. starts[number + 1].
A list is sorted by feature, features are numbered by their words (first vocabulary first), so that within a list the features
that share a word of the *partner* vocabulary (1 for vocabulary 0, else 0) are one contiguous run. The words of the remaining
vocabularies are columns beside the postings. Indexed features of a query feature that two lists share therefore appear in
both lists in the same order: that is what joins them without storing feature numbers.
"""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import LANES, equal_lanes, inlined, kernel, lowest_bit, prefetch

AHEAD = 8  # query features whose directories are on their way from memory


@inlined
def sum_lengths(lengths):
    """Sum uint8 lengths in int32, which vectorises four times wider than int64 (a list has fewer than 2^31 postings)."""
    total = np.int32(0)
    for length in lengths:
        total += np.int32(length)
    return total


@kernel
def first_entry(run_words, first, last, wanted, size):
    """Give the first of the entries first .. last of a run directory whose word is not smaller than the one wanted.

    Words are numbered at random, so a guess by proportion is seldom more than a few dozen entries off: one vector comparison
    around it mostly settles the matter, with one cache miss where a bisection has several. size: of the partner vocabulary.
    """
    if last - first >= LANES:
        guess = first + wanted * (last - first) // size - LANES // 2
        guess = max(first, min(guess, last - LANES))
        equal = equal_lanes(run_words, guess, wanted)
        if equal & np.uint64(1) == 0:  # otherwise the run may have begun before
            if equal != 0:
                return guess + lowest_bit(equal)
            if np.int64(run_words[guess]) > wanted:
                last = guess
            else:
                first = guess + 1
    while first < last:
        middle = (first + last) >> 1
        if np.int64(run_words[middle]) < wanted:
            first = middle + 1
        else:
            last = middle
    return first


@kernel
def find_run(number, wanted, size, starts, run_starts, run_words, run_lengths):
    """Find the postings of a list whose partner word is the one wanted: (first, after the last)."""
    first = np.int64(run_starts[number])
    last = np.int64(run_starts[number + 1])
    begin = np.int64(starts[number])
    if wanted < 0:
        return begin, begin
    entry = first_entry(run_words, first, last, wanted, size)
    begin += sum_lengths(run_lengths[first:entry])
    end = begin
    while entry < last and np.int64(run_words[entry]) == wanted:
        end += np.int64(run_lengths[entry])
        entry += 1
    return begin, end


@kernel
def partner_size(k, bases, starts):
    """Give the size of the vocabulary whose words order the runs of vocabulary k: 1 for 0, else 0."""
    if k > 0:
        return bases[1]
    return (bases[2] if len(bases) > 2 else len(starts) - 1) - bases[1]


@kernel
def expect_run(number, wanted, size, run_starts, run_words, run_lengths):
    """Ask for the cache lines that `find_run` will mostly read."""
    first = np.int64(run_starts[number])
    count = np.int64(run_starts[number + 1]) - first
    guess = first + wanted * count // size
    prefetch(run_words, guess - LANES // 2)
    prefetch(run_words, guess)
    prefetch(run_words, guess + LANES // 2)
    for entry in range(first, guess + LANES, 64):  # a cache line of lengths
        prefetch(run_lengths, entry)


@kernel
def find_runs(words, order, bases, starts, run_starts, run_words, run_lengths, first_vocabulary):
    """Find the run of the partner's word in every list of a query: begins, ends [Q, K]. words: [Q, K] local, -1 for none.

    order: [Q] in which query features are looked up; by word, neighbours in memory follow each other. A directory is seldom in
    the cache: the lines of the next few query features are asked for while this one is looked up.
    """
    n_queries, n_vocabularies = words.shape
    begins = np.zeros((n_queries, n_vocabularies), np.int64)
    ends = np.zeros((n_queries, n_vocabularies), np.int64)
    for k in range(first_vocabulary, n_vocabularies):
        partner = 1 if k == 0 else 0
        size = partner_size(k, bases, starts)
        for i in range(n_queries):
            if i + AHEAD < n_queries:
                later = order[i + AHEAD]
                if words[later, k] >= 0 and words[later, partner] >= 0:
                    expect_run(bases[k] + words[later, k], words[later, partner], size, run_starts, run_words, run_lengths)
            q = order[i]
            if words[q, k] >= 0:
                number = bases[k] + words[q, k]
                begin, end = find_run(number, words[q, partner], size, starts, run_starts, run_words, run_lengths)
                begins[q, k] = begin
                ends[q, k] = end
    return begins, ends


@inlined
def column_of(k, m):
    """Give the column that holds the words of vocabulary m beside the postings of vocabulary k (m not k's partner)."""
    return m - 2 if (k < 2 or m > k) else m - 1


@inlined
def equal_words(column, position, end, word):
    """Tell which of the next LANES words of a column are equal to one (-1: none): bit i for position + i, 0 from `end` on."""
    if word < 0:
        return np.uint64(0)
    if position + LANES <= len(column):
        equal = equal_lanes(column, position, word)
        if end - position < LANES:
            equal &= (np.uint64(1) << np.uint64(end - position)) - np.uint64(1)
        return equal
    equal = np.uint64(0)
    for p in range(position, end):
        if np.int64(column[p]) == word:
            equal |= np.uint64(1) << np.uint64(p - position)
    return equal


@kernel
def longest_query(words, bases, starts):
    """Give the largest number of postings that one query feature meets. words: [Q, K, A]."""
    longest = 0
    for q in range(len(words)):
        total = 0
        for k in range(words.shape[1]):
            for a in range(words.shape[2]):
                if words[q, k, a] >= 0:
                    number = bases[k] + words[q, k, a]
                    total += np.int64(starts[number + 1]) - np.int64(starts[number])
        longest = max(longest, total)
    return longest
