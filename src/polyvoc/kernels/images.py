"""Count and vote by sets of images: an image is in the set of the vocabularies whose lists hold one of its features.

Every posting of a list votes with the weight of its image's set. See `postings` for the arrays of a segment. The images of a
list are marked in a bitmap of one bit per image, 8 KB for a full segment: it stays in the L1 cache.
"""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import LANES, inlined, kernel, lowest_bit, popcount
from polyvoc.kernels.matches import BEST, KEEP_ALL
from polyvoc.kernels.postings import count_postings, distance, largest_distance, near_block

ONE = np.uint64(1)


@inlined
def has_bit(bitmap, image):
    """Return whether an image is in a bitmap: 0 or 1."""
    return bitmap[np.int64(image) >> 6] >> (np.uint64(image) & np.uint64(63)) & ONE


@kernel
def mark_lists(words, bases, starts, postings, bitmaps):
    """Mark the images of the lists of each vocabulary. words: [K, A], -1 for none. out: bitmaps [K, blocks]."""
    bitmaps[:] = 0
    for k in range(words.shape[0]):
        bitmap = bitmaps[k]
        for a in range(words.shape[1]):
            if words[k, a] >= 0:
                number = bases[k] + words[k, a]
                for i in range(np.int64(starts[number]), np.int64(starts[number + 1])):
                    bitmap[np.int64(postings[i]) >> 6] |= ONE << (np.uint64(postings[i]) & np.uint64(63))


@kernel
def mark_shared(bitmaps, shared):
    """Mark the images that two or more bitmaps [K, blocks] hold. out: shared [blocks]."""
    for block in range(len(shared)):
        one = two = np.uint64(0)
        for k in range(len(bitmaps)):
            two |= one & bitmaps[k, block]
            one |= bitmaps[k, block]
        shared[block] = two


@kernel
def mask_of(bitmaps, image):
    """Return the mask of the bitmaps that hold an image."""
    mask = 0
    for k in range(len(bitmaps)):
        mask |= np.int64(has_bit(bitmaps[k], image)) << k
    return mask


@kernel
def count_marked(bitmaps, shared, live, counts):
    """Count the live images of every exact mask. out: counts [2^K]."""
    for k in range(len(bitmaps)):
        total = 0
        for block in range(len(shared)):
            total += popcount(bitmaps[k, block] & ~shared[block] & live[block])
        counts[1 << k] = total
    if len(bitmaps) == 2:
        total = 0
        for block in range(len(shared)):
            total += popcount(shared[block] & live[block])
        counts[3] = total
        return
    for block in range(len(shared)):
        rest = shared[block] & live[block]
        while rest != 0:
            counts[mask_of(bitmaps, (block << 6) + lowest_bit(rest))] += 1
            rest &= rest - ONE


@kernel
def find_shared_postings(words, bases, starts, postings, live, counts):
    """Find the postings whose image is in the lists of several vocabularies of a query feature, and count images.

    words: [Q, K, A]; live: [blocks] bitmap of the live images. out: counts [Q, 2^K] images of every exact mask. Returns the
    image and mask of each posting, list by list, and where each list begins [Q K A + 1].
    """
    n_queries, n_vocabularies, n_assignments = words.shape
    images, masks = np.empty((2, count_postings(words, bases, starts)), np.uint16)
    begins = np.zeros(words.size + 1, np.int64)
    bitmaps, shared = np.zeros((n_vocabularies, len(live)), np.uint64), np.zeros(len(live), np.uint64)
    n = place = 0  # postings found, lists done
    for q in range(n_queries):
        mark_lists(words[q], bases, starts, postings, bitmaps)
        mark_shared(bitmaps, shared)
        count_marked(bitmaps, shared, live, counts[q])
        first = n
        for k in range(n_vocabularies):
            for a in range(n_assignments):
                if words[q, k, a] >= 0:
                    number = bases[k] + words[q, k, a]
                    for i in range(np.int64(starts[number]), np.int64(starts[number + 1])):
                        images[n] = postings[i]
                        n += np.int64(has_bit(shared, postings[i]))
                place += 1
                begins[place] = n
        for i in range(first, n):
            masks[i] = mask_of(bitmaps, images[i])
    return images[:n].copy(), masks[:n].copy(), begins


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
