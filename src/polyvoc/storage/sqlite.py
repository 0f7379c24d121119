"""One SQLite file with clear errors."""

from __future__ import annotations

import errno
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

from polyvoc.errors import DamagedError, LockedError, UnusableIndexError, WriteError
from polyvoc.storage.files import write_error

BUSY_SECONDS = 60.0  # to wait for another process; a commit takes a fraction of one
PAGE = 4096  # rows
FLUSH = "FULL"  # a commit survives a power cut
# SQLite cites text of the file in its complaints; where that is damaged, Python fails to decode it.
COMPLAINTS = (sqlite3.DatabaseError, UnicodeDecodeError)


class Database:
    """An open database. Readers may share it among threads and see the last commit; a writer has it for itself."""

    remedy: ClassVar[str] = "run 'polyvoc check', or restore it"  # said of one that cannot be read

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        """Wrap a connection; use `connect`."""
        self._connection = connection
        self._lock = threading.RLock()
        self.path = path  # as it is called in messages

    @classmethod
    def connect(cls, path: Path, writable: bool = False, name: Path | None = None, alone: bool = False) -> Self:
        """Open a database that exists; name: how messages call it; alone: nobody writes to it, and no journal is looked for."""
        uri = f"{path.resolve().as_uri()}?mode={'rw' if writable else 'ro'}{'&immutable=1' if alone else ''}"
        try:
            connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            connection.text_factory = _text
            database = cls(connection, name or path)
            if writable:
                connection.execute(f"PRAGMA synchronous = {FLUSH}")
                connection.execute("PRAGMA foreign_keys = ON")
        except COMPLAINTS as error:
            raise _unreadable(name or path, error, cls.remedy) from None
        return database

    def close(self) -> None:
        """Release the file."""
        self._connection.close()

    def __del__(self) -> None:
        """Release the file when nobody uses it any more."""
        self.close()

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Read rows."""
        try:
            with self._lock:
                return self._connection.execute(sql, values).fetchall()
        except sqlite3.ProgrammingError:
            raise UnusableIndexError(f"{self.path} was closed; open the index again") from None
        except COMPLAINTS as error:
            if _code(error) != sqlite3.SQLITE_READONLY_ROLLBACK:
                raise _unreadable(self.path, error, self.remedy) from None
        self._undo()
        return self.rows(sql, values)

    def pages(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """Read many rows in pages, so that a slow reader does not keep a writer waiting.

        sql: gives rows in the order of their first number, those above the first value, as many as the second value.
        """
        last = -1
        while rows := self.rows(sql, [last, PAGE]):
            yield from rows
            if rows[-1][0] <= last:  # a damaged file may lead in circles
                raise DamagedError(f"{self.path}: its rows are out of order; restore it, or index again")
            last = rows[-1][0]

    def write(self, sql: str, rows: Iterable[Sequence[Any]] | None = None) -> None:
        """Write rows, or do what needs none, within a transaction."""
        if rows is None:
            self._connection.execute(sql)
        else:
            self._connection.executemany(sql, rows)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make everything inside one commit, or nothing of it."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield
            self._connection.execute("COMMIT")
        except BaseException as error:
            self._roll_back()
            if isinstance(error, COMPLAINTS):
                raise _unwritable(self.path, error, self.remedy) from None
            raise

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let everything read inside come from one commit."""
        with self._lock:  # one connection has one transaction: other threads wait
            self.rows("BEGIN")
            try:
                self.rows("SELECT count(*) FROM sqlite_master")  # the snapshot begins with the first read
                yield
            finally:
                self._roll_back()

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):  # the next to open the file undoes what this could not
                self._connection.execute("ROLLBACK")

    def _undo(self) -> None:
        """Undo the transaction of a killed writer, which SQLite leaves to the next one that may write."""
        try:
            database = Database.connect(self.path, writable=True)
            database._connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
            database.close()
        except (sqlite3.Error, DamagedError) as error:
            if _is_busy(error):
                raise _unreadable(self.path, error, self.remedy) from None
            raise WriteError(f"{self.path}: the last writer was killed in its commit, and to undo that needs permission to "
                             "write there; run 'polyvoc check' once with that permission") from None  # fmt: skip


class ReadOnlyDatabase(Database):
    """A database of another program: read, never written, also while others write to it or where nothing can be written."""

    remedy = "give one that its program made, or restore it"

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a database that exists."""
        # Beside a journal of the kind WAL SQLite needs another file, which it may be unable to make there. Where there is no
        # journal, all that was written is in the database itself.
        journal = path.with_name(path.name + "-wal")
        database = cls.connect(path)
        try:
            database._connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
        except COMPLAINTS as error:
            if _code(error) & 0xFF != sqlite3.SQLITE_CANTOPEN or (journal.exists() and journal.stat().st_size):
                raise _unreadable(path, error, cls.remedy) from None
            return cls.connect(path, alone=True)
        return database

    def _undo(self) -> NoReturn:
        raise DamagedError(f"{self.path}: who wrote it was stopped in the middle; open it once with the program that made it")


def _text(stored: bytes) -> str:
    """Decode any text: whether it is damaged is not for the decoder to find."""
    return stored.decode(errors="backslashreplace")


def _code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", None) or 0


def _is_busy(error: Exception) -> bool:
    return _code(error) & 0xFF == sqlite3.SQLITE_BUSY


def _unreadable(path: Path, error: Exception, remedy: str) -> UnusableIndexError:
    if _is_busy(error):
        return LockedError(f"{path} is kept locked by another process; try again when it has finished")
    return DamagedError(f"{path} cannot be used: {' '.join(str(error).split())}; {remedy}")


def _unwritable(path: Path, error: Exception, remedy: str) -> UnusableIndexError:
    codes = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_READONLY: errno.EACCES, sqlite3.SQLITE_CANTOPEN: errno.EACCES,
             sqlite3.SQLITE_PERM: errno.EACCES, sqlite3.SQLITE_IOERR: errno.EIO}  # fmt: skip
    code = codes.get(_code(error) & 0xFF)
    return _unreadable(path, error, remedy) if code is None else write_error(path, OSError(code, str(error)))
