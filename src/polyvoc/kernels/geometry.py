"""Spatial verification: which features of a query and of an image match, and which transform do most matches agree on?

One-to-one matches are the columns of `pairs` float64 [7, p], heaviest first:

    x, y     place in the query                  octaves  change of scale, log2; NaN if not known
    u, v     place in the image                  turn     rotation in degrees, -180 .. 180; NaN if not known
    weight   how much the match is believed
"""

from __future__ import annotations

import math

import numpy as np

from polyvoc.kernels.compiler import inlined, kernel, popcount, prefetch

X, Y, U, V, OCTAVES, TURN, WEIGHT = range(7)
ROWS = 7

BIN_OCTAVES, BIN_DEGREES = 0.5, 30.0  # of a bin of the vote; a peak is three bins wide
SCALE_BINS, ANGLE_BINS = 32, 12  # changes of scale up to 2^8 either way
SCALE_SLACK, ANGLE_SLACK = 1.0, 45.0  # octaves and degrees by which an inlier may differ from the transform
HYPOTHESES = 64  # similarities tried: those of the heaviest matches of the peak
PARTNERS = 24  # matches without scale of which every two define a similarity
REFINED = 4  # best of them that are fitted to their inliers
WIDE = 3.0  # tolerances within which a match supports a similarity that one match alone defines
ROUNDS = 5  # of fitting, while the tolerance narrows from WIDE to 1
PRIOR = 4.0  # matches that the similarity counts for in the fit of an affine transform
LEAST, LEAST_PLACES = 3, 4  # inliers: one match always fits its own similarity, two places always fit one
LARGEST_SCALE, LARGEST_STRETCH = 10.0, 4.0  # beyond these a transform is not that of a photograph


# -- tentative matches


@kernel
def list_words(words, sizes, bases, most):
    """List the query features of each word, the first `most` of them.

    words: [Q, K], -1 for none; sizes, bases: [K], vocabulary k has the words bases[k] .. bases[k] + sizes[k] - 1. Gives slots
    [sum of sizes], 0 for words that the query has not; and the features of slot s: features[starts[s]] .. [starts[s + 1]].
    """
    slots = np.zeros(sizes.sum(), np.int32)
    lengths = np.zeros(words.size + 1, np.int32)
    n = 0
    for q in range(len(words)):
        for k in range(words.shape[1]):
            if words[q, k] >= 0:
                number = bases[k] + words[q, k]
                if slots[number] == 0:
                    n += 1
                    slots[number] = n
                lengths[slots[number]] = min(lengths[slots[number]] + 1, most)
    starts = np.zeros(n + 2, np.int32)
    for slot in range(n + 1):
        starts[slot + 1] = starts[slot] + lengths[slot]
    features = np.empty(starts[n + 1], np.int32)
    ends = starts.copy()
    for q in range(len(words)):
        for k in range(words.shape[1]):
            if words[q, k] >= 0:
                slot = slots[bases[k] + words[q, k]]
                if ends[slot] < starts[slot + 1]:
                    features[ends[slot]] = q
                    ends[slot] += 1
    return slots, starts, features


@kernel
def find_shared(words, places, signatures, sizes, bases, slots, starts, hits):
    """Find the words of an image that the query has, and ask for their signatures ahead of `find_matches`.

    words, places: [n, K] of the image. out: hits [2, n K] number of the word in `words` and its slot. Gives how many there are
    and how many pairs of features share them.
    """
    n_vocabularies = words.shape[1]
    n = 0
    for f in range(len(words)):
        for k in range(n_vocabularies):
            word = np.int64(words[f, k])
            if word < sizes[k]:
                slot = slots[bases[k] + word]
                hits[0, n] = f * n_vocabularies + k
                hits[1, n] = slot
                n += slot > 0  # most words are not shared, at random: a branch would be mispredicted
    pairs = 0
    for i in range(n):
        pairs += starts[hits[1, i] + 1] - starts[hits[1, i]]
        place = np.int64(places[hits[0, i] // n_vocabularies, hits[0, i] % n_vocabularies])
        for plane in range(len(signatures)):
            prefetch(signatures, plane * signatures.shape[1] + place)
    return n, pairs


@kernel
def find_matches(hits, n_hits, places, signatures, query_signatures, starts, features, ranks, met, matches):
    """Match the features that share words; a pair that shares several is one match, at their mean distance, halves up.

    query_signatures: [Q, K, B]; ranks: [K + 1, 64 B + 1] of a match by its shared words and its distance, -1: no match;
    met: [Q] anything. out: matches [4, pairs] query feature, feature, rank; gives their number.
    """
    n_vocabularies = places.shape[1]
    n = begin = 0
    for i in range(n_hits):
        f, k = hits[0, i] // n_vocabularies, hits[0, i] % n_vocabularies
        place = np.int64(places[f, k])
        for j in range(starts[hits[1, i]], starts[hits[1, i] + 1]):
            q = features[j]
            distance = 0
            for plane in range(len(signatures)):
                distance += popcount(signatures[plane, place] ^ query_signatures[q, k, plane])
            row = met[q]
            if begin <= row < n and matches[0, row] == q:
                matches[2, row] += 1
                matches[3, row] += distance
            else:
                met[q] = n
                matches[0, n], matches[1, n], matches[2, n], matches[3, n] = q, f, 1, distance
                n += 1
        if i + 1 == n_hits or hits[0, i + 1] // n_vocabularies != f:  # all matches of this feature are known
            end, n = n, begin
            for row in range(begin, end):
                shared = matches[2, row]
                rank = ranks[shared, (2 * matches[3, row] + shared) // (2 * shared)]
                matches[0, n], matches[1, n], matches[2, n] = matches[0, row], f, rank
                n += rank >= 0
            begin = n
    return n


@kernel
def order_matches(matches, n, n_ranks, order):
    """Sort matches by their rank, equal ones as they stand. out: order [n]."""
    ends = np.zeros(n_ranks + 1, np.int64)
    for i in range(n):
        ends[matches[2, i] + 1] += 1
    for rank in range(n_ranks):
        ends[rank + 1] += ends[rank]
    for i in range(n):
        rank = matches[2, i]
        order[ends[rank]] = i
        ends[rank] += 1


@kernel
def one_to_one(order, queries, features, query_used, feature_used, stamp, kept):
    """Keep the first matches in an order that use each feature once. out: kept [p]; gives p.

    query_used, feature_used: by feature, not equal to `stamp` before.
    """
    n = 0
    for row in order:
        q, f = queries[row], features[row]
        if query_used[q] != stamp and feature_used[f] != stamp:
            query_used[q] = stamp
            feature_used[f] = stamp
            kept[n] = row
            n += 1
    return n


@inlined
def write_pair(pairs, i, query_frame, u, v, scale, angle, weight):
    """Write a match as a column of `pairs`. query_frame: x, y, scale, angle."""
    pairs[X, i], pairs[Y, i], pairs[U, i], pairs[V, i] = query_frame[0], query_frame[1], u, v
    octaves, turn = np.nan, np.nan
    if query_frame[2] > 0 and scale > 0:
        octaves = math.log2(scale / query_frame[2])
        turn = angle - query_frame[3]
        turn -= 360.0 * math.floor((turn + 180.0) / 360.0)
    pairs[OCTAVES, i], pairs[TURN, i], pairs[WEIGHT, i] = octaves, turn, weight


@kernel
def pair_frames(query_frames, image_frames, queries, features, weights):
    """Give `pairs` of matches; frames: [n, 4] x, y, scale, angle."""
    pairs = np.empty((ROWS, len(queries)))
    for i in range(len(queries)):
        u, v, scale, angle = image_frames[features[i]]
        write_pair(pairs, i, query_frames[queries[i]], u, v, scale, angle, weights[i])
    return pairs


@inlined
def half(bits):
    """Give the value of a float16 that is positive, by its bits."""
    exponent, mantissa = np.int64(bits) >> 10, np.int64(bits) & 1023
    if exponent == 0:
        return math.ldexp(np.float64(mantissa), -24)
    return math.ldexp(np.float64(mantissa + 1024), exponent - 25)


# -- the transform


@kernel
def find_peak(pairs, n, votes, peak):
    """Mark the matches in the most popular bin of (change of scale, rotation) and in its neighbours, and those of unknown scale.

    Weak geometric consistency: Jegou, Douze, Schmid, ECCV 2008. votes: [SCALE_BINS, ANGLE_BINS]. out: peak [n].
    """
    votes[:] = 0
    for i in range(n):
        if not math.isnan(pairs[OCTAVES, i]):
            scale, angle = bin_of(pairs[OCTAVES, i], pairs[TURN, i])
            votes[scale, angle] += 1.0
    best, most = 0, -1.0
    for scale in range(1, SCALE_BINS - 1):
        for angle in range(ANGLE_BINS):
            total = 0.0
            for s in range(scale - 1, scale + 2):
                total += votes[s, angle - 1] + votes[s, angle] + votes[s, (angle + 1) % ANGLE_BINS]
            if total > most:
                best, most = scale * ANGLE_BINS + angle, total
    for i in range(n):
        peak[i] = True
        if not math.isnan(pairs[OCTAVES, i]):
            scale, angle = bin_of(pairs[OCTAVES, i], pairs[TURN, i])
            apart = (angle - best % ANGLE_BINS + 1) % ANGLE_BINS
            peak[i] = abs(scale - best // ANGLE_BINS) <= 1 and apart <= 2


@inlined
def bin_of(octaves, turn):
    """Give the bin of the vote; those of the scale are cut so that every bin has neighbours."""
    scale = math.floor(octaves / BIN_OCTAVES) + SCALE_BINS // 2
    return min(max(scale, 1), SCALE_BINS - 2), math.floor(turn / BIN_DEGREES) % ANGLE_BINS


@kernel
def is_plausible(transform):
    """Tell whether a transform could be that of a photograph: no mirror image, no extreme scale, no extreme stretch."""
    a, b, c, d = transform[0, 0], transform[0, 1], transform[1, 0], transform[1, 1]
    area = a * d - b * c  # product of the two singular values
    if not LARGEST_SCALE**-2 < area < LARGEST_SCALE**2:
        return False
    return (a * a + b * b + c * c + d * d) / area < LARGEST_STRETCH + 1 / LARGEST_STRETCH


@kernel
def support(pairs, n, transform, tolerance, inliers):
    """Sum the weights of the matches that a transform puts in their place, scaled and turned as it does; nearer counts more.

    out: inliers [n]. What is not known is NaN and agrees.
    """
    a, b, c, d = transform[0, 0], transform[0, 1], transform[1, 0], transform[1, 1]
    shift_x, shift_y = transform[0, 2], transform[1, 2]
    octaves = 0.5 * math.log2(a * d - b * c)
    turn = math.degrees(math.atan2(c - b, a + d))
    limit = tolerance * tolerance
    total = 0.0
    for i in range(n):
        error_x = a * pairs[X, i] + b * pairs[Y, i] + shift_x - pairs[U, i]
        error_y = c * pairs[X, i] + d * pairs[Y, i] + shift_y - pairs[V, i]
        error = error_x * error_x + error_y * error_y
        apart = abs(pairs[TURN, i] - turn)
        agrees = error <= limit and not (
            abs(pairs[OCTAVES, i] - octaves) > SCALE_SLACK or min(apart, 360.0 - apart) > ANGLE_SLACK
        )
        inliers[i] = agrees
        if agrees:
            total += pairs[WEIGHT, i] * (1.0 - error / limit)
    return total


@kernel
def write_similarity(transform, c, s, x, y, u, v):
    """Write the transform that turns and scales by (c, s) and takes the place x, y to u, v."""
    transform[0, 0], transform[0, 1], transform[0, 2] = c, -s, u - c * x + s * y
    transform[1, 0], transform[1, 1], transform[1, 2] = s, c, v - s * x - c * y


@kernel
def propose(pairs, n, peak, transforms):
    """Write the similarities that each match of the peak defines alone, by its scales and angles; heaviest first.

    Philbin, Chum, Isard, Sivic, Zisserman, CVPR 2007. Of matches without scale every two define one. out: transforms; gives
    how many.
    """
    count = 0
    for i in range(n):
        if peak[i] and not math.isnan(pairs[OCTAVES, i]) and count < HYPOTHESES:
            factor, turn = 2.0 ** pairs[OCTAVES, i], math.radians(pairs[TURN, i])
            c, s = factor * math.cos(turn), factor * math.sin(turn)
            write_similarity(transforms[count], c, s, pairs[X, i], pairs[Y, i], pairs[U, i], pairs[V, i])
            count += 1
    unknown = np.flatnonzero(np.isnan(pairs[OCTAVES, :n]))[:PARTNERS]
    for j in range(len(unknown)):
        for i in range(j):
            before = complex(pairs[X, unknown[j]] - pairs[X, unknown[i]], pairs[Y, unknown[j]] - pairs[Y, unknown[i]])
            after = complex(pairs[U, unknown[j]] - pairs[U, unknown[i]], pairs[V, unknown[j]] - pairs[V, unknown[i]])
            if before != 0:
                r = after / before
                p = unknown[i]
                write_similarity(transforms[count], r.real, r.imag, pairs[X, p], pairs[Y, p], pairs[U, p], pairs[V, p])
                count += 1
    return count


@kernel
def fit(pairs, n, inliers, transform):
    """Fit an affine transform to the inliers by least squares, drawn towards the best similarity where they are few.

    The similarity counts as PRIOR matches spread like the inliers in every direction, so that few matches, or matches on one
    line, do not bend the image. out: transform; tells whether there is a plausible one.
    """
    count = 0
    x = y = u = v = 0.0
    for i in range(n):
        if inliers[i]:
            count += 1
            x += pairs[X, i]
            y += pairs[Y, i]
            u += pairs[U, i]
            v += pairs[V, i]
    if count < LEAST:
        return False
    x, y, u, v = x / count, y / count, u / count, v / count
    xx = xy = yy = ux = uy = vx = vy = 0.0
    for i in range(n):
        if inliers[i]:
            dx, dy, du, dv = pairs[X, i] - x, pairs[Y, i] - y, pairs[U, i] - u, pairs[V, i] - v
            xx += dx * dx
            xy += dx * dy
            yy += dy * dy
            ux += du * dx
            uy += du * dy
            vx += dv * dx
            vy += dv * dy
    spread = xx + yy
    if not spread > 0:
        return False
    c, s = (ux + vy) / spread, (vx - uy) / spread
    prior = PRIOR * spread / (2 * count)
    xx, yy = xx + prior, yy + prior
    ux, uy, vx, vy = ux + prior * c, uy - prior * s, vx + prior * s, vy + prior * c
    area = xx * yy - xy * xy
    transform[0, 0], transform[0, 1] = (ux * yy - uy * xy) / area, (uy * xx - ux * xy) / area
    transform[1, 0], transform[1, 1] = (vx * yy - vy * xy) / area, (vy * xx - vx * xy) / area
    transform[0, 2] = u - transform[0, 0] * x - transform[0, 1] * y
    transform[1, 2] = v - transform[1, 0] * x - transform[1, 1] * y
    return is_plausible(transform)


@kernel
def room(n):
    """Give room for `find_transform` with up to n matches."""
    proposals = HYPOTHESES + PARTNERS * (PARTNERS - 1) // 2
    votes = np.empty((SCALE_BINS, ANGLE_BINS))
    return votes, np.empty((2, n), np.bool_), np.empty((proposals, 2, 3)), np.empty(proposals)


@kernel
def find_transform(pairs, n, tolerance, votes, flags, transforms, scores, transform, inliers):
    """Find the transform with the most support among matches and its inliers; gives how many, 0: no transform.

    The best similarities are fitted to their inliers while the tolerance narrows (locally optimised: Chum, Matas, Kittler,
    2003). out: transform [2, 3], inliers [n].
    """
    peak, near = flags[0], flags[1]
    find_peak(pairs, n, votes, peak)
    count = propose(pairs, n, peak, transforms)
    for i in range(count):
        scores[i] = 0.0
        if is_plausible(transforms[i]):
            scores[i] = support(pairs, n, transforms[i], WIDE * tolerance, near)
    best = 0.0
    for _ in range(min(REFINED, count)):
        i = np.argmax(scores[:count])
        if scores[i] <= 0:
            break
        scores[i] = 0.0
        tried = transforms[i]
        for step in range(ROUNDS + 1):
            total = support(pairs, n, tried, tolerance, near)
            if total > best:
                best = total
                transform[:] = tried
                inliers[:n] = near[:n]
            width = WIDE + (1.0 - WIDE) * step / (ROUNDS - 1)
            support(pairs, n, tried, max(width, 1.0) * tolerance, near)
            if step == ROUNDS or not fit(pairs, n, near, tried):
                break
    found = np.count_nonzero(inliers[:n]) if best > 0 else 0
    return found


# -- many images


@kernel
def verify_images(
    positions, feature_starts, words, places, signatures, xy, shape, query_frames, query_signatures, sizes, bases, slots,
    starts, features, ranks, rank_weights, tolerance, counts, weights, transforms, agreeing
):  # fmt: skip
    """Verify the images of a segment at some positions.

    out: counts, weights [n], transforms [n, 2, 3], NaN where none; agreeing [.., 2] query feature and feature of the inliers of
    the last image, as many as there is room for.
    """
    n_vocabularies = words.shape[1]
    most = 1
    for position in positions:
        most = max(most, np.int64(feature_starts[position + 1]) - np.int64(feature_starts[position]))
    hits = np.empty((2, most * n_vocabularies + 1), np.int32)
    met = np.zeros(len(query_frames), np.int64)
    query_used, feature_used = np.full(len(query_frames), -1, np.int64), np.full(most, -1, np.int64)
    smaller = min(most, len(query_frames))
    kept = np.empty(smaller, np.int64)
    pairs, inliers = np.empty((ROWS, smaller)), np.empty(smaller, np.bool_)
    votes, flags, proposals, scores = room(smaller)
    matches, order = np.empty((4, 1), np.int32), np.empty(1, np.int64)
    for i in range(len(positions)):
        first = np.int64(feature_starts[positions[i]])
        last = np.int64(feature_starts[positions[i] + 1])
        own = places[first:last]
        n_hits, n_pairs = find_shared(words[first:last], own, signatures, sizes, bases, slots, starts, hits)
        if n_pairs > len(order):
            matches, order = np.empty((4, 2 * n_pairs), np.int32), np.empty(2 * n_pairs, np.int64)
        n = find_matches(hits, n_hits, own, signatures, query_signatures, starts, features, ranks, met, matches)
        order_matches(matches, n, len(rank_weights), order)
        n = one_to_one(order[:n], matches[0], matches[1], query_used, feature_used, i, kept)
        for j in range(n):
            q, f, rank = matches[0, kept[j]], first + matches[1, kept[j]], matches[2, kept[j]]
            write_pair(pairs, j, query_frames[q], xy[f, 0], xy[f, 1], half(shape[f, 0]), half(shape[f, 1]), rank_weights[rank])
        reach = tolerance * extent(xy[first:last])
        counts[i] = find_transform(pairs, n, reach, votes, flags, proposals, scores, transforms[i], inliers)
        weights[i] = 0.0
        n_agreeing = 0
        for j in range(n):
            if counts[i] > 0 and inliers[j]:
                weights[i] += pairs[WEIGHT, j]
                if n_agreeing < len(agreeing):
                    agreeing[n_agreeing, 0], agreeing[n_agreeing, 1] = matches[0, kept[j]], matches[1, kept[j]]
                    n_agreeing += 1


@kernel
def extent(xy):
    """Give the long side of the box around places [n, 2]."""
    longest = 0.0
    for axis in range(2):
        low, high = np.inf, -np.inf
        for i in range(len(xy)):
            low, high = min(low, xy[i, axis]), max(high, xy[i, axis])
        longest = max(longest, high - low)
    return longest
