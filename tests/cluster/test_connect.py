"""What becomes of an address; who holds what and where; what travels between machines comes out as it went in."""

from __future__ import annotations

import builtins
import pickle
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from polyvoc.cluster.connect import connect
from polyvoc.cluster.holder import pack, unpack
from polyvoc.cluster.shards import assign_replicas, assign_segments
from polyvoc.errors import ClusterError, OptionError, PolyvocError
from polyvoc.options import ClusterOptions, SearchOptions

# -- addresses


@pytest.mark.parametrize(
    "address, kind, told",
    [
        ("127.0.0.1:1", ClusterError, "no Ray cluster answers at '127.0.0.1:1': .*refused"),
        ("nonsense", ClusterError, "no Ray cluster answers at 'nonsense'"),
        ("host:many", ClusterError, "no Ray cluster answers at 'host:many'"),
        ("127.0.0.1:99999", ClusterError, "no Ray cluster answers at '127.0.0.1:99999'"),
        ("ray://127.0.0.1:10001", OptionError, "should be HOST:PORT of the cluster itself"),
    ],
)
def test_an_address_where_nobody_listens_is_one_line(address: str, kind: type[PolyvocError], told: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(kind, match=told) as caught:
        connect(address)
    assert "\n" not in str(caught.value)


def test_without_ray_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    known = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "ray":
            raise ImportError(name)
        return known(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(OptionError, match=r"Ray is not installed; install it: pip install 'polyvoc\[cluster\]'"):
        connect("auto")


@pytest.mark.parametrize("wrong", [{"address": ""}, {"shards": -1}, {"replicas": 0}, {"patience": 0.0}])
def test_options_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(wrong))}="):
        ClusterOptions(**wrong)


# -- who holds what


@given(st.dictionaries(st.integers(1, 99), st.integers(0, 1000), max_size=30), st.integers(1, 8))
def test_every_segment_is_held_once_and_loads_are_even(sizes: dict[int, int], count: int) -> None:
    shards = assign_segments(sizes, count)
    assert len(shards) == count and sorted(chain.from_iterable(shards)) == sorted(sizes)
    assert all(shard == sorted(shard) for shard in shards)
    loads = [sum(sizes[segment] for segment in shard) for shard in shards]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0)  # largest first: no worse than one segment


def test_segments_stay_where_they_are() -> None:
    assert assign_segments({1: 5, 2: 5, 3: 9, 7: 1}, 2, kept={1: 1, 2: 1, 9: 0, 8: 5}) == [[3, 7], [1, 2]]


def test_replicas_of_a_shard_sit_on_different_machines() -> None:
    placed = assign_replicas([100, 50, 50], {"a": 1.0, "b": 1.0, "c": 1.0}, 2)
    assert all(len(set(machines)) == 2 for machines in placed)
    assert assign_replicas([1], {"a": 1.0}, 2) == [["a", "a"]]  # there is no other


def test_machines_bear_as_much_as_they_have_cores() -> None:
    placed = assign_replicas([10] * 8, {"large": 3.0, "small": 1.0}, 1)
    assert [seat[0] for seat in placed].count("large") == 6


# -- what travels


@dataclass(frozen=True, eq=False)
class Record:
    """A record that computes something of its field."""

    values: np.ndarray

    @cached_property
    def total(self) -> int:
        return int(self.values.sum())


numbers = st.sampled_from([np.int64, np.int32, np.uint16, np.uint64, np.float32, np.float64, np.int8])


@given(numbers.flatmap(lambda kind: arrays.arrays(kind, arrays.array_shapes(max_dims=3, max_side=20, min_side=0))))
def test_arrays_come_out_as_they_went_in(array: np.ndarray) -> None:
    again = unpack(pack(array))
    assert (
        again.dtype == array.dtype
        and again.shape == array.shape
        and np.array_equal(again, array, equal_nan=array.dtype.kind == "f")
    )
    assert again.flags.writeable and again.flags.c_contiguous == np.ascontiguousarray(array).flags.c_contiguous


def test_narrow_numbers_and_equal_rows_take_few_bytes() -> None:
    words = np.arange(3000).reshape(1000, 3)
    assert len(pack(words)) < 2 * 3000 + 300 < len(pickle.dumps(words))
    rows = np.tile(np.linspace(0, 1, 8), (1000, 1))
    assert len(pack(rows)) < 500 and np.array_equal(unpack(pack(rows)), rows)
    assert len(pack(np.linspace(0, 1, 1000).astype(np.float32).astype(np.float64))) < 4 * 1000 + 300


def test_records_travel_by_their_fields() -> None:
    record = Record(np.arange(100))
    assert record.total == 4950
    again = unpack(pack((record, SearchOptions(top=3))))
    assert "total" not in vars(again[0]) and again[0].total == 4950 and again[1] == SearchOptions(top=3)
