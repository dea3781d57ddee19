"""Fault-tolerant SQLite files in the user's cache directory.

Every operation opens its own connection (about a millisecond), so threads and processes need no coordination
here. A fork waits for the current operation: otherwise SQLite's own locks would stay locked in the child.

Failures are never the caller's problem: reads return nothing, writes return False, and each cause warns once.
A file that is damaged, that another user owns or can write, or whose tables have an unexpected schema is
moved aside and recreated.

`diskcache` (5.6.3, tried) does not do this: it raises if a file is damaged or has other columns, creates
files that others can read, and opens files that others can write. It also unpickles what it reads, so anyone
who can write to a cache can run code.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torchrlopt.storage.directory import check_own, check_private, close_to_others, make_private

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 2.0
MAX_ROW_BYTES = 4 * 2**20 + 2**12
"""Maximum size of a row; SQLite neither writes nor reads a larger one."""

_LOCK_PAUSE_S = 0.01
_HEADER_BYTES, _NEWEST_SCHEMA = 100, 4
_PARTS = ("", "-wal", "-shm")  # suffixes of the files of a database with a write-ahead log

# Held by the thread that is inside SQLite, and across a fork.
_busy = threading.RLock()
os.register_at_fork(before=_busy.acquire, after_in_parent=_busy.release, after_in_child=_busy.release)

Change = Callable[[sqlite3.Connection], object]


class _Damaged(sqlite3.DatabaseError):
    """The file was damaged or foreign; it has been moved aside, with a warning."""


class Database:
    """One SQLite file.

    Args:
        path: the file, created with mode 0600, in a directory created with mode 0700.
        what: description of its contents, for warnings.
        tables: the text after the name in `create table`, by table name. If a new version of the package
            changes the columns, it uses another name.
        indices: statements that create indices.
    """

    def __init__(self, path: Path, what: str, tables: dict[str, str], indices: Sequence[str] = ()) -> None:
        self.path = path
        self.what = what
        self._tables = tables
        self._indices = tuple(indices)
        self._warned: set[str] = set()

    @property
    def aside(self) -> Path:
        """Path that a damaged file is moved to."""
        return self.path.with_suffix(".corrupt")

    @property
    def num_bytes(self) -> int:
        """Size on disk, in bytes, including the log and a file that was moved aside."""
        paths = [*(Path(f"{self.path}{part}") for part in _PARTS), self.aside]
        return sum(path.stat().st_size for path in paths if os.path.exists(path))

    def rows(self, query: str, values: Sequence[Any] | dict[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query; none if the database does not exist or cannot be read."""
        if not os.path.exists(self.path):  # unlike Path.exists, no error if a parent is inaccessible
            return []
        try:
            with self._connection("rw") as db:  # readers also write the index of the write-ahead log
                return _fetched(db, query, values)
        except (sqlite3.Error, OSError) as error:
            # The file may come from a version without this table, or be under construction by another
            # process.
            if not isinstance(error, _Damaged) and "no such table" not in str(error):
                self.warn(f"{self.what} cannot be read", str(error))
            return []

    def write(self, change: Change, is_vital: bool = True) -> bool:
        """Change the database in one transaction.

        Args:
            change: called with a connection.
            is_vital: wait for other writers, retry after damage, and warn on failure.

        Returns:
            Whether the transaction succeeded; if not, nothing has changed.
        """
        try:
            make_private(self.path.parent)
            try:
                self._change(change, LOCK_TIMEOUT_S if is_vital else 0.0)
            except _Damaged:
                if not is_vital:
                    raise
                self._change(change, LOCK_TIMEOUT_S)
        except (sqlite3.Error, OSError) as error:
            if is_vital:
                self.warn(f"{self.what} cannot be written; nothing new is kept", str(error))
            return False
        return True

    def clear(self) -> bool:
        """Delete all rows, free the space, and delete the file that was moved aside."""

        def delete(db: sqlite3.Connection) -> None:
            for table in self._tables:
                db.execute(f"delete from {table}")

        with contextlib.suppress(OSError):
            self.aside.unlink(missing_ok=True)
        if not os.path.exists(self.path):
            return True
        is_done = self.write(delete)
        with contextlib.suppress(sqlite3.Error, OSError), self._connection("rw") as db:
            db.execute("vacuum")  # fails while another process is using it
            db.execute("pragma wal_checkpoint(truncate)")
        return is_done

    def warn(self, what: str, detail: str) -> None:
        """Log a warning, once per cause and database."""
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("%s (%s)", what, detail)

    def _change(self, change: Change, wait_s: float) -> None:
        with self._connection("rwc", wait_s) as db:
            self._close_to_others()  # while it is empty; the log inherits the mode of the file
            _write_ahead(db, wait_s)
            db.execute("pragma synchronous=normal")  # safe with a write-ahead log, and faster
            with db:
                db.execute("begin immediate")
                for table, columns in self._tables.items():
                    db.execute(f"create table if not exists {table} {columns}")
                for index in self._indices:
                    db.execute(index)
                change(db)

    @contextlib.contextmanager
    def _connection(self, mode: str, wait_s: float = LOCK_TIMEOUT_S) -> Iterator[sqlite3.Connection]:
        """Yield an open connection and close it; move a damaged database aside.

        Raises:
            OSError: others can write the directory, or it does not exist.
            _Damaged: the database was moved aside.
            sqlite3.Error: the database cannot be used.
        """
        check_private(self.path.parent)
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        file = None
        with _busy:
            self._check_owner()
            # Without an isolation level, Python starts no implicit transactions.
            db = sqlite3.connect(uri, uri=True, timeout=wait_s, isolation_level=None)
            try:
                file = os.stat(self.path).st_ino
                db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_ROW_BYTES)
                db.text_factory = _decoded
                self._check_tables(db)
                yield db
            except sqlite3.DatabaseError as error:
                db.close()
                if not _is_damage(error, self.path):
                    raise
                self._quarantine(error, file)
                raise _Damaged(str(error)) from error
            finally:
                db.close()

    def _check_owner(self) -> None:
        """Move a database aside if another user owns or can write it: its contents are not trusted.

        Raises:
            _Damaged: it was moved aside.
        """
        for part in _PARTS:
            path = Path(f"{self.path}{part}")
            try:
                check_own(path)
            except FileNotFoundError:
                continue
            except PermissionError as error:
                self._quarantine(error, os.stat(self.path).st_ino if os.path.exists(self.path) else None)
                raise _Damaged(str(error)) from error

    def _check_tables(self, db: sqlite3.Connection) -> None:
        """Raise DatabaseError, as damage does, if a table has other columns; missing tables are created."""
        for table, columns in self._tables.items():
            found = _columns_of(db, table)
            if found and found != _expected(table, columns):
                raise sqlite3.DatabaseError(f"table {table} has other columns: {[each[1] for each in found]}")

    def _quarantine(self, error: Exception, file: int | None) -> None:
        """Move a damaged database aside, replacing the one moved before.

        Do nothing if another process was faster and the file is already the new one.
        """
        with contextlib.suppress(OSError):
            if os.stat(self.path).st_ino != file:
                return
            self.warn(f"{self.what} was damaged and starts anew", f"{error}; the old one is {self.aside}")
            for part in _PARTS[1:]:
                Path(f"{self.path}{part}").unlink(missing_ok=True)
            try:
                os.replace(self.path, self.aside)
            except IsADirectoryError:  # a directory occupies that name
                self.path.unlink()

    def _close_to_others(self) -> None:
        for part in _PARTS:
            with contextlib.suppress(FileNotFoundError):
                close_to_others(Path(f"{self.path}{part}"))


def _columns_of(db: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    """Return position, name, type, nullability, default and key position of each column, if any."""
    return _fetched(db, f"pragma table_info({table})")


def _fetched(
    db: sqlite3.Connection, query: str, values: Sequence[Any] | dict[str, Any] = ()
) -> list[tuple[Any, ...]]:
    """Return the rows; raise sqlite3.Error even if SQLite's message is not valid UTF-8."""
    try:
        return db.execute(query, values).fetchall()
    except UnicodeDecodeError as error:
        raise sqlite3.DatabaseError(str(error)) from error


@functools.cache
def _expected(table: str, columns: str) -> list[tuple[Any, ...]]:
    """Return what `_columns_of` returns for a table with these columns."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.execute(f"create table {table} {columns}")
        return _columns_of(db, table)


def _write_ahead(connection: sqlite3.Connection, wait_s: float) -> None:
    """Switch to a write-ahead log.

    If several connections switch a new database at once, SQLite refuses some of them without waiting, so
    retry.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            connection.execute("pragma journal_mode=wal")
            return
        except sqlite3.OperationalError as error:
            # The low byte is the primary error code, the others are details.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_LOCK_PAUSE_S)


def _is_damage(error: sqlite3.DatabaseError, path: Path) -> bool:
    """Whether the file is damaged or foreign; a locked, full or read-only one is not damage."""
    if type(error) is sqlite3.DatabaseError:  # SQLITE_CORRUPT, SQLITE_NOTADB, and our own
        return True
    if getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_TOOBIG):
        return True
    return _has_foreign_header(path)


def _has_foreign_header(path: Path) -> bool:
    """Whether the header claims a newer SQLite format, which SQLite reads fully, partly or not at all.

    See "The Database Header" of https://www.sqlite.org/fileformat2.html.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError:
        return False
    if len(header) < _HEADER_BYTES:  # it is being created
        return False
    versions, schema = header[18:20], int.from_bytes(header[44:48], "big")
    return not set(versions) <= {1, 2} or schema > _NEWEST_SCHEMA


def _decoded(text: bytes) -> str:
    """Decode leniently, so that one row with invalid text does not hide the others."""
    return text.decode(errors="replace")
