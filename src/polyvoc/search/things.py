"""Things that were seen more than once: groups of images that verified links connect."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from polyvoc.search.links import Links

# More than a link needs: a chain of links joins two things by its weakest one.
MIN_INLIERS = 10


class Thing(NamedTuple):
    """The images of one thing, by their ids, the one with the strongest links first; and the number of links between them."""

    images: tuple[int, ...]
    links: int


def find_things(links: Links, live: Collection[int], min_inliers: int = MIN_INLIERS) -> list[Thing]:
    """Return the groups of live images that links of at least so many inliers connect; the largest first."""
    ids = np.fromiter(live, np.int64, len(live))
    strong = links["weight"] >= np.float32(np.log1p(min_inliers)) - 1e-6
    links = links[strong & np.isin(links["first"], ids) & np.isin(links["second"], ids)]
    parents: dict[int, int] = {}
    strength: dict[int, float] = {}
    pairs = list(zip(links["first"].tolist(), links["second"].tolist(), links["weight"].tolist(), strict=True))
    for first, second, weight in pairs:
        parents[_root(parents, first)] = _root(parents, second)
        for image in (first, second):
            strength[image] = strength.get(image, 0.0) + weight
    members: dict[int, list[int]] = {}
    counts: dict[int, int] = {}
    for image in strength:
        members.setdefault(_root(parents, image), []).append(image)
    for first, _, _ in pairs:
        root = _root(parents, first)
        counts[root] = counts.get(root, 0) + 1
    things = [
        Thing(tuple(sorted(images, key=lambda one: (-strength[one], one))), counts[root]) for root, images in members.items()
    ]
    return sorted(things, key=lambda thing: (-len(thing.images), min(thing.images)))


def _root(parents: dict[int, int], image: int) -> int:
    """Return the representative of the group of an image so far; shortens the way to it."""
    while parents.setdefault(image, image) != image:
        parents[image] = parents[parents[image]]
        image = parents[image]
    return image
