"""The plan store: plans and verdicts on disk, by content, so that a second process need not search.

Only JSON text is stored, never code or pickles: the worst that a poisoned store can do is to name
substitutions that do not apply, which is a miss. Every operation opens its own SQLite connection (about
a millisecond), so threads, forks and several processes need no care of ours.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import platformdirs

logger = logging.getLogger(__name__)

MAX_BYTES = 64 * 2**20  # of all payloads; the least recently used go first
MAX_ENTRY_BYTES = 4 * 2**20
_LOCK_TIMEOUT_S = 2.0
_SCHEMA = """
create table if not exists plans (
    key text primary key, payload text not null, digest text not null, num_bytes integer not null,
    used_at real not null
)
"""


def make_key(parts: Mapping[str, Any]) -> str:
    """SHA-256 (hexadecimal) over all that a plan depends on.

    Args:
        parts: canonical graph text, library hash, search options, device fingerprint, versions...; JSON-able.
    """
    return hashlib.sha256(json.dumps(dict(parts), sort_keys=True, allow_nan=False).encode()).hexdigest()


def default_directory() -> Path:
    """`$TORCHRLOPT_CACHE_DIR` where set, else the user's cache directory."""
    given = os.environ.get("TORCHRLOPT_CACHE_DIR")
    return Path(given) if given else Path(platformdirs.user_cache_dir("torchrlopt", appauthor=False))


class PlanStore:
    """JSON objects by key, on disk where possible and in memory where not.

    Args:
        directory: where the database lies; made with mode 0700. None: `default_directory()`.
        max_bytes: limit on the sum of all payloads.
    """

    def __init__(self, directory: Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.directory = directory if directory is not None else default_directory()
        self.max_bytes = max_bytes
        self._memory: dict[str, str] = {}
        self._warned: set[str] = set()

    @property
    def path(self) -> Path:
        """The database file."""
        return self.directory / "plans.sqlite"

    def get(self, key: str) -> dict[str, Any] | None:
        """The object stored under `key`; None where there is none or it is damaged."""
        text = self._memory.get(key) or self._read(key)
        if text is None:
            return None
        try:
            found = json.loads(text)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    def put(self, key: str, payload: Mapping[str, Any]) -> None:
        """Store `payload` (JSON-able) under `key`; never raises for a disk that cannot be written."""
        text = json.dumps(dict(payload), allow_nan=False)
        size = len(text.encode())
        if size > MAX_ENTRY_BYTES:
            self._warn("an entry is too large to be stored", f"{size} bytes")
            return
        row = (key, text, _digest(key, text), size, time.time())
        try:
            with self._connection(writable=True) as db, db:
                db.execute("insert or replace into plans values (?, ?, ?, ?, ?)", row)
                self._evict(db)
        except (sqlite3.Error, OSError) as error:
            self._warn("the plan store cannot be written; plans stay in memory", str(error))
            self._memory[key] = text

    def clear(self) -> None:
        """Forget every entry."""
        self._memory.clear()
        with (
            contextlib.suppress(sqlite3.Error, OSError),
            self._connection(writable=True) as connection,
            connection,
        ):
            connection.execute("delete from plans")

    def _read(self, key: str) -> str | None:
        """The undamaged payload of `key` from disk, marked as used."""
        if not self.path.exists():
            return None
        try:
            with self._connection(writable=False) as db:
                row = db.execute("select payload, digest from plans where key = ?", (key,)).fetchone()
        except (sqlite3.Error, OSError) as error:
            self._warn("the plan store cannot be read", str(error))
            return None
        if row is None or not isinstance(row[0], str) or _digest(key, row[0]) != row[1]:
            return None
        # A store that can be read but not written still gives its plans.
        with (
            contextlib.suppress(sqlite3.Error, OSError),
            self._connection(writable=True) as connection,
            connection,
        ):
            connection.execute("update plans set used_at = ? where key = ?", (time.time(), key))
        return row[0]

    @contextlib.contextmanager
    def _connection(self, writable: bool) -> Iterator[sqlite3.Connection]:
        """An open connection, closed at the end; a damaged database is put aside, and made anew by a writer.

        Raises:
            OSError: the directory cannot be made, or others may write into it.
            sqlite3.Error: the database cannot be used.
        """
        if writable:
            self._make_directory()
        self._check_directory()
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
                connection.execute("pragma journal_mode=wal")
                connection.execute("pragma synchronous=normal")  # safe with a write-ahead log, and quicker
                connection.execute(_SCHEMA)
                connection.commit()
            connection.execute("select key, payload, digest, num_bytes, used_at from plans limit 1")
        except BaseException:
            connection.close()
            raise
        return connection

    def _make_directory(self) -> None:
        if not self.directory.exists():
            self.directory.mkdir(parents=True, mode=0o700)
            self.directory.chmod(0o700)  # whatever the umask

    def _check_directory(self) -> None:
        """Refuse a directory into which another user can write."""
        info = self.directory.stat()
        if info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"{self.directory} can be written by other users; chmod 0700 it")

    def _quarantine(self, error: Exception) -> None:
        """Put a damaged database aside, replacing the last one put aside."""
        aside = self.path.with_suffix(".corrupt")
        self._warn("the plan store was damaged and starts anew", f"{error}; the old one is {aside}")
        with contextlib.suppress(FileNotFoundError):  # another process was first
            os.replace(self.path, aside)
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self.path}{suffix}").unlink()

    def _evict(self, connection: sqlite3.Connection) -> None:
        """Delete the least recently used entries beyond `max_bytes`."""
        (total,) = connection.execute("select coalesce(sum(num_bytes), 0) from plans").fetchone()
        if total <= self.max_bytes:
            return
        for key, size in connection.execute("select key, num_bytes from plans order by used_at").fetchall():
            connection.execute("delete from plans where key = ?", (key,))
            total -= size
            if total <= self.max_bytes:
                return

    def _warn(self, what: str, detail: str) -> None:
        """One warning per cause and store."""
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("%s (%s)", what, detail)


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """True for a file that is no (whole) database; locked, full and read-only are subclasses of the error."""
    return type(error) is sqlite3.DatabaseError


def _digest(key: str, payload: str) -> str:
    """Check sum that ties a payload to its key."""
    return hashlib.sha256(f"{key}\n{payload}".encode()).hexdigest()
