"""The plan store: plans and verdicts on disk, keyed by content, so that later processes skip the search.

It stores JSON text only, never code or pickles: the worst that a poisoned store can do is to name
substitutions that do not apply, which is a cache miss.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torchrlopt.storage import bundle
from torchrlopt.storage.checked_json import checksum, is_whole, parsed
from torchrlopt.storage.directory import default_directory
from torchrlopt.storage.sqlite import MAX_ROW_BYTES, Database

KIND = "plan"  # of these entries in a bundle
MAX_BYTES = 64 * 2**20  # of all payloads; evicts the least recently used first
MAX_ENTRIES = 10_000
MAX_ENTRY_BYTES = MAX_ROW_BYTES - 2**12  # minus key, checksum and numbers
_TABLE = """(
    key text primary key, payload text not null, digest text not null, num_bytes integer not null,
    used_at real not null
)"""
# Counting entries reads this index instead of every payload.
_INDEX = "create index if not exists plans_by_use on plans (used_at, num_bytes)"
# An entry with a time in the future (the clock was set back) ranks with the entry put now, which wins by its
# rowid.
_OLDEST = """
delete from plans where rowid in (
    select rowid from (
        select rowid, row_number() over newest as place, total(num_bytes) over newest as bytes from plans
        window newest as (order by min(cast(used_at as real), ?) desc, rowid desc)
    ) where place > ? or bytes > ?
)
"""
_ALL = """
select key, payload, digest, max(0.0, min(cast(used_at as real), ?)) as used from plans order by used
"""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One entry of the store.

    `used_at` is the time of the last put or get, in seconds since the epoch.
    """

    key: str
    payload: Mapping[str, Any]
    num_bytes: int
    used_at: float


class Merged(NamedTuple):
    """How many entries of another store were added, replaced older ones, or were left out for those here."""

    added: int
    replaced: int
    kept: int


def make_key(parts: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hexadecimal) of everything that a plan depends on."""
    return hashlib.sha256(json.dumps(dict(parts), sort_keys=True, allow_nan=False).encode()).hexdigest()


class PlanStore(Database):
    """JSON objects by key on disk; behind them, those of the user's bundle."""

    def __init__(
        self, directory: Path | None = None, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES
    ) -> None:
        directory = directory or default_directory()
        super().__init__(directory / "plans.sqlite", "the plan store", {"plans": _TABLE}, [_INDEX])
        self.max_bytes, self.max_entries = max_bytes, max_entries

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the object stored under `key`, or None if it is missing or damaged."""
        text = self._read(key)
        return bundle.given_bundle().get(KIND, key) if text is None else parsed(text)

    def put(self, key: str, payload: Mapping[str, Any]) -> None:
        """Store `payload` (JSON-able) under `key`; never raises if the disk is not writable."""
        text = json.dumps(dict(payload), allow_nan=False)
        size = len(text.encode())
        if size > MAX_ENTRY_BYTES:
            self.warn("an entry is too large to be stored", f"{size} bytes")
            return
        now = time.time()

        def insert(db: sqlite3.Connection) -> None:
            _insert(db, key, text, now)
            self._evict(db, now)

        self.write(insert)

    def bundled(self) -> list[bundle.Entry]:
        """Return what is on disk as entries of a bundle; each plan also under its key for other machines."""
        found: dict[str, Mapping[str, Any]] = {}
        for entry in self.entries():  # the last used plan comes last
            found[entry.key] = entry.payload
            portable, plan = entry.payload.get("portable"), entry.payload.get("plan")
            if isinstance(portable, str) and plan is not None:
                found[portable] = {"plan": plan, "timing": None, "verified": None}
        return [(KIND, key, payload) for key, payload in found.items()]

    def merge(self, given: Iterable[tuple[str, Mapping[str, Any]]]) -> Merged | None:
        """Add entries of another store in one transaction.

        An entry that is here already stays, unless its verdicts were taken before those of the other one, or
        it is damaged.

        What is too large is left out.

        Returns:
            What has changed; None if the disk is not writable: then nothing has.
        """
        texts = {key: json.dumps(dict(payload), allow_nan=False) for key, payload in given}
        now, counts = time.time(), Counter[str]()

        def add(db: sqlite3.Connection) -> None:
            counts.clear()  # after damage, a transaction is repeated
            for key, text in texts.items():
                row = db.execute("select payload, digest from plans where key = ?", (key,)).fetchone()
                if len(text.encode()) > MAX_ENTRY_BYTES or (row and not _is_newer(key, text, row, now)):
                    counts["kept"] += 1
                    continue
                _insert(db, key, text, now)
                counts["replaced" if row else "added"] += 1
            self._evict(db, now)

        is_done = self.write(add)
        return Merged(counts["added"], counts["replaced"], counts["kept"]) if is_done else None

    def entries(self) -> list[Entry]:
        """Return all undamaged entries on disk, least recently used first."""
        found = []
        for key, text, digest, used_at in self.rows(_ALL, (time.time(),)):
            payload = parsed(text) if is_whole(key, text, digest) else None
            if payload is not None:
                found.append(Entry(key, payload, len(text.encode()), used_at))
        return found

    def _read(self, key: str) -> str | None:
        """Return the undamaged payload of `key` from disk and mark it as used."""
        found = self.rows("select payload, digest from plans where key = ?", (key,))
        if not found or not is_whole(key, *found[0]):
            return None
        mark = (time.time(), key)
        # A read-only store still returns its plans.
        self.write(lambda db: db.execute("update plans set used_at = ? where key = ?", mark), is_vital=False)
        return str(found[0][0])

    def _evict(self, db: sqlite3.Connection, now: float) -> None:
        """Delete the least recently used entries beyond the limits."""
        entries, num_bytes = db.execute("select count(*), total(num_bytes) from plans").fetchone()
        if entries > self.max_entries or num_bytes > self.max_bytes:
            db.execute(_OLDEST, (now, self.max_entries, self.max_bytes))


def _insert(db: sqlite3.Connection, key: str, text: str, now: float) -> None:
    row = (key, text, checksum(key, text), len(text.encode()), now)
    db.execute("insert or replace into plans values (?, ?, ?, ?, ?)", row)


def _is_newer(key: str, text: str, row: tuple[Any, ...], now: float) -> bool:
    """Whether an entry was measured after the one in a row of the table, or that is damaged."""
    old = parsed(row[0]) if is_whole(key, *row) else None
    return old is None or _taken_at(parsed(text) or {}, now) > _taken_at(old, now)


def _taken_at(payload: Mapping[str, Any], now: float) -> float:
    """Return when the latest verdict of an entry was taken; 0 if it has none, or one from the future."""
    parts = [payload, *(each for each in payload.values() if isinstance(each, dict))]
    times = [part.get(name) for part in parts for name in ("taken_at", "at")]
    return max((each for each in times if isinstance(each, int | float) and 0 <= each <= now), default=0.0)
