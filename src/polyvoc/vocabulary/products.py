"""Rows times a matrix: each product depends on its own row and column only, bit by bit.

The matrix products of NumPy's libraries round differently with the number of rows, and on other processors. A descriptor that
lies at a threshold would get another signature beside other descriptors.
"""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import WORDS
from polyvoc.kernels.vectors import Blocks, multiply
from polyvoc.types import Floats32


def make_blocks(matrix: Floats32, offsets: Floats32 | None = None) -> Blocks:
    """Return a matrix [d, columns], and what is subtracted from the products with it [columns], as `multiply` takes them."""
    columns = -(-matrix.shape[1] // WORDS) * WORDS
    values, padded = np.zeros((len(matrix), columns), np.float32), np.full(columns, np.inf, np.float32)
    values[:, : matrix.shape[1]], padded[: matrix.shape[1]] = matrix, 0 if offsets is None else offsets
    blocks = values.reshape(len(matrix), -1, WORDS).transpose(1, 0, 2)
    return Blocks(np.ascontiguousarray(blocks).ravel(), padded)


def products(rows: Floats32, blocks: Blocks, columns: int) -> Floats32:
    """Return rows [n, d] times a matrix in blocks [d, columns], minus its offsets: float32 [n, columns]."""
    found = np.empty((len(rows), columns), np.float32)
    multiply(np.ascontiguousarray(rows, np.float32), blocks, found)
    return found


def rotate(rows: Floats32, rotation: Floats32) -> Floats32:
    """Return the coordinates [n, axes] of rows [n, d] along the axes of a rotation [axes, d]."""
    return products(rows, make_blocks(rotation.T), len(rotation))
