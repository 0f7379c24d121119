"""Many images against one segment."""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import LANES, kernel, lowest_bit, near_lanes, near_long_lanes, popcount
from polyvoc.kernels.postings import near_block
from polyvoc.kernels.verification import find_shared


@kernel
def vote_roughly(numbers, owners, query_signatures, idf, starts, postings, signatures, gains, threshold, scores):
    """Vote for the images of a segment with the near features of each list alone, for many images that ask.

    Of the query features in the order of their lists: numbers: [n] of the list; owners: [n] image of each among those that ask;
    query_signatures: [B, n]; idf: [n]. gains: [bits + 1] evidence of a distance, for those up to `threshold`. Of several
    features of an image in one list the nearest counts. out: scores [images that ask, n_images].
    """
    long = len(signatures) > 1
    one, two = signatures[0], signatures[-1]  # views and single numbers: a slice within the loop would count references
    seen, held = np.full(scores.shape[1], -1, np.int64), np.zeros(scores.shape[1], np.float32)
    for i in range(len(numbers)):
        last = np.int64(starts[numbers[i] + 1])
        owner, first_bits, other_bits = owners[i], query_signatures[0, i], query_signatures[-1, i]
        for block in range(np.int64(starts[numbers[i]]), last, LANES):
            if block + LANES > len(one):
                near = near_block(signatures, block, last, query_signatures[:, i], threshold)
            else:
                if long:
                    near = near_long_lanes(one, two, block, first_bits, other_bits, threshold)
                else:
                    near = near_lanes(one, block, first_bits, threshold)
                if last - block < LANES:
                    near &= (np.uint64(1) << np.uint64(last - block)) - np.uint64(1)
            while near != 0:
                p = block + lowest_bit(near)
                near &= near - np.uint64(1)
                image = postings[p]
                h = popcount(one[p] ^ first_bits)
                if long:
                    h += popcount(two[p] ^ other_bits)
                gain = idf[i] * gains[h]
                before = held[image] if seen[image] == i else np.float32(0)
                if gain > before:
                    scores[owner, image] += gain - before
                    seen[image], held[image] = i, gain


@kernel
def sum_votes(best):
    """Sum votes one by one in single precision, as a search does, and set them to 0."""
    total = np.float32(0)
    for q in range(len(best)):
        total = np.float32(total + best[q])
        best[q] = 0.0
    return total


@kernel
def score_exactly(
    positions, feature_starts, words, places, signatures, query_signatures, idf, bases, slots, starts, features, gains, scores,
    backs
):  # fmt: skip
    """Sum the votes of an image for some others, and theirs for it, as `evidence.vote_near` does for a query: of every feature
    that asks, the best match counts.

    words, places: of the segment, by image; query_signatures: [Q, K, B]; idf: [Q, K]; bases, slots, starts, features: of
    `matching.list_words`; gains: [2^K, bits K + 1] evidence of a mask and the sum of its distances. out: scores,
    backs [n].
    """
    best, met = np.zeros(len(idf), np.float64), np.zeros(len(idf), np.int64)
    longest = 0
    for position in positions:
        longest = max(longest, np.int64(feature_starts[position + 1]) - np.int64(feature_starts[position]))
    best_back = np.zeros(longest, np.float64)
    hits, matches = np.empty((longest * words.shape[1] + 1, 4), np.int64), np.empty((1024, 4), np.int64)
    for i in range(len(positions)):
        first, last = np.int64(feature_starts[positions[i]]), np.int64(feature_starts[positions[i] + 1])
        n_hits = find_shared(words[first:last], places[first:last], signatures, bases, slots, hits)
        room = 0
        for hit in range(n_hits):
            room += np.int64(starts[hits[hit, 2] + 1]) - np.int64(starts[hits[hit, 2]])
        if room > len(matches):
            matches = np.empty((2 * room, 4), np.int64)
        n = 0
        for hit in range(n_hits):
            f, k, slot, place = hits[hit, 0], hits[hit, 1], hits[hit, 2], hits[hit, 3]
            for j in range(starts[slot], starts[slot + 1]):
                q = np.int64(features[j])
                row = met[q]
                if row >= n or matches[row, 0] != q or matches[row, 1] != f:  # else met in another vocabulary
                    row = met[q] = n
                    matches[n, 0], matches[n, 1], matches[n, 2], matches[n, 3] = q, f, 0, 0
                    n += 1
                matches[row, 2] |= 1 << k
                for plane in range(len(signatures)):
                    matches[row, 3] += popcount(signatures[plane, place] ^ query_signatures[q, k, plane])
        for row in range(n):
            q, mask = matches[row, 0], matches[row, 2]
            gain = gains[mask, matches[row, 3]]
            if gain > 0:
                order, total = 0, 0.0
                for k in range(idf.shape[1]):
                    if mask >> k & 1:
                        order += 1
                        total += idf[q, k]
                value = total / order * np.float64(gain)  # as in `votes.weight_match`
                best[q] = max(best[q], value)
                best_back[matches[row, 1]] = max(best_back[matches[row, 1]], value)
        scores[i] = sum_votes(best)
        backs[i] = sum_votes(best_back[: last - first])


@kernel
def keep_best(rough, norms, alive, ids, asking, scores, images):
    """Keep the best images of a segment for each one that asks, beside those kept of other segments.

    rough: [n, n_images] votes; ids: [n_images]; asking: [n] ids, each of which leaves itself out. out: scores, images
    [n, depth], best first, ties by id, 0 and -1 where there are fewer.
    """
    depth = scores.shape[1]
    for i in range(len(rough)):
        for position in range(rough.shape[1]):
            if rough[i, position] <= 0 or norms[position] <= 0 or (len(alive) > 0 and not alive[position]):
                continue
            score, image = rough[i, position] / norms[position], ids[position]
            place = depth
            while place > 0 and (
                scores[i, place - 1] < score or (scores[i, place - 1] == score and images[i, place - 1] > image)
            ):
                place -= 1
            if place == depth or image == asking[i]:
                continue
            for later in range(depth - 1, place, -1):
                scores[i, later], images[i, later] = scores[i, later - 1], images[i, later - 1]
            scores[i, place], images[i, place] = score, image
