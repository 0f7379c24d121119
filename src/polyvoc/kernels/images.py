"""Count and vote by sets of images: an image is in the set of the vocabularies whose lists hold one of its features.

Every posting of a list votes with the weight of its image's set. See `postings` for the arrays of a segment. The images of
lists are marked in a table of 4 bytes per image, 256 KB for a full segment: it stays in the L2 cache.
"""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import LANES, inlined, kernel, lowest_bit
from polyvoc.kernels.matches import BEST, KEEP_ALL
from polyvoc.kernels.postings import count_postings, distance, largest_distance, longest_query, near_block

ONE = np.uint64(1)
MOST_MARKS = (1 << 32) - 1


@kernel
def find_shared_postings(words, bases, starts, postings, alive, n_images, counts):
    """Find the postings whose image is in the lists of several vocabularies of a query feature, and count images.

    words: [Q, K, A]; alive: [n_images], empty for all. out: counts [Q, 2^K] live images of every exact mask of two or more
    vocabularies, and with several assignments of one. Returns the image and mask of each posting, list by list, and where each
    list begins [Q K A + 1].
    """
    images, begins = np.empty(count_postings(words, bases, starts), np.uint16), np.zeros(words.size + 1, np.int64)
    if words.shape[1] == 2 and words.shape[2] == 1:
        n = share_two(words, bases, starts, postings, alive, n_images, images, begins, counts)
        return images[:n], np.full(n, 3, np.uint16), begins
    masks = np.empty(len(images), np.uint16)
    n = share_any(words, bases, starts, postings, alive, n_images, images, masks, begins, counts)
    return images[:n], masks[:n], begins


@kernel
def share_two(words, bases, starts, postings, alive, n_images, images, begins, counts):
    """Find shared postings with one word in each of two vocabularies [Q, 2, 1]: one pass over each list. Return their number.

    The mark of an image is `base` plus its number of postings in the first list; lower marks are of earlier query features. So
    the second list finds the images that both share and how often the first holds them, and the first is not read again.
    out: images, begins, counts.
    """
    marks, found = np.zeros(n_images, np.uint32), np.empty(longest_query(words, bases, starts) + 1, np.uint16)
    n = base = 0
    for q in range(len(words)):
        one, two, n_found = words[q, 0, 0], words[q, 1, 0], 0
        if one >= 0 and two >= 0:
            first, last = np.int64(starts[bases[0] + one]), np.int64(starts[bases[0] + one + 1])
            if base + last - first > MOST_MARKS:
                marks[:], base = 0, 0
            for i in range(first, last):
                image = postings[i]
                marks[image] = max(np.int64(marks[image]), base) + 1
            for i in range(np.int64(starts[bases[1] + two]), np.int64(starts[bases[1] + two + 1])):
                image = postings[i]
                found[n_found] = image
                n_found += np.int64(marks[image] > base)
            for image in found[:n_found]:
                if marks[image] > base:  # not found before
                    counts[q, 3] += np.int64(len(alive) == 0 or alive[image] != 0)
                    for _ in range(np.int64(marks[image]) - base):
                        images[n] = image
                        n += 1
                    marks[image] = base
            base += last - first + 1
        begins[2 * q + 1] = n
        images[n : n + n_found] = found[:n_found]
        n += n_found
        begins[2 * q + 2] = n
    return n


@inlined
def count_once(image, counted, alive, marks):
    """Return 1 for a live image that has not been counted, else 0: without a branch that cannot be predicted. out: marks."""
    mark = np.int64(marks[image])
    marks[image] = mark | counted
    fresh = np.int64(mark & counted == 0)
    return fresh if len(alive) == 0 else fresh & np.int64(alive[image])


@kernel
def share_any(words, bases, starts, postings, alive, n_images, images, masks, begins, counts):
    """Find shared postings with any number of vocabularies and words [Q, K, A]: two passes over the lists. Return their number.

    The mark of an image is that of the query feature, with a bit for every vocabulary whose lists hold it, and one for an image
    that has been counted. out: images, masks, begins, counts.
    """
    n_vocabularies, several = words.shape[1], words.shape[2] > 1
    marks, full, counted = np.zeros(n_images, np.uint32), (1 << n_vocabularies) - 1, 1 << n_vocabularies
    n = place = mark = 0
    for q in range(len(words)):
        mark += 2 << n_vocabularies
        if mark > MOST_MARKS - full - counted:
            marks[:], mark = 0, 2 << n_vocabularies
        for k in range(n_vocabularies):
            for word in words[q, k]:
                if word >= 0:
                    for i in range(np.int64(starts[bases[k] + word]), np.int64(starts[bases[k] + word + 1])):
                        image = postings[i]
                        marks[image] = max(np.int64(marks[image]), mark) | 1 << k
        first = n
        for k in range(n_vocabularies):
            for word in words[q, k]:
                if word >= 0:
                    begin, end = np.int64(starts[bases[k] + word]), np.int64(starts[bases[k] + word + 1])
                    for i in range(begin, end):
                        image = postings[i]
                        images[n] = image
                        n += np.int64(marks[image] & (full ^ 1 << k) != 0)
                    if several:
                        for i in range(begin, end):
                            if marks[postings[i]] & full == 1 << k:
                                counts[q, 1 << k] += count_once(postings[i], counted, alive, marks)
                place += 1
                begins[place] = n
        for i in range(first, n):
            image = images[i]
            mask = np.int64(marks[image]) & full
            masks[i] = mask
            counts[q, mask] += count_once(image, counted, alive, marks)
    return n


@kernel
def add_shared(images, masks, begins, idf, factors, scores):
    """Add what a posting of a shared image gets beyond the weight of one list alone. idf: [Q, K, A]. out: scores.

    images, masks, begins: of `find_shared_postings`; factors: [Q, 2^K].
    """
    place = 0  # of the list
    for q in range(idf.shape[0]):
        of_mask = factors[q]
        for k in range(idf.shape[1]):
            for a in range(idf.shape[2]):
                weight, single = np.float64(idf[q, k, a]), np.float64(of_mask[1 << k])
                for i in range(begins[place], begins[place + 1]):
                    scores[images[i]] += weight * (of_mask[masks[i]] - single)
                place += 1


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
    words, bases, starts, postings, images, masks, begins, signatures, query_signatures, idf, factors, hamming_weights,
    burstiness, scores
):  # fmt: skip
    """Vote with factors[q, mask of the image] idf hamming_weight for every near posting. words, idf: [Q, K, A]. out: scores.

    images, masks, begins: of `find_shared_postings`. Signatures [B, P] and [Q, K, A, B]; without any every distance is 0.
    Burstiness applies to images in the lists of one vocabulary only, whose matches are its postings.
    """
    threshold = largest_distance(hamming_weights)
    image_masks, touched = np.zeros(1 << 16, np.uint16), np.empty(1 << 16, np.uint16)
    image_sums, powers = np.zeros(1 << 16, np.float64), np.zeros(1 << 16, np.float64)
    n_lists = words.shape[1] * words.shape[2]
    for q in range(len(words)):
        shared, n_touched = range(begins[q * n_lists], begins[(q + 1) * n_lists]), 0
        for i in shared:
            image_masks[images[i]] = masks[i]
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
