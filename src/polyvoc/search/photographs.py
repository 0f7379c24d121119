"""Which images of several indexes are the same photograph.

Images are the same photograph if their files have the same content, by its digest, or else the same path. An index may hold a
content several times, as copies: then the images with one path are one photograph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.index.writer import EXTERNAL
from polyvoc.search.index import Index

STRIDE = 10**9  # image 17 of the third index (number 2) is image 2,000,000,017 of all

Numbers = npt.NDArray[np.int64]


class Identity(NamedTuple):
    """What distinguishes the photograph of an image."""

    image: int  # of all indexes
    path: int  # equal where the paths are
    content: int  # equal where the digests are; where there is none, that of no other image


@dataclass(frozen=True, eq=False)
class Photographs:
    """The photographs of several indexes, as of their snapshots. About 40 bytes per image; may be shared by threads."""

    images: Numbers  # [n] of all indexes, ascending
    photograph: Numbers  # [n] the photograph of each, from 0
    content: Numbers  # [n] equal where the contents are known to be
    # [n] positions in the arrays above, by photograph, and by content; and where each begins [photographs + 1], [contents + 1]
    by_photograph: Numbers
    photograph_starts: Numbers
    by_content: Numbers
    content_starts: Numbers

    @classmethod
    def of(cls, indexes: Sequence[Index]) -> Self:
        """Compare the images of indexes: every row of their catalogues is read."""
        found = [one for number, index in enumerate(indexes) for one in _identities(number, index)]
        table = np.array(found, np.int64).reshape(-1, 3)
        images, paths, contents = (np.ascontiguousarray(column) for column in table.T)
        paths, contents = (np.unique(column, return_inverse=True)[1].ravel() for column in (paths, contents))
        group = _connected(paths, contents)
        pairs, size = np.unique(np.column_stack([group, images // STRIDE]), axis=0, return_counts=True)
        repeats = np.zeros(len(images) + 1, bool)
        repeats[pairs[size > 1, 0]] = True  # groups with two images of one index: told apart by their paths
        keys = np.column_stack([group, np.where(repeats[group], paths, -1)])
        photograph = np.unique(keys, axis=0, return_inverse=True)[1].ravel().astype(np.int64)
        return cls(images, photograph, contents, *_grouped(photograph), *_grouped(contents))

    def __len__(self) -> int:
        """Return the number of photographs."""
        return len(self.photograph_starts) - 1

    def at(self, images: Sequence[int] | Numbers) -> Numbers:
        """Return the photograph of each of some images, -1 where there is no such image [n]."""
        wanted = np.asarray(images, np.int64)
        if not len(self.images):
            return np.full(len(wanted), -1)
        place = np.minimum(np.searchsorted(self.images, wanted), len(self.images) - 1)
        return np.where(self.images[place] == wanted, self.photograph[place], -1)

    def holders(self, photograph: int) -> dict[int, list[int]]:
        """Return the images that have evidence of a photograph, by the number of their index.

        That is its own image; of an index that holds it under no path of it, all images of the same content.
        """
        own = self.by_photograph[self.photograph_starts[photograph] : self.photograph_starts[photograph + 1]]
        found = _by_index(self.images[own])
        for content in np.unique(self.content[own]).tolist():
            same = self.images[self.by_content[self.content_starts[content] : self.content_starts[content + 1]]]
            for number, images in _by_index(same).items():
                found.setdefault(number, images)
        return dict(sorted(found.items()))

    def first(self, photograph: int) -> int:
        """Return the image by which a photograph is named: that of the first index that holds it."""
        return int(self.firsts[photograph])

    @property
    def firsts(self) -> Numbers:
        """Return the image by which each photograph is named."""
        return self.images[self.by_photograph[self.photograph_starts[:-1]]]


def _by_index(images: Numbers) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for image in np.sort(images).tolist():
        found.setdefault(image // STRIDE, []).append(image)
    return found


def _identities(number: int, index: Index) -> list[Identity]:
    """Return the images of an index that can be searched; damaged rows are left out."""
    live = np.sort(np.concatenate([np.empty(0, np.int64), *(part.ids[part.live] for part in index.engine.images())]))
    if len(live) and live[-1] >= STRIDE:
        raise OptionError(f"{index.folder.path} has had {live[-1]:,} images, too many to search it beside others; index again")
    known = {image: (path, digest) for image, path, digest in index.folder.catalogue.identities()}
    rows = ((image, known[image]) for image in live.tolist() if image in known)
    return [_identity(number * STRIDE + image, *names) for image, names in rows]


def _identity(image: int, path: str, digest: str | None) -> Identity:
    # Features of other programs have a digest of their own, not of a file.
    content = image if digest is None or digest.startswith(f"{EXTERNAL}:") else hash(digest)
    return Identity(image, hash(path), content)


def _connected(*keys: Numbers) -> Numbers:
    """Return the group of each of n items [n]: those that share a key of any kind are in one."""
    group = np.arange(len(keys[0]))
    while True:
        before = group
        for key in keys:
            least = np.full(len(group), len(group))
            np.minimum.at(least, key, group)
            group = least[key]
        if np.array_equal(before, group):
            return group


def _grouped(labels: Numbers) -> tuple[Numbers, Numbers]:
    """Return the positions of labels 0, 1, ... in their order, and where those of each begin."""
    order = np.argsort(labels, kind="stable")
    return order, np.searchsorted(labels[order], np.arange(int(labels.max(initial=-1)) + 2))
