"""SQLite files in the user's cache directory that survive whatever happens to them.

Every operation opens its own connection (about a millisecond), so threads, forks and several processes need
no care of ours. A damaged file is put aside and made anew; a directory that cannot be written, or into which
others can write, is an error that the stores above turn into one warning.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from torchrlopt.storage.directory import check_private, make_private

logger = logging.getLogger(__name__)

_LOCK_TIMEOUT_S = 2.0
_LOCK_PAUSE_S = 0.01


class Database:
    """One SQLite file.

    Args:
        path: the file; its directory is made with mode 0700.
        what: what lies in it, for warnings.
        schema: the statement that makes the table where it is missing.
        query: a query that fails where the table is not the expected one.
    """

    def __init__(self, path: Path, what: str, schema: str, query: str) -> None:
        self.path = path
        self.what = what
        self._schema = schema
        self._query = query
        self._warned: set[str] = set()

    @contextlib.contextmanager
    def connection(self, writable: bool) -> Iterator[sqlite3.Connection]:
        """An open connection, closed at the end; a damaged database is put aside, and made anew by a writer.

        Raises:
            OSError: the directory cannot be made, or others may write into it.
            sqlite3.Error: the database cannot be used.
        """
        if writable:
            make_private(self.path.parent)
        check_private(self.path.parent)
        try:
            connection = self._connect(writable)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            self._quarantine(error)
            if not writable:
                raise
            connection = self._connect(writable)
        try:
            yield connection
        except sqlite3.DatabaseError as error:
            connection.close()
            if _is_damage(error):  # found only on use
                self._quarantine(error)
            raise
        finally:
            connection.close()

    def _connect(self, writable: bool) -> sqlite3.Connection:
        """Open the database; a writer makes what is missing."""
        mode = "rwc" if writable else "rw"  # even a reader of a WAL database writes its index
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=_LOCK_TIMEOUT_S)
        try:
            if writable:
                _write_ahead(connection)
                connection.execute("pragma synchronous=normal")  # safe with a write-ahead log, and quicker
                connection.execute(self._schema)
                connection.commit()
            connection.execute(self._query)
        except BaseException:
            connection.close()
            raise
        return connection

    def _quarantine(self, error: Exception) -> None:
        """Put a damaged database aside, replacing the last one put aside."""
        aside = self.path.with_suffix(".corrupt")
        self.warn(f"{self.what} was damaged and starts anew", f"{error}; the old one is {aside}")
        with contextlib.suppress(FileNotFoundError):  # another process was first
            os.replace(self.path, aside)
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self.path}{suffix}").unlink()

    def warn(self, what: str, detail: str) -> None:
        """One warning per cause and database."""
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("%s (%s)", what, detail)


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to a write-ahead log.

    Where several connections switch a new database at once, SQLite refuses some of them without waiting.
    """
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
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
