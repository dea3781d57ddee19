"""The plan store: round trips, damage, limits, threads (processes: tests/e2e/test_processes.py)."""

from __future__ import annotations

import functools
import json
import logging
import multiprocessing
import sqlite3
import time
from pathlib import Path

import pytest

from tests.forks import run
from torchrlopt.plan.store import MAX_ENTRY_BYTES, PlanStore
from torchrlopt.storage.checked_json import checksum
from torchrlopt.storage.directory import default_directory
from torchrlopt.storage.sqlite import MAX_ROW_BYTES


@pytest.fixture
def store(tmp_path: Path) -> PlanStore:
    return PlanStore(tmp_path / "plans")


def test_round_trip_across_instances(store: PlanStore) -> None:
    assert store.get("a") is None
    store.put("a", {"steps": [["fuse", 1]], "cost": 1.5})
    assert PlanStore(store.path.parent).get("a") == {"steps": [["fuse", 1]], "cost": 1.5}
    store.put("a", {"steps": []})
    assert store.get("a") == {"steps": []}
    store.clear()
    assert store.get("a") is None


def test_directory_that_others_can_write_is_not_used(
    store: PlanStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.put("a", {"x": 1})
    store.path.parent.chmod(0o777)
    assert store.get("a") is None
    store.put("b", {"x": 2})
    store.path.parent.chmod(0o700)
    assert store.get("b") is None
    assert "0700" in caplog.text


def test_an_unwritable_directory_keeps_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("not a directory")
    store = PlanStore(tmp_path / "file" / "plans")
    store.put("a", {"x": 1})
    store.put("b", {"x": 2})
    assert store.get("a") is None
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1, "one warning per cause"


def test_tampered_entry_is_a_miss(store: PlanStore) -> None:
    store.put("a", {"x": 1})
    with sqlite3.connect(store.path) as connection:
        connection.execute("update plans set payload = ? where key = 'a'", ('{"x": 2}',))
    connection.close()
    assert store.get("a") is None


NESTED = '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}"


@pytest.mark.parametrize("payload", [NESTED, '{"x": NaN}', '{"x": -Infinity}', "[1]", "null", "{", ""])
def test_a_payload_that_we_would_not_have_written_is_a_miss(store: PlanStore, payload: str) -> None:
    store.put("a", {"x": 1})
    store.put("b", {"x": 2})
    row = (payload, checksum("a", payload))  # the check sum is no secret
    with sqlite3.connect(store.path) as connection:
        connection.execute("update plans set payload = ?, digest = ? where key = 'a'", row)
    connection.close()
    assert store.get("a") is None
    assert [entry.payload for entry in store.entries()] == [{"x": 2}]


def test_an_entry_that_is_too_large_is_not_read(store: PlanStore) -> None:
    """One that we would not have put: SQLite itself makes no object of it."""
    store.put("a", {"x": 1})
    payload = json.dumps({"x": "y" * MAX_ROW_BYTES})
    with sqlite3.connect(store.path) as connection:
        connection.execute("update plans set payload = ?, digest = ?", (payload, checksum("a", payload)))
    connection.close()
    assert store.get("a") is None
    assert store.entries() == []
    store.put("a", {"x": 2})
    assert PlanStore(store.path.parent).get("a") == {"x": 2}


def test_the_largest_entry_is_kept(store: PlanStore) -> None:
    largest = {"x": "y" * (MAX_ENTRY_BYTES - len('{"x": ""}'))}
    store.put("a", largest)
    store.put("b", {"x": largest["x"] + "y"})
    assert PlanStore(store.path.parent).get("a") == largest
    assert PlanStore(store.path.parent).get("b") is None


@pytest.mark.parametrize("column", ["payload", "digest", "num_bytes", "used_at"])
@pytest.mark.parametrize(
    "value", ["cast(x'ff41' as text)", "x'00ff'", "-1", "9e999", "'zzz'", str(2**63 - 1)]
)
def test_a_poisoned_row_is_no_error(
    store: PlanStore, column: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "ab":
        store.put(name, {"x": name})
    with sqlite3.connect(store.path) as connection:
        connection.execute(f"update plans set {column} = {value} where key = 'a'")
    connection.close()
    assert store.get("a") in (None, {"x": "a"})
    small = PlanStore(store.path.parent, max_entries=2)
    for name in "bcd":
        small.put(name, {"x": name})
    assert [store.get(name) for name in "cd"] == [{"x": name} for name in "cd"]
    assert all(0 <= entry.used_at <= time.time() for entry in store.entries())
    assert not caplog.records


def test_least_recently_used_go_first(tmp_path: Path) -> None:
    store = PlanStore(tmp_path / "plans", max_bytes=1000)
    for name in "abcd":
        store.put(name, {"text": "x" * 200})
        if name != "a":
            assert store.get("a") is not None
    store.put("e", {"text": "x" * 200})
    assert store.get("a") is not None
    assert store.get("b") is None
    assert store.get("e") is not None


def test_number_of_entries_is_limited(tmp_path: Path) -> None:
    store = PlanStore(tmp_path / "plans", max_entries=3)
    for number in range(10):
        store.put(f"key {number}", {"x": number})
    assert [entry.payload["x"] for entry in store.entries()] == [7, 8, 9]


def test_entries_from_the_future_go_as_well(tmp_path: Path) -> None:
    """The clock was put back: what is new must not be what goes."""
    store = PlanStore(tmp_path / "plans", max_entries=3)
    for name in "abc":
        store.put(name, {"x": name})
    with sqlite3.connect(store.path) as connection:
        connection.execute("update plans set used_at = used_at + 1e9")
    connection.close()
    store.put("d", {"x": "d"})
    assert store.get("d") == {"x": "d"}
    assert len(store.entries()) == 3


def test_a_new_store_is_opened_by_several_at_once(tmp_path: Path) -> None:
    # SQLite refuses some of those that make a new database at the same moment; no entry may be lost.
    folders = [tmp_path / str(number) for number in range(20)]
    begin = multiprocessing.get_context("fork").Barrier(4)

    def put(name: str) -> None:
        for folder in folders:
            begin.wait(60)
            PlanStore(folder).put(name, {"name": name})

    run(*(functools.partial(put, name) for name in "abcd"))
    for folder in folders:
        assert [PlanStore(folder).get(name) for name in "abcd"] == [{"name": name} for name in "abcd"]


def test_default_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHRLOPT_CACHE_DIR", "/somewhere")
    assert default_directory() == Path("/somewhere")
    monkeypatch.delenv("TORCHRLOPT_CACHE_DIR")
    assert default_directory().name == "torchrlopt"
