"""Spatial verification: one-to-one matches of a query with an image, the affine transform most agree on, its inliers."""

from __future__ import annotations

import math

import numpy as np

from polyvoc.kernels.codes import asymmetric, factor_of, find_places
from polyvoc.kernels.compiler import inlined, kernel, popcount, prefetch

X, Y, U, V, OCTAVES, TURN, WEIGHT = range(7)  # rows of `pairs`: position in query and image, change of scale and angle
BIN_OCTAVES, BIN_DEGREES = 0.5, 30.0  # of a bin of the vote; a peak is three bins wide
SCALE_BINS, ANGLE_BINS = 32, 12  # changes of scale up to 2^8 either way
SCALE_SLACK, ANGLE_SLACK = 1.0, 45.0  # octaves and degrees by which an inlier may differ from the transform
UPRIGHT = 60.0  # degrees: features with a scale and no angle are those of a network, which finds little in turned photographs
HYPOTHESES = 64  # similarities tried: those of the heaviest matches of the peak
PARTNERS = 24  # heaviest matches without angle, of which every two define a similarity
UPRIGHT_PARTNERS = 48  # the same of those with a scale: it excludes most similarities at once
PROPOSALS = HYPOTHESES + PARTNERS * (PARTNERS - 1) // 2
MAX_SUPPORT = 512  # heaviest matches that may support them, so that near copies cost no more
REFINED = 8  # best similarities that are fitted to their inliers, at most
WIDE = 3.0  # tolerances within which a match supports the similarity of another: scales and angles are inexact
ROUNDS, ROUNDS_WIDE = 8, 3  # of fitting: in the first the tolerance stays WIDE, so that inliers spread, then it narrows to 1
LOCAL = 0.25  # of the spread of the inliers: the tolerance where they lie close together
TINY = 1e-12  # square pixels: closer positions are one
PRIOR = 1.0  # weight of the similarity in the fit of an affine transform, in matches
MIN_INLIERS, MIN_POSITIONS = 3, 4  # one match always fits its own similarity; two without scale fit that of their positions
OCTAVE, SMALLEST, TURN_STEPS = 15.0, 4.0, 256.0  # how `index.segment` stores scales and angles
LARGEST_SCALE, LARGEST_STRETCH = 10.0, 4.0  # beyond these a transform is not that of a photograph


@kernel
def list_words(words, bases, most):
    """List the query features of each word, the first `most` of them.

    words: [Q, K], -1 for none; word w of vocabulary k has the number bases[k] + w, below bases[k + 1] - 1, which is no word's.
    Returns slots [bases[K]], 0 for words not in the query; the features of slot s are features[starts[s] : starts[s + 1]].
    """
    slots, lengths, n = np.zeros(bases[-1], np.uint32), np.zeros(words.size + 1, np.uint32), 0
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
    ends, features = starts.copy(), np.empty(starts[-1], np.uint32)
    for q in range(len(words)):
        for k in range(words.shape[1]):
            if words[q, k] >= 0:
                slot = slots[bases[k] + words[q, k]]
                if ends[slot] < starts[slot + 1]:
                    features[ends[slot]] = q
                    ends[slot] += 1
    return slots, starts, features


@kernel
def find_shared(words, places, signatures, bases, slots, shared):
    """Find the words of an image that the query has, and prefetch their signatures for `find_matches`.

    words, places: [n, K] of the image, places: posting of each; signatures: [B, postings]. out: shared [n K, 4] feature,
    vocabulary, slot and posting; returns their number.
    """
    n = np.uint64(0)
    for f in range(len(words)):
        for k in range(words.shape[1]):
            number = min(bases[k] + np.int64(words[f, k]), bases[k + 1] - 1)
            slot = slots[np.uint64(number)]
            shared[n, 0], shared[n, 1], shared[n, 2] = f, k, slot
            n += np.uint64(slot > 0)  # most words are not shared, at random: a branch would be mispredicted
    for i in range(n if len(signatures) > 0 else 0):  # without signatures there are no places
        shared[i, 3] = places[shared[i, 0], shared[i, 1]]
        for plane in range(len(signatures)):
            prefetch(signatures, plane * signatures.shape[1] + shared[i, 3])
    return np.int64(n)


@kernel
def find_matches(shared, signatures, query_signatures, starts, features, ranks, latest, matches):
    """Match the features that share words; a pair that shares several is one match.

    query_signatures: [Q, K, B]; ranks: [K + 1, 64 B K + 1] of a match by its shared words and the sum of their distances, -1:
    no match; latest: [Q] any rows, for work. out: matches [pairs, 4] query feature, feature, rank; returns their number.
    """
    n = 0
    for i in range(len(shared)):
        f, k, slot, posting = shared[i, 0], shared[i, 1], shared[i, 2], shared[i, 3]
        for j in range(starts[slot], starts[slot + 1]):
            q = features[j]
            distance = 0
            for plane in range(len(signatures)):
                distance += popcount(signatures[plane, posting] ^ query_signatures[q, k, plane])
            row = latest[q]
            if (row < n) & (matches[row, 0] == q) & (matches[row, 1] == f):  # matched in another vocabulary, too
                matches[row, 2] += 1
                matches[row, 3] += distance
            else:
                latest[q] = n
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
    """Sort matches by their rank, keeping the order of equals. out: order [n]."""
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
    """Keep the first matches in an order that use each feature once, each with its share.

    Features that match n and m others belong to a texture: their match is worth 1 / sqrt(n m) of one that is unique (compare
    the burstiness of Jegou, Douze, Schmid, CVPR 2009). query_uses, feature_uses: zeros before and after. out: kept, shares [p];
    returns p.
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


@inlined
def bin_of(octaves, turn):
    """Return the bin of the vote; scales are clipped so that every bin has neighbours."""
    scale = math.floor(octaves / BIN_OCTAVES) + SCALE_BINS // 2
    return min(max(scale, 1), SCALE_BINS - 2), math.floor(turn / BIN_DEGREES) % ANGLE_BINS


@kernel
def find_peak(pairs, n, peak):
    """Mark the matches in the heaviest bin of (change of scale, rotation) and its neighbours, and those without angle.

    Weak geometric consistency: Jegou, Douze, Schmid, ECCV 2008. out: peak [n].
    """
    votes = np.zeros((SCALE_BINS, ANGLE_BINS))
    for i in range(n):
        if not math.isnan(pairs[TURN, i]):
            scale, angle = bin_of(pairs[OCTAVES, i], pairs[TURN, i])
            votes[scale, angle] += pairs[WEIGHT, i]
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
        if not math.isnan(pairs[TURN, i]):
            scale, angle = bin_of(pairs[OCTAVES, i], pairs[TURN, i])
            apart = (angle - best % ANGLE_BINS + 1) % ANGLE_BINS
            peak[i] = abs(scale - best // ANGLE_BINS) <= 1 and apart <= 2


@kernel
def is_plausible(transform):
    """Return whether a transform could be that of a photograph: no mirror image, no extreme scale, no extreme stretch."""
    a, b, c, d = transform[0, 0], transform[0, 1], transform[1, 0], transform[1, 1]
    area = a * d - b * c  # product of the two singular values
    if not LARGEST_SCALE**-2 < area < LARGEST_SCALE**2:
        return False
    return (a * a + b * b + c * c + d * d) / area < LARGEST_STRETCH + 1 / LARGEST_STRETCH


@kernel
def write_similarity(transform, c, s, x, y, u, v):
    """Write the transform that rotates and scales by (c, s) and maps x, y to u, v."""
    transform[0, 0], transform[0, 1], transform[0, 2] = c, -s, u - c * x + s * y
    transform[1, 0], transform[1, 1], transform[1, 2] = s, c, v - s * x - c * y


@inlined
def fits_upright(turn, one, other):
    """Return whether a similarity, as a complex number, is nearly upright and fits the changes of scale of two matches."""
    size = abs(turn)
    if not size > 0 or abs(math.atan2(turn.imag, turn.real)) > math.radians(UPRIGHT):
        return False
    octaves = math.log2(size)
    return not (abs(octaves - one) > SCALE_SLACK or abs(octaves - other) > SCALE_SLACK)


@kernel
def propose_similarities(pairs, n, peak, transforms, origins):
    """Write the similarities that each match of the peak defines alone, by its scales and angles; heaviest first.

    Philbin, Chum, Isard, Sivic, Zisserman, CVPR 2007. Of matches without angle every two define one; where their scales are
    known, it must fit them, and be upright. out: transforms, origins: the match that each was made from; returns their number.
    """
    count = 0
    for i in range(n):
        if peak[i] and not math.isnan(pairs[TURN, i]) and count < HYPOTHESES:
            factor, turn = 2.0 ** pairs[OCTAVES, i], math.radians(pairs[TURN, i])
            c, s = factor * math.cos(turn), factor * math.sin(turn)
            write_similarity(transforms[count], c, s, pairs[X, i], pairs[Y, i], pairs[U, i], pairs[V, i])
            origins[count] = i
            count += 1
    unknown = np.flatnonzero(np.isnan(pairs[TURN, :n]))
    scaled = len(unknown) > 0 and not math.isnan(pairs[OCTAVES, unknown[0]])
    unknown = unknown[: UPRIGHT_PARTNERS if scaled else PARTNERS]
    for j in range(len(unknown)):
        for i in unknown[:j]:
            before = complex(pairs[X, unknown[j]] - pairs[X, i], pairs[Y, unknown[j]] - pairs[Y, i])
            after = complex(pairs[U, unknown[j]] - pairs[U, i], pairs[V, unknown[j]] - pairs[V, i])
            if before != 0 and count < PROPOSALS:
                turn = after / before
                if scaled and not fits_upright(turn, pairs[OCTAVES, i], pairs[OCTAVES, unknown[j]]):
                    continue
                write_similarity(transforms[count], turn.real, turn.imag, pairs[X, i], pairs[Y, i], pairs[U, i], pairs[V, i])
                origins[count] = i
                count += 1
    return count


@kernel
def sum_support(pairs, n, transform, tolerance, inliers):
    """Sum the weights of the matches whose position, scale and angle fit a transform; nearer ones count more.

    Unknown scales and angles are NaN and always fit. out: inliers [n]; returns the sum and the number of inliers.
    """
    a, b, c, d = transform[0, 0], transform[0, 1], transform[1, 0], transform[1, 1]
    shift_x, shift_y = transform[0, 2], transform[1, 2]
    octaves = 0.5 * math.log2(a * d - b * c)
    turn = math.degrees(math.atan2(c - b, a + d))
    limit, total, count = tolerance * tolerance, 0.0, 0
    for i in range(n):
        error_x = a * pairs[X, i] + b * pairs[Y, i] + shift_x - pairs[U, i]
        error_y = c * pairs[X, i] + d * pairs[Y, i] + shift_y - pairs[V, i]
        error = error_x * error_x + error_y * error_y
        apart = abs(pairs[TURN, i] - turn)
        wrong = abs(pairs[OCTAVES, i] - octaves) > SCALE_SLACK or min(apart, 360.0 - apart) > ANGLE_SLACK
        inliers[i] = error <= limit and not wrong
        if inliers[i]:
            count += 1
            total += pairs[WEIGHT, i] * (1.0 - error / limit)
    return total, count


@kernel
def point_spread(pairs, n, inliers):
    """Return the geometric mean of the distances of the inliers from their centre; a few far ones change little."""
    count = 0
    u = v = logarithms = 0.0
    for i in range(n):
        if inliers[i]:
            count, u, v = count + 1, u + pairs[U, i], v + pairs[V, i]
    if count == 0:
        return 0.0
    u, v = u / count, v / count
    for i in range(n):
        if inliers[i]:
            logarithms += 0.5 * math.log(max((pairs[U, i] - u) ** 2 + (pairs[V, i] - v) ** 2, TINY))
    return math.exp(logarithms / count)


@kernel
def fit_transform(pairs, n, inliers, transform):
    """Fit an affine transform to the inliers by least squares, regularised towards the best similarity.

    The similarity counts as PRIOR matches spread like the inliers in every direction, so that matches on one line do not
    stretch the image. out: transform; returns whether it is plausible.
    """
    count = 0
    x = y = u = v = 0.0
    for i in range(n):
        if inliers[i]:
            count += 1
            x, y, u, v = x + pairs[X, i], y + pairs[Y, i], u + pairs[U, i], v + pairs[V, i]
    if count < MIN_INLIERS:
        return False
    x, y, u, v = x / count, y / count, u / count, v / count
    xx = xy = yy = ux = uy = vx = vy = 0.0
    for i in range(n):
        if inliers[i]:
            dx, dy, du, dv = pairs[X, i] - x, pairs[Y, i] - y, pairs[U, i] - u, pairs[V, i] - v
            xx, xy, yy = xx + dx * dx, xy + dx * dy, yy + dy * dy
            ux, uy, vx, vy = ux + du * dx, uy + du * dy, vx + dv * dx, vy + dv * dy
    if not xx + yy > 0:
        return False
    c, s = (ux + vy) / (xx + yy), (vx - uy) / (xx + yy)
    prior = PRIOR * (xx + yy) / (2 * count)
    xx, yy = xx + prior, yy + prior
    ux, uy, vx, vy = ux + prior * c, uy - prior * s, vx + prior * s, vy + prior * c
    area = xx * yy - xy * xy
    transform[0, 0], transform[0, 1] = (ux * yy - uy * xy) / area, (uy * xx - ux * xy) / area
    transform[1, 0], transform[1, 1] = (vx * yy - vy * xy) / area, (vy * xx - vx * xy) / area
    transform[0, 2] = u - transform[0, 0] * x - transform[0, 1] * y
    transform[1, 2] = v - transform[1, 0] * x - transform[1, 1] * y
    return is_plausible(transform)


@kernel
def refine(pairs, n, tolerance, tried, near, best, transform, inliers):
    """Fit a transform to its inliers while the tolerance narrows (locally optimised: Chum, Matas, Kittler, DAGM 2003).

    out: tried; and, if it has more support than `best`, transform [2, 3] and inliers [n]. Returns the larger support.
    """
    for step in range(ROUNDS + 1):
        total, _ = sum_support(pairs, n, tried, tolerance, near)
        local = LOCAL * point_spread(pairs, n, near)
        if local < tolerance:  # inliers closer together than the tolerance would fit any transform
            total, _ = sum_support(pairs, n, tried, local, near)
        if total > best:
            best = total
            transform[:] = tried
            inliers[:n] = near[:n]
        if step < ROUNDS:
            width = WIDE + (1.0 - WIDE) * max(step - ROUNDS_WIDE, 0) / (ROUNDS - 1 - ROUNDS_WIDE)
            sum_support(pairs, n, tried, width * tolerance, near)
            if not fit_transform(pairs, n, near, tried):
                break
    return best


@kernel
def find_transform(pairs, n, tolerance, transforms, near, transform, inliers):
    """Find the transform with the most support and its inliers; return their number, 0: no transform.

    transforms: [PROPOSALS, 2, 3], near: [n], for work. out: transform [2, 3], NaN if there is none; inliers [n].
    """
    scores, origins = np.zeros(PROPOSALS), np.zeros(PROPOSALS, np.int64)
    find_peak(pairs, n, near)
    n_proposed = propose_similarities(pairs, n, near, transforms, origins)
    for i in range(n_proposed):
        if is_plausible(transforms[i]):
            total, count = sum_support(pairs, min(n, MAX_SUPPORT), transforms[i], WIDE * tolerance, near)
            scores[i] = total if count >= MIN_INLIERS else 0.0
    best = 0.0
    inliers[:n] = False
    for _ in range(REFINED):
        i = np.argmax(scores)
        if not scores[i] > 0:
            break
        best = refine(pairs, n, tolerance, transforms[i], near, best, transform, inliers)
        scores[i] = 0.0
        for j in range(n_proposed):
            if inliers[origins[j]]:  # the best transform so far includes the match of this one
                scores[j] = 0.0
    n_inliers = n_scaled = 0
    for i in range(n):
        n_inliers += inliers[i]
        n_scaled += inliers[i] and not math.isnan(pairs[TURN, i])
    if n_inliers < (MIN_INLIERS if n_scaled > 0 else MIN_POSITIONS):
        n_inliers = 0
        transform[:] = np.nan
        inliers[:n] = False
    return n_inliers


@kernel
def write_pairs(matches, kept, shares, rank_weights, query_keypoints, frame, xy, shape, pairs):
    """Write one-to-one matches as columns of `pairs`.

    query_keypoints: [Q, 4] x, y, scale, angle; frame, xy, shape: of the image, as `index.segment` stores them.
    """
    for i in range(len(kept)):
        q, f, rank = matches[kept[i], 0], matches[kept[i], 1], matches[kept[i], 2]
        pairs[X, i], pairs[Y, i] = query_keypoints[q, 0], query_keypoints[q, 1]
        pairs[U, i], pairs[V, i] = frame[0] + frame[2] * np.float64(xy[f, 0]), frame[1] + frame[2] * np.float64(xy[f, 1])
        octaves = turn = np.nan
        if query_keypoints[q, 2] > 0 and (shape[f, 0] > 0 or shape[f, 1] > 0):
            size = shape[f, 0] if shape[f, 0] > 0 else shape[f, 1]  # without an angle the scale has its place
            octaves = (np.float64(size) - 1.0) / OCTAVE - SMALLEST - math.log2(query_keypoints[q, 2])
        if query_keypoints[q, 2] > 0 and shape[f, 0] > 0 and not math.isnan(query_keypoints[q, 3]):
            turn = np.float64(shape[f, 1]) * (360.0 / TURN_STEPS) - query_keypoints[q, 3]
            turn -= 360.0 * math.floor((turn + 180.0) / 360.0)
        pairs[OCTAVES, i], pairs[TURN, i], pairs[WEIGHT, i] = octaves, turn, rank_weights[rank] * shares[i]


@kernel
def image_extent(frame, xy):
    """Return the long side of the bounding box of the positions of an image."""
    left = top = np.int64(1) << 16
    right = bottom = np.int64(-1)
    for i in range(len(xy)):
        left, right = min(left, np.int64(xy[i, 0])), max(right, np.int64(xy[i, 0]))
        top, bottom = min(top, np.int64(xy[i, 1])), max(bottom, np.int64(xy[i, 1]))
    return np.float64(frame[2]) * np.float64(max(right - left, bottom - top)) if len(xy) > 0 else 0.0


@kernel
def longest_list(starts):
    """Return the length of the longest list of `list_words`."""
    longest = 0
    for slot in range(len(starts) - 1):
        longest = max(longest, np.int64(starts[slot + 1]) - np.int64(starts[slot]))
    return longest


@kernel
def settle_image(matches, n, frame, xy, shape, query_keypoints, rank_weights, tolerance, query_uses, feature_uses,
                 transform, inlier_pairs):  # fmt: skip
    """Make the matches of an image one-to-one and find the transform that most agree on.

    matches: [n, 3] query feature, feature, rank; query_uses, feature_uses: zeros before and after. out: transform [2, 3], NaN
    if there is none; inlier_pairs [.., 2] inliers, heaviest first, as many as fit. Returns the number of inliers, their weight.
    """
    order = np.empty(n, np.int64)
    order_matches(matches[:n], len(rank_weights), order)
    smaller = min(n, len(query_uses), len(feature_uses))
    kept, shares, pairs = np.empty(smaller, np.int64), np.empty(smaller), np.empty((WEIGHT + 1, smaller))
    proposals, near, inliers = np.empty((PROPOSALS, 2, 3)), np.empty(smaller, np.bool_), np.empty(smaller, np.bool_)
    n = one_to_one(order, matches[:, 0], matches[:, 1], query_uses, feature_uses, kept, shares)
    write_pairs(matches, kept[:n], shares, rank_weights, query_keypoints, frame, xy, shape, pairs)
    count = find_transform(pairs, n, tolerance * image_extent(frame, xy), proposals, near, transform, inliers)
    weight, n_pairs = 0.0, 0
    for j in range(n):
        if inliers[j]:
            weight += pairs[WEIGHT, j]
            if n_pairs < len(inlier_pairs):
                inlier_pairs[n_pairs, 0], inlier_pairs[n_pairs, 1] = matches[kept[j], 0], matches[kept[j], 1]
                n_pairs += 1
    return count, weight


@kernel
def most_features(positions, feature_starts):
    """Return the largest number of features of some images, at least 1."""
    most = 1
    for position in positions:
        most = max(most, np.int64(feature_starts[position + 1]) - np.int64(feature_starts[position]))
    return most


@kernel
def verify_candidates(
    positions, feature_starts, words, places, signatures, frames, xy, shape, query_keypoints, query_signatures, bases, slots,
    starts, features, ranks, rank_weights, tolerance, counts, weights, transforms, inlier_pairs
):  # fmt: skip
    """Verify the images of a segment at some positions by words and signatures. bases .. features: of `list_words`.

    out: counts, weights [n], transforms [n, 2, 3], NaN where none; inlier_pairs: of the last image, see `settle_image`.
    """
    longest = most_features(positions, feature_starts)
    shared, latest = np.empty((longest * words.shape[1] + 1, 4), np.uint32), np.zeros(len(query_keypoints), np.uint32)
    capacity = longest * words.shape[1] * longest_list(starts)  # pages that are not written to take no memory
    matches = np.empty((capacity + 1, 4), np.uint32)
    query_uses, feature_uses = np.zeros(len(query_keypoints), np.int64), np.zeros(longest, np.int64)
    for i in range(len(positions)):
        first, last = np.int64(feature_starts[positions[i]]), np.int64(feature_starts[positions[i] + 1])
        n = find_shared(words[first:last], places[first:last], signatures, bases, slots, shared)
        n = find_matches(shared[:n], signatures, query_signatures, starts, features, ranks, latest, matches)
        counts[i], weights[i] = settle_image(
            matches, n, frames[positions[i]], xy[first:last], shape[first:last], query_keypoints, rank_weights, tolerance,
            query_uses, feature_uses, transforms[i], inlier_pairs)  # fmt: skip


@kernel
def match_codes(words, position, lists, query, visited, ranks, reach, matches):
    """Match the features of one image with those of a query, by codes.

    words: [n] of the image at a position; lists: starts, codes and images of the segment; query: rows of the table [Q A],
    codes [Q A, B], magnitudes, totals [Q A], and the words per feature A; visited: of `list_words`, each word of a query
    feature by itself; ranks: [rows, columns + 1] of a match, -1: none. matches: [m, 4], grown as needed: query feature,
    feature, rank and distance. Returns matches and their number.
    """
    list_starts, codes, images = lists
    rows, query_codes, magnitudes, totals, width = query
    slots, starts, visits = visited
    n, columns, long = 0, ranks.shape[1] - 1, len(codes) > 1
    places = np.empty(len(words), np.int64)
    shared = np.empty(len(words), np.int64)
    m = 0
    for f in range(len(words)):
        shared[m] = f
        m += slots[words[f]] > 0  # most words are not visited, at random: a branch would be mispredicted
    find_places(words, position, list_starts, images, shared[:m], places)
    for i in range(m):
        f = shared[i]
        slot, place = slots[words[f]], places[f]
        one, two = codes[0, place], codes[len(codes) - 1, place]
        for j in range(starts[slot], starts[slot + 1]):
            visit = np.int64(visits[j])
            first, other = one ^ query_codes[visit, 0], two ^ query_codes[visit, -1]
            h = popcount(first) + (popcount(other) if long else 0)
            if h > reach:
                continue
            distance = asymmetric(magnitudes, visit, first, other, factor_of(totals[visit], columns))
            rank = ranks[rows[visit], distance]
            if rank < 0:
                continue
            if n == len(matches):
                more = np.empty((2 * n + 64, 4), np.int64)
                more[:n] = matches
                matches = more
            matches[n, 0], matches[n, 1], matches[n, 2], matches[n, 3] = visit // width, f, rank, distance
            n += 1
    return matches, n


@kernel
def verify_codes(
    positions, feature_starts, words, lists, frames, xy, shape, query_keypoints, query, visited, ranks, rank_weights, reach,
    tolerance, counts, weights, transforms, inlier_pairs
):  # fmt: skip
    """Verify the images of a segment at some positions by codes. words: [F] by image; lists .. reach: of `match_codes`.

    out: counts, weights [n], transforms [n, 2, 3], NaN where none; inlier_pairs: of the last image, see `settle_image`.
    """
    longest = most_features(positions, feature_starts)
    matches = np.empty((4096, 4), np.int64)
    query_uses, feature_uses = np.zeros(len(query_keypoints), np.int64), np.zeros(longest, np.int64)
    for i in range(len(positions)):
        first, last = np.int64(feature_starts[positions[i]]), np.int64(feature_starts[positions[i] + 1])
        matches, n = match_codes(words[first:last], positions[i], lists, query, visited, ranks, reach, matches)
        counts[i], weights[i] = settle_image(
            matches, n, frames[positions[i]], xy[first:last], shape[first:last], query_keypoints, rank_weights, tolerance,
            query_uses, feature_uses, transforms[i], inlier_pairs)  # fmt: skip
