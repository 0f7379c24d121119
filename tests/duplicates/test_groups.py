"""Groups of copies: which files belong to them, which do not, and which is best."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyvoc.duplicates.groups import Group, ImageFile, Link, Scope, choose, group_copies, with_content
from polyvoc.duplicates.overlap import IDENTITY
from polyvoc.errors import OptionError


def files(**sizes: tuple[int, int]) -> dict[str, ImageFile]:
    return {name: ImageFile(name, number, *size, bytes=1000) for number, (name, size) in enumerate(sizes.items(), start=1)}


def link(first: str, second: str, scale: float = 1.0, x: float = 0.0, y: float = 0.0, probability: float = 0.99) -> Link:
    """A link: where the first lies in the second, and its scale there."""
    return Link(first, second, probability, np.array([[scale, 0, x], [0, scale, y]]))


def members(groups: list[Group]) -> list[tuple[str, list[str]]]:
    return [(group.best.path, sorted(copy.file.path for copy in group.copies)) for group in groups]


def test_copies_of_one_image() -> None:
    known = files(a=(400, 300), b=(200, 150), c=(400, 300), alone=(10, 10))
    links = [link("b", "a", 2.0), link("c", "b", 0.5)]
    (group,) = group_copies(known, links, 0.9)
    assert members([group]) == [("a", ["b", "c"])] or members([group]) == [("c", ["a", "b"])]
    (chained,) = (copy for copy in group.copies if copy.via is not None)
    assert (chained.via, chained.probability) == ("b", pytest.approx(0.99**2))
    np.testing.assert_allclose(chained.transform, IDENTITY, atol=1e-9)


def test_probabilities_of_a_chain_multiply() -> None:
    known = files(a=(800, 600), b=(400, 300), c=(200, 150))
    links = [link("b", "a", 2.0, probability=0.92), link("c", "b", 2.0, probability=0.92)]
    assert members(group_copies(known, links, 0.9)) == [("a", ["b"])]
    assert members(group_copies(known, links, 0.8)) == [("a", ["b", "c"])]


def test_links_go_before_chains_and_the_most_probable_chain_first() -> None:
    known = files(a=(800, 600), b=(400, 300), c=(200, 150), d=(200, 150))
    links = [link("b", "a", 2.0), link("c", "b", 2.0), link("c", "a", 4.0, probability=0.95)]
    links += [link("d", "c", 1.0), link("d", "b", 2.0, probability=0.98)]
    (group,) = group_copies(known, links, 0.9)
    copies = {copy.file.path: (copy.via, copy.probability) for copy in group.copies}
    assert copies == {"b": (None, 0.99), "c": (None, 0.95), "d": ("b", pytest.approx(0.99 * 0.98))}


def test_collage_does_not_join_its_pictures() -> None:
    """Large or small, it shows both reduced, side by side."""
    known = files(collage=(1200, 450), left=(800, 600), right=(800, 600))
    links = [link("left", "collage", 0.7), link("right", "collage", 0.7, x=600)]
    assert group_copies(known, links, 0.9) == []
    known["collage"] = replace(known["collage"], width=400, height=150)
    links = [link("left", "collage", 0.25), link("right", "collage", 0.25, x=200)]
    ((_, copies),) = members(group_copies(known, links, 0.9))
    assert copies == ["collage"]


def test_a_picture_that_shows_another_reduced_does_not_stand_for_it() -> None:
    """A room with a photograph on its wall has more pixels, but not those of the photograph."""
    known = files(room=(1200, 900), photograph=(800, 600), thumbnail=(160, 120))
    links = [link("photograph", "room", 0.5), link("thumbnail", "photograph", 5.0)]
    assert members(group_copies(known, links, 0.9)) == [("photograph", ["thumbnail"])]
    known["room"] = replace(known["room"], reference=True)
    assert members(group_copies(known, links, 0.9)) == [("room", ["photograph", "thumbnail"])]


def test_a_grey_picture_does_not_stand_for_one_in_colour() -> None:
    known = files(scan=(800, 600), photograph=(400, 300), copy=(400, 300))
    grey = {"scan", "copy"}
    links = [link("photograph", "scan", 2.0), link("copy", "scan", 2.0), link("copy", "photograph", 1.0)]
    groups = group_copies(known, links, 0.9, look=lambda file, copies: replace(file, coloured=file.path not in grey))
    assert members(groups) == [("scan", ["copy"])]


def test_colours_of_pixels() -> None:
    colours = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    grey = np.repeat(colours[:, :, :1], 3, axis=2)
    for pixels, coloured in ((colours, True), (grey, False), (grey + np.uint8(0), False)):
        seen = with_content(ImageFile("a", 1, 600, 400), pixels, [])
        assert (seen.coloured, seen.content, seen.path) == (coloured, 1.0, "a")


def test_collage_has_copies_of_its_own() -> None:
    """Identical, by way of a third, or reduced; the pictures that it shows stay apart, and so does a part of it."""
    known = files(a=(1200, 450), b=(1200, 450), c=(1200, 450), small=(600, 225), left=(800, 600), right=(800, 600))
    known["part"] = ImageFile("part", 7, 300, 400, bytes=1000)
    links = [Link("b", other, 1.0, IDENTITY, identical=True) for other in "ac"]
    links += [link("small", "a", 2.0), link("part", "a", 1.0)]
    for collage in "abc":
        links += [link("left", collage, 0.7), link("right", collage, 0.7, x=600)]
    assert members(group_copies(known, links, 0.9)) == [("a", ["b", "c", "small"])]


def test_crops() -> None:
    """Crops side by side are copies of the whole; a chain of crops does not leave the image."""
    known = files(whole=(1600, 600), left=(800, 600), right=(800, 600))
    links = [link("left", "whole"), link("right", "whole", x=800)]
    assert members(group_copies(known, links, 0.9)) == [("whole", ["left", "right"])]
    known = files(a=(1000, 100), b=(900, 100), c=(800, 100))
    links = [link("b", "a", x=500), link("c", "b", x=600)]  # c begins where a ends
    assert members(group_copies(known, links, 0.9)) == [("a", ["b"])]


def test_identical_files_without_a_size_are_a_group() -> None:
    known = {name: ImageFile(name, bytes=10, changed=number) for number, name in enumerate("cba")}
    links = [Link("c", "b", 1.0, IDENTITY, identical=True), Link("c", "a", 1.0, IDENTITY, identical=True)]
    (group,) = group_copies(known, links, 1.0)
    assert group.best.path == "c"
    assert {copy.describe(group.best) for copy in group.copies} == {"identical file"}


def test_verdicts_split_and_join_groups() -> None:
    known = files(a=(800, 600), b=(400, 300), c=(200, 150), d=(100, 75))
    links = [link("b", "a", 2.0), link("c", "b", 2.0), link("c", "a", 4.0, probability=0.98)]
    assert members(group_copies(known, links, 0.9)) == [("a", ["b", "c"])]
    apart = {frozenset(("a", "c"))}
    assert members(group_copies(known, links[:2], 0.9, apart=apart)) == [("a", ["b"])], "a chain does not lead around a verdict"
    assert members(group_copies(known, links, 0.9, apart={frozenset(("b", "c"))})) == [("a", ["b"])], "nor by way of the best"
    joined = replace(link("d", "a", 8.0, probability=1.0), verdict="copy")
    (group,) = group_copies(known, [links[0], joined], 0.9)
    assert {copy.file.path: copy.verdict for copy in group.copies} == {"b": None, "d": "copy"} and not group.decided
    (group,) = group_copies(known, [joined], 1.0)
    assert group.decided


def test_no_chain_leads_around_a_doubtful_pair() -> None:
    known = files(a=(800, 600), b=(400, 300), c=(200, 150))
    links = [link("b", "a", 2.0), link("c", "b", 2.0)]
    assert members(group_copies(known, links, 0.9, doubtful={frozenset(("a", "c"))})) == [("a", ["b"])]
    assert members(group_copies(known, links, 0.9, doubtful={frozenset(("b", "x"))})) == [("a", ["b", "c"])]


@settings(deadline=None)
@given(st.data())
def test_files_to_stay_apart_are_in_no_group_together(data: st.DataObject) -> None:
    names = "abcdef"
    known = files(**{name: (100 + number, 100) for number, name in enumerate(names)})
    pairs = [(one, other) for one in names for other in names if one < other]
    linked = data.draw(st.lists(st.sampled_from(pairs), unique=True))
    apart = {frozenset(pair) for pair in data.draw(st.lists(st.sampled_from(pairs), unique=True))}
    links = [link(*pair) for pair in linked if frozenset(pair) not in apart]
    for group in group_copies(known, links, 0.5, apart=apart):
        within = [group.best.path, *(copy.file.path for copy in group.copies)]
        assert not any(frozenset((one, other)) in apart for one in within for other in within)


def test_files_of_a_reference_folder_are_best() -> None:
    known = files(large=(800, 600), small=(400, 300), other=(400, 300))
    links = [link("small", "large", 2.0), link("other", "large", 2.0)]
    known["small"] = replace(known["small"], reference=True)
    (group,) = group_copies(known, links, 0.9)
    assert (group.best.path, group.reason) == ("small", "in a reference folder")
    known["large"] = replace(known["large"], reference=True)
    (group,) = group_copies(known, links, 0.9)
    assert group.best.path == "large" and [copy.file.reference for copy in group.copies if copy.file.path == "small"] == [True]


def test_without_chains_every_copy_is_linked_with_the_best() -> None:
    known = files(a=(800, 600), b=(400, 300), c=(200, 150))
    links = [link("b", "a", 2.0), link("c", "b", 2.0)]
    assert members(group_copies(known, links, 0.9, chains=False)) == [("a", ["b"])]


def test_pairs_between_two_folders_and_their_classes() -> None:
    scope = Scope(between=("/p/a", "/p/b"))
    for first, second, wanted in (("/p/a/1", "/p/b/2", True), ("/p/b/1", "/p/a/2", True), ("/p/a/1", "/p/a/2", False),
                                  ("/p/a/1", "/p/ab/2", False), ("/q/1", "/p/b/2", False)):  # fmt: skip
        assert scope.has(link(first, second)) == wanted
    assert Scope().has(link("x", "y"))
    assert scope.checked(["/p/a/1", "/p/b/1"]) == scope
    with pytest.raises(OptionError, match="/p/b: no photograph of the index"):
        scope.checked(["/p/a/1"])
    kinds = [
        replace(link("a", "b", probability=copy), another_shot=shot).kind for copy, shot in ((0.9, 0.1), (0.2, 0.7), (0.1, 0.2))
    ]
    assert kinds == ["copy", "another shot", "something else"]
    assert replace(link("a", "b"), identical=True).kind == "identical"


@pytest.mark.parametrize("value", [0.0, -1.0, 1.1, float("nan")])
def test_min_probability_is_checked(value: float) -> None:
    with pytest.raises(OptionError, match=rf"min_probability={value}.*such as 0\.9"):
        group_copies({}, [], value)


@settings(deadline=None)
@given(st.data())
def test_every_file_is_in_one_group_at_most(data: st.DataObject) -> None:
    names = list("abcdefg")
    known = {name: ImageFile(name, 1, data.draw(st.integers(50, 400)), 100, bytes=5) for name in names}
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=12))
    values = st.tuples(st.floats(0.5, 2), st.floats(-300, 300), st.just(0), st.floats(0.5, 1))
    links = [link(a, b, *data.draw(values)) for a, b in pairs if a != b]
    for minimum in (0.6, 0.9):
        groups = group_copies(known, links, minimum)
        paths = [path for group in groups for path in (group.best.path, *(copy.file.path for copy in group.copies))]
        assert len(paths) == len(set(paths))
        for group in groups:
            assert group.copies
            assert all(minimum <= copy.probability <= 1 for copy in group.copies)
            assert {copy.via for copy in group.copies} <= {None, *(copy.file.path for copy in group.copies)}


@pytest.mark.parametrize(
    ("first", "second", "best", "reason"),
    [
        (("a", 1, 100, 100, 9), ("b", 2, 200, 100, 5), "b", "most pixels: 200 x 100"),
        (("a", 1, 100, 100, 9000), ("b", 2, 101, 100, 5000), "a", "largest file: 9 KB"),
        (("a.jpg", 1, 100, 100, 95), ("b.png", 2, 100, 100, 100), "b.png", "lossless: png"),
        (("a", 1, 100, 100, 95, 2 * 10**18), ("b", 2, 100, 100, 100, 10**18), "b", "oldest: 2001-09-09"),
        (("aa", 1, 100, 100, 95, 1), ("b", 2, 100, 100, 100, 1), "b", "shortest path"),
        (("b", 1, 100, 100, 95, 1), ("a", 2, 100, 100, 100, 1), "a", "first by name"),
        (("a.png", 1, 100, 100, 900, None, 1.0, False), ("b.jpg", 2, 100, 100, 90), "b.jpg", "in colour"),
        (("a", 1, 150, 150, 9, None, 0.4), ("b", 2, 100, 100, 9), "b", "most pixels: 100 x 100"),
    ],
)
def test_best_file_and_its_reason(first: tuple[Any, ...], second: tuple[Any, ...], best: str, reason: str) -> None:
    for order in ((first, second), (second, first)):
        chosen, why = choose([ImageFile(*values) for values in order])
        assert chosen.path == best
        assert reason in why
