"""Sort features into postings, find runs in them, compare their signatures and words. The other kernels build on these.

Arrays of a segment (see `index.segment`): starts [W + 1], postings [P] image of each posting, columns [K - 2, P], signatures
[B, P]; run_starts [W + 1], run_words and run_lengths [R] are the run directory. bases: [K] number of the first word of each
vocabulary. A run is the part of a list whose features share a word of the partner, vocabulary 1 for 0 and 0 for the others.
"""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import (
    LANES,
    equal_lanes,
    inlined,
    kernel,
    lowest_bit,
    near_lanes,
    near_long_lanes,
    popcount,
    prefetch,
    will_need,
)

LONGEST_RUN = 255  # a longer run is several entries of the run directory with the same word
AHEAD = 8  # query features whose directories are prefetched
LINE = 32  # postings in a cache line
BEGINNING = 16 * LINE  # postings of a list that are prefetched: the processor foresees the rest


@kernel
def list_starts(words, size):
    """Return where the list of each word starts [size + 1], from the words of all features [F]."""
    starts = np.zeros(size + 1, np.int64)
    for i in range(len(words)):
        starts[words[i] + 1] += 1
    for w in range(size):
        starts[w + 1] += starts[w]
    return starts


@kernel
def sort_by_word(order, words, size):
    """Sort feature numbers `order` [F] by their words [F], stable (one pass of a radix sort); also return starts [size + 1]."""
    starts = list_starts(words, size)
    ends = starts[:size].copy()
    sorted_order = np.empty_like(order)
    for i in range(len(order)):
        w = words[order[i]]
        sorted_order[ends[w]] = order[i]
        ends[w] += 1
    return sorted_order, starts


@kernel
def gather(values, order):
    """Return values[order], without the indices of 64 bits that NumPy makes of others first."""
    found = np.empty(len(order), values.dtype)
    for i in range(len(order)):
        found[i] = values[order[i]]
    return found


@kernel
def sort_codes(words, codes, feature_starts, starts, planes, images):
    """Write codes of features, by image, in list order. words: [F], codes: [F, B]. out: planes [B, F], images [F]."""
    ends = starts.copy()
    for image in range(len(feature_starts) - 1):
        for f in range(feature_starts[image], feature_starts[image + 1]):
            place = ends[words[f]]
            ends[words[f]] = place + 1
            images[place] = image
            for plane in range(len(planes)):
                planes[plane, place] = codes[f, plane]


@kernel
def unsort_codes(words, planes, feature_starts, starts, alive, codes):
    """Write codes in list order, planes [B, F], by image; without images that are not alive. out: codes [features, B]."""
    ends, row = starts.copy(), 0
    for image in range(len(feature_starts) - 1):
        kept = len(alive) == 0 or alive[image] != 0
        for f in range(feature_starts[image], feature_starts[image + 1]):
            place = ends[words[f]]
            ends[words[f]] = place + 1
            if kept:
                for plane in range(len(planes)):
                    codes[row, plane] = planes[plane, place]
                row += 1


@kernel
def read_ahead(numbers, starts, values, gap):
    """Have lists read from the disk in large pieces, before they are needed; return the number of pieces.

    numbers: of the lists, ascending; starts: [size + 1]; values: [F] in list order, mapped. Lists at most `gap` elements apart
    are one piece. Comparing LANES at a time touches elements beyond the end of a list: they are read as well.
    """
    first, last, pieces = np.int64(0), np.int64(0), 0
    for number in numbers:
        begin, end = np.int64(starts[number]), min(np.int64(starts[number + 1]) + LANES, len(values))
        if begin > last + gap:
            if last > first:
                will_need(values, first, last)
                pieces += 1
            first = begin
        last = max(last, end)
    if last > first:
        will_need(values, first, last)
        pieces += 1
    return pieces


@kernel
def count_runs(starts, partner_words):
    """Count the entries of the run directory of each list. partner_words: [F] in list order; returns [size + 1] starts."""
    size = len(starts) - 1
    run_starts = np.zeros(size + 1, np.int64)
    for w in range(size):
        runs, length = 0, LONGEST_RUN
        for p in range(starts[w], starts[w + 1]):
            if length == LONGEST_RUN or partner_words[p] != partner_words[p - 1]:
                runs += 1
                length = 0
            length += 1
        run_starts[w + 1] = run_starts[w] + runs
    return run_starts


@kernel
def fill_runs(starts, partner_words, run_words, run_lengths):
    """Write the run directory. out: run_words, run_lengths [R], in the order counted by `count_runs`."""
    entry = -1
    for w in range(len(starts) - 1):
        length = LONGEST_RUN
        for p in range(starts[w], starts[w + 1]):
            if length == LONGEST_RUN or partner_words[p] != partner_words[p - 1]:
                entry += 1
                run_words[entry] = partner_words[p]
                length = 0
            length += 1
            run_lengths[entry] = length


@kernel
def runs_fit(starts, run_starts, run_lengths):
    """Return whether the runs of every list are as long as the list together."""
    for number in range(len(starts) - 1):
        length = np.int64(starts[number + 1]) - np.int64(starts[number])
        for entry in range(np.int64(run_starts[number]), np.int64(run_starts[number + 1])):
            length -= np.int64(run_lengths[entry])
        if length != 0:
            return False
    return True


@kernel
def count_repeats(words, feature_starts, size):
    """Count the images of each word, and the words that an image has more than once.

    words: [F] of one vocabulary, by image. Returns images per word [size], and (image, word, tf) of the repeats.
    """
    documents, seen, n_repeats = np.zeros(size, np.int64), np.zeros(size, np.int32), 0
    for image in range(len(feature_starts) - 1):
        for f in range(feature_starts[image], feature_starts[image + 1]):
            w = words[f]
            seen[w] += 1
            if seen[w] == 1:
                documents[w] += 1
            elif seen[w] == 2:
                n_repeats += 1
        for f in range(feature_starts[image], feature_starts[image + 1]):
            seen[words[f]] = 0
    repeats, row = np.empty((n_repeats, 3), np.int64), 0
    for image in range(len(feature_starts) - 1):
        for f in range(feature_starts[image], feature_starts[image + 1]):
            seen[words[f]] += 1
        for f in range(feature_starts[image], feature_starts[image + 1]):
            w = words[f]
            if seen[w] > 1:
                repeats[row, 0], repeats[row, 1], repeats[row, 2] = image, w, seen[w]
                row += 1
            seen[w] = 0
    return documents, repeats


@kernel
def subtract_words(positions, feature_starts, words, bases, features, images):
    """Subtract the words of some images from counts. words: [F, K] by image; bases: [K].

    inout: features and images with each word [W].
    """
    latest = np.full(len(features), -1, np.int64)  # image that had the word last
    for position in positions:
        for f in range(np.int64(feature_starts[position]), np.int64(feature_starts[position + 1])):
            for k in range(len(bases)):
                word = bases[k] + np.int64(words[f, k])
                features[word] -= 1
                if latest[word] != position:
                    latest[word] = position
                    images[word] -= 1


@inlined
def prefetch_list(values, first, last):
    """Prefetch the beginning of a list, elements first .. last of values of 16 bits."""
    for i in range(first, min(last, first + BEGINNING), LINE):
        prefetch(values, i)


@inlined
def distance(signatures, position, signature):
    """Return the Hamming distance of a posting's signature to one. signatures: [B, postings]; signature: [B]."""
    h = popcount(signatures[0, position] ^ signature[0])
    if len(signature) > 1:
        h += popcount(signatures[1, position] ^ signature[1])
    return h


@kernel
def largest_distance(hamming_weights):
    """Return the largest distance whose weight is above 0."""
    largest = 0
    for h in range(len(hamming_weights)):
        if hamming_weights[h] > 0:
            largest = h
    return largest


@inlined
def near_block(signatures, position, end, signature, threshold):
    """Return which of the next LANES postings are within a distance: bit i for position + i, 0 from `end` on."""
    near = np.uint64(0)
    if position + LANES <= signatures.shape[1]:
        if len(signature) > 1:
            near = near_long_lanes(signatures[0], signatures[1], position, signature[0], signature[1], threshold)
        else:
            near = near_lanes(signatures[0], position, signature[0], threshold)
        if end - position < LANES:  # what follows belongs to the next list
            near &= (np.uint64(1) << np.uint64(end - position)) - np.uint64(1)
        return near
    for p in range(position, end):
        if distance(signatures, p, signature) <= threshold:
            near |= np.uint64(1) << np.uint64(p - position)
    return near


@inlined
def sum_lengths(lengths):
    """Sum uint8 lengths in int32, which vectorises four times wider than int64 (a list has fewer than 2^31 postings)."""
    total = np.int32(0)
    for length in lengths:
        total += np.int32(length)
    return total


@kernel
def first_entry(run_words, first, last, wanted, size):
    """Return the first of the entries first .. last of a run directory whose word is not smaller than `wanted`.

    Words are numbered at random, so a guess by proportion is seldom more than a few dozen entries off: one vector comparison
    around it mostly suffices, with one cache miss where a bisection has several. size: of the partner vocabulary.
    """
    if last - first >= LANES:
        guess = max(first, min(first + wanted * (last - first) // size - LANES // 2, last - LANES))
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
    """Return the postings of a list whose partner word is `wanted`: (first, after the last)."""
    first, last, begin = np.int64(run_starts[number]), np.int64(run_starts[number + 1]), np.int64(starts[number])
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
def partner_size(k, bases):
    """Return the size of the partner of vocabulary k."""
    return bases[1] if k > 0 else bases[2] - bases[1]


@kernel
def prefetch_run(number, wanted, size, run_starts, run_words, run_lengths):
    """Prefetch the cache lines that `find_run` mostly reads."""
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
    """Return the run of the partner's word in every list of a query: begins, ends [Q, K]. words: [Q, K], -1 for none.

    order: [Q] by word, so that neighbours in memory follow each other. A directory is seldom in the cache: those of the next
    few query features are prefetched.
    """
    n_queries, n_vocabularies = words.shape
    begins, ends = np.zeros(words.shape, np.int64), np.zeros(words.shape, np.int64)
    for k in range(first_vocabulary, n_vocabularies):
        partner = 1 if k == 0 else 0
        size = partner_size(k, bases)
        for i in range(n_queries):
            if i + AHEAD < n_queries:
                later = order[i + AHEAD]
                if words[later, k] >= 0 and words[later, partner] >= 0:
                    prefetch_run(bases[k] + words[later, k], words[later, partner], size, run_starts, run_words, run_lengths)
            q = order[i]
            if words[q, k] >= 0:
                number = bases[k] + words[q, k]
                begin, end = find_run(number, words[q, partner], size, starts, run_starts, run_words, run_lengths)
                begins[q, k], ends[q, k] = begin, end
    return begins, ends


@inlined
def column_of(k, m):
    """Return the column that holds the words of vocabulary m beside the postings of vocabulary k (m not k's partner)."""
    return m - 2 if (k < 2 or m > k) else m - 1


@inlined
def equal_words(column, position, end, word):
    """Return which of the next LANES words of a column equal one (-1: none): bit i for position + i, 0 from `end` on."""
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
def count_postings(words, bases, starts):
    """Return the number of postings in the lists of a query. words: [Q, K, A]."""
    total = 0
    for q in range(len(words)):
        for k in range(words.shape[1]):
            for a in range(words.shape[2]):
                if words[q, k, a] >= 0:
                    number = bases[k] + words[q, k, a]
                    total += np.int64(starts[number + 1]) - np.int64(starts[number])
    return total


@kernel
def longest_query(words, bases, starts):
    """Return the largest number of postings in the lists of one query feature. words: [Q, K, A]."""
    longest = 0
    for q in range(len(words)):
        longest = max(longest, count_postings(words[q : q + 1], bases, starts))
    return longest
