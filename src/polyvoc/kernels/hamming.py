"""Hamming distances between signatures of one or two planes of 64 bits."""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import LANES, inlined, near_lanes, near_long_lanes, popcount


@inlined
def distance(signatures, position, signature):
    """Give the Hamming distance of a posting's signature to one. signatures: [B, postings]; signature: [B]."""
    h = popcount(signatures[0, position] ^ signature[0])
    if len(signature) > 1:
        h += popcount(signatures[1, position] ^ signature[1])
    return h


@inlined
def near_block(signatures, position, end, signature, threshold):
    """Tell which of the next LANES postings are within a distance: bit i for position + i, 0 from `end` on."""
    near = np.uint64(0)
    if position + LANES <= signatures.shape[1]:
        if len(signature) > 1:
            near = near_long_lanes(signatures[0], signatures[1], position, signature[0], signature[1], threshold)
        else:
            near = near_lanes(signatures[0], position, signature[0], threshold)
        if end - position < LANES:  # what follows belongs to the next list
            near &= (np.uint64(1) << np.uint64(end - position)) - np.uint64(1)
        return near
    for p in range(position, end):
        if distance(signatures, p, signature) <= threshold:
            near |= np.uint64(1) << np.uint64(p - position)
    return near
