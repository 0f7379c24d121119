"""Checksums of blocks of a file (XXH64, https://github.com/Cyan4973/xxHash), and their comparison before a block is used.

Several times as fast as the CRC-32 of zlib, for any number of small blocks in one call.
"""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import inlined, kernel

STRIPE = 4  # uint64 that are mixed at once; blocks hold a whole number of stripes
SOUND = -1
_P1, _P2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_P3, _P4 = np.uint64(0x165667B19E3779F9), np.uint64(0x85EBCA77C2B2AE63)


@inlined
def rotate(value, bits):
    """Rotate a uint64 to the left."""
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@inlined
def mix(state, word):
    """Mix a word into a state."""
    return rotate(state + word * _P2, 31) * _P1


@inlined
def merge(checksum, state):
    """Merge a state into the checksum."""
    return (checksum ^ mix(np.uint64(0), state)) * _P1 + _P4


@inlined
def checksum_of(words, first, last):
    """Return the lower half of the XXH64 of words [first, last), a multiple of STRIPE of them."""
    a, b, c, d = _P1 + _P2, _P2, np.uint64(0), np.uint64(0) - _P1
    for at in range(first, last, STRIPE):
        a = mix(a, words[at])
        b = mix(b, words[at + 1])
        c = mix(c, words[at + 2])
        d = mix(d, words[at + 3])
    value = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18)
    value = merge(merge(merge(merge(value, a), b), c), d) + np.uint64(8 * (last - first))
    value ^= value >> np.uint64(33)
    value *= _P2
    value ^= value >> np.uint64(29)
    value *= _P3
    value ^= value >> np.uint64(32)
    return np.uint32(value & np.uint64(0xFFFFFFFF))


@kernel
def checksum_blocks(words, size, checksums):
    """Compute the checksum of every block of so many words; the last one may be shorter. out: checksums [blocks]."""
    for block in range(len(checksums)):
        checksums[block] = checksum_of(words, block * size, min((block + 1) * size, len(words)))


@kernel
def verify_blocks(words, size, checksums, firsts, lasts, start, verified, values, offset, limits):
    """Verify the blocks of an array in some ranges, unless they were verified; return SOUND, or what is wrong.

    words: uint64 of the whole file, in blocks of `size` with their checksums; firsts, lasts: ranges of blocks; verified: uint8
    of each block of the array, of which `start` is the first. values: the numbers of the array, flat, from `offset` bytes on;
    limits: each is smaller than that of its column, none if there are no limits. Return 2 b if block b has another
    checksum, 2 b + 1 if it holds a number beyond its limit. out: verified.
    """
    for i in range(len(firsts)):
        for block in range(firsts[i], lasts[i]):
            if verified[block - start]:
                continue
            if checksum_of(words, block * size, min((block + 1) * size, len(words))) != checksums[block]:
                return 2 * block
            if len(limits):
                first = max(8 * block * size - offset, 0) // values.itemsize
                last = min((8 * (block + 1) * size - offset) // values.itemsize, len(values))
                for at in range(first, last):
                    if values[at] >= limits[at % len(limits)]:
                        return 2 * block + 1
            verified[block - start] = 1
    return SOUND
