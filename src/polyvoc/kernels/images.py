"""Count and vote by sets of images: an image is in the set of the vocabularies whose lists hold one of its features.

Every posting of a list votes with the weight of its image's set. See `postings` for the arrays of a segment.
"""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import kernel, popcount
from polyvoc.kernels.matches import BEST, KEEP_ALL


@kernel
def mark_images(words, bases, starts, postings, lists, image_masks):
    """Set bit k of every image that the lists of vocabulary k hold; return how many lists there are.

    words: [K, A], -1 for none; image_masks: zeros before. out: lists [K A, 4] vocabulary, assignment, first posting, end.
    """
    n = 0
    for k in range(words.shape[0]):
        bit = np.uint16(1 << k)
        for a in range(words.shape[1]):
            if words[k, a] < 0:
                continue
            number = bases[k] + words[k, a]
            first, last = np.int64(starts[number]), np.int64(starts[number + 1])
            lists[n, 0], lists[n, 1], lists[n, 2], lists[n, 3] = k, a, first, last
            n += 1
            for i in range(first, last):
                image_masks[postings[i]] |= bit
    return n


@kernel
def count_images(words, bases, starts, postings, alive, counts):
    """Count the images of every exact mask of a query feature. words: [Q, K, A]. out: counts [Q, 2^K]."""
    image_masks, lists = np.zeros(1 << 16, np.uint16), np.empty((words.shape[1] * words.shape[2], 4), np.int64)
    for q in range(len(words)):
        for one in lists[: mark_images(words[q], bases, starts, postings, lists, image_masks)]:
            for i in range(one[2], one[3]):
                image = postings[i]
                mask = image_masks[image]
                if mask != 0 and (len(alive) == 0 or alive[image]):
                    counts[q, mask] += 1
                image_masks[image] = 0


@kernel
def vote_images(
    words, bases, starts, postings, signatures, query_signatures, idf, factors, hamming_weights, burstiness, scores
):
    """Vote with factors[q, mask of the image] idf hamming_weight for every posting. words, idf: [Q, K, A]. out: scores.

    Signatures [B, P] and [Q, K, A, B]; without any every distance is 0. Burstiness (see `matches.settle_votes`) applies to
    images in one list only, whose matches are its postings.
    """
    image_masks, lists = np.zeros(1 << 16, np.uint16), np.empty((words.shape[1] * words.shape[2], 4), np.int64)
    image_sums, powers = np.zeros(1 << 16, np.float64), np.zeros(1 << 16, np.float64)
    for q in range(len(words)):
        n = mark_images(words[q], bases, starts, postings, lists, image_masks)
        for one in lists[:n]:
            k, a, first, last = one[0], one[1], one[2], one[3]
            for i in range(first, last):
                image = postings[i]
                mask = image_masks[image]
                h = 0
                for plane in range(len(signatures)):
                    h += popcount(signatures[plane, i] ^ query_signatures[q, k, a, plane])
                vote = np.float64(factors[q, mask]) * idf[q, k, a] * hamming_weights[h]
                if burstiness == KEEP_ALL or mask & (mask - 1) != 0:
                    scores[image] += vote
                elif burstiness == BEST:
                    image_sums[image] = max(image_sums[image], vote)
                else:
                    image_sums[image] += vote
                    powers[image] += vote * np.sqrt(vote)
        for one in lists[:n]:
            for i in range(one[2], one[3]):
                image = postings[i]
                total = image_sums[image]
                image_masks[image] = 0
                if total > 0:
                    scores[image] += total if burstiness == BEST else powers[image] / np.sqrt(total)
                    image_sums[image] = powers[image] = 0
