"""Several indexes as one: of the same photographs with different kinds of features, or of collections kept apart.

`photographs` finds out which images are the same photograph, `joint` adds what each index contributes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

from polyvoc.errors import EmptyRegionError, ImageError, OptionError
from polyvoc.index.catalogue import ImageRow
from polyvoc.options import FeatureOptions, Preset, SearchOptions
from polyvoc.search.hits import Hit, Hits, SearchFailure, SearchResult
from polyvoc.search.index import Index, search_each
from polyvoc.search.joint import ExplanationPart, IndexAnswer, JointExplanation, JointHit, JointTrust, join, shifted
from polyvoc.search.listing import Listing
from polyvoc.search.photographs import STRIDE, Photographs
from polyvoc.search.query import Photo, PhotoFeatures, PlainPhoto, ReadGrey, plain_id, plain_photo, read_features
from polyvoc.storage.folders import absolute_path
from polyvoc.types import Features, Floats32, Problem, Progress, Region, Source

Failure = ImageError | EmptyRegionError
OpenIndex = Callable[[str | os.PathLike[str]], Index]


class Indexes:
    """Snapshots of several indexes that are searched together: read-only; may be shared by threads.

    They are numbered in the order of their paths, however they are given. Image 17 of index number 2 is image 2,000,000,017 of
    all; a photograph that several hold has the id of the first. The first search reads all rows of all catalogues.
    """

    def __init__(self, indexes: Iterable[Index], read: ReadGrey | None = None) -> None:
        """Take open indexes; raise OptionError if there are none, or one is not on the disk. read: decodes photographs."""
        self.indexes = tuple(sorted(indexes, key=lambda index: absolute_path(index.folder.path)))
        self._read = read
        if not self.indexes:
            raise OptionError("no index given: give at least one")

    @classmethod
    def open(cls, paths: Iterable[str | os.PathLike[str]], open_one: OpenIndex = Index.open,
             read: ReadGrey | None = None) -> Self:  # fmt: skip
        """Open indexes on the disk; `open_one` opens each, here or on a cluster."""
        with ExitStack() as opened:
            indexes = cls([opened.enter_context(open_one(path)) for path in paths], read)
            opened.pop_all()
        return indexes

    def reopened(self) -> Indexes:
        """Return the indexes as of their last commits: this object if there is no other commit."""
        after = [index.reopened() for index in self.indexes]
        same = all(new is old for new, old in zip(after, self.indexes, strict=True))
        return self if same else type(self)(after, self._read)

    def load(self) -> None:
        """Load the vocabularies now, and compare the images of all, rather than with the first search."""
        for index in self.indexes:
            index.load()
        _ = self.photographs

    @property
    def commit(self) -> int:
        """Return the sum of their commits, which every commit raises."""
        return sum(index.commit for index in self.indexes)

    def may_read(self, path: str) -> bool:
        """Return whether the file of a photograph may be read here: where an index that holds it may have it read."""
        return any(index.may_read(path) and index.folder.catalogue.image_at(path) is not None for index in self.indexes)

    def refused(self) -> list[str]:
        """Return one line for each index of whose photographs some may not be read here."""
        return list(dict.fromkeys(line for index in self.indexes for line in index.refused()))

    def close(self) -> None:
        """Release all of them."""
        for index in self.indexes:
            index.close()

    def __enter__(self) -> Self:
        """Use them in a `with` statement."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close them."""
        self.close()

    # -- searching

    def search(self, photo: Photo, options: SearchOptions | None = None, *, preset: Preset | None = None,
               region: Region | None = None, threads: int | None = None, vector: Floats32 | None = None,
               on_first: Callable[[Hits], None] | None = None, **changes: Any) -> Hits:  # fmt: skip
        """Find the photographs that show the same thing in any of the indexes, the most probable first.

        A photograph is what `Index.search` takes. It is decoded once; features are extracted once per kind. The evidence of
        different kinds is added (`search.joint`), each hit is a `JointHit`. Without options, those of each index are used;
        keywords change them in all. `vector` and `on_first` are for one index, and not used: `fuse` is refused here, and
        there is no ranking before that of all.
        """
        chosen = self._options(options, preset, changes)
        queries, seconds = self._queries(plain_photo(photo), threads)
        started = time.perf_counter()
        answers = self._answers(queries, chosen, region, threads)
        found = join(answers, self.photographs)
        hits = Hits([hit for hit in found[: chosen[0].top] if (hit.probability or 0.0) >= chosen[0].min_probability])
        hits.missing = tuple(sorted(span for one in answers for span in shifted(one.hits.missing, one.number)))
        hits.damage = tuple(dict.fromkeys(line for one in answers for line in one.hits.damage))
        hits.seconds = {**seconds, "score": time.perf_counter() - started}
        hits.trust = JointTrust.of(answers)
        return hits

    def search_many(self, photos: Iterable[Photo], options: SearchOptions | None = None, *, preset: Preset | None = None,
                    threads: int | None = None, progress: Progress | None = None,
                    **changes: Any) -> list[SearchResult | SearchFailure]:  # fmt: skip
        """Search with each of several photographs, as `Index.search_many`."""
        shown = self.options(options, preset, **changes)
        changes |= {"preset": preset, "threads": 1}
        return search_each(
            list(photos), lambda photo: self.search(photo, options, **changes), shown, self.image, threads, progress
        )

    def explain(self, photo: Photo, hit: Hit | int, options: SearchOptions | None = None, *, preset: Preset | None = None,
                region: Region | None = None, **changes: Any) -> JointExplanation:  # fmt: skip
        """Explain why a photograph is a hit: one part for each kind of features of which an index holds it.

        Of several indexes of one kind, it is the one whose evidence counts in a hit of `search`; for an id, the first.
        """
        chosen = self._options(options, preset, changes)
        image = hit.image if isinstance(hit, Hit) else plain_id(hit)
        plain = plain_photo(photo)
        queries, _ = self._queries(plain, None)
        shown = hit if isinstance(hit, Hit) else self._plain_hit(image)
        parts, failures = [], list[Failure]()
        for number, own in self._explained(image, hit).items():
            index, query = self.indexes[number], queries[number]
            try:
                if isinstance(query, ImageError):
                    raise query
                made = index.explain(query, own, chosen[number], region=region)
            except EmptyRegionError as error:
                failures.append(error)
            except ImageError as error:
                if error is not query:
                    raise
                failures.append(error)
            else:
                made = replace(made, sources=self._sources(plain, index, own))
                parts.append(ExplanationPart(str(index.folder.path), index.folder.kind.name, made))
        if not parts:
            raise failures[0]
        return JointExplanation(shown, tuple(parts))

    # -- options

    def options(self, options: SearchOptions | None = None, preset: Preset | None = None, **changes: Any) -> SearchOptions:
        """Return the options of the first index; those of the others differ where their own defaults do."""
        return self._options(options, preset, changes)[0]

    def preset(self, name: Preset) -> SearchOptions:
        """Return the options of a preset for the first index."""
        return self.options(preset=name)

    @property
    def default_options(self) -> SearchOptions:
        """Return the options of a search without options, those of the first index."""
        return self.options()

    def _options(self, options: SearchOptions | None, preset: Preset | None, changes: dict[str, Any]) -> list[SearchOptions]:
        """Return the options for each index; raise OptionError for those whose hits cannot be joined."""
        chosen = [index.options(options, preset, **changes) for index in self.indexes]
        for index, one in zip(self.indexes, chosen, strict=True):
            for name in ("smooth", "fuse"):
                if getattr(one, name):
                    raise OptionError(f"{name}: its hits have no probability, by which several indexes are joined; leave it "
                                      "out, or search one index")  # fmt: skip
            if one.since is not None:
                raise OptionError(f"since={one.since!r}: each index counts its own commits; search one index")
            if index.probability is None:
                raise OptionError(f"{index.folder.path} holds {index.folder.kind}, whose hits have no probability, by which "
                                  "several indexes are joined; search it alone")  # fmt: skip
        return chosen

    # -- images

    @cached_property
    def photographs(self) -> Photographs:
        """Return which images of the indexes are the same photograph."""
        return Photographs.of(self.indexes)

    def __len__(self) -> int:
        """Return the number of photographs; one that several indexes hold counts once."""
        return len(self.photographs)

    def __iter__(self) -> Iterator[ImageRow]:
        """Return all photographs, by id; see `images`."""
        return self.images()

    def __repr__(self) -> str:
        """Return what they are indexes of."""
        where = ", ".join(str(index.folder.path) for index in self.indexes)
        return f"<polyvoc.Indexes of {where}: {len(self):,} photographs>"

    @cached_property
    def listing(self) -> Listing:
        """Return the list of all photographs, in pages and by filters."""
        return Listing(self.indexes, self.photographs)

    def images(self) -> Iterator[ImageRow]:
        """Yield all photographs, by id, each as the first index that holds it has it."""
        return self.listing.images()

    def image(self, image: int) -> ImageRow:
        """Return the row of a photograph by the id of any of its images; raise OptionError if there is none."""
        index, own = self._place(image)
        return replace(index.image(own), image=int(image))

    def held(self, image: int) -> dict[str, int]:
        """Return the indexes that hold a photograph, by their paths, with its id in each."""
        return {str(self.indexes[number].folder.path): own for number, own in self._own_images(image).items()}

    def problems(self) -> list[Problem]:
        """Return the files that could not be indexed by one of them; a file may have several reasons."""
        return list(dict.fromkeys(problem for index in self.indexes for problem in index.problems()))

    @property
    def damage(self) -> tuple[str, ...]:
        """Return one line for each part of the indexes that could not be opened, and is missing in every search."""
        return tuple(dict.fromkeys(line for index in self.indexes for line in index.damage))

    def info(self) -> dict[str, Any]:
        """Return what they hold: the number of photographs, and `polyvoc info --json` of each."""
        from polyvoc.search.info import index_info

        return {"photographs": len(self), "indexes": [index_info(index) for index in self.indexes]}

    # -- the work

    def _answers(self, queries: Sequence[PlainPhoto | ImageError], options: Sequence[SearchOptions], region: Region | None,
                 threads: int | None) -> list[IndexAnswer]:  # fmt: skip
        """Return the candidates of each index; raise the first error if the query has features for none of them."""
        answers, failures = [], list[Failure]()
        for number, (index, query) in enumerate(zip(self.indexes, queries, strict=True)):
            try:
                if isinstance(query, ImageError):
                    raise query
                hits = index.candidates(query, options[number], region, threads)
            except EmptyRegionError as error:
                failures.append(error)
            except ImageError as error:
                if error is not query:  # which says that the photograph has no features of this kind
                    raise
                failures.append(error)
            else:
                assert index.probability is not None  # checked with the options
                path, kind = str(index.folder.path), index.folder.kind
                answers.append(IndexAnswer.of(number, path, kind, hits, index.probability))
        if not answers:
            raise failures[0]
        return answers

    def _queries(self, photo: PlainPhoto, threads: int | None) -> tuple[list[PlainPhoto | ImageError], dict[str, float]]:
        """Return what each index is searched with, an error where the photograph has no features of its kind."""
        if isinstance(photo, int):
            return self._stored_queries(photo, threads)
        if isinstance(photo, Features):
            return [photo] * len(self.indexes), {}
        if isinstance(photo, PhotoFeatures):
            return [photo.of(index.folder.extraction) for index in self.indexes], {}
        return self._extracted(photo, list(self.indexes), threads)

    def _stored_queries(self, image: int, threads: int | None) -> tuple[list[PlainPhoto | ImageError], dict[str, float]]:
        """Return the image of a photograph in each index; what does not hold it is searched with its file."""
        held = self._own_images(image)
        others = [number for number in range(len(self.indexes)) if number not in held]
        queries: dict[int, PlainPhoto | ImageError] = dict(held.items())
        if not others:
            return [queries[number] for number in sorted(queries)], {}
        try:
            file = self._file(image)
        except ImageError as error:
            where = ", ".join(str(self.indexes[number].folder.path) for number in others)
            raise type(error)(f"image {image} is not in {where}, which needs its file; {error}") from None
        made, seconds = self._extracted(file, [self.indexes[number] for number in others], threads)
        queries |= zip(others, made, strict=True)
        return [queries[number] for number in sorted(queries)], seconds

    def _file(self, image: int) -> str:
        """Return the file of a photograph, by the path of an index that may have it read."""
        failures = []
        for number, own in self._own_images(image).items():
            index = self.indexes[number]
            try:
                return index.folder.trust.require(index.image(own).path)
            except ImageError as error:
                failures.append(error)
        raise failures[0]

    def _sources(self, photo: PlainPhoto, index: Index, own: int) -> Callable[[], tuple[Source, Source]]:
        """Return what finds the files of a query and of an image of an index."""

        def sources() -> tuple[Source, Source]:
            if isinstance(photo, (Features, PhotoFeatures)):
                raise OptionError("draw needs the pixels of the query: explain with a photograph, not its features")
            query = self._file(photo) if isinstance(photo, int) else photo
            return query, index.folder.trust.require(index.image(own).path)

        return sources

    def _extracted(self, photo: str | bytes, indexes: Sequence[Index],
                   threads: int | None) -> tuple[list[PlainPhoto | ImageError], dict[str, float]]:  # fmt: skip
        """Return the features of a photograph for each index."""
        wanted: list[FeatureOptions] = [index.folder.extraction for index in indexes]
        seconds: dict[str, float] = {}
        found = read_features(photo, wanted, seconds, threads, self._read)
        return [found.of(options) for options in wanted], seconds

    def _place(self, image: int) -> tuple[Index, int]:
        """Return the index that an id belongs to, and the id there."""
        if isinstance(image, bool):
            raise OptionError(f"{image} is not the id of an image; give a number")
        number, own = divmod(int(image), STRIDE)
        if not 0 <= number < len(self.indexes):
            raise OptionError(f"image {image} is in none of the indexes; 'images' lists what is")
        return self.indexes[number], own

    def _own_images(self, image: int) -> dict[int, int]:
        """Return the id of a photograph in each index that holds it, by the number of the index."""
        index, own = self._place(image)
        index.find(own)
        (photograph,) = self.photographs.at([int(image)]).tolist()
        if photograph < 0:  # its row is damaged
            return {self.indexes.index(index): own}
        return {number: images[0] - number * STRIDE for number, images in self.photographs.holders(photograph).items()}

    def _explained(self, image: int, hit: Hit | int) -> dict[int, int]:
        """Return the id of a photograph in the index that explains each kind, by the number of the index."""
        held = self._own_images(image)
        counted = {part.index: part.image for part in hit.parts if part.counts} if isinstance(hit, JointHit) else {}
        chosen: dict[Any, tuple[int, int]] = {}
        for number, own in held.items():
            folder = self.indexes[number].folder
            if str(folder.path) in counted:
                chosen[folder.kind] = number, counted.pop(str(folder.path))
            else:
                chosen.setdefault(folder.kind, (number, own))
        return dict(sorted(chosen.values()))

    def _plain_hit(self, image: int) -> Hit:
        row = self.image(image)
        return Hit(row.image, row.path, 0.0, width=row.width, height=row.height)


def open_together(paths: Sequence[str | os.PathLike[str]], open_one: OpenIndex = Index.open,
                  read: ReadGrey | None = None) -> Index | Indexes:  # fmt: skip
    """Open an index, or several as one."""
    return open_one(paths[0]) if len(paths) == 1 else Indexes.open(paths, open_one, read)


def indexes_of(opened: Index | Indexes) -> tuple[Index, ...]:
    """Return the indexes that are searched: one, or several."""
    return opened.indexes if isinstance(opened, Indexes) else (opened,)
