"""Votes by gathering every match: several assignments, sets of images, burstiness. The arrays are described in `lookup.py`."""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import kernel, popcount
from polyvoc.kernels.lookup import column_of, find_run, longest_query, partner_size


@kernel
def room(size, n_codes):
    """Give room for the matches of one query feature, as `gather_matches` wants it."""
    codes, images = np.empty(size, np.int64), np.empty(size, np.int64)
    sums, match_masks, links = np.empty(size, np.float64), np.empty(size, np.int64), np.empty(size, np.int64)
    return codes, images, sums, match_masks, links, np.full((3, n_codes), -1, np.int64)


@kernel
def write_codes(words, k, number, base, bases, starts, run_starts, run_words, run_lengths, columns, codes):
    """Write which assigned words each feature of a list shares with the query feature.

    words: [K, A] local, -1 for none. The code of a feature is the sum over vocabularies of (assignment + 1) * base^vocabulary,
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
                size = partner_size(k, bases, starts)
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
    weights, closeness, masks, chains, codes, images, sums, match_masks, links
):  # fmt: skip
    """Gather every indexed feature that shares a word with one query feature, once, with its sum of idf^2 * HE over M.

    words, query_signatures, weights: [K, A]. chains: [3, (A + 1)^K] head, tail, cursor of the features with one code, all -1
    before and after. out: images, sums, match_masks [n]; gives n. A feature is entered by the first list that holds it; the
    later ones walk along the chain of its code, because equal codes appear in each list in the same order.
    """
    n_vocabularies, n_assignments = words.shape
    base = n_assignments + 1
    n = 0
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
                term = weights[k, a]
                if len(signatures) > 0:
                    term *= closeness[popcount(signatures[first + i] ^ query_signatures[k, a])]
                if mask & ((1 << k) - 1) == 0:  # the first list that holds it
                    images[n] = postings[first + i]
                    sums[n] = term
                    match_masks[n] = mask
                    links[n] = -1
                    if mask != 1 << k:
                        if chains[0, code] < 0:
                            chains[0, code] = n
                            chains[2, code] = n
                        else:
                            links[chains[1, code]] = n
                        chains[1, code] = n
                    n += 1
                else:
                    match = chains[2, code]
                    sums[match] += term
                    chains[2, code] = links[match] if links[match] >= 0 else chains[0, code]
    return n


@kernel
def mark_images(images, match_masks, n, image_masks):
    """Unite the masks of the matches of each image, then give every match the mask of its image. image_masks: zeros."""
    for i in range(n):
        image_masks[images[i]] |= match_masks[i]
    for i in range(n):
        match_masks[i] = image_masks[images[i]]


@kernel
def count_matches(
    words, bases, starts, run_starts, run_words, run_lengths, columns, postings, alive, masks, image_sets, counts
):
    """Count the sets of every query feature by exact mask, in features or in images. out: counts [Q, 2^K]."""
    codes, images, sums, match_masks, links, chains = room(longest_query(words, bases, starts), len(masks))
    image_masks = np.zeros(1 << 16, np.int64)
    no_signatures = np.empty(0, np.uint64)
    query_signatures = np.zeros(words.shape[1:], np.uint64)
    weights = np.ones(words.shape[1:], np.float32)
    closeness = np.ones(65, np.float32)
    for q in range(len(words)):
        n = gather_matches(words[q], bases, starts, run_starts, run_words, run_lengths, columns, postings, no_signatures,
                           query_signatures, weights, closeness, masks, chains, codes, images, sums, match_masks,
                           links)  # fmt: skip
        chains[:] = -1
        if image_sets:
            mark_images(images, match_masks, n, image_masks)
        for i in range(n):
            image = images[i]
            if image_sets:
                if image_masks[image] == 0:
                    continue  # this image was counted
                image_masks[image] = 0
            if len(alive) == 0 or alive[image]:
                counts[q, match_masks[i]] += 1


@kernel
def vote_matches(
    words, bases, starts, run_starts, run_words, run_lengths, columns, postings, signatures, query_signatures,
    weights, factors, closeness, alive, masks, image_sets, intra, inter, on_difference, totals, scores
):  # fmt: skip
    """Vote with everything switched on: multiple assignment, image-level sets, burstiness.

    Burstiness (Jegou, Douze, Schmid, CVPR 2009): within an image s becomes s sqrt(s / t), t the image's sum for this query
    feature; across images s sqrt(s / T), T = totals[q]. With `scores` empty the call only sums T (out: totals), over live
    images; otherwise it votes (out: scores).
    """
    codes, images, sums, match_masks, links, chains = room(longest_query(words, bases, starts), len(masks))
    image_masks = np.zeros(1 << 16, np.int64)
    image_sums = np.zeros(1 << 16, np.float64)
    powers = np.zeros(1 << 16, np.float64)
    totalling = len(scores) == 0
    for q in range(len(words)):
        n = gather_matches(words[q], bases, starts, run_starts, run_words, run_lengths, columns, postings, signatures,
                           query_signatures[q], weights[q], closeness, masks, chains, codes, images, sums, match_masks,
                           links)  # fmt: skip
        chains[:] = -1
        if image_sets:
            mark_images(images, match_masks, n, image_masks)
        for i in range(n):
            image = images[i]
            image_masks[image] = 0
            mask = match_masks[i]
            vote = sums[i] * factors[q, mask]
            if vote <= 0 or (len(alive) > 0 and not alive[image]):
                continue
            if not (intra or inter) or (on_difference and mask & (mask - 1) != 0):
                if not totalling:
                    scores[image] += vote
                continue
            image_sums[image] += vote
            if intra and inter and not totalling:
                powers[image] += vote * vote * np.sqrt(np.sqrt(vote))  # s'^1.5 with s' = s^1.5 / sqrt(t)
            else:
                powers[image] += vote * np.sqrt(vote)
        for i in range(n):
            image = images[i]
            total = image_sums[image]
            if total <= 0:
                continue
            if totalling:
                totals[q] += powers[image] / np.sqrt(total) if intra else total
            elif intra and inter:
                scores[image] += powers[image] / (total**0.75 * np.sqrt(totals[q]))
            elif intra:
                scores[image] += powers[image] / np.sqrt(total)
            else:
                scores[image] += powers[image] / np.sqrt(totals[q])
            image_sums[image] = 0
            powers[image] = 0
