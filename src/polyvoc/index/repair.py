"""Drop what is damaged, so that the rest of an index is sound and `polyvoc index` reads only the photographs concerned."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from polyvoc.errors import DamagedError
from polyvoc.index.catalogue import Catalogue, SegmentRow
from polyvoc.index.check import segment_errors, vocabulary_errors, vocabulary_records
from polyvoc.index.commit import Commits
from polyvoc.index.folder import (
    DECISIONS,
    DUPLICATE_PAIRS,
    LINKS,
    OPTIONAL,
    SIDE_FILES,
    IndexFolder,
    SegmentKind,
    SideFile,
    lock_folder,
    odd_settings,
)
from polyvoc.index.segment import Segment
from polyvoc.storage.files import META, checksum, file_errors, write_file
from polyvoc.types import Array, Progress
from polyvoc.vocabulary.vocabulary import FINE, find_shipped

MADE_BY = {LINKS: "polyvoc link", DUPLICATE_PAIRS: "polyvoc duplicates", DECISIONS: "polyvoc decisions --import FILE"}
Rescue = Callable[[IndexFolder, SideFile], Array]  # returns the rows of a damaged side file that are sound
RESTORE = "restore it from a copy, or make the index again"


@dataclass
class RepairReport:
    """What was dropped or restored, a line each, and how many images were dropped."""

    lines: list[str] = field(default_factory=list)
    images: int = 0


def repair(path: str | os.PathLike[str], progress: Progress | None = None,
           rescues: Mapping[str, Rescue] | None = None) -> RepairReport:  # fmt: skip
    """Drop damaged segments, images, settings and side files of an index; restore vocabularies that come with polyvoc.

    Raise DamagedError if the rest could not be used: tables of the catalogue or vocabularies are lost. An image whose
    photograph is still there is added again by the next update. Of side files that nothing makes again, such as a user's
    verdicts, `rescues` keep what is sound, by their kind.
    """
    folder = IndexFolder(Path(path))
    lock = lock_folder(folder.path)
    try:
        catalogue = Catalogue.open(folder.path, writable=True)
        try:
            return _Repair(folder, catalogue, progress or (lambda stage, done, total: None), rescues or {}).run()
        finally:
            catalogue.close()
    finally:
        folder.close()
        lock.release()


@dataclass
class _Repair:
    """The steps of a repair, each with transactions of its own: an interrupted one can be repeated."""

    folder: IndexFolder
    catalogue: Catalogue
    progress: Progress
    rescues: Mapping[str, Rescue]
    report: RepairReport = field(default_factory=RepairReport)

    def run(self) -> RepairReport:
        """Do all steps."""
        self._repair_tables()
        self._drop_settings()
        for record in vocabulary_records(self.folder):
            self._restore_vocabulary(*record)
        for kind in SIDE_FILES:
            self._drop_side_file(kind)
        self._repair_segments()
        for line in self.catalogue.errors():
            raise DamagedError(f"{line}; {RESTORE}")
        Commits(self.folder, self.catalogue).remove_unreferenced()
        return self.report

    @contextmanager
    def _commit(self, *lines: str) -> Iterator[None]:
        """Write to the catalogue as a commit, and report it: open indexes are reopened."""
        with self.catalogue.transaction():
            yield
            self.catalogue.count_commit()
        self.report.lines += lines

    def _repair_tables(self) -> None:
        """Make indexes of the tables again that contradict the rows; drop problems whose rows are damaged."""
        path = self.catalogue.path
        if any(self.catalogue.structure_errors()):
            with self._commit(f"{path}: made the indexes of its tables again"):
                self.catalogue.write("REINDEX")
        for line in self.catalogue.structure_errors():
            raise DamagedError(f"{line}; {RESTORE}")
        if numbers := [number for number, _ in self.catalogue.damaged_rows("problems")]:
            with self._commit(f"{path}: dropped {len(numbers)} damaged notes of files that could not be read"):
                self.catalogue.drop_rows("problems", numbers)

    def _drop_settings(self) -> None:
        """Drop damaged settings that not every index has."""
        damaged = {name for _, name in self.catalogue.damaged_rows("settings")} | odd_settings(self.catalogue.settings()).keys()
        for name in sorted(damaged & set(OPTIONAL)):
            with self._commit(f"{self.catalogue.path}: dropped the damaged setting {name!r}"):
                self.catalogue.write("DELETE FROM settings WHERE name = ?", [(name,)])
        for line in odd_settings(self.catalogue.settings()).values():
            raise DamagedError(f"{line}; {RESTORE}")

    def _restore_vocabulary(self, number: int | str, size: int, fingerprint: str, recorded: str) -> None:
        """Write a damaged vocabulary again if it comes with polyvoc."""
        path, errors = (
            self.folder.vocabulary_folder(number),
            vocabulary_errors(self.folder, number, size, fingerprint, recorded),
        )
        for line in errors:
            found = find_shipped(fingerprint)
            if found is None:
                raise DamagedError(f"{line}; {RESTORE}")
            shutil.rmtree(path, ignore_errors=True)  # `save` replaces whole vocabularies only
            found.save(path)
            settings, now = self.catalogue.settings(), checksum(path / META)
            every = [now if n == number else one for n, one in enumerate(settings["vocabulary_checksums"])]
            changed = {"fine": {**settings["fine"], "checksum": now}} if number == FINE else {"vocabulary_checksums": every}
            with self._commit(f"{path}: restored the vocabulary, which comes with polyvoc"):
                self.catalogue.put_settings(changed)
            break

    def _drop_side_file(self, kind: str) -> None:
        """Drop a damaged side file."""
        try:
            side = SideFile.of(kind, self.catalogue.settings())
            line = None if side is None else file_errors(self.folder.side_path(side), side.checksum)
        except DamagedError as error:
            line = str(error)
        if line is None:
            return
        side = self._sound_setting(kind)
        if kind in self.rescues and side is not None:
            rows = self.rescues[kind](self.folder, side)
            kept = replace(side, serial=side.serial + 1, rows=len(rows))
            kept = replace(kept, checksum=write_file(self.folder.side_path(kept), rows))
            with self._commit(f"{line}: kept {len(rows)} of {side.rows} {kind}"):
                self.catalogue.put_settings({kind: kept.as_setting()})
            return
        with self._commit(f"{line}: dropped; make it again with {MADE_BY[kind]}"):
            self.catalogue.write("DELETE FROM settings WHERE name = ?", [(kind,)])

    def _sound_setting(self, kind: str) -> SideFile | None:
        try:
            return SideFile.of(kind, self.catalogue.settings())
        except DamagedError:
            return None

    def _repair_segments(self) -> None:
        damaged = {segment for segment, _ in self.catalogue.damaged_rows("segments")}
        for number in damaged:
            self._drop_segment(number, f"{self.catalogue.path}: the row of segment {number} is damaged")
        rows, kind = self.catalogue.segment_rows(), SegmentKind.of(self.catalogue.settings())
        images = {number for number, _ in self.catalogue.damaged_rows("images")}
        for done, (number, row) in enumerate(rows.items(), start=1):
            self._repair_segment(number, row, kind, images)
            self.progress("repairing", done, len(rows))

    def _repair_segment(self, number: int, row: SegmentRow, kind: SegmentKind, damaged: set[int]) -> None:
        """Drop a segment if its arrays are damaged; else the images whose rows are damaged or do not fit it."""
        try:
            segment = self.folder.read_segment(number, row.checksum, kind, ())
            segment.verify()
            for line in segment_errors(segment):
                raise DamagedError(f"{self.folder.segment_folder(number)}: {line}")
            if (segment.n_images, segment.n_features) != (row.n_images, row.n_features):
                raise DamagedError(f"{self.folder.segment_folder(number)} has other images than the catalogue")
        except DamagedError as error:
            self._drop_segment(number, str(error).partition(";")[0])
            return
        found = self.catalogue.places_in(number)
        sound = {image: place for image, place in found.items() if image not in damaged and _fits(segment, image, place)}
        deleted = sorted(set(range(segment.n_images)) - {position for position, _ in sound.values()})
        if len(sound) < len(found) or tuple(deleted) != self.catalogue.sound_deleted()[number]:
            lost = len(found) - len(sound)
            with self._commit(f"{self.catalogue.path}: dropped {lost} images of segment {number} whose rows were damaged"):
                self.catalogue.drop_rows("images", found.keys() - sound.keys())
                self.catalogue.set_deleted(number, deleted)
            self.report.images += lost

    def _drop_segment(self, number: int, reason: str) -> None:
        count = len(self.catalogue.ids_in(number))
        with self._commit(f"{reason}: dropped segment {number} with {count} images"):
            self.catalogue.drop_segment(number)
        self.report.images += count


def _fits(segment: Segment, image: int, place: tuple[int, int]) -> bool:
    """Return whether a segment has an image at a position, with so many features."""
    position, n_features = place
    if not (isinstance(position, int) and 0 <= position < segment.n_images and segment.ids[position] == image):
        return False
    first, last = segment.arrays["feature_starts"][position : position + 2].astype(np.int64)
    return bool(last - first == n_features)
