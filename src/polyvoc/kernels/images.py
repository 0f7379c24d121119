"""Count and vote by sets of images: an image is in the set of the vocabularies whose lists hold one of its features.

Every posting of a list votes with the weight of its image's set. See `postings` for the arrays of a segment.
"""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import inlined, kernel, popcount
from polyvoc.kernels.matches import BEST, KEEP_ALL


@inlined
def mark_images(words, bases, starts, postings, image_masks):
    """Set bit k of every image that the lists of vocabulary k hold. words: [K, A], -1 for none. image_masks: zeros before."""
    for k in range(words.shape[0]):
        bit = np.uint16(1 << k)
        for a in range(words.shape[1]):
            if words[k, a] >= 0:
                number = bases[k] + words[k, a]
                for i in range(np.int64(starts[number]), np.int64(starts[number + 1])):
                    image_masks[postings[i]] |= bit


@kernel
def count_images(words, bases, starts, postings, alive, counts):
    """Count the images of every exact mask of a query feature. words: [Q, K, A]. out: counts [Q, 2^K]."""
    image_masks = np.zeros(1 << 16, np.uint16)
    for q in range(len(words)):
        mark_images(words[q], bases, starts, postings, image_masks)
        for k in range(words.shape[1]):
            for a in range(words.shape[2]):
                if words[q, k, a] < 0:
                    continue
                number = bases[k] + words[q, k, a]
                for i in range(np.int64(starts[number]), np.int64(starts[number + 1])):
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
    image_masks = np.zeros(1 << 16, np.uint16)
    image_sums, powers = np.zeros(1 << 16, np.float64), np.zeros(1 << 16, np.float64)
    for q in range(len(words)):
        mark_images(words[q], bases, starts, postings, image_masks)
        for k in range(words.shape[1]):
            for a in range(words.shape[2]):
                if words[q, k, a] < 0:
                    continue
                number = bases[k] + words[q, k, a]
                for i in range(np.int64(starts[number]), np.int64(starts[number + 1])):
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
        for k in range(words.shape[1]):
            for a in range(words.shape[2]):
                if words[q, k, a] < 0:
                    continue
                number = bases[k] + words[q, k, a]
                for i in range(np.int64(starts[number]), np.int64(starts[number + 1])):
                    image = postings[i]
                    image_masks[image] = 0
                    if image_sums[image] > 0:
                        scores[image] += image_sums[image] if burstiness == BEST else powers[image] / np.sqrt(image_sums[image])
                        image_sums[image] = powers[image] = 0
