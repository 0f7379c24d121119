"""SIFT in one octave (Lowe, IJCV 2004): extrema of differences of Gaussians, their orientations and descriptors.

    layers       float32 [STEPS + 3, h, w]  the image, blurred by SIGMA 2^(i / STEPS) pixels of the octave; grey levels 0 to 255
    differences  float32 [STEPS + 2, h, w]  of successive layers
    strengths, directions  float32 [STEPS, h, w]  of the gradients of layers 1 to STEPS; in turns, clockwise from the right
    points       float32 [n, 5]  x, y, layer (all three refined), contrast, nearest layer
    oriented     float32 [m, 6]  the same, and the angle in turns

The descriptor samples its window at every second or third pixel, as far apart as the blur allows: a quarter to a tenth of the
pixels that OpenCV reads, and nearly the same descriptor (`tests/features/test_sift.py`).
"""

from __future__ import annotations

import math

import numpy as np

from polyvoc.kernels.compiler import fast_kernel, inlined, kernel

SIGMA = 1.6  # blur of the first layer
STEPS = 3  # layers per octave in which extrema are found
BORDER = 5  # pixels at the edges without extrema
MOVES = 5  # of an extremum to a neighbouring pixel, at most
EDGE = 10.0  # ratio of the curvatures from which an extremum is an edge
BINS = 36  # of the histogram of directions
MAX_ORIENTATIONS = 4  # of one extremum; round blobs would have many
LEVELS = 255
HALF, QUARTER = np.float32(0.5), np.float32(0.25)


@fast_kernel
def flag_row(below, upper, row, lower, above, threshold, flags):
    """Flag the values of a row beyond a threshold that are extrema among their six nearest neighbours. out: flags [w]."""
    for x in range(1, len(row) - 1):
        value = row[x]
        most = max(row[x - 1], row[x + 1], upper[x], lower[x], below[x], above[x])
        least = min(row[x - 1], row[x + 1], upper[x], lower[x], below[x], above[x])
        flags[x] = (abs(value) > threshold) & ((value >= most) | (value <= least))


@inlined
def is_extremum(differences, s, y, x):
    """Return whether a value is the largest or smallest of its 27 neighbours, itself included."""
    value = differences[s, y, x]
    for j in range(s - 1, s + 2):
        for i in range(y - 1, y + 2):
            for k in range(x - 1, x + 2):
                if (differences[j, i, k] - value) * value > 0:
                    return False
    return True


@kernel
def find_extrema(differences, contrast, first, last, points):
    """Find the extrema of rows first .. last - 1 with at least a contrast, a share of all grey levels.

    out: points, as far as there is room; returns their number.
    """
    n, (height, width) = 0, differences.shape[1:]
    flags, threshold = np.zeros(width, np.uint8), np.float32(0.5 * contrast / STEPS * LEVELS)
    for s in range(1, STEPS + 1):
        for y in range(max(first, BORDER), min(last, height - BORDER)):
            below, above = differences[s - 1, y], differences[s + 1, y]
            flag_row(below, differences[s, y - 1], differences[s, y], differences[s, y + 1], above, threshold, flags)
            for x in range(BORDER, width - BORDER):
                if flags[x] and n < len(points) and is_extremum(differences, s, y, x):
                    n += refine(differences, s, y, x, contrast, points[n])
    return n


@kernel
def refine(differences, s, y, x, contrast, point):
    """Move an extremum to the peak of a parabola; return 1, or 0 if it is faint, on an edge or not stable. out: point [5]."""
    height, width = differences.shape[1:]
    for _ in range(MOVES):
        d = differences[s - 1 : s + 2, y - 1 : y + 2, x - 1 : x + 2]
        gx, gy, gs = (d[1, 1, 2] - d[1, 1, 0]) * HALF, (d[1, 2, 1] - d[1, 0, 1]) * HALF, (d[2, 1, 1] - d[0, 1, 1]) * HALF
        twice = d[1, 1, 1] + d[1, 1, 1]
        xx, yy, ss = d[1, 1, 2] + d[1, 1, 0] - twice, d[1, 2, 1] + d[1, 0, 1] - twice, d[2, 1, 1] + d[0, 1, 1] - twice
        xy = (d[1, 2, 2] - d[1, 2, 0] - d[1, 0, 2] + d[1, 0, 0]) * QUARTER
        xs = (d[2, 1, 2] - d[2, 1, 0] - d[0, 1, 2] + d[0, 1, 0]) * QUARTER
        ys = (d[2, 2, 1] - d[2, 0, 1] - d[0, 2, 1] + d[0, 0, 1]) * QUARTER
        a, b, c = yy * ss - ys * ys, xs * ys - xy * ss, xy * ys - xs * yy  # first row of the inverse, times the determinant
        determinant = xx * a + xy * b + xs * c
        if determinant == 0:
            return 0
        move_x = -(a * gx + b * gy + c * gs) / determinant
        move_y = -(b * gx + (xx * ss - xs * xs) * gy + (xs * xy - xx * ys) * gs) / determinant
        move_s = -(c * gx + (xs * xy - xx * ys) * gy + (xx * yy - xy * xy) * gs) / determinant
        if abs(move_x) < HALF and abs(move_y) < HALF and abs(move_s) < HALF:
            peak = abs(d[1, 1, 1] + HALF * (gx * move_x + gy * move_y + gs * move_s)) / LEVELS
            trace, curvature = xx + yy, xx * yy - xy * xy
            is_edge = curvature <= 0 or trace * trace * EDGE >= (EDGE + 1) ** 2 * curvature
            if peak * STEPS < contrast or is_edge:
                return 0
            point[0], point[1], point[2], point[3], point[4] = x + move_x, y + move_y, s + move_s, peak, s
            return 1
        if not (abs(move_x) < width and abs(move_y) < height and abs(move_s) <= STEPS):
            return 0
        x, y, s = x + round(move_x), y + round(move_y), s + round(move_s)
        if not (1 <= s <= STEPS and BORDER <= x < width - BORDER and BORDER <= y < height - BORDER):
            return 0
    return 0


@fast_kernel
def find_gradients(upper, row, lower, strengths, directions):
    """Find the gradients of one row; its first and last pixel have none. out: strengths, directions [w].

    The arc tangent is a polynomial: 0.3 degrees are far less than a bin, and the loop becomes vector instructions.
    """
    for x in range(1, len(row) - 1):
        gx, gy = row[x + 1] - row[x - 1], lower[x] - upper[x]
        strengths[x] = math.sqrt(gx * gx + gy * gy)
        long, short = max(abs(gx), abs(gy)), min(abs(gx), abs(gy))
        ratio = short / (long + np.float32(1e-20))
        square = ratio * ratio
        polynomial = (np.float32(-0.0464964749) * square + np.float32(0.15931422)) * square - np.float32(0.327622764)
        turn = (polynomial * square + np.float32(1)) * ratio * np.float32(0.5 / math.pi)
        turn = QUARTER - turn if abs(gy) > abs(gx) else turn
        turn = HALF - turn if gx < 0 else turn
        directions[x] = np.float32(1) - turn if gy < 0 else turn


@kernel
def find_slopes(layers, first, last, strengths, directions):
    """Find the gradients of rows first .. last - 1 of layers 1 to STEPS; pixels at the edges have none. out: as above."""
    for s in range(STEPS):
        layer = layers[s + 1]
        for y in range(max(first, 1), min(last, layer.shape[0] - 1)):
            find_gradients(layer[y - 1], layer[y], layer[y + 1], strengths[s, y], directions[s, y])


@fast_kernel
def orient(strengths, directions, points, oriented):
    """Find the main directions around points, one or several for each. out: oriented [4 n, 6]; returns their number."""
    n, (height, width) = 0, strengths.shape[1:]
    histogram, smooth = np.zeros(BINS, np.float32), np.zeros(BINS, np.float32)
    for p in range(len(points)):
        s, x0, y0 = int(points[p, 4]) - 1, int(points[p, 0] + HALF), int(points[p, 1] + HALF)
        sigma = np.float32(1.5 * SIGMA) * np.float32(2) ** (points[p, 2] / np.float32(STEPS))
        radius, falloff = int(3 * sigma + HALF), -HALF / (sigma * sigma)
        histogram[:] = 0
        for y in range(max(y0 - radius, 1), min(y0 + radius, height - 2) + 1):
            of_row = math.exp(falloff * np.float32((y - y0) ** 2))
            for x in range(max(x0 - radius, 1), min(x0 + radius, width - 2) + 1):
                b = int(directions[s, y, x] * np.float32(BINS) + HALF)
                weight = of_row * math.exp(falloff * np.float32((x - x0) ** 2))
                histogram[b if b < BINS else 0] += strengths[s, y, x] * weight
        for b in range(BINS):
            near, far = histogram[b - 1] + histogram[(b + 1) % BINS], histogram[b - 2] + histogram[(b + 2) % BINS]
            smooth[b] = (6 * histogram[b] + 4 * near + far) / np.float32(16)
        least, most = np.float32(0.8) * smooth.max(), n + MAX_ORIENTATIONS
        for b in range(BINS):
            left, middle, right = smooth[b - 1], smooth[b], smooth[(b + 1) % BINS]
            if middle > left and middle > right and middle >= least and n < most:
                turn = (b + HALF * (left - right) / (left - 2 * middle + right)) / np.float32(BINS)
                oriented[n, :5] = points[p]
                oriented[n, 5] = turn - math.floor(turn)
                n += 1
    return n


@fast_kernel
def describe(strengths, directions, oriented, descriptors):
    """Describe points by 4 x 4 histograms of 8 directions. out: descriptors [m, 128], of length 512 but for cut values."""
    height, width = strengths.shape[1:]
    histograms = np.zeros((6, 6, 10), np.float32)  # with a margin, and two directions that are the first ones again
    for p in range(len(oriented)):
        x0, y0, s, angle = oriented[p, 0], oriented[p, 1], int(oriented[p, 4]) - 1, oriented[p, 5]
        sigma = np.float32(SIGMA) * np.float32(2) ** (oriented[p, 2] / np.float32(STEPS))
        cell, step = 3 * sigma, int(sigma)
        cosine, sine = math.cos(np.float32(2 * math.pi) * angle) / cell, math.sin(np.float32(2 * math.pi) * angle) / cell
        reach, x1, y1 = int(cell * np.float32(2.5 * math.sqrt(2)) + HALF) // step, int(x0 + HALF), int(y0 + HALF)
        histograms[:] = 0
        for j in range(-reach, reach + 1):
            y = y1 + j * step
            if not 1 <= y <= height - 2:
                continue
            for i in range(-reach, reach + 1):
                x = x1 + i * step
                u, v = cosine * (x - x0) + sine * (y - y0), cosine * (y - y0) - sine * (x - x0)
                if abs(u) < np.float32(2.5) and abs(v) < np.float32(2.5) and 1 <= x <= width - 2:
                    turn = angle - directions[s, y, x]
                    turn = 8 * (turn + 1 if turn < 0 else turn)
                    weight = strengths[s, y, x] * math.exp(np.float32(-0.125) * (u * u + v * v))
                    add_sample(histograms, u + np.float32(2.5), v + np.float32(2.5), turn, weight)
        normalise(histograms, descriptors[p])


@inlined
def add_sample(histograms, column, row, turn, weight):
    """Divide a sample among the two nearest columns, rows and directions. out: histograms [6, 6, 10]."""
    c, r, b = int(column), int(row), int(turn)
    of_column, of_row, of_turn = column - c, row - r, turn - b
    for i in range(2):
        for j in range(2):
            part = weight * (of_row if i == 1 else 1 - of_row) * (of_column if j == 1 else 1 - of_column)
            histograms[r + i, c + j, b] += part * (1 - of_turn)
            histograms[r + i, c + j, b + 1] += part * of_turn


@fast_kernel
def normalise(histograms, descriptor):
    """Make the inner 4 x 4 histograms a vector of length 512, of values up to a fifth of its length. out: descriptor."""
    values, n, total = np.empty(len(descriptor), np.float32), 0, np.float32(0)
    for r in range(1, 5):
        for c in range(1, 5):
            for b in range(8):
                value = histograms[r, c, b] + (histograms[r, c, b + 8] if b < 2 else np.float32(0))
                values[n] = value
                total += value * value
                n += 1
    most, total = np.float32(0.2) * math.sqrt(total), np.float32(0)
    for n in range(len(values)):
        values[n] = min(values[n], most)
        total += values[n] * values[n]
    factor = np.float32(512) / max(math.sqrt(total), np.float32(1e-12))
    for n in range(len(values)):
        descriptor[n] = np.uint8(min(values[n] * factor + HALF, np.float32(255)))
