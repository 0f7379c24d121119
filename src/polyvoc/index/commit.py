"""Transactions, merge policy, removal of what nothing refers to."""

from __future__ import annotations

import math
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from polyvoc.index.build import MergeInput, SavedSegment, SegmentBuilder
from polyvoc.index.catalogue import Catalogue, ImageRow, SegmentRow, SegmentSize
from polyvoc.index.folder import COPIES, NEIGHBOURS, NORMS, SEGMENTS, STAGING, IndexFolder
from polyvoc.index.segment import MAX_IMAGES, Batch
from polyvoc.storage.files import move_folder, write_errors
from polyvoc.storage.folders import FileState
from polyvoc.types import Problem

FAN_IN = 8
SMALLEST = 64  # images; smaller segments count as this large
MAX_DELETED = 0.25  # share of a segment's images
MAX_FEATURES = 1 << 24  # of a merged segment: merging takes 185 bytes of memory per feature (3 vocabularies, signatures)


def next_merge(sizes: list[SegmentSize]) -> list[int]:
    """Give the numbers of the segments to merge into one, or none."""
    for size in sizes:
        if size.n_deleted > MAX_DELETED * size.n_images:
            return [size.segment]
    tiers: dict[int, list[SegmentSize]] = defaultdict(list)
    for size in sizes:
        if size.n_live <= MAX_IMAGES // 2 and size.n_features <= MAX_FEATURES // 2:  # two larger ones would not fit
            tiers[_tier(size.n_live)].append(size)
    for tier in sorted(tiers):
        if len(tiers[tier]) >= FAN_IN:
            return _fitting(tiers[tier])
    return []


def _tier(n_images: int) -> int:
    return int(math.log(max(n_images, SMALLEST) / SMALLEST, FAN_IN))


def _fitting(candidates: list[SegmentSize]) -> list[int]:
    """Take the smallest that fit into one segment together."""
    chosen, images, features = [], 0, 0
    for size in sorted(candidates, key=lambda size: (size.n_live, size.segment)):
        if images + size.n_live <= MAX_IMAGES and features + size.n_features <= MAX_FEATURES:
            chosen.append(size.segment)
            images += size.n_live
            features += size.n_features
    return sorted(chosen) if len(chosen) > 1 else []


Placed = tuple[int, SegmentRow]  # the number of a segment that stands in its place, and what the catalogue should hold of it


@dataclass(frozen=True)
class Commits:
    """The commits of one index, which its writer makes."""

    home: IndexFolder
    catalogue: Catalogue

    # -- segments find their place

    def save(self, batch: Batch, workshop: SegmentBuilder) -> Placed:
        """Write a segment that no commit refers to yet."""
        number, folder = self._free_place()
        return number, workshop.save(batch, folder)

    def receive(self, saved: SavedSegment) -> Placed:
        """Move a segment from `incoming` to its place; no commit refers to it yet."""
        number, folder = self._free_place()
        move_folder(self.home.incoming_folder(saved.token), folder)
        return number, saved.entry

    def _free_place(self) -> tuple[int, Path]:
        number = self.catalogue.next_segment()
        folder = self.home.segment_folder(number)
        shutil.rmtree(folder, ignore_errors=True)  # of a commit that failed after it was written
        return number, folder

    # -- transactions

    def add(self, placed: Placed | None, rows: Sequence[ImageRow], gone: Collection[int],
            broken: Iterable[tuple[FileState, Problem]] = ()) -> None:  # fmt: skip
        """Add the images of a segment, drop those that are `gone`, and remember files that cannot be used."""
        with self.catalogue.transaction():
            self.catalogue.delete_images(gone)
            if placed is not None:
                self.catalogue.add_segment(*placed)
                self.catalogue.add_images(replace(row, segment=placed[0], position=n) for n, row in enumerate(rows))
                self.catalogue.drop_problems(row.path for row in rows)
            self.catalogue.put_problems(broken)
            if placed is not None or gone:
                self.catalogue.count_commit()

    def join(self, parts: Sequence[MergeInput], placed: Placed | None, ids: Sequence[int]) -> None:
        """Let a merged segment stand for others; images that were dropped since they were read stay so."""
        with self.catalogue.transaction():
            if placed is not None:
                self.catalogue.add_segment(*placed)
                self.catalogue.move_images(ids, placed[0])
            self.catalogue.drop_segments(part.number for part in parts)
            self.catalogue.count_commit()
        self.sweep()

    def remove(self, rows: Sequence[ImageRow]) -> None:
        """Drop images."""
        with self.catalogue.transaction():
            self.catalogue.delete_images(row.image for row in rows)
            self.catalogue.count_commit()

    # -- what to do next

    def next_merge(self, busy: Collection[int] = ()) -> tuple[MergeInput, ...]:
        """Give the segments to merge next, none if there is nothing to gain; `busy` ones are being merged."""
        sizes = [size for size in self.catalogue.segment_sizes() if size.segment not in busy]
        rows = [(number, self.catalogue.segment(number)) for number in next_merge(sizes)]
        return tuple(MergeInput(number, row.checksum, tuple(self.catalogue.deleted(number))) for number, row in rows if row)

    def sweep(self) -> None:
        """Delete what no commit refers to: remains of killed writers and of merges."""
        live = {self.home.segment_folder(number) for number in self.catalogue.segments()}
        norms, graph, pairs = self.catalogue.fact("norms"), self.home.read_graph(), self.home.read_copies()
        if norms is not None:
            live.add(self.home.norms_file(norms["commit"]))
        if graph is not None:
            live.add(self.home.neighbours_file(graph.commit))
        if pairs is not None:
            live.add(self.home.copies_file(pairs.serial))
        with write_errors(self.home.path):
            for folder in set(_entries(self.home.path / SEGMENTS)) - live:
                shutil.rmtree(folder, ignore_errors=True)
            for name in (NORMS, NEIGHBOURS, COPIES):
                for file in set(_entries(self.home.path / name)) - live:
                    file.unlink(missing_ok=True)

    def open_incoming(self) -> None:
        """Make the folder for what workers make, where this machine sees it.

        Over a network, one that another machine makes may be unknown here for a while, if it was looked for before.
        """
        with write_errors(self.home.path / STAGING):
            (self.home.path / STAGING).mkdir(exist_ok=True)

    def sweep_incoming(self) -> None:
        """Delete what workers made and no commit took; never while they work."""
        shutil.rmtree(self.home.path / STAGING, ignore_errors=True)


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
