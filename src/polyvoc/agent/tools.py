"""What an agent can do with an index: search, explain, list, look at photographs, find copies. Nothing is written.

A photograph of the index is read only where its user has allowed that; a query photograph only below the roots of the server.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyvoc.duplicates.groups import Duplicates, Group, ImageFile, find_duplicates
from polyvoc.errors import ImageError, NotAllowedError, OptionError
from polyvoc.features.decode import read_thumbnail
from polyvoc.index.catalogue import ImageFilter, ImageRow
from polyvoc.options import SearchOptions
from polyvoc.search.hits import SearchResult
from polyvoc.search.index import Index
from polyvoc.search.info import image_info, index_info
from polyvoc.storage.folders import check_folders, is_below, is_indexed_file
from polyvoc.storage.stores import display_name, is_url, redact
from polyvoc.types import Features, Region

THUMBNAIL, LARGEST_THUMBNAIL = 256, 1024  # pixels of the long side
MAX_THUMBNAILS = 20  # in a reply: an agent pays for each
MATCHES = 20  # of an explanation, the heaviest
PROBLEMS = 20  # files that could not be read, in a description of the index
UNUSED = ("options", "seconds")  # of a result: they would fill the memory of an agent
MATCH = ("query_xy", "image_xy", "weight", "inlier")
ANSWER = ("score", "inliers", "outline", "transform", "n_matches")


@dataclass(frozen=True)
class Thumbnail:
    """A thumbnail, or the reason why there is none."""

    caption: str
    jpeg: bytes | None


@dataclass(frozen=True)
class Reply:
    """What a tool returns: plain values for JSON, and pictures."""

    values: dict[str, Any]
    pictures: tuple[Thumbnail, ...] = ()


@dataclass(frozen=True)
class AgentQuery:
    """What to search with: a file, or an image of the index; all of it or a region."""

    path: str | None = None
    image: int | None = None
    region: Region | None = None

    def __post_init__(self) -> None:
        """Raise OptionError unless there is one of both."""
        if (self.path is None) == (self.image is None):
            raise OptionError("give either the path of a photograph or the id of an image of the index")


class Tools:
    """The tools of one index, at its last commit. They may be called by several threads at a time."""

    def __init__(self, index: Path, roots: Sequence[str] = ()) -> None:
        """Open an index; query photographs lie below `roots`, by default below the folders that it may be read from."""
        addresses = [root for root in roots if is_url(root)]
        if addresses:
            raise OptionError(f"{display_name(addresses[0])} is no folder of this machine; give --root folders on its disk")
        check_folders(roots)
        self._roots = tuple(os.path.realpath(root) for root in roots)
        self._index = Index.open(index)
        self._lock = threading.Lock()

    @property
    def index(self) -> Index:
        """Return the index at its last commit."""
        with self._lock:
            self._index = self._index.reopened()
            return self._index

    def search(self, query: AgentQuery, thumbnails: int, changes: dict[str, Any]) -> Reply:
        """Return the images that show the same thing, with thumbnails of the first ones."""
        index = self.index
        options = index.options(preset=changes.pop("preset", None), **changes)
        name, photo = self._photo(index, query, options)
        hits = index.search(photo, options, region=query.region)
        values = SearchResult(name, options, hits, query.region).as_dict()
        shown = [(f"hit {rank}: {_named(hit.image, hit.path)}{_probable(hit.probability)}", hit.image)
                 for rank, hit in enumerate(hits[:thumbnails], start=1)]  # fmt: skip
        return Reply(_without(values, UNUSED), self._thumbnails(index, shown))

    def explain(self, query: AgentQuery, image: int, changes: dict[str, Any]) -> Reply:
        """Return why an image is a hit: the geometry, the heaviest matches, and both pictures."""
        index = self.index
        options = replace(index.options(preset=changes.pop("preset", None), **changes), fuse=False)
        name, photo = self._photo(index, query, options)
        row = index.image(image)
        source: Features | int
        if isinstance(photo, int):
            source = photo
            frame = image_info(index.image(photo))
            pictures = self._thumbnails(index, [(f"query: {_named(photo, name)}", photo)])
        else:
            source = index.features(photo)
            frame = {"width": source.width, "height": source.height}
            pictures = (Thumbnail(f"query: {display_name(name)}", read_thumbnail(photo, THUMBNAIL)),)
        found = index.explain(source, image, options, region=query.region).as_dict(query.region, frame, MATCHES)
        values = {
            "query": {"name": redact(name), "width": frame["width"], "height": frame["height"]},
            "image": _listed(row),
            **{key: found[key] for key in ANSWER},
            "matches": [{key: match[key] for key in MATCH} for match in found["matches"]],
        }
        return Reply(values, (*pictures, *self._thumbnails(index, [(f"image: {_named(image, row.path)}", image)])))

    def images(self, find: str, page: int, size: int) -> Reply:
        """Return one page of the images, those with a text in their path."""
        catalogue = self.index.folder.catalogue
        chosen = ImageFilter(find)
        rows, total = catalogue.images_from(page * size, size, chosen), catalogue.count_images(chosen)
        return Reply({"images": list(map(_listed, rows)), "total": total, "page": page, "pages": -(-total // size)})

    def look(self, images: Iterable[int], side: int) -> Reply:
        """Return thumbnails of images of the index."""
        index = self.index
        rows = [index.image(image) for image in images]
        shown = [(_named(row.image, row.path), row.image) for row in rows]
        return Reply({"images": list(map(_listed, rows))}, self._thumbnails(index, shown, side))

    def info(self) -> Reply:
        """Return what the index holds, and where query photographs may lie."""
        index = self.index
        info, trust = index_info(index), index.folder.trust
        problems = [{"path": redact(one.path), "reason": one.reason} for one in index.problems()]
        values = {
            "index": info["index"],
            "images": info["images"],
            "features": info["features"],
            "bytes": info["bytes"]["total"],
            "commit": info["commit"],
            "folders": list(map(redact, trust.named)),
            "not_read": trust.refused(),
            "query_roots": list(self.roots(index)),
            "probabilities": index.probability is not None,
            "problems": problems[:PROBLEMS],
            "n_problems": len(problems),
            "damage": list(index.damage),
        }
        return Reply(values)

    def duplicates(self, min_probability: float, page: int, size: int, thumbnails: int) -> Reply:
        """Return one page of the groups of copies that `polyvoc duplicates` has found, with thumbnails of the first ones."""
        index = self.index
        found = find_duplicates(index, min_probability)
        groups = found.groups[page * size : (page + 1) * size]
        files = [(number, file) for number, group in enumerate(groups, start=page * size + 1)
                 for file in (group.best, *(copy.file for copy in group.copies)) if file.image is not None]  # fmt: skip
        shown = [(f"group {number}: {_named(file.image, file.path)}", file.image) for number, file in files[:thumbnails]]
        return Reply(_copies(found, groups, page, size), self._thumbnails(index, shown))

    # -- what may be read

    def roots(self, index: Index) -> tuple[str, ...]:
        """Return the folders below which a query photograph may lie: those given, else those allowed for the index, as now."""
        if self._roots:
            return self._roots
        return tuple(os.path.realpath(root) for root in index.folder.trust.roots if not is_url(root))

    def _photo(self, index: Index, query: AgentQuery, options: SearchOptions) -> tuple[str, str | int]:
        """Return the name of a query and what the index searches with."""
        if query.path is None:
            assert query.image is not None
            return index.image(query.image).path, query.image
        path = self._readable(index, query.path)
        return path, path

    def _readable(self, index: Index, given: str) -> str:
        """Return the path of a query photograph without links; raise NotAllowedError unless it lies below a root."""
        roots = self.roots(index)
        given = os.path.expanduser(given)
        if is_url(given) or not os.path.isabs(given) or "\0" in given:
            raise OptionError(f"{display_name(given)} is no absolute path; photographs of other machines are not fetched")
        path = os.path.realpath(given)
        if not is_below(path, roots):
            where = ", ".join(map(display_name, roots)) or "none; start the server with --root FOLDER"
            raise NotAllowedError(f"{display_name(given)}: not read; query photographs lie below: {where}")
        return path

    def _thumbnails(
        self, index: Index, shown: Iterable[tuple[str, int | None]], side: int = THUMBNAIL
    ) -> tuple[Thumbnail, ...]:
        return tuple(_thumbnail(index, caption, image, side) for caption, image in shown if image is not None)


def _thumbnail(index: Index, caption: str, image: int, side: int) -> Thumbnail:
    """Return the picture of an image of the index, if it may be read and is the file that was indexed."""
    try:
        row = index.image(image)
        path = index.folder.trust.require(row.path)
        if not is_indexed_file(row.path, row.state, row.digest):
            return Thumbnail(f"{caption}; no picture: its file is gone or has changed", None)
        return Thumbnail(caption, read_thumbnail(path, side))
    except (ImageError, OptionError) as error:
        return Thumbnail(f"{caption}; no picture: {error}", None)


def _copies(found: Duplicates, groups: Sequence[Group], page: int, size: int) -> dict[str, Any]:
    values: dict[str, Any] = {
        "min_probability": found.min_probability,
        "images": found.n_images,
        "not_compared": found.not_compared,
        "groups": [
            {
                "best": _copied(group.best),
                "copies": [
                    {**_copied(copy.file), "probability": round(copy.probability, 4), "change": copy.describe(group.best)}
                    for copy in group.copies
                ],
            }
            for group in groups
        ],
        "total": len(found.groups),
        "page": page,
        "pages": -(-len(found.groups) // size),
    }
    if found.not_compared:
        values["advice"] = "images that were added since the last comparison are left out; the user can run: polyvoc duplicates"
    return values


def _copied(file: ImageFile) -> dict[str, Any]:
    size = {"width": file.width, "height": file.height, "bytes": file.bytes}
    return {"image": file.image, "path": redact(file.path), **size}


def _listed(row: ImageRow) -> dict[str, Any]:
    return image_info(row) | {"path": redact(row.path)}


def _named(image: int | None, path: str) -> str:
    return f"image {image}, {display_name(path)}"


def _probable(probability: float | None) -> str:
    return "" if probability is None else f", probability {probability:.2f}"


def _without(values: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
