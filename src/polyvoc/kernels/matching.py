"""Which features of a query and of an image match? Those that share words, at their mean Hamming distance; then one-to-one."""

from __future__ import annotations

import math

import numpy as np

from polyvoc.kernels.compiler import kernel, popcount, prefetch


@kernel
def list_words(words, bases, most):
    """List the query features of each word, the first `most` of them.

    words: [Q, K], -1 for none; word w of vocabulary k has the number bases[k] + w, below bases[k + 1] - 1, which is no word's.
    Gives slots [bases[K]], 0 for words that the query has not; the features of slot s are features[starts[s] : starts[s + 1]].
    """
    slots = np.zeros(bases[-1], np.uint32)
    lengths = np.zeros(words.size + 1, np.uint32)
    n = 0
    for q in range(len(words)):
        for k in range(words.shape[1]):
            if words[q, k] >= 0:
                number = bases[k] + words[q, k]
                if slots[number] == 0:
                    n += 1
                    slots[number] = n
                lengths[slots[number]] = min(lengths[slots[number]] + 1, most)
    starts = np.zeros(n + 2, np.uint32)
    starts[1:] = np.cumsum(lengths[: n + 1])
    ends = starts.copy()
    features = np.empty(starts[-1], np.uint32)
    for q in range(len(words)):
        for k in range(words.shape[1]):
            if words[q, k] >= 0:
                slot = slots[bases[k] + words[q, k]]
                if ends[slot] < starts[slot + 1]:
                    features[ends[slot]] = q
                    ends[slot] += 1
    return slots, starts, features


@kernel
def find_shared(words, places, signatures, bases, slots, hits):
    """Find the words of an image that the query has, and ask for their signatures ahead of `find_matches`.

    words, places: [n, K] of the image; signatures: [B, postings]. out: hits [n K, 4] feature, vocabulary, slot and place;
    gives their number.
    """
    n = np.uint64(0)
    for f in range(len(words)):
        for k in range(words.shape[1]):
            number = min(bases[k] + np.int64(words[f, k]), bases[k + 1] - 1)
            slot = slots[np.uint64(number)]
            hits[n, 0], hits[n, 1], hits[n, 2] = f, k, slot
            n += np.uint64(slot > 0)  # most words are not shared, at random: a branch would be mispredicted
    for i in range(n):
        hits[i, 3] = places[hits[i, 0], hits[i, 1]]
        for plane in range(len(signatures)):
            prefetch(signatures, plane * signatures.shape[1] + hits[i, 3])
    return np.int64(n)


@kernel
def find_matches(hits, signatures, query_signatures, starts, features, ranks, met, matches):
    """Match the features that share words; a pair that shares several is one match.

    query_signatures: [Q, K, B]; ranks: [K + 1, 64 B K + 1] of a match by its shared words and the sum of their distances, -1:
    no match; met: [Q] anything. out: matches [pairs, 4] query feature, feature, rank; gives their number.
    """
    n = 0
    for i in range(len(hits)):
        f, k, slot, place = hits[i, 0], hits[i, 1], hits[i, 2], hits[i, 3]
        for j in range(starts[slot], starts[slot + 1]):
            q = features[j]
            distance = 0
            for plane in range(len(signatures)):
                distance += popcount(signatures[plane, place] ^ query_signatures[q, k, plane])
            row = met[q]
            if (row < n) & (matches[row, 0] == q) & (matches[row, 1] == f):  # met in another vocabulary
                matches[row, 2] += 1
                matches[row, 3] += distance
            else:
                met[q] = n
                matches[n, 0], matches[n, 1], matches[n, 2], matches[n, 3] = q, f, 1, distance
                n += 1
    kept = 0
    for row in range(n):
        rank = ranks[matches[row, 2], matches[row, 3]]
        matches[kept, 0], matches[kept, 1], matches[kept, 2] = matches[row, 0], matches[row, 1], rank
        kept += rank >= 0
    return kept


@kernel
def order_matches(matches, n_ranks, order):
    """Sort matches by their rank, equal ones as they stand. out: order [n]."""
    ends = np.zeros(n_ranks + 1, np.int64)
    for i in range(len(matches)):
        ends[matches[i, 2] + 1] += 1
    for rank in range(n_ranks):
        ends[rank + 1] += ends[rank]
    for i in range(len(matches)):
        rank = matches[i, 2]
        order[ends[rank]] = i
        ends[rank] += 1


@kernel
def one_to_one(order, queries, features, query_uses, feature_uses, kept, shares):
    """Keep the first matches in an order that use each feature once, and tell how far each is one of many.

    Features that match n and m others belong to a texture: their match is worth 1 / sqrt(n m) of one that is unique (compare
    the burstiness of Jegou, Douze, Schmid, CVPR 2009). query_uses, feature_uses: zeros before and after. out: kept, shares [p];
    gives p.
    """
    for row in order:
        query_uses[queries[row]] += 1
        feature_uses[features[row]] += 1
    n = 0
    for row in order:
        q, f = queries[row], features[row]
        if query_uses[q] > 0 and feature_uses[f] > 0:
            kept[n] = row
            shares[n] = 1.0 / math.sqrt(np.float64(query_uses[q] * feature_uses[f]))
            n += 1
            query_uses[q] = feature_uses[f] = 0
    for row in order:
        query_uses[queries[row]] = feature_uses[features[row]] = 0
    return n
