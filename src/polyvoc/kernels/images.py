"""Count and vote by sets of images: an image is in the set of the vocabularies whose lists hold one of its features.

Every posting of a list votes with the weight of its image's set. See `postings` for the arrays of a segment. The images of the
lists of a query feature are marked in one bitmap per vocabulary, 8 KB for a full segment: they stay in the L1 cache.
"""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import LANES, equal_lanes, inlined, kernel, lowest_bit, popcount
from polyvoc.kernels.matches import BEST, KEEP_ALL
from polyvoc.kernels.postings import distance, largest_distance, near_block, prefetch_list

ONE = np.uint64(1)
BOTH = 3  # mask of two vocabularies
SPARE = 2  # elements that `take_images` writes beyond the last image


@kernel
def bitmap_words(n_images):
    """Return the length of a bitmap of images: whole blocks, because LANES words are compared at once."""
    return (n_images + 64 * LANES - 1) // (64 * LANES) * LANES


@kernel
def prefetch_lists(words, q, bases, starts, postings):
    """Prefetch where the lists of a query feature begin: the processor finds no pattern in that, but follows each list."""
    for k in range(words.shape[1]):
        for a in range(words.shape[2]):
            if words[q, k, a] >= 0:
                first, last = np.int64(starts[bases[k] + words[q, k, a]]), np.int64(starts[bases[k] + words[q, k, a] + 1])
                prefetch_list(postings, first, last)


@inlined
def set_bits(number, starts, postings, k, bits):
    """Set the bits of the images of a list. out: bits [K, n] of vocabulary k."""
    for i in range(np.int64(starts[number]), np.int64(starts[number + 1])):
        image = postings[i]
        bits[k, image >> 6] |= ONE << np.uint64(image & 63)


@inlined
def add_weight(number, starts, postings, weight, scores):
    """Add a weight to the images of a list. out: scores."""
    for i in range(np.int64(starts[number]), np.int64(starts[number + 1])):
        scores[postings[i]] += weight


@kernel
def mark_lists(words, q, bases, starts, postings, marked, bits):
    """Mark the images of the lists of a query feature. out: marked [K, A], the words whose lists are marked; bits [K, n]."""
    for k in range(words.shape[1]):
        equal = True
        for a in range(words.shape[2]):
            equal &= words[q, k, a] == marked[k, a]
            marked[k, a] = words[q, k, a]
        if equal:
            continue
        for i in range(bits.shape[1]):
            bits[k, i] = 0
        for a in range(words.shape[2]):
            if words[q, k, a] >= 0:
                set_bits(bases[k] + words[q, k, a], starts, postings, k, bits)


@kernel
def add_lists_of(words, q, bases, starts, postings, weights, times, sums):
    """Add the weights of the lists of a query feature, some times. out: sums."""
    for k in range(words.shape[1]):
        for a in range(words.shape[2]):
            if words[q, k, a] >= 0 and weights[q, k, a] != 0:
                add_weight(bases[k] + words[q, k, a], starts, postings, weights[q, k, a] * times, sums)


@inlined
def intersect(bits, block, some, several):
    """Find the images in two or more of the bitmaps [K >= 2, n], in LANES words of them. out: some (in any), several."""
    one, two = bits[0, block : block + LANES], bits[1, block : block + LANES]
    for i in range(LANES):
        several[i] = one[i] & two[i]
    if len(bits) > 2:
        for i in range(LANES):
            some[i] = one[i] | two[i]
    for k in range(2, len(bits)):
        row = bits[k, block : block + LANES]
        for i in range(LANES):
            several[i] |= some[i] & row[i]
            some[i] |= row[i]


@inlined
def take_images(several, first, n, images):
    """Write the images of LANES words, ascending, from position n on; return the next. first: image of the first bit.

    out: images, and SPARE elements after them. Most words have no bit or one or two: two are always written, because a branch
    that cannot be predicted costs more. Unsigned positions need no test for negative ones.
    """
    used = ~equal_lanes(several, 0, 0)
    while used != 0:
        i = np.uint64(lowest_bit(used))
        used &= used - ONE
        word, start = several[i], np.uint64(first) + (i << np.uint64(6))
        images[n] = start + np.uint64(lowest_bit(word))
        word &= word - ONE
        more = np.uint64(word != 0)
        images[n + ONE] = start + np.uint64(lowest_bit(word | ONE << np.uint64(63)))
        n += ONE + more
        word &= word - more
        while word != 0:
            images[n] = start + np.uint64(lowest_bit(word))
            n += ONE
            word &= word - ONE
    return n


@kernel
def take_shared(bits, some, several, images):
    """Write the images in two or more of the bitmaps [K, n]; return their number. some, several: [LANES]. out: images."""
    n = np.uint64(0)
    for block in range(0, bits.shape[1], LANES):
        intersect(bits, block, some, several)
        n = take_images(several, block << 6, n, images)
    return np.int64(n)


@inlined
def write_masks(images, bits, masks):
    """Write the mask of the bitmaps [K, n] that hold each image. out: masks."""
    masks[:] = 0
    for k in range(len(bits)):
        row, shift = bits[k], np.uint16(k)
        for i in range(len(images)):
            masks[i] |= np.uint16(row[images[i] >> 6] >> np.uint64(images[i] & 63) & ONE) << shift


@inlined
def count_masks(images, masks, alive, tallies, counts):
    """Count the live images of every mask. tallies: [2, 2^K] zeros, and again afterwards. out: counts [2^K].

    Two tallies, because an addition to the same number waits for the one before.
    """
    for i in range(len(masks)):
        tallies[i & 1, masks[i]] += 1
    for mask in range(len(counts)):
        counts[mask] += tallies[0, mask] + tallies[1, mask]
        tallies[0, mask] = tallies[1, mask] = 0
    if len(masks) == 0:  # two vocabularies
        counts[BOTH] += len(images)
    if len(alive) > 0:
        for i in range(len(images)):
            counts[masks[i] if len(masks) > 0 else BOTH] -= np.int64(alive[images[i]] == 0)


@kernel
def count_singles(bits, alive, counts):
    """Count the live images in one bitmap of [K, n] only. counts: [2^K] of the masks of two or more. out: counts."""
    for k in range(len(bits)):
        for i in range(bits.shape[1]):
            word = bits[k, i]
            counts[1 << k] += popcount(word)
            while len(alive) > 0 and word != 0:
                counts[1 << k] -= np.int64(alive[(i << 6) + lowest_bit(word)] == 0)
                word &= word - ONE
        for mask in range(len(counts)):
            if mask >> k & 1 and mask != 1 << k:
                counts[1 << k] -= counts[mask]


@kernel
def share_images(words, order, groups, bases, starts, postings, alive, weights, images, masks, votes, ranges, counts, sums):
    """Find the images in lists of several vocabularies of each query feature, count them, and sum the weights of all lists.

    words, weights: [Q, K, A], K >= 2, equal weights for equal words; order: [Q] of the query features; groups: [G + 1] where in
    the order those with equal words begin, whose lists are read once; alive: [n_images], empty for all.
    out: images, masks, votes [half the postings of the query + SPARE]: each image in several lists once, and what the lists of
    the query feature add to it; masks is empty if K = 2: all are BOTH; ranges: [Q, 2] where those of a query feature begin
    and end; counts: [Q, 2^K] live images of every exact mask of two or more vocabularies, and with several assignments of one;
    sums: [n_images]. Returns the number of images found.

    A list may hold an image several times. So a vote is the difference of the sum after and before: no list is searched again.
    """
    n_vocabularies = words.shape[1]
    bits = np.zeros((n_vocabularies, bitmap_words(len(sums))), np.uint64)
    some, several, tallies = np.empty(LANES, np.uint64), np.empty(LANES, np.uint64), np.zeros((2, counts.shape[1]), np.int64)
    n, marked = 0, np.full(words.shape[1:], -1, np.int64)
    for group in range(len(groups) - 1):
        equal = order[groups[group] : groups[group + 1]]
        q, times = equal[0], weights.dtype.type(len(equal))
        if group + 2 < len(groups):
            prefetch_lists(words, order[groups[group + 1]], bases, starts, postings)
        mark_lists(words, q, bases, starts, postings, marked, bits)
        end = n + take_shared(bits, some, several, images[n:])
        found, own = images[n:end], votes[n:end]
        if n_vocabularies > 2:
            write_masks(found, bits, masks[n:end])
        count_masks(found, masks[n:end], alive, tallies, counts[q])
        if words.shape[2] > 1:
            count_singles(bits, alive, counts[q])
        for i in range(len(found)):
            own[i] = sums[found[i]]
        add_lists_of(words, q, bases, starts, postings, weights, times, sums)
        for i in range(len(found)):
            own[i] = (sums[found[i]] - own[i]) / times
        for same in equal:
            ranges[same, 0], ranges[same, 1] = n, end
            counts[same] = counts[q]
        n = end
    return n


@inlined
def add_votes(images, masks, votes, gains, scores):
    """Add votes times the gains of their masks [2^K]. out: scores."""
    for i in range(len(masks)):
        scores[images[i]] += votes[i] * gains[masks[i]]
    if len(masks) == 0:
        gain = gains[BOTH]
        for i in range(len(images)):
            scores[images[i]] += votes[i] * gain


@kernel
def add_shared(images, masks, votes, ranges, gains, scores):
    """Add what images in several lists get beyond the weight of one list alone. out: scores.

    images, masks, votes, ranges: of `share_images`; gains: [Q, 2^K] factor of each mask less that of one vocabulary.
    """
    for q in range(len(gains)):
        of_mask, own = gains[q], slice(ranges[q, 0], ranges[q, 1])
        add_votes(images[own], masks[own], votes[own], of_mask, scores)


@kernel
def add_vote(image, vote, burstiness, image_sums, powers, touched, n_touched):
    """Add a vote to the sums of an image, whose bursts are settled later; return how many images have sums. out: touched."""
    if image_sums[image] == 0:
        touched[n_touched] = image
        n_touched += 1
    if burstiness == BEST:
        image_sums[image] = max(image_sums[image], vote)
    else:
        image_sums[image] += vote
        powers[image] += vote * np.sqrt(vote)
    return n_touched


@kernel
def settle_sums(touched, burstiness, image_sums, powers, scores):
    """Add the sums of a query feature to the scores and clear them, see `matches.settle_votes`. out: scores."""
    for image in touched:
        total = image_sums[image]
        scores[image] += total if burstiness == BEST else powers[image] / np.sqrt(total)
        image_sums[image] = powers[image] = 0


@kernel
def vote_images(
    words, bases, starts, postings, images, masks, ranges, signatures, query_signatures, idf, factors, hamming_weights,
    burstiness, scores
):  # fmt: skip
    """Vote with factors[q, mask of the image] idf hamming_weight for every near posting. words, idf: [Q, K, A]. out: scores.

    images, masks, ranges: of `share_images`. Signatures [B, P] and [Q, K, A, B]; without any every distance is 0.
    Burstiness applies to images in the lists of one vocabulary only, whose matches are its postings.
    """
    threshold = largest_distance(hamming_weights)
    image_masks, touched = np.zeros(1 << 16, np.uint16), np.empty(1 << 16, np.uint16)
    image_sums, powers = np.zeros(1 << 16, np.float64), np.zeros(1 << 16, np.float64)
    for q in range(len(words)):
        shared, n_touched = range(ranges[q, 0], ranges[q, 1]), 0
        for i in shared:
            image_masks[images[i]] = masks[i] if len(masks) > 0 else BOTH
        for k in range(words.shape[1]):
            for a in range(words.shape[2]):
                if words[q, k, a] < 0:
                    continue
                signature, number = query_signatures[q, k, a], bases[k] + words[q, k, a]
                end = np.int64(starts[number + 1])
                for block in range(np.int64(starts[number]), end, LANES):
                    near = ~np.uint64(0) >> np.uint64(max(LANES - (end - block), 0))
                    if len(signature) > 0:
                        near = near_block(signatures, block, end, signature, threshold)
                    while near != 0:
                        p = block + lowest_bit(near)
                        near &= near - ONE
                        image, h = postings[p], distance(signatures, p, signature) if len(signature) > 0 else 0
                        mask = image_masks[image]
                        vote = np.float64(idf[q, k, a]) * factors[q, mask if mask > 0 else 1 << k] * hamming_weights[h]
                        if burstiness == KEEP_ALL or mask > 0 or vote <= 0:
                            scores[image] += vote
                        else:
                            n_touched = add_vote(image, vote, burstiness, image_sums, powers, touched, n_touched)
        for i in shared:
            image_masks[images[i]] = 0
        settle_sums(touched[:n_touched], burstiness, image_sums, powers, scores)
