"""Similarities of images that hold one binary code per word."""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import kernel, popcount


@kernel
def add_similarities(words, codes, weights, starts, images, indexed, similarity, scores):
    """Compare the codes of a query with those of the same words in an inverted file. out: scores [n_images] float64.

    words: [m] of the query, each once; codes: [m, lanes] uint64; weights: [size] of each word; starts: [size + 1] and
    images: [P] are the inverted file, indexed: [P, lanes] its codes; similarity: [bits + 1] of each Hamming distance.
    """
    for i in range(len(words)):
        weight = weights[words[i]]
        if weight == 0:
            continue
        for p in range(starts[words[i]], starts[words[i] + 1]):
            distance = np.int64(0)
            for lane in range(codes.shape[1]):
                distance += popcount(codes[i, lane] ^ indexed[p, lane])
            scores[images[p]] += weight * similarity[distance]
