"""Vote by gathering every match of a query feature: several assignments, burstiness of words. Also weights and burstiness.

See `postings` for the arrays of a segment. A mask has a bit for every vocabulary in which the match shares a word.
"""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import kernel, popcount
from polyvoc.kernels.postings import column_of, find_run, longest_query, partner_size

KEEP_ALL, BEST, INTRA = range(3)  # how burstiness is treated, see `settle_votes`


@kernel
def weight_match(q, mask, n_lists, term, total, distance, factors, cells, table):
    """Return the weight of one match that is in `n_lists` lists.

    Rules that sum over lists (cells empty): factors[q, mask] times term, the sum of idf^2 hamming_weight. Likelihood table:
    mean idf^2 times the log-likelihood ratio of (mask, mean distance), at least 0. total, distance: sums over its lists.
    """
    if len(cells) == 0:
        return term * factors[q, mask]
    return total / n_lists * max(table[cells[q, mask], (2 * distance + n_lists) // (2 * n_lists)], 0.0)


@kernel
def settle_votes(n, images, masks, values, alive, burstiness, on_difference, image_sums, powers, scores):
    """Add the votes of a query feature's matches, given their weights. values: [n] weights. out: scores.

    Burstiness (Jegou, Douze, Schmid, CVPR 2009): BEST keeps the best match of each image; within an image (INTRA) s becomes
    s sqrt(s / t), t the image's sum for this query feature. image_sums, powers: [65536], zeros before and after.
    """
    for i in range(n):
        vote, image = values[i], images[i]
        if vote <= 0 or (len(alive) > 0 and not alive[image]):
            continue
        if burstiness == KEEP_ALL or (on_difference and masks[i] & (masks[i] - 1) != 0):
            scores[image] += vote
        elif burstiness == BEST:
            image_sums[image] = max(image_sums[image], vote)
        else:
            image_sums[image] += vote
            powers[image] += vote * np.sqrt(vote)
    for i in range(n):
        image = images[i]
        total = image_sums[image]
        if total <= 0:
            continue
        scores[image] += total if burstiness == BEST else powers[image] / np.sqrt(total)
        image_sums[image] = powers[image] = 0


@kernel
def allocate_matches(size, n_codes):
    """Return arrays for the matches of one query feature, as `gather_matches` uses them."""
    codes, images, match_masks, n_lists, distances, links = np.empty((6, size), np.int64)
    terms, sums = np.empty((2, size), np.float64)
    return codes, images, match_masks, n_lists, terms, sums, distances, links, np.full((3, n_codes), -1, np.int64)


@kernel
def write_codes(words, k, number, base, bases, starts, run_starts, run_words, run_lengths, columns, codes):
    """Write which assigned words each feature of a list shares with the query feature.

    words: [K, A], -1 for none. The code of a feature is the sum over vocabularies of (assignment + 1) * base^vocabulary,
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
                size = partner_size(k, bases)
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
    idf, hamming_weights, masks, chains, codes, images, match_masks, n_lists, terms, sums, distances, links
):  # fmt: skip
    """Gather every indexed feature that shares a word with one query feature, once.

    words, idf: [K, A]; query_signatures: [K, A, B]; masks: [(A + 1)^K] by code. chains: [3, (A + 1)^K] head, tail, cursor of
    the features with one code, all -1 before. out: images, match_masks, n_lists, and over these lists the sums of idf^2
    hamming_weight (terms), of idf^2 (sums) and of Hamming distances [n]; returns n. A feature is entered from the first list
    that contains it; the later ones follow the chain of its code: equal codes have the same order in each list.
    """
    n_vocabularies, n_assignments = words.shape
    base, n = n_assignments + 1, 0
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
                h = 0
                for plane in range(len(signatures)):
                    h += popcount(signatures[plane, first + i] ^ query_signatures[k, a, plane])
                match = n
                if mask & ((1 << k) - 1) == 0:  # the first list that contains it
                    images[n], match_masks[n], links[n] = postings[first + i], mask, -1
                    n_lists[n], terms[n], sums[n], distances[n] = 0, 0.0, 0.0, 0
                    if mask != 1 << k:
                        if chains[0, code] < 0:
                            chains[0, code] = chains[2, code] = n
                        else:
                            links[chains[1, code]] = n
                        chains[1, code] = n
                    n += 1
                else:
                    match = chains[2, code]
                    chains[2, code] = links[match] if links[match] >= 0 else chains[0, code]
                n_lists[match] += 1
                terms[match] += idf[k, a] * hamming_weights[h]
                sums[match] += idf[k, a]
                distances[match] += h
    return n


@kernel
def join_masks(images, match_masks, n, image_masks):
    """Set the mask of every match to the union of the masks of its image. image_masks: [65536] zeros before and after."""
    for i in range(n):
        image_masks[images[i]] |= match_masks[i]
    for i in range(n):
        match_masks[i] = image_masks[images[i]]
    for i in range(n):
        image_masks[images[i]] = 0


@kernel
def count_matches(words, bases, starts, run_starts, run_words, run_lengths, columns, postings, alive, masks, counts):
    """Count the features of every exact mask of a query feature. out: counts [Q, 2^K]."""
    longest = longest_query(words, bases, starts)
    codes, images, match_masks, n_lists, terms, sums, distances, links, chains = allocate_matches(longest, len(masks))
    no_signatures, query_signatures = np.empty((0, 0), np.uint64), np.empty((*words.shape[1:], 0), np.uint64)
    idf, hamming_weights = np.ones(words.shape[1:], np.float32), np.ones(1, np.float32)
    for q in range(len(words)):
        n = gather_matches(words[q], bases, starts, run_starts, run_words, run_lengths, columns, postings, no_signatures,
                           query_signatures, idf, hamming_weights, masks, chains, codes, images, match_masks, n_lists, terms,
                           sums, distances, links)  # fmt: skip
        chains[:] = -1
        for i in range(n):
            if len(alive) == 0 or alive[images[i]]:
                counts[q, match_masks[i]] += 1


@kernel
def vote_matches(
    words, bases, starts, run_starts, run_words, run_lengths, columns, postings, signatures, query_signatures,
    idf, factors, hamming_weights, cells, table, alive, masks, image_sets, burstiness, on_difference, scores
):  # fmt: skip
    """Vote with several assignments, masks of features or of images, and burstiness.

    See `weight_match` for factors, cells and table, `settle_votes` for burstiness and scores.
    """
    longest = longest_query(words, bases, starts)
    codes, images, match_masks, n_lists, terms, sums, distances, links, chains = allocate_matches(longest, len(masks))
    values = np.empty(len(images), np.float64)
    image_masks = np.zeros(1 << 16, np.int64)
    image_sums, powers = np.zeros(1 << 16, np.float64), np.zeros(1 << 16, np.float64)
    for q in range(len(words)):
        n = gather_matches(words[q], bases, starts, run_starts, run_words, run_lengths, columns, postings, signatures,
                           query_signatures[q], idf[q], hamming_weights, masks, chains, codes, images, match_masks, n_lists,
                           terms, sums, distances, links)  # fmt: skip
        chains[:] = -1
        if image_sets:
            join_masks(images, match_masks, n, image_masks)
        for i in range(n):
            values[i] = weight_match(q, match_masks[i], n_lists[i], terms[i], sums[i], distances[i], factors, cells, table)
        settle_votes(n, images, match_masks, values, alive, burstiness, on_difference, image_sums, powers, scores)
