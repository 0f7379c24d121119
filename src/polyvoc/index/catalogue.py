"""Images, segments, deletions, problems in SQLite."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyvoc.errors import DamagedError, NotAnIndexError, VersionError
from polyvoc.storage.files import flush_path, write_errors
from polyvoc.storage.folders import FileState
from polyvoc.storage.sqlite import Database
from polyvoc.types import Problem


@dataclass(frozen=True)
class SegmentSize:
    """How large a segment is."""

    segment: int
    n_images: int  # deleted ones included
    n_features: int  # those of deleted images included
    n_deleted: int

    @property
    def n_live(self) -> int:
        """Count the images that are not deleted."""
        return self.n_images - self.n_deleted


FILE = "catalogue.sqlite"
UNFINISHED = "catalogue.partial"  # what it is called until it holds its first facts
APPLICATION = 0x706F6C76  # "polv", in the header of the database
FORMAT = 1  # raised when an older polyvoc could not read the result
TABLES = (
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL, seal INTEGER NOT NULL)",
    "CREATE TABLE segments (segment INTEGER PRIMARY KEY, n_images INTEGER NOT NULL, n_features INTEGER NOT NULL, "
    "checksum TEXT NOT NULL, seal INTEGER NOT NULL)",
    "CREATE TABLE images (image INTEGER PRIMARY KEY AUTOINCREMENT, path BLOB NOT NULL UNIQUE, size INTEGER, changed INTEGER, "
    "digest TEXT, width INTEGER NOT NULL, height INTEGER NOT NULL, n_features INTEGER NOT NULL, seal INTEGER NOT NULL, "
    "segment INTEGER NOT NULL REFERENCES segments, position INTEGER NOT NULL, UNIQUE (segment, position))",
    "CREATE TABLE deleted (segment INTEGER NOT NULL REFERENCES segments, position INTEGER NOT NULL, "
    "PRIMARY KEY (segment, position))",
    "CREATE TABLE problems (path BLOB PRIMARY KEY, size INTEGER, changed INTEGER, reason TEXT NOT NULL, seal INTEGER NOT NULL)",
)
FOUND = r"(? = '%%' OR CAST(path AS TEXT) LIKE ? ESCAPE '\')"  # those with a text in their path, capital letters or not
IDS = "CREATE TABLE sqlite_sequence(name,seq)"  # SQLite's own, for AUTOINCREMENT
# The sealed rows: what names a row in each table, and what its seal is computed from.
SEALED = {
    "facts": ("name", "name, value"),
    "segments": ("number", "segment, n_images, n_features, checksum"),
    "images": ("number", "image, path, size, changed, digest, width, height, n_features"),
    "problems": ("path", "path, size, changed, reason"),
}


@dataclass(frozen=True, slots=True)
class ImageRow:
    """One image of the catalogue."""

    image: int
    path: str
    state: FileState
    digest: str | None
    width: int
    height: int
    n_features: int
    segment: int
    position: int


@dataclass(frozen=True)
class SegmentRow:
    """One live segment of the catalogue."""

    n_images: int
    n_features: int
    checksum: str  # of its `meta.json`, which holds the checksums of its arrays


class Catalogue(Database):
    """An open catalogue: `create` or `open` it."""

    @classmethod
    def create(cls, folder: Path, facts: dict[str, Any]) -> Catalogue:
        """Make an empty catalogue with the facts that never change (sizes, feature options, vocabularies)."""
        path, partial = folder / FILE, folder / UNFINISHED
        with write_errors(path):
            Path(f"{partial}-journal").unlink(missing_ok=True)
            partial.write_bytes(b"")  # never absent: it tells an unfinished index from a foreign folder
            catalogue = cls.connect(partial, writable=True, name=path)
            with catalogue.transaction():
                for statement in (f"PRAGMA application_id = {APPLICATION}", f"PRAGMA user_version = {FORMAT}", *TABLES):
                    catalogue.write(statement)
                catalogue.put_facts({**facts, "commit": 0, "last_segment": 0, "norms": None})
            catalogue.close()
            partial.rename(path)
            flush_path(folder)
        return cls.open(folder, writable=True)

    @classmethod
    def open(cls, folder: Path, writable: bool = False) -> Catalogue:
        """Open the catalogue of an index; refuse what is foreign, newer or damaged."""
        path = folder / FILE
        try:
            if not folder.is_dir():
                raise NotAnIndexError(f"{folder} does not exist; make it with: polyvoc index FOLDER --index {folder}")
            if not path.is_file():
                raise NotAnIndexError(f"{folder} is not a polyvoc index (it has no {FILE})")
        except OSError as error:
            raise NotAnIndexError(f"{folder} cannot be read: {error.strerror or error}") from None
        catalogue = cls.connect(path, writable)
        ((application,),) = catalogue.rows("PRAGMA application_id")
        ((version,),) = catalogue.rows("PRAGMA user_version")
        if application != APPLICATION:
            raise NotAnIndexError(f"{path} is not the catalogue of a polyvoc index")
        if version > FORMAT:
            raise VersionError(f"{folder} has format {version}, this polyvoc reads up to {FORMAT}: upgrade polyvoc")
        if version < 1 or not {*TABLES, IDS} <= {sql for (sql,) in catalogue.rows("SELECT sql FROM sqlite_master")}:
            raise DamagedError(f"{path}: its tables are damaged; restore it, or index again")
        return catalogue

    # -- facts

    def fact(self, name: str, required: bool = True) -> Any:
        """Give a fact by name; None if it is not there, unless every index has it."""
        found = self.rows("SELECT value, seal FROM facts WHERE name = ?", [name])
        for value, seal in found:
            if seal == _row_checksum(name, value):
                return json.loads(value)
        if not found and not required:
            return None
        raise DamagedError(f"{self.path}: the fact {name!r} is missing or damaged; run 'polyvoc check'")

    def put_facts(self, facts: dict[str, Any]) -> None:
        """Set facts."""
        values = [(name, json.dumps(value)) for name, value in facts.items()]
        rows = [(*row, _row_checksum(*row)) for row in values]
        self.write("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", rows)

    def count_commit(self) -> None:
        """Number this commit; readers that see another number open the index anew."""
        self.put_facts({"commit": self.fact("commit") + 1})

    # -- segments

    def segments(self) -> list[int]:
        """Give the numbers of the live segments, in order."""
        return [row[0] for row in self.rows("SELECT segment FROM segments ORDER BY segment")]

    def segment(self, segment: int) -> SegmentRow | None:
        """Give one live segment."""
        for *values, seal in self.rows(f"SELECT {SEALED['segments'][1]}, seal FROM segments WHERE segment = ?", [segment]):
            if seal != _row_checksum(*values):
                raise DamagedError(f"{self.path}: the row of segment {segment} is damaged; run 'polyvoc check'")
            return SegmentRow(*values[1:])
        return None

    def segment_sizes(self) -> list[SegmentSize]:
        """Give how large the live segments are, and how much of them is deleted."""
        rows = [(number, self.segment(number), len(self.deleted(number))) for number in self.segments()]
        return [SegmentSize(number, row.n_images, row.n_features, n_deleted) for number, row, n_deleted in rows if row]

    def next_segment(self) -> int:
        """Give a number that no segment ever had."""
        return int(self.fact("last_segment")) + 1

    def add_segment(self, segment: int, row: SegmentRow) -> None:
        """Enter a segment."""
        values = (segment, row.n_images, row.n_features, row.checksum)
        self.write("INSERT INTO segments VALUES (?, ?, ?, ?, ?)", [(*values, _row_checksum(*values))])
        self.put_facts({"last_segment": segment})

    def drop_segments(self, segments: Iterable[int]) -> None:
        """Forget segments; their images must have moved."""
        rows = [(segment,) for segment in segments]
        self.write("DELETE FROM deleted WHERE segment = ?", rows)
        self.write("DELETE FROM segments WHERE segment = ?", rows)

    def deleted(self, segment: int) -> list[int]:
        """Give the positions of the deleted images of a segment."""
        rows = self.rows("SELECT position FROM deleted WHERE segment = ? ORDER BY position", [segment])
        return [row[0] for row in rows]

    # -- images

    def add_images(self, rows: Iterable[ImageRow]) -> None:
        """Enter images; their ids must be new."""
        values = [(*_row_content(row), _row_checksum(*_row_content(row)), row.segment, row.position) for row in rows]
        self.write("INSERT INTO images VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def delete_images(self, images: Iterable[int]) -> None:
        """Mark images as deleted."""
        rows = [(image,) for image in images]
        self.write("INSERT INTO deleted SELECT segment, position FROM images WHERE image = ?", rows)
        self.write("DELETE FROM images WHERE image = ?", rows)

    def move_images(self, images: Iterable[int], segment: int) -> None:
        """Say that images now stand in a segment, in this order; those that are not live are marked as deleted there."""
        rows = [(segment, position, image) for position, image in enumerate(images)]
        self.write("UPDATE images SET segment = ?, position = ? WHERE image = ?", rows)
        live = {row[0] for row in self.rows("SELECT position FROM images WHERE segment = ?", [segment])}
        self.write("INSERT INTO deleted VALUES (?, ?)", [(segment, n) for n in range(len(rows)) if n not in live])

    def touch(self, row: ImageRow, state: FileState) -> None:
        """Record that a file has another time but the same content."""
        seal = _row_checksum(*_row_content(replace(row, state=state)))
        sql = "UPDATE images SET size = ?, changed = ?, seal = ? WHERE image = ?"
        self.write(sql, [[state.size, state.changed, seal, row.image]])

    def next_image(self) -> int:
        """Give an id that no image ever had."""
        ((last,),) = self.rows("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'images'")
        return int(last) + 1

    def count_images(self, find: str = "") -> int:
        """Count the live images, all or those with a text in their path."""
        return int(self.rows(f"SELECT count(*) FROM images WHERE {FOUND}", [_pattern(find)] * 2)[0][0])

    def images(self) -> Iterator[ImageRow]:
        """Give all live images, by id; in pages, so that a slow reader does not keep a writer waiting."""
        return map(self._image, self.pages("SELECT * FROM images WHERE image > ? ORDER BY image LIMIT ?"))

    def images_from(self, first: int, count: int, find: str = "") -> list[ImageRow]:
        """Give `count` of the live images by id, after the `first` ones; all, or those with a text in their path."""
        sql = f"SELECT * FROM images WHERE {FOUND} ORDER BY image LIMIT ? OFFSET ?"
        return [self._image(row) for row in self.rows(sql, [_pattern(find), _pattern(find), count, first])]

    def images_in(self, segment: int) -> list[ImageRow]:
        """Give the live images of a segment, by position."""
        return [self._image(row) for row in self.rows("SELECT * FROM images WHERE segment = ? ORDER BY position", [segment])]

    def image(self, image: int) -> ImageRow | None:
        """Give one image by id."""
        rows = self.rows("SELECT * FROM images WHERE image = ?", [image])
        return self._image(rows[0]) if rows else None

    def image_at(self, path: str) -> ImageRow | None:
        """Give one image by path."""
        rows = self.rows("SELECT * FROM images WHERE path = ?", [os.fsencode(path)])
        return self._image(rows[0]) if rows else None

    def _image(self, row: tuple[Any, ...]) -> ImageRow:
        image, path, size, changed, digest, width, height, n_features, _, segment, position = row
        if not isinstance(path, bytes):
            raise DamagedError(f"{self.path}: the path of image {image} is damaged; run 'polyvoc check'")
        state = FileState(size, changed)
        return ImageRow(image, os.fsdecode(path), state, digest, width, height, n_features, segment, position)

    # -- problems

    def problems(self) -> dict[str, tuple[FileState, Problem]]:
        """Give the files that could not be indexed, by path."""
        rows = self.rows("SELECT path, size, changed, reason FROM problems ORDER BY path")
        paths = ((os.fsdecode(path), FileState(size, changed), reason) for path, size, changed, reason in rows)
        return {path: (state, Problem(path, reason)) for path, state, reason in paths}

    def put_problems(self, problems: Iterable[tuple[FileState, Problem]]) -> None:
        """Remember files that could not be indexed, so that they are not tried again before they change."""
        values = [(os.fsencode(p.path), state.size, state.changed, p.reason) for state, p in problems]
        rows = [(*row, _row_checksum(*row)) for row in values]
        self.write("INSERT OR REPLACE INTO problems VALUES (?, ?, ?, ?, ?)", rows)

    def drop_problems(self, paths: Iterable[str]) -> None:
        """Forget problems."""
        self.write("DELETE FROM problems WHERE path = ?", [(os.fsencode(path),) for path in paths])

    # -- integrity

    def damage(self) -> Iterator[str]:
        """Say what is wrong with the database itself."""
        for (line,) in self.rows("PRAGMA integrity_check"):
            if line != "ok":
                yield f"{self.path}: {' '.join(line.split())}"
        for table, row, parent, _ in self.rows("PRAGMA foreign_key_check"):
            yield f"{self.path}: row {row} of {table} refers to {parent} that does not exist"
        ((last,),) = self.rows("SELECT coalesce(max(image), 0) FROM images")
        if self.next_image() <= last:
            yield f"{self.path}: image {last} is beyond the last id given"
        for table, (key, columns) in SEALED.items():
            sql = f"SELECT rowid, {columns}, seal FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT ?"
            for _, *values, seal in self.pages(sql):
                if seal != _row_checksum(*values):
                    yield f"{self.path}: the row of {table} with {key} {values[0]!r} is damaged"


def _row_content(row: ImageRow) -> tuple[Any, ...]:
    """Give what the catalogue alone knows of an image; where it stands is also told by the segments."""
    state, path = row.state, os.fsencode(row.path)
    return row.image, path, state.size, state.changed, row.digest, row.width, row.height, row.n_features


def _pattern(text: str) -> str:
    """Give what LIKE compares: the text anywhere, each of its characters meaning itself."""
    escaped = "".join("\\" + character if character in "\\%_" else character for character in text)
    return f"%{escaped}%"


def _row_checksum(*values: Any) -> int:
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=7).digest())
