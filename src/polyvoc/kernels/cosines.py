"""Inner products of vectors stored at half precision with one vector."""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import fast_kernel

# The bits of a half, moved to where a float has exponent and fraction, are that number times 2^-112: the exponents of the two
# count from -15 and from -127. Whoever multiplies the other factor by SCALE sets that right.
SCALE = np.float32(2.0**112)


@fast_kernel
def products(rows, vector, found):
    """Put the inner product of each row of halves with a vector times SCALE into `found`; -inf for a row of zeros.

    rows: uint16 [n, d], the bits of float16; vector: float32 [d]; found: float32 [n]
    """
    for i in range(len(rows)):
        total, bits = np.float32(0), np.uint32(0)
        for j in range(len(vector)):
            half = np.uint32(rows[i, j])
            sign = (half & np.uint32(0x8000)) << np.uint32(16)
            rest = (half & np.uint32(0x7FFF)) << np.uint32(13)
            total += np.uint32(sign | rest).view(np.float32) * vector[j]
            bits |= rest
        found[i] = total if bits else -np.inf
