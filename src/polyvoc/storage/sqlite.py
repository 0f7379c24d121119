"""One SQLite file: snapshots for readers, transactions for one writer, errors of one line."""

from __future__ import annotations

import errno
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

from polyvoc.errors import DamagedError, ExchangeError, LockedError, PolyvocError, UnusableIndexError, WriteError, one_line
from polyvoc.storage.files import write_error

BUSY_SECONDS = 60.0  # wait for another process; a commit takes less than one second
PAGE = 4096  # rows
# A commit survives a power cut. FULL does not flush the folder after the journal is deleted: it could come back and undo the
# commit, when the segments of the commit before are deleted already.
FLUSH = "EXTRA"
# SQLite quotes text of the file in its messages; Python fails to decode it if the file is damaged. A damaged header may name
# sizes that SQLite finds no memory for.
SQLITE_ERRORS = (sqlite3.DatabaseError, UnicodeDecodeError, MemoryError)
_SYSTEM_ERRORS = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_IOERR: errno.EIO, sqlite3.SQLITE_PERM: errno.EACCES,
                  sqlite3.SQLITE_READONLY: errno.EACCES, sqlite3.SQLITE_CANTOPEN: errno.EACCES}  # fmt: skip


class Database:
    """An open database. Readers see the last commit and may share it among threads; a writer has its own."""

    damaged: ClassVar[type[PolyvocError]] = DamagedError  # raised if it cannot be read
    hint: ClassVar[str] = "run 'polyvoc check', or restore it"  # the next step then

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        """Wrap a connection; use `connect`."""
        self._connection = connection
        self._lock = threading.RLock()
        self.path = path  # its name in messages

    @classmethod
    def connect(cls, path: Path, writable: bool = False, name: Path | None = None, immutable: bool = False) -> Self:
        """Open a database that exists. name: for messages; immutable: no process writes to it, its journal is ignored."""
        uri = f"{path.resolve().as_uri()}?mode={'rw' if writable else 'ro'}{'&immutable=1' if immutable else ''}"
        try:
            connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            connection.text_factory = lambda stored: stored.decode(errors="backslashreplace")  # damage is found by checksums
            database = cls(connection, name or path)
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA cell_size_check = ON")
            if writable:
                connection.execute(f"PRAGMA synchronous = {FLUSH}")
                connection.execute("PRAGMA fullfsync = ON")  # macOS; elsewhere without effect
                connection.execute("PRAGMA foreign_keys = ON")
        except SQLITE_ERRORS as error:
            raise cls._unreadable(name or path, error) from None
        return database

    def close(self) -> None:
        """Release the file."""
        self._connection.close()

    __del__ = close

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        try:
            with self._lock:
                return self._connection.execute(sql, values).fetchall()
        except sqlite3.ProgrammingError:
            raise UnusableIndexError(f"{self.path} was closed; open the index again") from None
        except SQLITE_ERRORS as error:
            if _code(error) != sqlite3.SQLITE_READONLY_ROLLBACK:
                raise self._unreadable(self.path, error) from None
        self._undo()
        return self.rows(sql, values)

    def pages(self, sql: str, last: Any = -1, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Yield many rows, read in pages so that a slow reader does not block a writer.

        sql: a query of rows sorted by their first column, above the first parameter, `last`; as many as the last parameter.
        """
        while rows := self.rows(sql, [last, *values, PAGE]):
            yield from rows
            if rows[-1][0] <= last:  # else a damaged file could be read in circles
                raise DamagedError(f"{self.path}: its rows are out of order; restore it, or index again")
            last = rows[-1][0]

    def write(self, sql: str, rows: Iterable[Sequence[Any]] | None = None) -> None:
        """Execute a statement for each row, or once without rows, within a transaction."""
        if rows is None:
            self._connection.execute(sql)
        else:
            self._connection.executemany(sql, rows)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit everything written inside, or nothing on an error."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield
            self._connection.execute("COMMIT")
        except BaseException as error:
            self._roll_back()
            if isinstance(error, SQLITE_ERRORS):
                raise self._unwritable(error) from None
            raise

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read everything inside from one commit."""
        with self._lock:  # a connection has one transaction: other threads wait
            self.rows("BEGIN")
            try:
                self.rows("SELECT count(*) FROM sqlite_master")  # the snapshot begins with the first read
                yield
            finally:
                self._roll_back()

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):  # the next process to open the file rolls it back
                self._connection.execute("ROLLBACK")

    def _undo(self) -> None:
        """Roll back the transaction of a killed writer; SQLite needs a connection that may write for this."""
        try:
            database = Database.connect(self.path, writable=True)
            database._connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
            database.close()
        except (sqlite3.Error, DamagedError) as error:
            if _is_busy(error):
                raise self._unreadable(self.path, error) from None
            raise WriteError(f"{self.path}: the last writer was killed in its commit; run 'polyvoc check' once with "
                             "permission to write there") from None  # fmt: skip

    @classmethod
    def _unreadable(cls, path: Path, error: Exception) -> PolyvocError:
        if _is_busy(error):
            return LockedError(f"{path} is locked by another process; try again when it has finished")
        return cls.damaged(f"{path} cannot be read: {one_line(error)}; {cls.hint}")

    def _unwritable(self, error: Exception) -> PolyvocError:
        code = _SYSTEM_ERRORS.get(_code(error) & 0xFF)
        return self._unreadable(self.path, error) if code is None else write_error(self.path, OSError(code, str(error)))


class ReadOnlyDatabase(Database):
    """A database of another program: read only, even while that program writes or on a read-only disk."""

    damaged = ExchangeError
    hint = "give a complete one, or restore it"

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a database that exists."""
        # In WAL mode SQLite needs a file beside the journal, which it may be unable to create. Without a journal it needs none.
        journal = path.with_name(path.name + "-wal")
        database = cls.connect(path)
        try:
            database._connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
        except SQLITE_ERRORS as error:
            if _code(error) & 0xFF != sqlite3.SQLITE_CANTOPEN or (journal.exists() and journal.stat().st_size):
                raise cls._unreadable(path, error) from None
            return cls.connect(path, immutable=True)
        return database

    def _undo(self) -> NoReturn:
        raise self.damaged(f"{self.path}: its last writer was interrupted; open it once with the program that made it")


def _code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", None) or 0


def _is_busy(error: Exception) -> bool:
    return _code(error) & 0xFF == sqlite3.SQLITE_BUSY
