"""Groups of images that links connect."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest

from polyvoc.search.links import LINK
from polyvoc.search.things import MIN_INLIERS, find_things


def links_of(*rows: tuple[int, int, int]) -> np.ndarray:
    """Links of images with so many inliers."""
    return np.array([(first, second, math.log1p(inliers)) for first, second, inliers in rows], LINK)


def test_groups_are_the_connected_images_largest_first() -> None:
    links = links_of((1, 2, 30), (2, 3, 50), (4, 9, 20), (5, 6, MIN_INLIERS - 1), (7, 8, MIN_INLIERS), (3, 20, 99))
    things = find_things(links, range(10))  # 20 is gone
    assert [(set(thing.images), thing.links) for thing in things] == [({1, 2, 3}, 2), ({4, 9}, 1), ({7, 8}, 1)]
    assert things[0].images[0] == 2, "the one with the strongest links"
    assert find_things(links_of(), range(10)) == [] == find_things(links, [])


@pytest.mark.parametrize("seed", range(5))
def test_every_link_is_within_a_group_and_groups_are_disjoint(seed: int) -> None:
    draw = Random(seed)
    pairs = {tuple(sorted(draw.sample(range(60), 2))) for _ in range(40)}
    rows = [(first, second, draw.randint(5, 60)) for first, second in sorted(pairs)]
    things = find_things(links_of(*rows), range(60))
    group = {image: number for number, thing in enumerate(things) for image in thing.images}
    assert len(group) == sum(len(thing.images) for thing in things)
    strong = [(first, second) for first, second, inliers in rows if inliers >= MIN_INLIERS]
    assert all(group[first] == group[second] for first, second in strong)
    assert set(group) == {image for pair in strong for image in pair}
    assert sum(thing.links for thing in things) == len(strong)
    reached = {things[0].images[0]}  # connected: every image of the largest is reached from its first
    while more := {other for pair in strong for one, other in (pair, pair[::-1]) if one in reached} - reached:
        reached |= more
    assert reached == set(things[0].images)
