"""SQLite files in the user's cache directory that survive whatever happens to them.

Every operation opens its own connection (about a millisecond), so threads and several processes need no care
of ours. A fork waits for the operation that is going on: SQLite's own locks would stay closed in the child.

What goes wrong is never an error of the caller's: reading finds nothing, writing says that it did not happen,
and there is one warning for each cause. A file that is damaged, or whose tables are not ours, is put aside
and made anew.
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

from torchrlopt.storage.directory import check_private, close_to_others, make_private

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 2.0
_LOCK_PAUSE_S = 0.01
_PARTS = ("", "-wal", "-shm")  # of the name of a database with a write-ahead log

# Held by the thread that is inside SQLite.
_busy = threading.RLock()
os.register_at_fork(before=_busy.acquire, after_in_parent=_busy.release, after_in_child=_busy.release)

Change = Callable[[sqlite3.Connection], object]


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
            # The file may come from a version that had no such table, or its maker is at work just now. What
            # was damaged has been put aside, with a warning.
            is_told = isinstance(error, sqlite3.DatabaseError) and _is_damage(error)
            if not is_told and "no such table" not in str(error):
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
            except sqlite3.DatabaseError as error:
                if not is_vital or not _is_damage(error):
                    raise
                self._change(change, LOCK_TIMEOUT_S)  # the damaged file has been put aside
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
            sqlite3.Error: the database cannot be used.
        """
        check_private(self.path.parent)
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        file = None
        with _busy:
            # Without an isolation level Python begins no transactions of its own.
            db = sqlite3.connect(uri, uri=True, timeout=wait_s, isolation_level=None)
            try:
                file = os.stat(self.path).st_ino
                db.text_factory = _decoded
                self._check_tables(db)
                yield db
            except sqlite3.DatabaseError as error:
                db.close()
                if _is_damage(error):
                    self._quarantine(error, file)
                raise
            finally:
                db.close()

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
            os.replace(self.path, self.aside)

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


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """True for a file that is no (whole) database; locked, full and read-only are subclasses of the error."""
    return type(error) is sqlite3.DatabaseError


def _decoded(text: bytes) -> str:
    """One row with broken text must not hide the others."""
    return text.decode(errors="replace")
