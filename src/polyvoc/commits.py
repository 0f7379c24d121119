"""What one transaction of the catalogue makes a part of an index, or takes out of it.

First a segment's folder stands in its place, whole; then one transaction refers to it. What no transaction refers to is swept
away.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from polyvoc import storage
from polyvoc.catalogue import Catalogue, FileState, ImageRow, SegmentRow
from polyvoc.home import COPIES, INCOMING, NEIGHBOURS, NORMS, SEGMENTS, Home
from polyvoc.merges import next_merge
from polyvoc.records import Problem
from polyvoc.segment import Batch
from polyvoc.workshop import Part, Saved, Workshop

Placed = tuple[int, SegmentRow]  # the number of a segment that stands in its place, and what the catalogue should hold of it


@dataclass(frozen=True)
class Commits:
    """The commits of one index, which its writer makes."""

    home: Home
    catalogue: Catalogue

    # -- segments find their place

    def save(self, batch: Batch, workshop: Workshop) -> Placed:
        """Write a segment that no commit refers to yet."""
        number, folder = self._free_place()
        return number, workshop.save(batch, folder)

    def receive(self, saved: Saved) -> Placed:
        """Move a segment from `incoming` to its place; no commit refers to it yet."""
        number, folder = self._free_place()
        storage.move_folder(self.home.incoming_folder(saved.token), folder)
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

    def join(self, parts: Sequence[Part], placed: Placed | None, ids: Sequence[int]) -> None:
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

    def next_merge(self, busy: Collection[int] = ()) -> tuple[Part, ...]:
        """Give the segments to merge next, none if there is nothing to gain; `busy` ones are being merged."""
        sizes = [size for size in self.catalogue.segment_sizes() if size.segment not in busy]
        rows = [(number, self.catalogue.segment(number)) for number in next_merge(sizes)]
        return tuple(Part(number, row.checksum, tuple(self.catalogue.deleted(number))) for number, row in rows if row)

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
        with storage.writing(self.home.path):
            for folder in set(_entries(self.home.path / SEGMENTS)) - live:
                shutil.rmtree(folder, ignore_errors=True)
            for name in (NORMS, NEIGHBOURS, COPIES):
                for file in set(_entries(self.home.path / name)) - live:
                    file.unlink(missing_ok=True)

    def open_incoming(self) -> None:
        """Make the folder for what workers make, where this machine sees it.

        Over a network, one that another machine makes may be unknown here for a while, if it was looked for before.
        """
        with storage.writing(self.home.path / INCOMING):
            (self.home.path / INCOMING).mkdir(exist_ok=True)

    def sweep_incoming(self) -> None:
        """Delete what workers made and no commit took; never while they work."""
        shutil.rmtree(self.home.path / INCOMING, ignore_errors=True)


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
