"""What the gathered matches of one query feature give: the weight of each, then votes, damped where structure repeats."""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import kernel

NONE, BEST, INTRA, INTER, BOTH = range(5)  # kinds of burstiness


@kernel
def weight_match(q, mask, order, term, total, distance, factors, cells, table):
    """Give the weight of one match that `order` lists hold.

    Rules that sum over lists: factor of its set times term, the sum of idf^2 closeness. Joint evidence: mean idf^2 times the
    log-likelihood ratio of (its set, mean distance), where that speaks for the match. total, distance: sums over its lists.
    """
    if len(cells) == 0:
        return term * factors[q, mask]
    return total / order * max(table[cells[q, mask], (2 * distance + order) // (2 * order)], 0.0)


@kernel
def settle_votes(q, n, images, masks, values, alive, burstiness, on_difference, image_sums, powers, totals, scores):
    """Turn the weights of a query feature's matches into votes.

    Burstiness (Jegou, Douze, Schmid, CVPR 2009): BEST keeps the best match of each image; within an image (INTRA) s becomes
    s sqrt(s / t), t the image's sum for this query feature; across images (INTER) s sqrt(s / T), T = totals[q]. image_sums,
    powers: [65536], zeros before and after. With `scores` empty only T is summed (out: totals), over live images.
    """
    totalling = len(scores) == 0
    for i in range(n):
        vote, image = values[i], images[i]
        if vote <= 0 or (len(alive) > 0 and not alive[image]):
            continue
        if burstiness == NONE or (on_difference and masks[i] & (masks[i] - 1) != 0):
            if not totalling:
                scores[image] += vote
        elif burstiness == BEST:
            image_sums[image] = max(image_sums[image], vote)
        else:
            image_sums[image] += vote
            if burstiness == BOTH and not totalling:
                powers[image] += vote * vote * np.sqrt(np.sqrt(vote))  # s'^1.5 with s' = s^1.5 / sqrt(t)
            else:
                powers[image] += vote * np.sqrt(vote)
    for i in range(n):
        image = images[i]
        total = image_sums[image]
        if total <= 0:
            continue
        if totalling:
            totals[q] += powers[image] / np.sqrt(total) if burstiness == BOTH else total
        elif burstiness == BEST:
            scores[image] += total
        elif burstiness == INTRA:
            scores[image] += powers[image] / np.sqrt(total)
        elif burstiness == INTER:
            scores[image] += powers[image] / np.sqrt(totals[q])
        else:
            scores[image] += powers[image] / (total**0.75 * np.sqrt(totals[q]))
        image_sums[image] = 0
        powers[image] = 0
