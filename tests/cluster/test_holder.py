"""Values are the same after they were packed and unpacked; spans of ids."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from polyvoc.cluster.holder import pack, unpack
from polyvoc.options import SearchOptions
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.segments import live_spans


@dataclass(frozen=True, eq=False)
class Record:
    """A record with a cached property."""

    values: np.ndarray

    @cached_property
    def total(self) -> int:
        return int(self.values.sum())


numbers = st.sampled_from([np.int64, np.int32, np.uint16, np.uint64, np.float32, np.float64, np.int8])


@given(numbers.flatmap(lambda kind: arrays.arrays(kind, arrays.array_shapes(max_dims=3, max_side=20, min_side=0))))
def test_arrays_stay_the_same(array: np.ndarray) -> None:
    again = unpack(pack(array))
    assert again.dtype == array.dtype and again.shape == array.shape
    assert np.array_equal(again, array, equal_nan=array.dtype.kind == "f")
    assert again.flags.writeable and again.flags.c_contiguous == np.ascontiguousarray(array).flags.c_contiguous


def test_narrow_numbers_and_equal_rows_take_few_bytes() -> None:
    words = np.arange(3000).reshape(1000, 3)
    assert len(pack(words)) < 2 * 3000 + 300 < len(pickle.dumps(words))
    rows = np.tile(np.linspace(0, 1, 8), (1000, 1))
    assert len(pack(rows)) < 500 and np.array_equal(unpack(pack(rows)), rows)
    assert len(pack(np.linspace(0, 1, 1000).astype(np.float32).astype(np.float64))) < 4 * 1000 + 300


def test_records_are_packed_without_cached_properties() -> None:
    record = Record(np.arange(100))
    assert record.total == 4950
    again = unpack(pack((record, SearchOptions(top=3))))
    assert "total" not in vars(again[0]) and again[0].total == 4950 and again[1] == SearchOptions(top=3)


def test_spans_are_ranges_of_live_ids() -> None:
    segment = Engine.from_words([np.zeros((1, 1), np.int32)] * 9, (1,)).segments[0]
    assert live_spans(segment) == ((0, 8),)
    assert live_spans(segment.without([0, 4, 5, 8])) == ((1, 3), (6, 7))
    assert live_spans(segment.without(range(9))) == ()
