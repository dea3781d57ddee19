"""Stores the profile on disk: measured times of nodes by device and executor, and what the probe found.

The profile holds numbers and names only. Somebody who changes it can cause a bad plan, but every plan is
checked and timed before it is used.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import sqlite3
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torchrlopt.storage.directory import default_directory
from torchrlopt.storage.sqlite import Database

_MAX_US = 1e9  # a longer time is no price

# Another version of the format gets other tables, beside these.
_SCHEMA = """
create table if not exists prices_1 (
    device text not null, executor text not null, context text not null, own text not null, op text not null,
    us real not null, spread real not null, warm_us real not null, analytic_us real not null,
    num_graphs integer not null, measured_at real not null, primary key (device, executor, context)
) without rowid
"""
_COLUMNS = "context, own, op, us, spread, warm_us, analytic_us, num_graphs"
_PROBE_SCHEMA = """
create table if not exists probes_1 (
    device text primary key, payload text not null, digest text not null, measured_at real not null
) without rowid
"""


@dataclasses.dataclass(frozen=True)
class Price:
    """What is known about the time of one node among its neighbours.

    Attributes:
        own: key of the node.
        context: key of the node among its neighbours.
        op: its operator.
        us: median time in the graphs it was seen in, in microseconds; 0 where another node's kernel does its
            work.
        spread: interquartile range over the median.
        warm_us: median time when repeated at once, with all it reads in the caches, in microseconds.
        analytic_us: what the analytic model says, in microseconds.
        num_graphs: graphs in which it was timed.
    """

    own: int
    context: int
    op: str
    us: float
    spread: float
    warm_us: float
    analytic_us: float
    num_graphs: int

    def is_plausible(self) -> bool:
        """Whether all numbers are finite and in range."""
        times = (self.us, self.warm_us, self.analytic_us)
        return all(0 <= each <= _MAX_US for each in times) and self.spread >= 0 and self.num_graphs > 0

    def merged(self, other: Price) -> Price:
        """Both, weighted by the graphs they were seen in."""
        total = self.num_graphs + other.num_graphs
        part = other.num_graphs / total

        def mix(mine: float, theirs: float) -> float:
            return mine + part * (theirs - mine)

        return dataclasses.replace(
            other,
            us=mix(self.us, other.us),
            spread=mix(self.spread, other.spread),
            warm_us=mix(self.warm_us, other.warm_us),
            num_graphs=total,
        )


class ProfileStore:
    """Prices by device and executor, on disk where possible and in memory where not.

    Args:
        directory: where the database lies. None: `default_directory()`.
    """

    def __init__(self, directory: Path | None = None) -> None:
        where = directory if directory is not None else default_directory()
        query = f"select {_COLUMNS} from prices_1 limit 1"
        self._prices = Database(where / "profile.sqlite", "the profile", _SCHEMA, query)
        self._probes = Database(
            where / "profile.sqlite", "the profile", _PROBE_SCHEMA, "select payload from probes_1 limit 1"
        )
        self._memory: dict[tuple[str, str], dict[int, Price]] = {}

    @property
    def path(self) -> Path:
        """The database file."""
        return self._prices.path

    def prices(self, device: str, executor: str) -> dict[int, Price]:
        """All prices of an executor on a device (its fingerprint), by context key; damaged rows left out."""
        found: dict[int, Price] = {}
        if self.path.exists():
            try:
                with self._prices.connection(writable=False) as db:
                    rows = db.execute(
                        f"select {_COLUMNS} from prices_1 where device = ? and executor = ?",
                        (device, executor),
                    ).fetchall()
                found = {price.context: price for price in map(_parsed, rows) if price is not None}
            except (sqlite3.Error, OSError) as error:
                # The file may hold probes only, or come from a version that had no such table.
                if not _is_missing_table(error):
                    self._prices.warn("the profile cannot be read", str(error))
        return found | self._memory.get((device, executor), {})

    def add(self, device: str, executor: str, prices: Iterable[Price], replace: bool = False) -> None:
        """Store prices; never raises for a disk that cannot be written.

        Args:
            device: fingerprint of the device.
            executor: name of the executor.
            prices: those that are not plausible are left out.
            replace: forget what was known of these nodes, instead of taking the mean.
        """
        fresh = [price for price in prices if price.is_plausible()]
        try:
            with self._prices.connection(writable=True) as db, db:
                db.execute("begin immediate")  # what is merged with must not change in between
                for price in fresh:
                    old = None if replace else self._known(db, device, executor, price.context)
                    self._write(db, device, executor, price if old is None else old.merged(price))
        except (sqlite3.Error, OSError) as error:
            self._prices.warn("the profile cannot be written; prices stay in memory", str(error))
            known = self._memory.setdefault((device, executor), {})
            for price in fresh:
                old = None if replace else known.get(price.context)
                known[price.context] = price if old is None else old.merged(price)

    def _known(self, db: sqlite3.Connection, device: str, executor: str, context: int) -> Price | None:
        row = db.execute(
            f"select {_COLUMNS} from prices_1 where device = ? and executor = ? and context = ?",
            (device, executor, _text(context)),
        ).fetchone()
        return _parsed(row) if row is not None else None

    def _write(self, db: sqlite3.Connection, device: str, executor: str, price: Price) -> None:
        keys = (device, executor, _text(price.context), _text(price.own), price.op)
        numbers = (price.us, price.spread, price.warm_us, price.analytic_us, price.num_graphs)
        db.execute(
            "insert or replace into prices_1 values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*keys, *numbers, time.time()),
        )

    def probe(self, device: str) -> dict[str, Any] | None:
        """What the probe found on a device; None where it has not run or the entry is damaged."""
        if not self.path.exists():
            return None
        try:
            with self._probes.connection(writable=False) as db:
                row = db.execute(
                    "select payload, digest from probes_1 where device = ?", (device,)
                ).fetchone()
            if row is None or _digest(device, str(row[0])) != row[1]:
                return None
            found = json.loads(row[0])
        except (sqlite3.Error, OSError, ValueError) as error:
            if not _is_missing_table(error):
                self._probes.warn("the profile cannot be read", str(error))
            return None
        return found if isinstance(found, dict) else None

    def put_probe(self, device: str, found: Mapping[str, Any]) -> None:
        """Remember what the probe found; never raises for a disk that cannot be written."""
        text = json.dumps(dict(found), allow_nan=False)
        try:
            with self._probes.connection(writable=True) as db, db:
                row = (device, text, _digest(device, text), time.time())
                db.execute("insert or replace into probes_1 values (?, ?, ?, ?)", row)
        except (sqlite3.Error, OSError) as error:
            self._probes.warn("the profile cannot be written; the probe runs again next time", str(error))


def digest_of(prices: Iterable[Price]) -> str:
    """SHA-256 (hexadecimal) of prices in any order."""
    lines = sorted(f"{price.context} {price.us!r}" for price in prices)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _text(key: int) -> str:
    """A 64-bit key as text; SQLite's integers are signed."""
    return f"{key:016x}"


def _parsed(row: tuple[Any, ...]) -> Price | None:
    """A row of the database; None where it is not what we wrote."""
    try:
        context, own, op, us, spread, warm_us, analytic_us, num_graphs = row
        price = Price(
            own=int(own, 16),
            context=int(context, 16),
            op=str(op),
            us=float(us),
            spread=float(spread),
            warm_us=float(warm_us),
            analytic_us=float(analytic_us),
            num_graphs=int(num_graphs),
        )
    except (TypeError, ValueError):
        return None
    keys = (price.own, price.context)
    is_finite = all(
        math.isfinite(each) for each in (price.us, price.spread, price.warm_us, price.analytic_us)
    )
    return price if is_finite and price.is_plausible() and all(0 <= key < 2**64 for key in keys) else None


def _is_missing_table(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and "no such table" in str(error)


def _digest(key: str, payload: str) -> str:
    """Check sum that ties a payload to its key."""
    return hashlib.sha256(f"{key}\n{payload}".encode()).hexdigest()
