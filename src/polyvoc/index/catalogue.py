"""The catalogue of an index: its images, segments, deletions, problems and settings, in one SQLite file.

Its transaction is the commit. Paths are stored as the bytes that the file system uses, because not every file name is text.
SQLite has no checksums: rows whose content is stored nowhere else have one, and a segment has that of its description.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyvoc.errors import DamagedError, NotAnIndexError, VersionError
from polyvoc.options import SetKind
from polyvoc.storage.blocks import REPAIR
from polyvoc.storage.files import flush_path, write_errors
from polyvoc.storage.folders import FileState, is_below, path_range
from polyvoc.storage.sqlite import Database
from polyvoc.types import Problem

MAX_PARAMETERS = 500  # of one SQL statement


class IndexSettings(dict[str, Any]):
    """The settings of an index. A missing or damaged one raises DamagedError."""

    def __init__(self, path: Path) -> None:
        """Start without any; `path` is that of the catalogue, for errors."""
        super().__init__()
        self.path = path
        self.damaged: set[str] = set()

    def __missing__(self, name: str) -> Any:
        """Raise DamagedError."""
        raise DamagedError(f"{self.path}: the setting {name!r} is missing or damaged; run 'polyvoc check'")

    def __contains__(self, name: object) -> bool:
        """Return whether a setting is stored, damaged or not: reading a damaged one raises."""
        return name in self.damaged or super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting that not every index has; raise DamagedError if it is damaged."""
        return self[name] if name in self.damaged else super().get(name, default)


@dataclass(frozen=True)
class SegmentSize:
    """The size of a segment."""

    segment: int
    n_images: int  # deleted ones included
    n_features: int  # those of deleted images included
    n_deleted: int

    @property
    def n_live(self) -> int:
        """Return the number of images that are not deleted."""
        return self.n_images - self.n_deleted


FILE = "catalogue.sqlite"
UNFINISHED = "catalogue.partial"  # its name until it holds its first settings
APPLICATION = 0x706F6C76  # "polv", in the header of the database
FORMAT = 3  # raised when an older polyvoc could not read the result
# The setting that has a checksum of the deleted positions of each live segment, since the commit that wrote it: rows without a
# checksum of their own, and rows that damage has removed, would change answers unnoticed.
LAYOUT = "layout"
DAMAGED = (-1,)  # positions that no segment has: reading a segment without them is an error
LINES: Mapping[SetKind, str] = {"feature": "line", "image": "image_line"}  # settings of term 2 by what the lists are sets of
TABLES = (
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL, row_checksum INTEGER NOT NULL)",
    "CREATE TABLE segments (segment INTEGER PRIMARY KEY, n_images INTEGER NOT NULL, n_features INTEGER NOT NULL, "
    "checksum TEXT NOT NULL, row_checksum INTEGER NOT NULL)",
    "CREATE TABLE images (image INTEGER PRIMARY KEY AUTOINCREMENT, path BLOB NOT NULL UNIQUE, size INTEGER, changed INTEGER, "
    "digest TEXT, width INTEGER NOT NULL, height INTEGER NOT NULL, n_features INTEGER NOT NULL, "
    "row_checksum INTEGER NOT NULL, "
    "segment INTEGER NOT NULL REFERENCES segments, position INTEGER NOT NULL, UNIQUE (segment, position))",
    "CREATE TABLE deleted (segment INTEGER NOT NULL REFERENCES segments, position INTEGER NOT NULL, "
    "PRIMARY KEY (segment, position))",
    "CREATE TABLE problems (path BLOB PRIMARY KEY, size INTEGER, changed INTEGER, reason TEXT NOT NULL, "
    "row_checksum INTEGER NOT NULL)",
)
IDS = "CREATE TABLE sqlite_sequence(name,seq)"  # SQLite's own, for AUTOINCREMENT
# Rows with a checksum: the column that names a row in each table, and the columns that its checksum covers.
CHECKED = {
    "settings": ("name", "name, value"),
    "segments": ("number", "segment, n_images, n_features, checksum"),
    "images": ("number", "image, path, size, changed, digest, width, height, n_features"),
    "problems": ("path", "path, size, changed, reason"),
}


@dataclass(frozen=True, slots=True)
class ImageRow:
    """The row of one image."""

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
class ImageFilter:
    """Which images of a list: all of these conditions."""

    find: str = ""  # a text in the path, in any case
    folder: str = ""  # below it; "": anywhere
    since: int | None = None  # file changed at this time or later, in nanoseconds
    before: int | None = None  # and before this time
    images: tuple[int, ...] = ()  # one of these ids; none: any

    def as_sql(self) -> tuple[str, list[Any]]:
        """Return a condition and its values."""
        parts: list[tuple[str, list[Any]]] = []
        if self.find:
            parts.append((r"CAST(path AS TEXT) LIKE ? ESCAPE '\'", [_pattern(self.find)]))
        if self.folder:
            head = os.fsencode(self.folder.rstrip("/") + "/")
            parts.append(("path >= ? AND path < ?", [head, head[:-1] + b"0"]))  # "0" follows "/"
        if self.since is not None:
            parts.append(("changed >= ?", [self.since]))
        if self.before is not None:
            parts.append(("changed < ?", [self.before]))
        if self.images:
            parts.append((f"image IN ({', '.join('?' * len(self.images))})", list(self.images)))
        sql = " AND ".join(f"({condition})" for condition, _ in parts) or "1"
        return sql, [value for _, values in parts for value in values]


ANY_IMAGE = ImageFilter()


@dataclass(frozen=True)
class SegmentRow:
    """The row of one live segment."""

    n_images: int
    n_features: int
    checksum: str  # of its `meta.json`, which holds the checksums of its arrays


class Catalogue(Database):
    """An open catalogue: `create` or `open` it."""

    @classmethod
    def create(cls, folder: Path, settings: dict[str, Any]) -> Catalogue:
        """Create an empty catalogue with the settings that never change (sizes, feature options, vocabularies)."""
        path, partial = folder / FILE, folder / UNFINISHED
        with write_errors(path):
            Path(f"{partial}-journal").unlink(missing_ok=True)
            partial.write_bytes(b"")  # never absent: it distinguishes an unfinished index from any other folder
            catalogue = cls.connect(partial, writable=True, name=path)
            with catalogue.transaction():
                for statement in (f"PRAGMA application_id = {APPLICATION}", f"PRAGMA user_version = {FORMAT}", *TABLES):
                    catalogue.write(statement)
                catalogue.put_settings({**settings, "commit": 0, "last_segment": 0})
            catalogue.close()
            partial.rename(path)
            flush_path(folder)
        return cls.open(folder, writable=True)

    @classmethod
    def open(cls, folder: Path, writable: bool = False) -> Catalogue:
        """Open the catalogue of an index. Raise UnusableIndexError if it is something else, older, newer or damaged."""
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
        if 1 <= version < FORMAT:
            raise VersionError(f"{folder} has format {version}, made by an older polyvoc; index the photographs again")
        found = {sql for (sql,) in catalogue.rows("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
        if version < 1 or found != {*TABLES, IDS}:  # no view or trigger of who made the file is run
            raise DamagedError(f"{path}: its tables are damaged; restore it, or index again")
        return catalogue

    # -- settings

    def settings(self) -> IndexSettings:
        """Return all settings."""
        settings = IndexSettings(self.path)
        # The count is that of the index of names: rows may vanish from the table, or from there, but not from both.
        rows = self.rows("SELECT name, value, row_checksum, (SELECT count(name) FROM settings) FROM settings")
        if len({name for name, *_ in rows}) != (rows[0][-1] if rows else 0):
            raise DamagedError(f"{self.path}: rows of settings are missing; {REPAIR}")
        for name, value, row_checksum, _ in rows:
            if row_checksum == _row_checksum(name, value):
                settings[name] = json.loads(value)
            else:
                settings.damaged.add(name)
        return settings

    def setting(self, name: str, required: bool = True) -> Any:
        """Return one setting by name; None if it is missing, unless every index has it."""
        settings = self.settings()
        return settings[name] if required else settings.get(name)

    def put_settings(self, settings: Mapping[str, Any]) -> None:
        """Set settings."""
        values = [(name, json.dumps(value)) for name, value in settings.items()]
        rows = [(*row, _row_checksum(*row)) for row in values]
        self.write("INSERT OR REPLACE INTO settings VALUES (?, ?, ?)", rows)

    def count_commit(self) -> None:
        """Number this commit, and record its segments; readers that see another number open the index again."""
        layout = {str(number): _row_checksum(*self.deleted(number)) for number in self.segments()}
        self.put_settings({LAYOUT: layout, "commit": self.setting("commit") + 1})

    # -- segments

    def segments(self) -> list[int]:
        """Return the numbers of the live segments, in order."""
        return [row[0] for row in self.rows("SELECT segment FROM segments ORDER BY segment")]

    def segment(self, segment: int) -> SegmentRow | None:
        """Return one live segment, None if there is none of this number."""
        return self.segment_rows().get(segment)

    def segment_rows(self) -> dict[int, SegmentRow]:
        """Return the live segments by number, in order."""
        found = {}
        for number, *values, row_checksum in self.rows(
            f"SELECT {CHECKED['segments'][1]}, row_checksum FROM segments ORDER BY segment"
        ):
            if row_checksum != _row_checksum(number, *values):
                raise DamagedError(f"{self.path}: the row of segment {number} is damaged; {REPAIR}")
            found[number] = SegmentRow(*values)
        return found

    def segment_sizes(self) -> list[SegmentSize]:
        """Return the sizes of the live segments."""
        deleted = dict(self.rows("SELECT segment, count(*) FROM deleted GROUP BY segment"))
        return [
            SegmentSize(number, row.n_images, row.n_features, deleted.get(number, 0))
            for number, row in self.segment_rows().items()
        ]

    def next_segment(self) -> int:
        """Return a number that no segment ever had."""
        return int(self.setting("last_segment")) + 1

    def add_segment(self, segment: int, row: SegmentRow) -> None:
        """Add a segment."""
        values = (segment, row.n_images, row.n_features, row.checksum)
        self.write("INSERT INTO segments VALUES (?, ?, ?, ?, ?)", [(*values, _row_checksum(*values))])
        self.put_settings({"last_segment": segment})

    def drop_segments(self, segments: Iterable[int]) -> None:
        """Remove segments; their images must have moved."""
        rows = [(segment,) for segment in segments]
        self.write("DELETE FROM deleted WHERE segment = ?", rows)
        self.write("DELETE FROM segments WHERE segment = ?", rows)

    def deleted(self, segment: int) -> list[int]:
        """Return the positions of the deleted images of a segment."""
        rows = self.rows("SELECT position FROM deleted WHERE segment = ? ORDER BY position", [segment])
        return [row[0] for row in rows]

    def sound_deleted(self) -> dict[int, tuple[int, ...]]:
        """Return the positions of the deleted images of every live segment; DAMAGED where they are not those recorded.

        Raise DamagedError if a segment is missing.
        """
        recorded, found = self.settings().get(LAYOUT), {number: tuple(self.deleted(number)) for number in self.segments()}
        if recorded is None:  # nothing was committed since this is recorded
            return found
        if not isinstance(recorded, dict) or recorded.keys() != {str(number) for number in found}:
            raise DamagedError(f"{self.path}: the rows of segments are not those of the last commit; {REPAIR}")
        return {n: at if recorded[str(n)] == _row_checksum(*at) else DAMAGED for n, at in found.items()}

    # -- images

    def add_images(self, rows: Iterable[ImageRow]) -> None:
        """Add images; their ids must be new."""
        values = [(*_row_content(row), _row_checksum(*_row_content(row)), row.segment, row.position) for row in rows]
        self.write("INSERT INTO images VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def delete_images(self, images: Iterable[int]) -> None:
        """Mark images as deleted."""
        rows = [(image,) for image in images]
        self.write("INSERT INTO deleted SELECT segment, position FROM images WHERE image = ?", rows)
        self.write("DELETE FROM images WHERE image = ?", rows)

    def move_images(self, images: Iterable[int], segment: int) -> None:
        """Move images to a segment, in this order; those that are not live are marked as deleted there."""
        rows = [(segment, position, image) for position, image in enumerate(images)]
        self.write("UPDATE images SET segment = ?, position = ? WHERE image = ?", rows)
        live = {row[0] for row in self.rows("SELECT position FROM images WHERE segment = ?", [segment])}
        self.write("INSERT INTO deleted VALUES (?, ?)", [(segment, n) for n in range(len(rows)) if n not in live])

    def touch(self, row: ImageRow, state: FileState) -> None:
        """Record that a file has another time but the same content."""
        row_checksum = _row_checksum(*_row_content(replace(row, state=state)))
        sql = "UPDATE images SET size = ?, changed = ?, row_checksum = ? WHERE image = ?"
        self.write(sql, [[state.size, state.changed, row_checksum, row.image]])

    def put_paths(self, rows: Sequence[ImageRow]) -> None:
        """Record new paths and states of images; each may get the path that another one has had."""
        self.write("UPDATE images SET path = ? WHERE image = ?", [(b"\0%d" % row.image, row.image) for row in rows])
        sql = "UPDATE images SET path = ?, size = ?, changed = ?, row_checksum = ? WHERE image = ?"
        content = [(_row_content(row)[1:4], _row_checksum(*_row_content(row)), row.image) for row in rows]
        self.write(sql, [(*values, row_checksum, image) for values, row_checksum, image in content])

    def next_image(self) -> int:
        """Return an id that no image ever had."""
        ((last,),) = self.rows("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'images'")
        return int(last) + 1

    def count_images(self, chosen: ImageFilter = ANY_IMAGE) -> int:
        """Return the number of live images, all or those of a filter."""
        condition, values = chosen.as_sql()
        return int(self.rows(f"SELECT count(*) FROM images WHERE {condition}", values)[0][0])

    def images(self) -> Iterator[ImageRow]:
        """Return all live images, by id; in pages, so that a slow reader does not block a writer."""
        return map(self._image, self.pages("SELECT * FROM images WHERE image > ? ORDER BY image LIMIT ?"))

    def identities(self) -> Iterator[tuple[int, str, str | None]]:
        """Yield id, path and digest of all live images, by id, without those whose rows are damaged."""
        for row in self.pages("SELECT * FROM images WHERE image > ? ORDER BY image LIMIT ?"):
            with suppress(DamagedError):
                found = self._image(row)
                yield found.image, found.path, found.digest

    def images_below(self, roots: Iterable[str]) -> Iterator[ImageRow]:
        """Yield the live images below some roots, or at them, root by root; reads no others of a large index."""
        sql = "SELECT path, * FROM images WHERE path > ? AND path < ? ORDER BY path LIMIT ?"
        for root in roots:
            exact = self.image_at(root)
            rows = (self._image(row[1:]) for row in self.pages(sql, *path_range(root)))
            yield from ([] if exact is None else [exact])
            yield from (row for row in rows if row.path != root and is_below(row.path, [root]))

    def images_of_sizes(self, sizes: Collection[int | None]) -> Iterator[ImageRow]:
        """Yield the live images whose files have one of some sizes, by id."""
        few = tuple(sizes) if len(sizes) <= MAX_PARAMETERS else ()
        chosen = f"AND size IN ({', '.join('?' * len(few))})" if few else ""
        rows = self.pages(f"SELECT image, size FROM images WHERE image > ? {chosen} ORDER BY image LIMIT ?", -1, *few)
        found = [image for image, size in rows if size in sizes]
        for first in range(0, len(found), MAX_PARAMETERS):
            yield from self.images_by_id(found[first : first + MAX_PARAMETERS]).values()

    def images_from(self, first: int, count: int, chosen: ImageFilter = ANY_IMAGE) -> list[ImageRow]:
        """Return `count` of the live images by id, after the `first` ones; all, or those of a filter."""
        condition, values = chosen.as_sql()
        sql = f"SELECT * FROM images WHERE {condition} ORDER BY image LIMIT ? OFFSET ?"
        return [self._image(row) for row in self.rows(sql, [*values, count, first])]

    def ids(self, chosen: ImageFilter = ANY_IMAGE) -> list[int]:
        """Return the ids of the live images, all or those of a filter, ascending."""
        condition, values = chosen.as_sql()
        return [image for (image,) in self.rows(f"SELECT image FROM images WHERE {condition} ORDER BY image", values)]

    def paths(self) -> Iterator[str]:
        """Yield the paths of all live images, by id."""
        return (
            os.fsdecode(path) for _, path in self.pages("SELECT image, path FROM images WHERE image > ? ORDER BY image LIMIT ?")
        )

    def images_in(self, segment: int) -> list[ImageRow]:
        """Return the live images of a segment, by position."""
        return [self._image(row) for row in self.rows("SELECT * FROM images WHERE segment = ? ORDER BY position", [segment])]

    def ids_in(self, segment: int) -> list[int]:
        """Return the ids of the live images of a segment."""
        return [image for (image,) in self.rows("SELECT image FROM images WHERE segment = ?", [segment])]

    def places_in(self, segment: int) -> dict[int, tuple[int, int]]:
        """Return position and number of features of the live images of a segment, by id."""
        rows = self.rows("SELECT image, position, n_features FROM images WHERE segment = ?", [segment])
        return {image: (position, n_features) for image, position, n_features in rows}

    def image(self, image: int) -> ImageRow | None:
        """Return one image by id."""
        return self.images_by_id([image]).get(image)

    def images_by_id(
        self, images: Sequence[int], on_damage: Callable[[int, DamagedError], None] | None = None
    ) -> dict[int, ImageRow]:
        """Return images by their ids, without those that do not exist; `on_damage` is called for a damaged row."""
        found = {}
        for first in range(0, len(images), MAX_PARAMETERS):
            part = images[first : first + MAX_PARAMETERS]
            sql = f"SELECT * FROM images WHERE image IN ({', '.join('?' * len(part))})"
            for row in self.rows(sql, part):
                try:
                    found[row[0]] = self._image(row)
                except DamagedError as error:
                    if on_damage is None:
                        raise
                    on_damage(row[0], error)
        return found

    def image_at(self, path: str) -> ImageRow | None:
        """Return one image by path."""
        rows = self.rows("SELECT * FROM images WHERE path = ?", [os.fsencode(path)])
        return self._image(rows[0]) if rows else None

    def _image(self, row: tuple[Any, ...]) -> ImageRow:
        image, path, size, changed, digest, width, height, n_features, row_checksum, segment, position = row
        if row_checksum != _row_checksum(*row[:8]) or not isinstance(path, bytes):
            raise DamagedError(f"{self.path}: the row of image {image} is damaged; {REPAIR}")
        state = FileState(size, changed)
        return ImageRow(image, os.fsdecode(path), state, digest, width, height, n_features, segment, position)

    # -- problems

    def problems(self) -> dict[str, tuple[FileState, Problem]]:
        """Return the files that could not be indexed, by path."""
        rows = self.rows("SELECT path, size, changed, reason FROM problems ORDER BY path")
        paths = ((os.fsdecode(path), FileState(size, changed), reason) for path, size, changed, reason in rows)
        return {path: (state, Problem(path, reason)) for path, state, reason in paths}

    def put_problems(self, problems: Iterable[tuple[FileState, Problem]]) -> None:
        """Record files that could not be indexed: they are not tried again before they change."""
        values = [(os.fsencode(p.path), state.size, state.changed, p.reason) for state, p in problems]
        rows = [(*row, _row_checksum(*row)) for row in values]
        self.write("INSERT OR REPLACE INTO problems VALUES (?, ?, ?, ?, ?)", rows)

    def drop_problems(self, paths: Iterable[str]) -> None:
        """Remove problems."""
        self.write("DELETE FROM problems WHERE path = ?", [(os.fsencode(path),) for path in paths])

    # -- integrity

    def errors(self) -> Iterator[str]:
        """Yield one line for each damage of the database itself."""
        yield from self.structure_errors()
        for table, (key, _) in CHECKED.items():
            for _, name in self.damaged_rows(table):
                yield f"{self.path}: the row of {table} with {key} {name!r} is damaged"
        with self.snapshot():
            deleted = self.sound_deleted()
        for number in [number for number, positions in deleted.items() if positions == DAMAGED]:
            yield f"{self.path}: the deleted images of segment {number} are not those recorded"

    def structure_errors(self) -> Iterator[str]:
        """Yield one line for each damage of tables and of what rows refer to."""
        for (line,) in self.rows("PRAGMA integrity_check"):
            if line != "ok":
                yield f"{self.path}: {' '.join(line.split())}"
        for table, row, parent, _ in self.rows("PRAGMA foreign_key_check"):
            yield f"{self.path}: row {row} of {table} refers to a row of {parent} that does not exist"
        ((last,),) = self.rows("SELECT coalesce(max(image), 0) FROM images")
        if self.next_image() <= last:
            yield f"{self.path}: image {last} is beyond the last id given"

    def damaged_rows(self, table: str) -> Iterator[tuple[int, Any]]:
        """Yield number and name of each row of a table whose checksum differs."""
        sql = f"SELECT rowid, {CHECKED[table][1]}, row_checksum FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT ?"
        for number, *values, row_checksum in self.pages(sql):
            if row_checksum != _row_checksum(*values):
                yield number, values[0]

    # -- repair, within a transaction

    def drop_rows(self, table: str, numbers: Iterable[int]) -> None:
        """Remove rows of a table by their numbers."""
        self.write(f"DELETE FROM {table} WHERE rowid = ?", [(number,) for number in numbers])

    def drop_segment(self, segment: int) -> None:
        """Remove a segment with its images."""
        self.write("DELETE FROM images WHERE segment = ?", [(segment,)])
        self.drop_segments([segment])

    def set_deleted(self, segment: int, positions: Iterable[int]) -> None:
        """Record which positions of a segment are deleted, instead of what is recorded."""
        self.write("DELETE FROM deleted WHERE segment = ?", [(segment,)])
        self.write("INSERT INTO deleted VALUES (?, ?)", [(segment, position) for position in positions])


def _row_content(row: ImageRow) -> tuple[Any, ...]:
    """Return what only the catalogue holds of an image; its segment and position are also in the segments."""
    state, path = row.state, os.fsencode(row.path)
    return row.image, path, state.size, state.changed, row.digest, row.width, row.height, row.n_features


def _pattern(text: str) -> str:
    """Return the pattern of LIKE for a text anywhere, with special characters escaped."""
    escaped = "".join("\\" + character if character in "\\%_" else character for character in text)
    return f"%{escaped}%"


def _row_checksum(*values: Any) -> int:
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=7).digest())
