"""The loops over postings: flat arrays in, flat arrays out; every function here runs without the GIL.

The arrays of a segment are described in `segment.py`. In short: the inverted files of the K vocabularies stand one behind the
other in `postings`; word w of vocabulary k has the number bases[k] + w and the list starts[number] .. starts[number + 1].
A list is sorted by feature, features are numbered by their words (first vocabulary first), so that within a list the features
that share a word of the *partner* vocabulary (1 for vocabulary 0, else 0) are one contiguous run. The words of the remaining
vocabularies are columns beside the postings. Indexed features of a query feature that two lists share therefore appear in
both lists in the same order: that is what joins them without storing feature numbers.
"""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import LANES, equal_lanes, inlined, kernel, lowest_bit, near_lanes, popcount

# ---------------------------------------------------------------------------------------------------------- looking up


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
def find_runs(words, bases, starts, run_starts, run_words, run_lengths, first_vocabulary):
    """Find the run of the partner's word in every list of a query: begins, ends [Q, K]. words: [Q, K] local, -1 for none."""
    n_queries, n_vocabularies = words.shape
    begins = np.zeros((n_queries, n_vocabularies), np.int64)
    ends = np.zeros((n_queries, n_vocabularies), np.int64)
    for k in range(first_vocabulary, n_vocabularies):
        partner = 1 if k == 0 else 0
        size = partner_size(k, bases, starts)
        for q in range(n_queries):
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


# ---------------------------------------------------------------------------------------------------------- plain votes


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
def add_lists_and_runs(numbers, weights, starts, run_numbers, begins, ends, deltas, postings, scores):
    """Add a constant per list and another per run, each run right after the list that it is a part of, still in the cache.

    numbers: of the lists, ascending; run_numbers: of the list of each run, ascending too. out: scores [n_images].
    """
    run = 0
    for i in range(len(numbers)):
        weight = weights[i]
        if weight != 0:
            for p in range(np.int64(starts[numbers[i]]), np.int64(starts[numbers[i] + 1])):
                scores[postings[p]] += weight
        while run < len(begins) and run_numbers[run] == numbers[i]:
            delta = deltas[run]
            for p in range(begins[run], ends[run]):
                scores[postings[p]] += delta
            run += 1


@kernel
def gather_shared(row, bases, begins, ends, starts, columns, postings, images, masks):
    """Gather every feature that two or more lists of one query feature share, once.

    row: [K] words, local, -1 for none; begins, ends: [K] of `find_runs`. out: images, masks [n]; gives n. A mask of 0 means:
    met before. Whoever shares vocabulary 0 is met in the runs of the other lists, the rest by comparing columns.
    """
    n = 0
    for k in range(1, len(row)):
        if row[k] < 0:
            continue
        begin, end = begins[k], ends[k]
        pair = 1 | 1 << k
        before = n - begin
        for p in range(begin, end):
            images[before + p] = postings[p]
            masks[before + p] = pair
        n += end - begin
        first = np.int64(starts[bases[k] + row[k]])
        last = np.int64(starts[bases[k] + row[k] + 1])
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
                            images[n] = postings[p]  # met by no earlier list and no earlier column
                            masks[n] = mask
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
    words, bases, begins, ends, starts, columns, postings, signatures, query_signatures, weights, factors, closeness, scores
):
    """Vote with Hamming Embedding and without burstiness: each list adds its own term of the sum over M.

    weights: [Q, K] idf^2; factors: [Q, 2^K] of the rule; closeness: [64 + 1] weight of a Hamming distance, 0 beyond the
    threshold. out: scores.
    """
    threshold = 0
    for h in range(len(closeness)):
        if closeness[h] > 0:
            threshold = h
    equal = np.zeros(words.shape[1], np.uint64)
    for q in range(len(words)):
        row = words[q]
        for k in range(len(row)):
            if row[k] < 0 or weights[q, k] == 0:
                continue
            first = np.int64(starts[bases[k] + row[k]])
            last = np.int64(starts[bases[k] + row[k] + 1])
            begin, end = begins[q, k], ends[q, k]
            equal[:] = 0
            signature = query_signatures[q, k]
            weight = weights[q, k]
            for block in range(first, last, LANES):
                near = np.uint64(0)
                if block + LANES <= last:
                    near = near_lanes(signatures, block, signature, threshold)
                else:
                    for p in range(block, last):
                        if popcount(signatures[p] ^ signature) <= threshold:
                            near |= np.uint64(1) << np.uint64(p - block)
                if near == 0:
                    continue
                for m in range(1, len(row)):
                    if m != k and m + k > 1:  # neither the own nor the partner's
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
                    scores[postings[p]] += weight * closeness[popcount(signatures[p] ^ signature)] * factors[q, mask]


# ---------------------------------------------------------------------------------------------------------- every match


@kernel
def write_codes(words, k, number, base, bases, starts, run_starts, run_words, run_lengths, columns, codes):
    """Write which assigned words each feature of a list shares with the query feature.

    words: [K, A] local, -1 for none. The code of a feature is the sum over vocabularies of (assignment + 1) * base^vocabulary,
    own vocabulary included by the caller. out: codes [length of the list].
    """
    first = np.int64(starts[number])
    length = np.int64(starts[number + 1]) - first
    codes[:length] = 0
    partner = 1 if k == 0 else 0
    for m in range(len(words)):
        if m == k:
            continue
        for j in range(words.shape[1]):
            if words[m, j] < 0:
                continue
            code = (j + 1) * base**m
            if m == partner:
                size = partner_size(k, bases, starts)
                begin, end = find_run(number, words[m, j], size, starts, run_starts, run_words, run_lengths)
                for i in range(begin - first, end - first):
                    codes[i] += code
            else:
                column = columns[column_of(k, m)]
                for i in range(length):
                    if np.int64(column[first + i]) == words[m, j]:
                        codes[i] += code


@kernel
def gather_matches(
    words, bases, starts, run_starts, run_words, run_lengths, columns, postings, signatures, query_signatures,
    weights, closeness, masks, chains, codes, images, sums, match_masks, links
):  # fmt: skip
    """Gather every indexed feature that shares a word with one query feature, once, with its sum of idf^2 * HE over M.

    words, query_signatures, weights: [K, A]. chains: [3, (A + 1)^K] head, tail, cursor of the features with one code, all -1
    before and after. out: images, sums, match_masks [n]; gives n. A feature is entered by the first list that holds it; the
    later ones walk along the chain of its code, because equal codes appear in each list in the same order.
    """
    n_vocabularies, n_assignments = words.shape
    base = n_assignments + 1
    n = 0
    for k in range(n_vocabularies):
        for a in range(n_assignments):
            if words[k, a] < 0:
                continue
            number = bases[k] + words[k, a]
            first = np.int64(starts[number])
            length = np.int64(starts[number + 1]) - first
            write_codes(words, k, number, base, bases, starts, run_starts, run_words, run_lengths, columns, codes)
            own = (a + 1) * base**k
            for i in range(length):
                code = codes[i] + own
                mask = masks[code]
                term = weights[k, a]
                if len(signatures) > 0:
                    term *= closeness[popcount(signatures[first + i] ^ query_signatures[k, a])]
                if mask & ((1 << k) - 1) == 0:  # the first list that holds it
                    images[n] = postings[first + i]
                    sums[n] = term
                    match_masks[n] = mask
                    links[n] = -1
                    if mask != 1 << k:
                        if chains[0, code] < 0:
                            chains[0, code] = n
                            chains[2, code] = n
                        else:
                            links[chains[1, code]] = n
                        chains[1, code] = n
                    n += 1
                else:
                    match = chains[2, code]
                    sums[match] += term
                    chains[2, code] = links[match] if links[match] >= 0 else chains[0, code]
    return n


@kernel
def mark_images(images, match_masks, n, image_masks):
    """Unite the masks of the matches of each image, then give every match the mask of its image. image_masks: zeros."""
    for i in range(n):
        image_masks[images[i]] |= match_masks[i]
    for i in range(n):
        match_masks[i] = image_masks[images[i]]


@kernel
def count_matches(
    words, bases, starts, run_starts, run_words, run_lengths, columns, postings, alive, masks, image_sets, counts
):
    """Count the sets of every query feature by exact mask, in features or in images. out: counts [Q, 2^K]."""
    size = longest_query(words, bases, starts)
    codes = np.empty(size, np.int64)
    images = np.empty(size, np.int64)
    sums = np.empty(size, np.float64)
    match_masks = np.empty(size, np.int64)
    links = np.empty(size, np.int64)
    chains = np.full((3, len(masks)), -1, np.int64)
    image_masks = np.zeros(1 << 16, np.int64)
    no_signatures = np.empty(0, np.uint64)
    query_signatures = np.zeros(words.shape[1:], np.uint64)
    weights = np.ones(words.shape[1:], np.float32)
    closeness = np.ones(65, np.float32)
    for q in range(len(words)):
        n = gather_matches(words[q], bases, starts, run_starts, run_words, run_lengths, columns, postings, no_signatures,
                           query_signatures, weights, closeness, masks, chains, codes, images, sums, match_masks,
                           links)  # fmt: skip
        chains[:] = -1
        if image_sets:
            mark_images(images, match_masks, n, image_masks)
        for i in range(n):
            image = images[i]
            if image_sets:
                if image_masks[image] == 0:
                    continue  # this image was counted
                image_masks[image] = 0
            if len(alive) == 0 or alive[image]:
                counts[q, match_masks[i]] += 1


@kernel
def vote_matches(
    words, bases, starts, run_starts, run_words, run_lengths, columns, postings, signatures, query_signatures,
    weights, factors, closeness, alive, masks, image_sets, intra, inter, on_difference, totals, scores
):  # fmt: skip
    """Vote with everything switched on: multiple assignment, image-level sets, burstiness.

    Burstiness (Jegou, Douze, Schmid, CVPR 2009): within an image s becomes s sqrt(s / t), t the image's sum for this query
    feature; across images s sqrt(s / T), T = totals[q]. With `scores` empty the call only sums T (out: totals), over live
    images; otherwise it votes (out: scores).
    """
    size = longest_query(words, bases, starts)
    codes = np.empty(size, np.int64)
    images = np.empty(size, np.int64)
    sums = np.empty(size, np.float64)
    match_masks = np.empty(size, np.int64)
    links = np.empty(size, np.int64)
    chains = np.full((3, len(masks)), -1, np.int64)
    image_masks = np.zeros(1 << 16, np.int64)
    image_sums = np.zeros(1 << 16, np.float64)
    powers = np.zeros(1 << 16, np.float64)
    totalling = len(scores) == 0
    for q in range(len(words)):
        n = gather_matches(words[q], bases, starts, run_starts, run_words, run_lengths, columns, postings, signatures,
                           query_signatures[q], weights[q], closeness, masks, chains, codes, images, sums, match_masks,
                           links)  # fmt: skip
        chains[:] = -1
        if image_sets:
            mark_images(images, match_masks, n, image_masks)
        for i in range(n):
            image = images[i]
            image_masks[image] = 0
            mask = match_masks[i]
            vote = sums[i] * factors[q, mask]
            if vote <= 0 or (len(alive) > 0 and not alive[image]):
                continue
            if not (intra or inter) or (on_difference and mask & (mask - 1) != 0):
                if not totalling:
                    scores[image] += vote
                continue
            image_sums[image] += vote
            if intra and inter and not totalling:
                powers[image] += vote * vote * np.sqrt(np.sqrt(vote))  # s'^1.5 with s' = s^1.5 / sqrt(t)
            else:
                powers[image] += vote * np.sqrt(vote)
        for i in range(n):
            image = images[i]
            total = image_sums[image]
            if total <= 0:
                continue
            if totalling:
                totals[q] += powers[image] / np.sqrt(total) if intra else total
            elif intra and inter:
                scores[image] += powers[image] / (total**0.75 * np.sqrt(totals[q]))
            elif intra:
                scores[image] += powers[image] / np.sqrt(total)
            else:
                scores[image] += powers[image] / np.sqrt(totals[q])
            image_sums[image] = 0
            powers[image] = 0


# ---------------------------------------------------------------------------------------------------------- norms


@kernel
def add_squares(starts, postings, idf_squared, first_word, last_word, norms):
    """Add idf^2 for every posting of words first_word .. last_word to its image. out: norms [n_images] float64."""
    for number in range(first_word, last_word):
        square = idf_squared[number]
        if square > 0:
            for p in range(np.int64(starts[number]), np.int64(starts[number + 1])):
                norms[postings[p]] += square
