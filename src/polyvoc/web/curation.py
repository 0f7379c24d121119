"""What was seen more than once, and copies: listed for everybody, decided on and moved by the user of this machine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyvoc.duplicates.compare import compare, pending_tasks, read_pairs
from polyvoc.duplicates.decisions import decide
from polyvoc.duplicates.groups import Copy, Duplicates, Group, ImageFile, find_duplicates
from polyvoc.duplicates.move import JOURNAL, check_target, common_folder, movable, move, undo
from polyvoc.errors import NotAllowedError, OptionError, PolyvocError
from polyvoc.index.folder import DECISIONS, DUPLICATE_PAIRS
from polyvoc.index.writer import IndexWriter
from polyvoc.search.index import Index
from polyvoc.search.info import format_time, image_info
from polyvoc.search.links import link
from polyvoc.search.things import Thing, find_things
from polyvoc.storage.stores import base_name
from polyvoc.types import Problem, Progress
from polyvoc.web.jobs import JobResult, Jobs
from polyvoc.web.service import IndexEdits, NotFoundError, Service

SHOWN_IMAGES = 60  # of a group
MAX_SHOTS = 500  # pairs of other shots in a list
MIRRORED = True  # mirrored copies are found, too


class Curation:
    """Groups and copies of the served index."""

    def __init__(self, service: Service, edits: IndexEdits | None, jobs: Jobs) -> None:
        """Prepare to list; with `edits` also to change."""
        self._service = service
        self._edits = edits
        self._jobs = jobs
        self._lock = threading.Lock()  # one thread computes, others wait for its result
        self._computed: dict[str, tuple[Hashable, Any]] = {}  # the last result of each kind, and what it was made from

    @property
    def _path(self) -> Path:
        return self._service.settings.index

    def _remembered(self, kind: str, key: Hashable, make: Callable[[], Any]) -> Any:
        with self._lock:
            known, value = self._computed.get(kind, (None, None))
            if known != key:
                value = make()
                self._computed[kind] = key, value
            return value

    # -- groups

    def list_groups(self, page: int, size: int) -> dict[str, Any]:
        """Return one page of the things that were seen more than once; none if the images were never linked."""
        index = self._service.single
        links = index.links
        things: list[Thing] = []
        if links is not None:
            key = index.folder.identity, index.commit
            things = self._remembered("groups", key, lambda: find_things(links.links, [row.image for row in index.images()]))
        shown = things[page * size : (page + 1) * size]
        rows = index.folder.catalogue.images_by_id([image for thing in shown for image in thing.images[:SHOWN_IMAGES]])
        groups = [
            {
                "images": [image_info(rows[image]) for image in thing.images[:SHOWN_IMAGES] if image in rows],
                "total": len(thing.images),
                "links": thing.links,
            }
            for thing in shown
        ]
        counts = {"total": len(things), "images": sum(len(thing.images) for thing in things), "linked": links is not None}
        return {"groups": groups, **counts, "page": page, "pages": -(-len(things) // size)}

    def start_linking(self) -> dict[str, Any]:
        """Start to compare all images, for groups."""
        return self._jobs.start("linking", "comparing the photographs", self._link)

    def _link(self, progress: Progress) -> JobResult:
        with IndexWriter.open(self._path, create=False) as writer, Index.open(self._path, links=False) as opened:
            link(writer, opened.stored_queries, progress=progress)
        self._service.refresh()
        return JobResult()

    # -- copies

    def start_comparing(self) -> dict[str, Any]:
        """Start to compare new images with all others, for copies."""
        self._require_managed()
        return self._jobs.start("comparing", "comparing the photographs", self._compare)

    def _compare(self, progress: Progress) -> JobResult:
        with IndexWriter.open(self._path, create=False) as writer:
            return JobResult(compare(writer, MIRRORED, progress))

    def _duplicates(self, min_probability: float) -> Duplicates:
        index = self._service.single
        sides = [side and side.serial for side in map(index.folder.side_file, (DUPLICATE_PAIRS, DECISIONS))]
        key = (index.folder.identity, index.commit, min_probability, *sides)
        found: Duplicates = self._remembered("duplicates", key, lambda: find_duplicates(index, min_probability, MIRRORED))
        return found

    def list_duplicates(self, min_probability: float, page: int, size: int, decided: bool) -> dict[str, Any]:
        """Return one page of the groups of copies: without those that the user has decided on, or with them."""
        index, settings = self._service.single, self._service.settings
        found = self._duplicates(min_probability)
        groups = [group for group in found.groups if decided or not group.decided]
        files = {row.path: row for row in index.images()} if found.shots else {}
        shots = [
            {
                **{name: image_info(files[path]) for name, path in (("first", one.first), ("second", one.second))},
                "probability": round(one.another_shot, 6),
                "transform": one.transform.tolist(),
            }
            for one in found.shots[:MAX_SHOTS]
            if one.first in files and one.second in files
        ]
        shown = groups[page * size : (page + 1) * size]
        pairs = read_pairs(index.folder)
        return {
            "min_probability": min_probability,
            "groups": [_group_info(group) for group in shown],
            "shots": shots if page == 0 else [],
            "n_shots": len(found.shots),
            "total": len(groups),
            "hidden": len(found.groups) - len(groups),
            "copies": sum(len(group.copies) for group in groups),
            "not_compared": len(pending_tasks(index, MIRRORED)),
            "compared": pairs.compared > 0,
            "manage": settings.manages,
            "undoable": len(self._undoable()) if settings.manages else 0,
            "page": page,
            "pages": -(-len(groups) // size),
        }

    def decide(self, first: int, second: int, verdict: str | None) -> dict[str, Any]:
        """Record a verdict on two images, or withdraw it."""
        edits = self._require_managed()
        for image in (first, second):
            self._service.row(image)
        with edits.open_writer() as writer:
            return {"decisions": len(decide(writer, [(first, second, verdict)]))}

    def move(self, images: Sequence[int], min_probability: float) -> dict[str, Any]:
        """Move files of groups to a folder beside the index, and remove them from it; one file of each group stays."""
        edits = self._require_managed()
        chosen = _chosen(self._duplicates(min_probability), set(images))
        folder = self._target() / time.strftime("%Y-%m-%d %H-%M-%S")
        if folder.exists():
            raise OptionError("the last move was less than a second ago; try again")
        with edits.open_writer() as writer:
            paths, problems = movable(chosen, writer.folder.trust)
            root = common_folder((*paths, *(row.path for row in writer.catalogue.images())))
            moves = move(paths, root, folder)
            try:
                moved = [origin for origin, _ in moves.done if writer.catalogue.image_at(origin) is not None]
                if moved:
                    writer.remove(moved)
            except PolyvocError as error:  # files were moved, and the user must see which
                problems.append(Problem(str(self._path), f"{error}; bring the index up to date with: polyvoc index FOLDER"))
        self._service.refresh()
        return _moves_info(moves.done, [*problems, *moves.problems], folder)

    def undo(self) -> dict[str, Any]:
        """Move the files of the last move back, and index them again."""
        edits = self._require_managed()
        folders = self._undoable()
        if not folders:
            raise NotFoundError("there is no move to undo")
        moves = undo(folders[-1])
        problems = list(moves.problems)
        with edits.open_writer() as writer:
            origins = [origin for _, origin in moves.done]
            if origins:
                problems += writer.update(origins, keep_missing=True, decoders=self._service.decoders).problems
        self._service.refresh()
        return _moves_info(moves.done, problems, folders[-1])

    def _require_managed(self) -> IndexEdits:
        if self._edits is None or not self._service.settings.manages:
            raise NotAllowedError(
                "only a server for this machine alone decides on copies and moves them; start it with --write"
            )
        return self._edits

    def _target(self) -> Path:
        """Return the folder that copies are moved to: beside the index, hidden where an update would index them again."""
        index = Path(os.path.abspath(self._path))
        roots = self._service.single.folder.trust.named
        visible, hidden = (index.with_name(f"{dot}{index.stem}-moved") for dot in ("", "."))
        images = [row.path for row in self._service.single.images()]
        try:
            check_target(visible, index, images, roots)
        except OptionError:
            check_target(hidden, index, images, roots)
            return hidden
        return visible

    def _undoable(self) -> list[Path]:
        """Return the folders of the moves that have files left, oldest first."""
        try:
            base = self._target()
            folders = sorted(base.iterdir()) if base.is_dir() else []
        except (OSError, OptionError):
            return []
        return [folder for folder in folders if (folder / JOURNAL).is_file() and _has_files(folder)]


def _has_files(folder: Path) -> bool:
    return any(name != JOURNAL for _, _, names in os.walk(folder) for name in names)


def _group_info(group: Group) -> dict[str, Any]:
    copies = [
        {
            **_file_info(copy.file),
            "kind": copy.kind,
            "probability": round(copy.probability, 6),
            "verdict": copy.verdict,
            "alteration": copy.describe(group.best),
            "transform": copy.transform.tolist(),
        }
        for copy in group.copies
    ]
    return {"best": _file_info(group.best), "reason": group.reason, "copies": copies}


def _file_info(file: ImageFile) -> dict[str, Any]:
    size = {"width": file.width, "height": file.height, "bytes": file.bytes}
    return {"image": file.image, "path": file.path, "name": base_name(file.path), **size, "changed": format_time(file.changed)}


def _chosen(duplicates: Duplicates, images: set[int]) -> Duplicates:
    """Return the groups with the images that are to be moved as their copies, and one that stays as the best.

    Raise OptionError if an image is in no group, or nothing would be left of one.
    """
    groups = []
    left = set(images)
    for group in duplicates.groups:
        stays = [file for file in (group.best, *(copy.file for copy in group.copies)) if file.image not in images]
        moved = [file for file in (group.best, *(copy.file for copy in group.copies)) if file.image in images]
        if not moved:
            continue
        if not stays:
            raise OptionError(f"all files of the group of {group.best.path} would be moved; keep one of them")
        identity = group.copies[0].transform
        copies = [Copy(file, 1.0, None, identity, False) for file in moved]  # to be moved by the user's word
        groups.append(replace(group, best=stays[0], copies=tuple(copies)))
        left -= {file.image for file in moved if file.image is not None}
    if left:
        raise OptionError(f"image {min(left)} is in no group of copies any more; load the page again")
    return replace(duplicates, groups=tuple(groups))


def _moves_info(done: Iterable[tuple[str, str]], problems: Iterable[Problem], folder: Path) -> dict[str, Any]:
    moved = [{"from": path, "to": target} for path, target in done]
    return {"moved": moved, "problems": [vars(problem) for problem in problems], "folder": str(folder)}
