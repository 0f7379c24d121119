"""Lists are requested from the disk once in a while. That this changes no score: tests/scoring/test_codes.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyvoc.index.reading import read_lists
from polyvoc.index.segment import Segment
from random_collections import coded_engine, random_coded_world


def test_a_list_is_requested_once_in_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = random_coded_world(2, 128)
    (made,) = coded_engine(world).segments
    made.save(tmp_path / "segment")
    segment = Segment.open(tmp_path / "segment")
    requested = list[int]()
    monkeypatch.setattr("polyvoc.index.reading.read_ahead", lambda numbers, *_: requested.extend(numbers.tolist()))

    def request(*words: int) -> list[int]:
        requested.clear()
        read_lists(segment, np.array([words], np.int32), threads=1)
        return sorted(set(requested))

    assert request(3, -1, 1, 3) == [1, 3]
    assert request(3, -1, 1) == []
    assert request(1, 0, -1) == [0]
    assert request(-1) == []
    monkeypatch.setattr("polyvoc.index.reading.FORGET", -1.0)
    assert request(1, 0) == request(0, 1) == [0, 1]
    assert len(requested) == 3 * 2  # two planes of codes, and the images
