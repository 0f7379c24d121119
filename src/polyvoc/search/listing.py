"""The photographs of several indexes as one list: by id, in pages and by filters, as a catalogue lists those of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from polyvoc.index.catalogue import ANY_IMAGE, Catalogue, ImageFilter, ImageRow
from polyvoc.search.index import Index
from polyvoc.search.photographs import STRIDE, Numbers, Photographs


@dataclass(frozen=True, eq=False)
class Listing:
    """All photographs of several indexes, each as the first index that holds it has it. May be shared by threads."""

    indexes: Sequence[Index]
    photographs: Photographs

    def images(self) -> Iterator[ImageRow]:
        """Yield all photographs, by id."""
        firsts = set(self._firsts.tolist())
        for number, catalogue in enumerate(self._catalogues):
            rows = (replace(row, image=row.image + number * STRIDE) for row in catalogue.images())
            yield from (row for row in rows if row.image in firsts)

    def image(self, image: int) -> ImageRow | None:
        """Return one photograph by the id of any of its images."""
        return next(iter(self._rows([image])), None)

    def images_from(self, first: int, count: int, chosen: ImageFilter = ANY_IMAGE) -> list[ImageRow]:
        """Return `count` of the photographs by id, after the `first` ones; all, or those of a filter."""
        return self._rows(self._chosen(chosen)[first : first + count].tolist())

    def count_images(self, chosen: ImageFilter = ANY_IMAGE) -> int:
        """Return the number of photographs, all or those of a filter."""
        return len(self._chosen(chosen))

    def paths(self) -> Iterator[str]:
        """Yield the paths of all photographs, by id."""
        return (row.path for row in self.images())

    @property
    def _catalogues(self) -> list[Catalogue]:
        return [index.folder.catalogue for index in self.indexes]

    @cached_property
    def _firsts(self) -> Numbers:
        return np.sort(self.photographs.firsts)

    def _chosen(self, chosen: ImageFilter) -> Numbers:
        """Return the ids of the photographs of a filter, ascending."""
        if chosen == ANY_IMAGE:
            return self._firsts
        parts = [np.empty(0, np.int64)]
        for number, catalogue in enumerate(self._catalogues):
            own = _own_images(chosen.images, number)
            if own or not chosen.images:
                parts.append(np.array(catalogue.ids(replace(chosen, images=own)), np.int64) + number * STRIDE)
        return np.intersect1d(np.concatenate(parts), self._firsts)

    def _rows(self, images: Sequence[int]) -> list[ImageRow]:
        """Return the rows of some ids, by id, without those that do not exist."""
        found = []
        for number, catalogue in enumerate(self._catalogues):
            rows = catalogue.images_by_id(_own_images(images, number))
            found += [replace(rows[image], image=image + number * STRIDE) for image in sorted(rows)]
        return found


def _own_images(images: Sequence[int], number: int) -> tuple[int, ...]:
    """Return those of some ids that are of one index, as ids of it."""
    return tuple(image % STRIDE for image in images if image // STRIDE == number)
