"""Rows times a matrix: the same numbers whatever is beside a row or a column."""

from __future__ import annotations

import numpy as np
import pytest

from polyvoc.vocabulary.products import make_blocks, products, rotate
from polyvoc.vocabulary.vocabulary import random_rotation


@pytest.mark.parametrize(("n", "dimension", "columns"), [(1, 1, 1), (9, 5, 17), (40, 128, 64), (33, 64, 200)])
def test_products_are_those_of_numpy(n: int, dimension: int, columns: int) -> None:
    rng = np.random.default_rng(n)
    rows, matrix = rng.normal(size=(n, dimension)), rng.normal(size=(dimension, columns))
    offsets = rng.normal(size=columns)
    found = products(rows.astype(np.float32), make_blocks(matrix.astype(np.float32), offsets.astype(np.float32)), columns)
    assert np.allclose(found, rows @ matrix - offsets, rtol=1e-4, atol=1e-4)


def test_a_row_does_not_depend_on_others_nor_on_further_columns() -> None:
    rows, rotation = np.random.default_rng(0).normal(size=(1000, 128)).astype(np.float32), random_rotation(128, 128)
    whole = rotate(rows, rotation)
    assert whole.shape == (1000, 128)
    for part in (slice(0, 1), slice(3, 10), slice(500, 1000), slice(5, 999, 7)):
        assert np.array_equal(rotate(rows[part], rotation), whole[part])
    assert np.array_equal(rotate(rows, rotation[:64]), whole[:, :64])
