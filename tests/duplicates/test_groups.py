"""Groups around the best photograph: who belongs to them, who does not, and which is best."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyvoc.duplicates.groups import Group, GroupedImage, Link, choose, group_copies
from polyvoc.duplicates.overlap import IDENTITY
from polyvoc.errors import OptionError


def photographs(**sizes: tuple[int, int]) -> dict[str, GroupedImage]:
    return {name: GroupedImage(name, number, *size, bytes=1000) for number, (name, size) in enumerate(sizes.items(), start=1)}


def placed(first: str, second: str, scale: float = 1.0, x: float = 0.0, y: float = 0.0, probability: float = 0.99) -> Link:
    """The first lies in the second at some place, reduced or enlarged."""
    return Link(first, second, probability, np.array([[scale, 0, x], [0, scale, y]]))


def members(found: list[Group]) -> list[tuple[str, list[str]]]:
    return [(group.best.path, sorted(copy.photograph.path for copy in group.copies)) for group in found]


def test_copies_of_one_photograph() -> None:
    known = photographs(a=(400, 300), b=(200, 150), c=(400, 300), lonely=(10, 10))
    links = [placed("b", "a", 2.0), placed("c", "b", 0.5)]
    (group,) = group_copies(known, links, 0.9)
    assert members([group]) == [("a", ["b", "c"])] or members([group]) == [("c", ["a", "b"])]
    chained = [copy for copy in group.copies if copy.via is not None]
    assert [copy.via for copy in chained] == ["b"]
    assert chained[0].probability == pytest.approx(0.99**2)
    np.testing.assert_allclose(chained[0].transform, IDENTITY, atol=1e-9)


def test_chains_multiply() -> None:
    known = photographs(a=(800, 600), b=(400, 300), c=(200, 150))
    links = [placed("b", "a", 2.0, probability=0.92), placed("c", "b", 2.0, probability=0.92)]
    assert members(group_copies(known, links, 0.9)) == [("a", ["b"])]
    assert members(group_copies(known, links, 0.8)) == [("a", ["b", "c"])]


def test_a_link_counts_before_chains_and_the_surest_chain_before_others() -> None:
    known = photographs(a=(800, 600), b=(400, 300), c=(200, 150), d=(200, 150))
    links = [placed("b", "a", 2.0), placed("c", "b", 2.0), placed("c", "a", 4.0, probability=0.95)]
    links += [placed("d", "c", 1.0), placed("d", "b", 2.0, probability=0.98)]
    (group,) = group_copies(known, links, 0.9)
    told = {copy.photograph.path: (copy.via, copy.probability) for copy in group.copies}
    assert told == {"b": (None, 0.99), "c": (None, 0.95), "d": ("b", pytest.approx(0.99 * 0.98))}


def test_a_collage_does_not_join_its_pictures() -> None:
    """Large or small, it shows both reduced, side by side."""
    known = photographs(collage=(1200, 450), left=(800, 600), right=(800, 600))
    links = [placed("left", "collage", 0.7), placed("right", "collage", 0.7, x=600)]
    assert group_copies(known, links, 0.9) == []
    known["collage"] = replace(known["collage"], width=400, height=150)
    links = [placed("left", "collage", 0.25), placed("right", "collage", 0.25, x=200)]
    found = members(group_copies(known, links, 0.9))
    assert len(found) == 1
    assert found[0][1] == ["collage"]


def test_a_collage_has_copies_of_its_own() -> None:
    """Byte for byte, by way of a third, or made smaller; the pictures that it shows stay apart, and so does a part of it."""
    known = photographs(a=(1200, 450), b=(1200, 450), c=(1200, 450), small=(600, 225), left=(800, 600), right=(800, 600))
    known["part"] = GroupedImage("part", 7, 300, 400, bytes=1000)
    links = [Link("b", other, 1.0, IDENTITY, identical=True) for other in "ac"]
    links += [placed("small", "a", 2.0), placed("part", "a", 1.0)]
    for collage in "abc":
        links += [placed("left", collage, 0.7), placed("right", collage, 0.7, x=600)]
    assert members(group_copies(known, links, 0.9)) == [("a", ["b", "c", "small"])]


def test_crops_side_by_side_are_copies_of_the_whole() -> None:
    known = photographs(whole=(1600, 600), left=(800, 600), right=(800, 600))
    links = [placed("left", "whole"), placed("right", "whole", x=800)]
    assert members(group_copies(known, links, 0.9)) == [("whole", ["left", "right"])]


def test_a_chain_of_crops_does_not_leave_the_photograph() -> None:
    known = photographs(a=(1000, 100), b=(900, 100), c=(800, 100))
    links = [placed("b", "a", x=500), placed("c", "b", x=600)]  # c begins where a ends
    assert members(group_copies(known, links, 0.9)) == [("a", ["b"])]


def test_identical_files_without_a_size_are_a_group() -> None:
    known = {name: GroupedImage(name, bytes=10, changed=number) for number, name in enumerate("cba")}
    links = [Link("c", "b", 1.0, IDENTITY, identical=True), Link("c", "a", 1.0, IDENTITY, identical=True)]
    (group,) = group_copies(known, links, 1.0)
    assert group.best.path == "c"
    assert {copy.in_words(group.best) for copy in group.copies} == {"identical file"}


@pytest.mark.parametrize("sure", [0.0, -1.0, 1.1, float("nan")])
def test_sure_is_a_probability(sure: float) -> None:
    with pytest.raises(OptionError, match="nine out of ten"):
        group_copies({}, [], sure)


@settings(deadline=None)
@given(st.data())
def test_every_photograph_is_in_one_group_at_most(data: st.DataObject) -> None:
    names = list("abcdefg")
    known = {name: GroupedImage(name, 1, data.draw(st.integers(50, 400)), 100, bytes=5) for name in names}
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=12))
    links = [
        placed(a, b, data.draw(st.floats(0.5, 2)), data.draw(st.floats(-300, 300)), 0, data.draw(st.floats(0.5, 1)))
        for a, b in pairs
        if a != b
    ]
    for sure in (0.6, 0.9):
        found = group_copies(known, links, sure)
        held = [path for group in found for path in (group.best.path, *(copy.photograph.path for copy in group.copies))]
        assert len(held) == len(set(held))
        assert all(group.copies for group in found)
        for group in found:
            assert all(sure <= copy.probability <= 1 for copy in group.copies)
            assert {copy.via for copy in group.copies} <= {None, *(copy.photograph.path for copy in group.copies)}


@pytest.mark.parametrize(
    ("given", "best", "reason"),
    [
        ([GroupedImage("a", 1, 100, 100, 9), GroupedImage("b", 2, 200, 100, 5)], "b", "most pixels: 200 x 100"),
        ([GroupedImage("a", 1, 100, 100, 9000), GroupedImage("b", 2, 101, 100, 5000)], "a", "largest file: 9 KB"),
        ([GroupedImage("a.jpg", 1, 100, 100, 95), GroupedImage("b.png", 2, 100, 100, 100)], "b.png", "without loss: png"),
        (
            [GroupedImage("a", 1, 100, 100, 95, 2 * 10**18), GroupedImage("b", 2, 100, 100, 100, 10**18)],
            "b",
            "oldest: 2001-09-09",
        ),
        ([GroupedImage("aa", 1, 100, 100, 95, 1), GroupedImage("b", 2, 100, 100, 100, 1)], "b", "shortest path"),
        ([GroupedImage("b", 1, 100, 100, 95, 1), GroupedImage("a", 2, 100, 100, 100, 1)], "a", "first by name"),
        ([GroupedImage("a", 1, 150, 150, 9, content=0.4), GroupedImage("b", 2, 100, 100, 9)], "b", "most pixels: 100 x 100"),
    ],
)
def test_the_best_copy(given: list[GroupedImage], best: str, reason: str) -> None:
    for order in (given, given[::-1]):
        chosen, why = choose(order)
        assert chosen.path == best
        assert reason in why
