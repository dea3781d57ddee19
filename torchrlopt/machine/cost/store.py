"""Stores the profile on disk: measured node times by device and executor, and probe results.

The profile contains only numbers and names. Tampering with it can cause a bad plan, but every plan is
verified and timed before use.
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

from torchrlopt.storage.bundle import Bundle, Entry, given_bundle
from torchrlopt.storage.checked_json import checksum, is_whole, parsed
from torchrlopt.storage.directory import default_directory
from torchrlopt.storage.sqlite import Database

_MAX_US = 1e9  # longer times are implausible
_MAX_GRAPHS = 10**9  # upper bound of the weight of a price
PRICES, PROBE = "prices", "probe"  # kinds of entries in a bundle
MAX_PRICES = 200_000  # keeps the most recently measured

# A new version of the format uses new tables next to these.
_TABLES = {
    "prices_2": """(
        device text not null, executor text not null, context text not null, own text not null,
        op text not null, us real not null, analytic_us real not null, num_graphs integer not null,
        measured_at real not null,
        primary key (device, executor, context)
    ) without rowid""",
    "probes_1": """(
        device text primary key, payload text not null, digest text not null, measured_at real not null
    ) without rowid""",
}
_OLDEST = """
delete from prices_2 where (device, executor, context) in (
    select device, executor, context from prices_2
    order by min(cast(measured_at as real), ?) desc limit -1 offset ?
)
"""
_ALL = """
select device, executor, count(*), max(0.0, min(cast(min(measured_at) as real), :now)),
    max(0.0, min(cast(max(measured_at) as real), :now))
from prices_2 group by device, executor
"""
_COLUMNS = "context, own, op, us, analytic_us, num_graphs"
_DATED = f"{_COLUMNS}, measured_at"
_PRICE = "into prices_2 values (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PRICE_IF_NEWER = f"""
insert {_PRICE} on conflict do update set own = excluded.own, op = excluded.op, us = excluded.us,
    analytic_us = excluded.analytic_us, num_graphs = excluded.num_graphs, measured_at = excluded.measured_at
where excluded.measured_at > prices_2.measured_at
"""
_PROBE_IF_NEWER = """
insert into probes_1 values (?, ?, ?, ?) on conflict do update set payload = excluded.payload,
    digest = excluded.digest, measured_at = excluded.measured_at
where excluded.measured_at > probes_1.measured_at
"""


@dataclasses.dataclass(frozen=True)
class Price:
    """The measured time of one node in the context of its neighbours.

    Attributes:
        own: key of the node alone.
        context: key of the node with its neighbours.
        op: its operator.
        us: median time in the graphs that contain it, in microseconds; 0 if it is fused into another node's
            kernel.
        analytic_us: time predicted by the analytic model, in microseconds.
        num_graphs: number of graphs in which it was timed.
    """

    own: int
    context: int
    op: str
    us: float
    analytic_us: float
    num_graphs: int

    def is_plausible(self) -> bool:
        """Whether all numbers are finite and in range."""
        is_counted = 0 < self.num_graphs <= _MAX_GRAPHS
        return all(0 <= each <= _MAX_US for each in (self.us, self.analytic_us)) and is_counted

    def merged(self, other: Price) -> Price:
        """Return the mean of both, weighted by their numbers of graphs."""
        total = self.num_graphs + other.num_graphs
        us = self.us + other.num_graphs / total * (other.us - self.us)
        return dataclasses.replace(other, us=us, num_graphs=min(total, _MAX_GRAPHS))


@dataclasses.dataclass(frozen=True)
class Profile:
    """Summary of the stored prices of one executor on one device.

    `oldest` and `newest` are times of measurements, in seconds since the epoch.
    """

    device: str
    executor: str
    num_prices: int
    oldest: float
    newest: float


class ProfileStore(Database):
    """Prices by device and executor, on disk."""

    def __init__(self, directory: Path | None = None, max_prices: int = MAX_PRICES) -> None:
        directory = directory or default_directory()
        super().__init__(directory / "profile.sqlite", "the profile", _TABLES)
        self.max_prices = max_prices

    def prices(self, device: str, executor: str) -> dict[int, Price]:
        """Return all undamaged prices of an executor on a device (fingerprint), by context key."""
        query = f"select {_COLUMNS} from prices_2 where device = ? and executor = ?"
        rows = self.rows(query, (device, executor))
        if not rows:  # prices of two sources would be a third set, for which no plan is stored
            rows = [row[:-1] for row in _rows_of(given_bundle().get(PRICES, f"{device} {executor}"))]
        return {price.context: price for price in map(_parsed, rows) if price is not None}

    def add(self, device: str, executor: str, prices: Iterable[Price], replace: bool = False) -> None:
        """Store prices; never raises if the disk is not writable.

        Implausible prices are skipped. With `replace`, they replace those of the same nodes; else the mean is
        stored.
        """
        fresh = [price for price in prices if price.is_plausible()]
        one = f"select {_COLUMNS} from prices_2 where device = ? and executor = ? and context = ?"

        def merge(db: sqlite3.Connection) -> None:
            for price in fresh:
                row = db.execute(one, (device, executor, _text(price.context))).fetchone()
                old = None if replace or row is None else _parsed(row)
                merged = price if old is None else old.merged(price)
                db.execute(f"insert or replace {_PRICE}", _row_of(device, executor, merged, time.time()))
            self._evict(db)

        self.write(merge)

    def _evict(self, db: sqlite3.Connection) -> None:
        """Delete the oldest measurements beyond the limit."""
        (count,) = db.execute("select count(*) from prices_2").fetchone()
        if count > self.max_prices:
            db.execute(_OLDEST, (time.time(), self.max_prices))

    def probe(self, device: str) -> dict[str, Any] | None:
        """Return the probe results for a device, or None if it has not run or the entry is damaged."""
        found = self.rows("select payload, digest from probes_1 where device = ?", (device,))
        probe = parsed(found[0][0]) if found and is_whole(device, *found[0]) else None
        probe = probe or (given_bundle().get(PROBE, device) or {}).get("probe")
        return probe if _is_probe(probe) else None

    def put_probe(self, device: str, found: Mapping[str, Any]) -> None:
        """Store probe results; never raises if the disk is not writable."""
        text = json.dumps(dict(found), allow_nan=False)
        row = (device, text, checksum(device, text), time.time())
        self.write(lambda db: db.execute("insert or replace into probes_1 values (?, ?, ?, ?)", row))

    def profiles(self) -> list[Profile]:
        """Return summaries of the profiles on disk."""
        rows = self.rows(_ALL, {"now": time.time()})
        return [Profile(str(device), str(executor), *rest) for device, executor, *rest in rows]

    @property
    def num_probes(self) -> int:
        """Number of probed devices."""
        return len(self.rows("select device from probes_1"))

    def bundled(self) -> list[Entry]:
        """Return what is on disk as entries of a bundle, with the prices of an executor and device as one."""
        prices: dict[str, list[Any]] = {}
        for device, executor, *row in self.rows(f"select device, executor, {_DATED} from prices_2"):
            if _parsed(tuple(row[:-1])) is not None and _is_time(row[-1]):
                prices.setdefault(f"{device} {executor}", []).append(row)
        found: list[Entry] = [(PRICES, key, {"rows": rows}) for key, rows in prices.items()]
        for device, at in self.rows("select device, measured_at from probes_1"):
            probe = self.probe(device)
            if probe is not None and _is_time(at):
                found.append((PROBE, str(device), {"probe": probe, "measured_at": at}))
        return found

    def merge(self, bundle: Bundle) -> tuple[int, int] | None:
        """Add the prices and probes of a bundle, in one transaction; the newer of two measurements stays.

        Returns:
            How many prices and probes have changed; None if the disk is not writable: then nothing has.

        Raises:
            CacheError: the bundle is damaged.
        """
        now, counts = time.time(), [0, 0]
        prices, probes = [], []
        for key, payload in bundle.entries(PRICES):
            device, _, executor = key.partition(" ")
            for *row, at in _rows_of(payload):
                price = _parsed(tuple(row))
                if price is not None and _is_time(at, now):
                    prices.append(_row_of(device, executor, price, at))
        for device, payload in bundle.entries(PROBE):
            probe, at = payload.get("probe"), payload.get("measured_at")
            if _is_probe(probe) and _is_time(at, now):
                text = json.dumps(probe, allow_nan=False)
                probes.append((device, text, checksum(device, text), at))

        def add(db: sqlite3.Connection) -> None:
            counts[0] = db.executemany(_PRICE_IF_NEWER, prices).rowcount
            counts[1] = db.executemany(_PROBE_IF_NEWER, probes).rowcount
            self._evict(db)

        return (max(0, counts[0]), max(0, counts[1])) if self.write(add) else None


def digest_of(prices: Iterable[Price]) -> str:
    """Return the SHA-256 (hexadecimal) of prices, independent of their order."""
    lines = sorted(f"{price.context} {price.us!r}" for price in prices)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _row_of(device: str, executor: str, price: Price, at: float) -> tuple[Any, ...]:
    """Return the row of the database for a price."""
    keys = (device, executor, _text(price.context), _text(price.own), price.op)
    return (*keys, price.us, price.analytic_us, price.num_graphs, at)


def _rows_of(payload: Mapping[str, Any] | None) -> list[tuple[Any, ...]]:
    """Return the rows of prices of a bundle's entry, which may be malformed, with when each was measured."""
    rows = (payload or {}).get("rows")
    rows = rows if isinstance(rows, list) else []
    return [tuple(row) for row in rows if isinstance(row, list) and len(row) == len(_DATED.split(", "))]


def _is_time(value: Any, now: float = math.inf) -> bool:
    return isinstance(value, int | float) and 0 <= value <= now


def _text(key: int) -> str:
    """Return a 64-bit key as text, because SQLite's integers are signed."""
    return f"{key:016x}"


def _parsed(row: tuple[Any, ...]) -> Price | None:
    """Parse a row of the database; return None if it is malformed."""
    try:
        context, own, op, us, analytic_us, num_graphs = row
        price = Price(int(own, 16), int(context, 16), str(op), float(us), float(analytic_us), int(num_graphs))
    except (TypeError, ValueError, OverflowError):
        return None
    keys = (price.own, price.context)
    is_finite = math.isfinite(price.us) and math.isfinite(price.analytic_us)
    return price if is_finite and price.is_plausible() and all(0 <= key < 2**64 for key in keys) else None


def _is_probe(found: Any) -> bool:
    """Whether a JSON value holds valid parameters of a cost model."""
    if not isinstance(found, dict) or not isinstance(found.get("model"), dict):
        return False
    numbers = found["model"].values()
    return all(isinstance(each, int | float) and math.isfinite(each) and each > 0 for each in numbers)
