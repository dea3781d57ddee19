"""The plan store: plans and verdicts on disk, by content, so that a second process need not search.

Only JSON text is stored, never code or pickles: the worst that a poisoned store can do is to name
substitutions that do not apply, which is a miss.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchrlopt.storage.directory import default_directory
from torchrlopt.storage.sqlite import Database

MAX_BYTES = 64 * 2**20  # of all payloads; the least recently used go first
MAX_ENTRY_BYTES = 4 * 2**20
_SCHEMA = """
create table if not exists plans (
    key text primary key, payload text not null, digest text not null, num_bytes integer not null,
    used_at real not null
)
"""
_QUERY = "select key, payload, digest, num_bytes, used_at from plans limit 1"


def make_key(parts: Mapping[str, Any]) -> str:
    """SHA-256 (hexadecimal) over all that a plan depends on.

    Args:
        parts: canonical graph text, library hash, search options, device fingerprint, versions...; JSON-able.
    """
    return hashlib.sha256(json.dumps(dict(parts), sort_keys=True, allow_nan=False).encode()).hexdigest()


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
        self._database = Database(self.directory / "plans.sqlite", "the plan store", _SCHEMA, _QUERY)

    @property
    def path(self) -> Path:
        """The database file."""
        return self._database.path

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
            self._database.warn("an entry is too large to be stored", f"{size} bytes")
            return
        row = (key, text, _digest(key, text), size, time.time())
        try:
            with self._database.connection(writable=True) as db, db:
                db.execute("insert or replace into plans values (?, ?, ?, ?, ?)", row)
                self._evict(db)
        except (sqlite3.Error, OSError) as error:
            self._database.warn("the plan store cannot be written; plans stay in memory", str(error))
            self._memory[key] = text

    def clear(self) -> None:
        """Forget every entry."""
        self._memory.clear()
        with (
            contextlib.suppress(sqlite3.Error, OSError),
            self._database.connection(writable=True) as connection,
            connection,
        ):
            connection.execute("delete from plans")

    def _read(self, key: str) -> str | None:
        """The undamaged payload of `key` from disk, marked as used."""
        if not self.path.exists():
            return None
        try:
            with self._database.connection(writable=False) as db:
                row = db.execute("select payload, digest from plans where key = ?", (key,)).fetchone()
        except (sqlite3.Error, OSError) as error:
            self._database.warn("the plan store cannot be read", str(error))
            return None
        if row is None or not isinstance(row[0], str) or _digest(key, row[0]) != row[1]:
            return None
        # A store that can be read but not written still gives its plans.
        with (
            contextlib.suppress(sqlite3.Error, OSError),
            self._database.connection(writable=True) as connection,
            connection,
        ):
            connection.execute("update plans set used_at = ? where key = ?", (time.time(), key))
        return row[0]

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


def _digest(key: str, payload: str) -> str:
    """Check sum that ties a payload to its key."""
    return hashlib.sha256(f"{key}\n{payload}".encode()).hexdigest()
