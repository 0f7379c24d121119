"""Commits of an index: which segments to merge, transactions, and the removal of files that no commit refers to.

A segment folder is renamed into place first; one transaction then adds it to the catalogue. Files that no commit refers to are
deleted by the next writer. Few segments make searches fast, few merges make indexing fast: segments of similar size are merged
eight at a time (as in a log-structured merge tree), so an image is rewritten about once for every factor of eight in the size
of the collection. A segment with many deleted images is rewritten alone.
"""

from __future__ import annotations

import math
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from polyvoc.index.additions import Additions
from polyvoc.index.build import MergeInput, MergeResult, SavedSegment
from polyvoc.index.catalogue import Catalogue, ImageRow, SegmentSize
from polyvoc.index.folder import ADDITIONS, SEGMENTS, SIDE_FILES, STAGING, IndexFolder, SideFile
from polyvoc.index.segment import MAX_IMAGES
from polyvoc.storage.files import META, checksum, flush_path, move_folder, write_errors
from polyvoc.storage.folders import FileState
from polyvoc.types import Problem

FAN_IN = 8
SMALLEST = 64  # images; smaller segments count as this large
MAX_DELETED = 0.25  # share of a segment's images
MAX_FEATURES = 1 << 25  # of a merged segment: merging takes about 80 bytes of memory per feature


def next_merge(sizes: list[SegmentSize]) -> list[int]:
    """Return the numbers of the segments to merge into one, or none."""
    for size in sizes:
        if size.n_deleted > MAX_DELETED * size.n_images:
            return [size.segment]
    tiers: dict[int, list[SegmentSize]] = defaultdict(list)
    for size in sizes:
        if size.n_live <= MAX_IMAGES // 2 and size.n_features <= MAX_FEATURES // 2:  # two larger ones would not fit
            tiers[_tier(size.n_live)].append(size)
    for tier in sorted(tiers):
        if len(tiers[tier]) >= FAN_IN:
            return _that_fit(tiers[tier])
    return []


def _tier(n_images: int) -> int:
    return int(math.log(max(n_images, SMALLEST) / SMALLEST, FAN_IN))


def _that_fit(candidates: list[SegmentSize]) -> list[int]:
    """Return the smallest that fit into one segment together."""
    chosen, images, features = [], 0, 0
    for size in sorted(candidates, key=lambda size: (size.n_live, size.segment)):
        if images + size.n_live <= MAX_IMAGES and features + size.n_features <= MAX_FEATURES:
            chosen.append(size.segment)
            images += size.n_live
            features += size.n_features
    return sorted(chosen) if len(chosen) > 1 else []


@dataclass(frozen=True)
class Commits:
    """The commits that the writer of an index makes."""

    folder: IndexFolder
    catalogue: Catalogue

    def add(self, saved: SavedSegment | None, rows: Sequence[ImageRow], removed: Collection[int],
            problems: Iterable[tuple[FileState, Problem]] = (), first: int | None = None) -> None:  # fmt: skip
        """Add the images of a staged segment, remove others by id, and record files that cannot be used.

        `first`: the lowest id that this or a later commit may add, if others than those of the rows.
        """
        number = None if saved is None else self._place(saved)
        with self.catalogue.transaction():
            self.catalogue.delete_images(removed)
            if saved is not None and number is not None:
                self._note_additions(min(row.image for row in rows) if first is None else first)
                self.catalogue.add_segment(number, saved.row)
                self.catalogue.add_images([replace(row, segment=number, position=n) for n, row in enumerate(rows)])
                self.catalogue.drop_problems([row.path for row in rows])
            self.catalogue.put_problems(problems)
            if saved is not None or removed:
                self.catalogue.count_commit()

    def _note_additions(self, first: int) -> None:
        """Record that images from an id on are added after the present commit."""
        settings = self.catalogue.settings()
        commit, stored = settings["commit"], settings.get(ADDITIONS)
        # Of an index that was made before this was recorded, what it holds already has no commit.
        before = Additions(0 if self.catalogue.next_image() == 1 else commit) if stored is None else Additions.of(stored)
        self.catalogue.put_settings({ADDITIONS: before.noted(commit, first).as_setting()})

    def replace_merged(self, merged: MergeResult) -> None:
        """Replace segments by the one they were merged into; images that were removed since they were read stay removed."""
        number = None if merged.saved is None else self._place(merged.saved)
        with self.catalogue.transaction():
            if merged.saved is not None and number is not None:
                self.catalogue.add_segment(number, merged.saved.row)
                self.catalogue.move_images(merged.ids, number)
            self.catalogue.drop_segments(part.number for part in merged.parts)
            self.catalogue.count_commit()
        self.remove_unreferenced()

    def _place(self, saved: SavedSegment) -> int:
        """Move a segment from staging to its place; no commit refers to it yet."""
        number = self.catalogue.next_segment()
        source, target = self.folder.staging_folder(saved.token), self.folder.segment_folder(number)
        moved = (target / META).is_file() and checksum(target / META) == saved.row.checksum  # then its commit was interrupted
        if moved:
            flush_path(target.parent)  # perhaps interrupted before that
        else:
            shutil.rmtree(target, ignore_errors=True)  # of a commit that failed after it was written
            move_folder(source, target)
        return number

    def move(self, rows: Sequence[ImageRow], replaced: Sequence[ImageRow]) -> None:
        """Record new paths of images, in place of others."""
        with self.catalogue.transaction():
            self.catalogue.delete_images([row.image for row in replaced])
            self.catalogue.put_paths(rows)
            self.catalogue.drop_problems([row.path for row in rows])
            self.catalogue.count_commit()

    def remove(self, rows: Sequence[ImageRow]) -> None:
        """Remove images."""
        self.add(None, [], [row.image for row in rows])

    def next_merge(self, busy: Collection[int] = ()) -> tuple[MergeInput, ...]:
        """Return the segments to merge next, none if there is nothing to gain; `busy` ones are being merged."""
        sizes = [size for size in self.catalogue.segment_sizes() if size.segment not in busy]
        numbers = next_merge(sizes)
        if not numbers:
            return ()
        rows, deleted = self.catalogue.segment_rows(), self.catalogue.sound_deleted()
        return tuple(MergeInput(n, rows[n].checksum, deleted[n]) for n in numbers)

    def remove_unreferenced(self) -> None:
        """Delete segments and side files that no commit refers to: remains of killed writers and of merges."""
        settings = self.catalogue.settings()
        sides = [SideFile.of(kind, settings) for kind in SIDE_FILES]
        live = {self.folder.segment_folder(number) for number in self.catalogue.segments()}
        live |= {self.folder.side_path(side) for side in sides if side is not None}
        with write_errors(self.folder.path):
            for segment in set(_entries(self.folder.path / SEGMENTS)) - live:
                shutil.rmtree(segment, ignore_errors=True)
            for kind in SIDE_FILES:
                for file in set(_entries(self.folder.path / kind)) - live:
                    file.unlink(missing_ok=True)

    def open_staging(self) -> None:
        """Create the folder for new segments from this machine.

        Over a network, a folder that another machine creates may be invisible here for a while, if it was looked for before.
        """
        with write_errors(self.folder.path / STAGING):
            (self.folder.path / STAGING).mkdir(exist_ok=True)

    def remove_staging(self) -> None:
        """Delete segments that no commit took; never while workers write some."""
        shutil.rmtree(self.folder.path / STAGING, ignore_errors=True)


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
