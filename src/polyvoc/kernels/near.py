"""Vote by comparing signatures: the matches within the Hamming threshold, each once. The path of the default search.

See `postings` for the arrays of a segment, `matches` for masks and weights.
"""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import LANES, inlined, kernel, lowest_bit
from polyvoc.kernels.matches import settle_votes, weight_match
from polyvoc.kernels.postings import column_of, distance, equal_words, longest_query, near_block


@inlined
def run_bits(begin, end, position):
    """Return which of the next LANES postings lie in a run: bit i for position + i."""
    first, last = max(begin - position, 0), min(end - position, LANES)
    if first >= last:
        return np.uint64(0)
    ones = ~np.uint64(0) if last - first == LANES else (np.uint64(1) << np.uint64(last - first)) - np.uint64(1)
    return ones << np.uint64(first)


@kernel
def gather_near(
    row, bases, begins, ends, starts, columns, postings, signatures, query_signatures, idf, hamming_weights, threshold, chains,
    images, masks, n_lists, terms, sums, distances, links
):  # fmt: skip
    """Gather the features that are near one query feature or that several of its lists share, each once.

    row, begins, ends, idf: [K]; query_signatures: [K, B]; hamming_weights: [bits + 1]; threshold: of features in one list only.
    chains: [3, 2^K] head, tail, cursor of the shared features with one mask, all -1 before. out: images, masks, n_lists, and
    over these lists the sums of idf^2 hamming_weight (terms), of idf^2 (sums) and of distances [n]; returns n.
    """
    n = 0
    equal = np.zeros(len(row), np.uint64)
    for k in range(len(row)):
        if row[k] < 0:
            continue
        partner = 1 if k == 0 else 0
        last = np.int64(starts[bases[k] + row[k] + 1])
        for block in range(np.int64(starts[bases[k] + row[k]]), last, LANES):
            shared = np.uint64(0)
            for m in range(len(row)):
                equal[m] = 0
                if m == k:
                    continue
                if m == partner:
                    equal[m] = run_bits(begins[k], ends[k], block)
                else:
                    equal[m] = equal_words(columns[column_of(k, m)], block, min(block + LANES, last), row[m])
                shared |= equal[m]
            wanted = shared | near_block(signatures, block, last, query_signatures[k], threshold)
            while wanted != 0:
                lane = lowest_bit(wanted)
                wanted &= wanted - np.uint64(1)
                p = block + lane
                h = distance(signatures, p, query_signatures[k])
                mask = 1 << k
                if shared >> np.uint64(lane) & np.uint64(1) != 0:
                    for m in range(len(row)):
                        mask |= np.int64(equal[m] >> np.uint64(lane) & np.uint64(1)) << m
                match = n
                if mask & ((1 << k) - 1) != 0:  # entered from an earlier list: follow the chain of its mask
                    match = chains[2, mask]
                    chains[2, mask] = links[match]
                else:
                    images[n], masks[n] = postings[p], mask
                    n_lists[n], terms[n], sums[n], distances[n], links[n] = 0, 0.0, 0.0, 0, -1
                    if mask != 1 << k:
                        if chains[0, mask] < 0:
                            chains[0, mask] = n
                        else:
                            links[chains[1, mask]] = n
                        chains[1, mask] = n
                    n += 1
                n_lists[match] += 1
                terms[match] += idf[k] * hamming_weights[h]
                sums[match] += idf[k]
                distances[match] += h
        chains[2] = chains[0]
    return n


@kernel
def vote_near(
    words, bases, begins, ends, starts, columns, postings, signatures, query_signatures, idf, factors, hamming_weights, cells,
    table, alive, burstiness, on_difference, scores
):  # fmt: skip
    """Vote with the weight of all lists of each match together, and with burstiness; one assignment.

    idf: [Q, K]; factors: [Q, 2^K]; hamming_weights: [bits + 1]; cells: [Q, 2^K] row of `table` [rows, bits + 1] for each mask,
    or empty for the rules that sum over lists (`weight_match`). alive: empty or [n_images]. See `settle_votes` for
    burstiness and scores.
    """
    longest = longest_query(words.reshape((*words.shape, 1)), bases, starts)
    images, masks, n_lists, distances, links = np.empty((5, longest), np.int64)
    terms, sums, values = np.empty((3, longest), np.float64)
    chains = np.empty((3, factors.shape[1]), np.int64)
    image_sums, powers = np.zeros(1 << 16, np.float64), np.zeros(1 << 16, np.float64)
    for q in range(len(words)):
        threshold = -1
        for k in range(words.shape[1]):
            for h in range(len(hamming_weights) - 1, threshold, -1):
                if hamming_weights[h] > 0 and (len(cells) == 0 or table[cells[q, 1 << k], h] > 0):
                    threshold = h
                    break
        chains[:] = -1
        n = gather_near(words[q], bases, begins[q], ends[q], starts, columns, postings, signatures, query_signatures[q], idf[q],
                        hamming_weights, threshold, chains, images, masks, n_lists, terms, sums, distances, links)  # fmt: skip
        for i in range(n):
            values[i] = weight_match(q, masks[i], n_lists[i], terms[i], sums[i], distances[i], factors, cells, table)
        settle_votes(n, images, masks, values, alive, burstiness, on_difference, image_sums, powers, scores)
