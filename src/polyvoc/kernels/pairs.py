"""Compare many query images with one segment: coarse votes choose candidates, which are then scored exactly."""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import LANES, kernel, lowest_bit, near_lanes, near_long_lanes, popcount
from polyvoc.kernels.postings import near_block
from polyvoc.kernels.verification import find_shared


@kernel
def vote_coarse(numbers, owners, query_signatures, idf, starts, postings, signatures, gains, threshold, scores):
    """Vote for the images of a segment with the near features of each list alone, for many query images.

    Query features in the order of their lists: numbers: [n] of the list; owners: [n] query image of each; query_signatures:
    [B, n]; idf: [n]. gains: [bits + 1] log-likelihood ratio by distance, for those up to `threshold`. Of several features of an
    image in one list the nearest counts. out: scores [query images, n_images].
    """
    long = len(signatures) > 1
    one, two = signatures[0], signatures[-1]  # views and single numbers: a slice within the loop would count references
    voter, given = np.full(scores.shape[1], -1, np.int64), np.zeros(scores.shape[1], np.float32)
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
                before = given[image] if voter[image] == i else np.float32(0)
                if gain > before:
                    scores[owner, image] += gain - before
                    voter[image], given[image] = i, gain


@kernel
def sum_votes(best):
    """Return the sum of votes, one by one in single precision as in a search, and set them to 0."""
    total = np.float32(0)
    for q in range(len(best)):
        total = np.float32(total + best[q])
        best[q] = 0.0
    return total


@kernel
def score_exact(
    positions, feature_starts, words, places, signatures, query_signatures, idf, bases, slots, starts, features, gains, scores,
    reverse_scores
):  # fmt: skip
    """Sum the votes of an image for some others, and theirs for it, as `vote_near` does: of every query feature the best match
    counts.

    words, places: [F, K] of the segment, places: posting of each; query_signatures: [Q, K, B]; idf: [Q, K]; bases, slots,
    starts, features: of `list_words`; gains: [2^K, bits K + 1] log-likelihood ratio by mask and sum of distances. out: scores,
    reverse_scores [n].
    """
    best, latest = np.zeros(len(idf), np.float64), np.zeros(len(idf), np.int64)
    longest = 0
    for position in positions:
        longest = max(longest, np.int64(feature_starts[position + 1]) - np.int64(feature_starts[position]))
    best_reverse = np.zeros(longest, np.float64)
    shared, matches = np.empty((longest * words.shape[1] + 1, 4), np.int64), np.empty((1024, 4), np.int64)
    for i in range(len(positions)):
        first, last = np.int64(feature_starts[positions[i]]), np.int64(feature_starts[positions[i] + 1])
        n_shared = find_shared(words[first:last], places[first:last], signatures, bases, slots, shared)
        capacity = 0
        for s in range(n_shared):
            capacity += np.int64(starts[shared[s, 2] + 1]) - np.int64(starts[shared[s, 2]])
        if capacity > len(matches):
            matches = np.empty((2 * capacity, 4), np.int64)
        n = 0
        for s in range(n_shared):
            f, k, slot, place = shared[s, 0], shared[s, 1], shared[s, 2], shared[s, 3]
            for j in range(starts[slot], starts[slot + 1]):
                q = np.int64(features[j])
                row = latest[q]
                if row >= n or matches[row, 0] != q or matches[row, 1] != f:  # else matched in another vocabulary, too
                    row = latest[q] = n
                    matches[n, 0], matches[n, 1], matches[n, 2], matches[n, 3] = q, f, 0, 0
                    n += 1
                matches[row, 2] |= 1 << k
                for plane in range(len(signatures)):
                    matches[row, 3] += popcount(signatures[plane, place] ^ query_signatures[q, k, plane])
        for row in range(n):
            q, mask = matches[row, 0], matches[row, 2]
            gain = gains[mask, matches[row, 3]]
            if gain > 0:
                n_lists, total = 0, 0.0
                for k in range(idf.shape[1]):
                    if mask >> k & 1:
                        n_lists += 1
                        total += idf[q, k]
                value = total / n_lists * np.float64(gain)  # as in `weight_match`
                best[q] = max(best[q], value)
                best_reverse[matches[row, 1]] = max(best_reverse[matches[row, 1]], value)
        scores[i] = sum_votes(best)
        reverse_scores[i] = sum_votes(best_reverse[: last - first])


@kernel
def keep_best(votes, norms, alive, ids, query_ids, scores, images):
    """Keep the best images of a segment for each query image, together with those kept of other segments.

    votes: [n, n_images]; norms, ids: [n_images]; query_ids: [n], an image is not kept for itself. out: scores, images
    [n, depth], best first, ties by id, 0 and -1 where there are fewer.
    """
    depth = scores.shape[1]
    for i in range(len(votes)):
        for position in range(votes.shape[1]):
            if votes[i, position] <= 0 or norms[position] <= 0 or (len(alive) > 0 and not alive[position]):
                continue
            score, image = votes[i, position] / norms[position], ids[position]
            rank = depth
            while rank > 0 and (scores[i, rank - 1] < score or (scores[i, rank - 1] == score and images[i, rank - 1] > image)):
                rank -= 1
            if rank == depth or image == query_ids[i]:
                continue
            for later in range(depth - 1, rank, -1):
                scores[i, later], images[i, later] = scores[i, later - 1], images[i, later - 1]
            scores[i, rank], images[i, rank] = score, image
