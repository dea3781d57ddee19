"""SQLite files in the user's cache directory that survive whatever happens to them.

Every operation opens its own connection (about a millisecond), so threads and several processes need no care
of ours. A fork waits for the operation that is going on: SQLite's own locks would stay closed in the child.

What goes wrong is never an error of the caller's: reading finds nothing, writing says that it did not happen,
and there is one warning for each cause. A file that is damaged, that another user owns or could write, or
whose tables are not ours, is put aside and made anew.

`diskcache` (5.6.3, tried) does not do this: it raises where a file is damaged or has other columns, makes
files that others can read, and opens files that others can write. It also unpickles what it reads, so that
whoever can write into a cache can run code.
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
"""Of a row; SQLite makes no larger one, and reads none that somebody else has made."""

_LOCK_PAUSE_S = 0.01
_HEADER_BYTES, _NEWEST_SCHEMA = 100, 4
_PARTS = ("", "-wal", "-shm")  # of the name of a database with a write-ahead log

# Held by the thread that is inside SQLite.
_busy = threading.RLock()
os.register_at_fork(before=_busy.acquire, after_in_parent=_busy.release, after_in_child=_busy.release)

Change = Callable[[sqlite3.Connection], object]


class _Damaged(sqlite3.DatabaseError):
    """What lay at the path was not ours, or not whole; it has been put aside, with a warning."""


class Database:
    """One SQLite file.

    Args:
        path: the file; its directory is made with mode 0700, the file with 0600.
        what: what lies in it, for warnings.
        tables: what follows the name in `create table`, by name. A version of the package with other columns
            takes another name.
        indices: statements that make what speeds queries up.
    """

    def __init__(self, path: Path, what: str, tables: dict[str, str], indices: Sequence[str] = ()) -> None:
        self.path = path
        self.what = what
        self._tables = tables
        self._indices = tuple(indices)
        self._warned: set[str] = set()

    @property
    def aside(self) -> Path:
        """Where a damaged file goes."""
        return self.path.with_suffix(".corrupt")

    @property
    def num_bytes(self) -> int:
        """What the file takes on disk, with its log and with one that was put aside."""
        paths = [*(Path(f"{self.path}{part}") for part in _PARTS), self.aside]
        return sum(path.stat().st_size for path in paths if os.path.exists(path))

    def rows(self, query: str, values: Sequence[Any] | dict[str, Any] = ()) -> list[tuple[Any, ...]]:
        """What a query finds; nothing where there is no database, or it cannot be read."""
        if not os.path.exists(self.path):  # unlike Path.exists also where a folder above is closed to us
            return []
        try:
            with self._connection("rw") as db:  # even a reader writes the index of the write-ahead log
                return _fetched(db, query, values)
        except (sqlite3.Error, OSError) as error:
            # The file may come from a version that had no such table, or its maker is at work just now.
            if not isinstance(error, _Damaged) and "no such table" not in str(error):
                self.warn(f"{self.what} cannot be read", str(error))
            return []

    def write(self, change: Change, is_vital: bool = True) -> bool:
        """Change the database in one transaction.

        Args:
            change: is given a connection.
            is_vital: wait for other writers, try again after damage, and warn where it cannot be done.

        Returns:
            Whether it was done; if not, nothing of it was.
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
                self.warn(f"{self.what} cannot be written; what is new stays in memory", str(error))
            return False
        return True

    def clear(self) -> bool:
        """Delete all rows, give the space back, and delete what was put aside."""

        def delete(db: sqlite3.Connection) -> None:
            for table in self._tables:
                db.execute(f"delete from {table}")

        with contextlib.suppress(OSError):
            self.aside.unlink(missing_ok=True)
        if not os.path.exists(self.path):
            return True
        is_done = self.write(delete)
        with contextlib.suppress(sqlite3.Error, OSError), self._connection("rw") as db:
            db.execute("vacuum")  # not while another process is using it
            db.execute("pragma wal_checkpoint(truncate)")
        return is_done

    def warn(self, what: str, detail: str) -> None:
        """One warning per cause and database."""
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("%s (%s)", what, detail)

    def _change(self, change: Change, wait_s: float) -> None:
        with self._connection("rwc", wait_s) as db:
            self._close_to_others()  # before it holds anything; the log is given the mode of the file
            _write_ahead(db, wait_s)
            db.execute("pragma synchronous=normal")  # safe with a write-ahead log, and quicker
            with db:
                db.execute("begin immediate")
                for table, columns in self._tables.items():
                    db.execute(f"create table if not exists {table} {columns}")
                for index in self._indices:
                    db.execute(index)
                change(db)

    @contextlib.contextmanager
    def _connection(self, mode: str, wait_s: float = LOCK_TIMEOUT_S) -> Iterator[sqlite3.Connection]:
        """An open connection, closed at the end; a damaged database is put aside.

        Raises:
            OSError: others may write into the directory, or it is not there.
            _Damaged: the database was put aside.
            sqlite3.Error: the database cannot be used.
        """
        check_private(self.path.parent)
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        file = None
        with _busy:
            self._check_owner()
            # Without an isolation level Python begins no transactions of its own.
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
        """Put a database aside that another user owns or could write: what is in it is not to be trusted.

        Raises:
            _Damaged: it was.
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
        """Raise what damage raises where one of our tables has other columns; one that is missing is made."""
        for table, columns in self._tables.items():
            found = _columns_of(db, table)
            if found and found != _expected(table, columns):
                raise sqlite3.DatabaseError(f"table {table} has other columns: {[each[1] for each in found]}")

    def _quarantine(self, error: Exception, file: int | None) -> None:
        """Put a damaged database aside, replacing the last one put aside.

        Not where another process was first, and what lies there now is the new one.
        """
        with contextlib.suppress(OSError):
            if os.stat(self.path).st_ino != file:
                return
            self.warn(f"{self.what} was damaged and starts anew", f"{error}; the old one is {self.aside}")
            for part in _PARTS[1:]:
                Path(f"{self.path}{part}").unlink(missing_ok=True)
            try:
                os.replace(self.path, self.aside)
            except IsADirectoryError:  # that name is taken by what is not ours
                self.path.unlink()

    def _close_to_others(self) -> None:
        for part in _PARTS:
            with contextlib.suppress(FileNotFoundError):
                close_to_others(Path(f"{self.path}{part}"))


def _columns_of(db: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    """Position, name, type, nullability, default and place in the key of each column; none for no table."""
    return _fetched(db, f"pragma table_info({table})")


def _fetched(
    db: sqlite3.Connection, query: str, values: Sequence[Any] | dict[str, Any] = ()
) -> list[tuple[Any, ...]]:
    """What a query finds. Raises sqlite3.Error, also where SQLite's message quotes what is no UTF-8."""
    try:
        return db.execute(query, values).fetchall()
    except UnicodeDecodeError as error:
        raise sqlite3.DatabaseError(str(error)) from error


@functools.cache
def _expected(table: str, columns: str) -> list[tuple[Any, ...]]:
    """What `_columns_of` finds where these columns were made."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.execute(f"create table {table} {columns}")
        return _columns_of(db, table)


def _write_ahead(connection: sqlite3.Connection, wait_s: float) -> None:
    """Switch to a write-ahead log.

    Where several connections switch a new database at once, SQLite refuses some of them without waiting.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            connection.execute("pragma journal_mode=wal")
            return
        except sqlite3.OperationalError as error:
            # The low byte is the kind of the error, the others say more.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_LOCK_PAUSE_S)


def _is_damage(error: sqlite3.DatabaseError, path: Path) -> bool:
    """True for a file that is no (whole) database of ours; one that is locked, full or read-only is none."""
    if type(error) is sqlite3.DatabaseError:  # SQLite's codes for what is corrupt or no database, and our own
        return True
    if getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_TOOBIG):
        return True
    return _has_foreign_header(path)


def _has_foreign_header(path: Path) -> bool:
    """Whether SQLite takes the file for a newer version's: it reads such a one, or part of it, or refuses it.

    See "The Database Header" of https://www.sqlite.org/fileformat2.html.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError:
        return False
    if len(header) < _HEADER_BYTES:  # one that is being made
        return False
    versions, schema = header[18:20], int.from_bytes(header[44:48], "big")
    return not set(versions) <= {1, 2} or schema > _NEWEST_SCHEMA


def _decoded(text: bytes) -> str:
    """One row with broken text must not hide the others."""
    return text.decode(errors="replace")
