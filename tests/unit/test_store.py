"""The plan store: round trips, damage, limits, permissions, several processes."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from torchrlopt.plan.store import PlanStore, make_key
from torchrlopt.storage.directory import default_directory


@pytest.fixture
def store(tmp_path: Path) -> PlanStore:
    return PlanStore(tmp_path / "plans")


def test_round_trip_across_instances(store: PlanStore) -> None:
    assert store.get("a") is None
    store.put("a", {"steps": [["fuse", 1]], "cost": 1.5})
    assert PlanStore(store.directory).get("a") == {"steps": [["fuse", 1]], "cost": 1.5}
    store.put("a", {"steps": []})
    assert store.get("a") == {"steps": []}
    store.clear()
    assert store.get("a") is None


def test_directory_is_private(store: PlanStore) -> None:
    store.put("a", {})
    assert store.directory.stat().st_mode & 0o777 == 0o700


def test_directory_that_others_can_write_is_not_used(
    store: PlanStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.put("a", {"x": 1})
    store.directory.chmod(0o777)
    assert store.get("a") is None
    store.put("b", {"x": 2})
    assert store.get("b") == {"x": 2}, "kept in memory"
    assert PlanStore(store.directory).get("b") is None
    assert "0700" in caplog.text


def test_unwritable_directory_means_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("not a directory")
    store = PlanStore(tmp_path / "file" / "plans")
    store.put("a", {"x": 1})
    store.put("b", {"x": 2})
    assert store.get("a") == {"x": 1}
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1, "one warning per cause"


@pytest.mark.parametrize("damage", ["garbage", "truncated", "page"])
def test_corrupt_database_is_put_aside(
    store: PlanStore, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    for i in range(60):
        store.put(f"key {i}", {"text": "x" * 500})
    data = bytearray(store.path.read_bytes())
    if damage == "garbage":
        data = bytearray(b"no database at all" * 1000)
    elif damage == "truncated":
        del data[len(data) // 2 :]
    else:
        data[1024:] = os.urandom(len(data) - 1024)
    store.path.write_bytes(data)
    for suffix in ("-wal", "-shm"):
        Path(f"{store.path}{suffix}").unlink(missing_ok=True)
    found = [store.get(f"key {i}") for i in range(60)]
    assert all(entry is None or entry == {"text": "x" * 500} for entry in found)
    store.put("new", {"x": 1})
    store.put("new", {"x": 1})  # damage found while writing costs one entry, not the next
    assert store.get("new") == {"x": 1}
    assert "damaged" in caplog.text


def test_tampered_entry_is_a_miss(store: PlanStore) -> None:
    store.put("a", {"x": 1})
    with sqlite3.connect(store.path) as connection:
        connection.execute("update plans set payload = ? where key = 'a'", ('{"x": 2}',))
    connection.close()
    assert store.get("a") is None


def test_entry_of_another_shape_is_a_miss(store: PlanStore) -> None:
    store.put("a", {"x": 1})
    with sqlite3.connect(store.path) as connection:
        connection.execute("drop table plans")
        connection.execute("create table plans (key text, other text)")
    connection.close()
    assert store.get("a") is None


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


def test_too_large_entry_is_not_stored(store: PlanStore) -> None:
    store.put("a", {"text": "x" * (5 * 2**20)})
    assert store.get("a") is None


def test_no_pickle_and_no_nan(store: PlanStore) -> None:
    with pytest.raises(TypeError):
        store.put("a", {"x": object()})
    with pytest.raises(ValueError, match="JSON"):
        store.put("a", {"x": float("nan")})


def test_processes_write_at_once(store: PlanStore) -> None:
    code = (
        "import sys; from pathlib import Path; from torchrlopt.plan.store import PlanStore\n"
        "store = PlanStore(Path(sys.argv[1]))\n"
        "for i in range(40): store.put(f'{sys.argv[2]} {i}', {'i': i})\n"
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", code, str(store.directory), name])
        for name in ("one", "two", "three")
    ]
    assert [run.wait(timeout=120) for run in runs] == [0, 0, 0]
    for name in ("one", "two", "three"):
        assert [store.get(f"{name} {i}") for i in range(40)] == [{"i": i} for i in range(40)]


def test_a_new_store_is_opened_by_several_at_once(tmp_path: Path) -> None:
    # SQLite refuses some of those that make a new database at the same moment; no entry may be lost.
    for number in range(60):
        begin = threading.Barrier(4)

        def put(name: str, folder: Path = tmp_path / str(number), begin: threading.Barrier = begin) -> None:
            begin.wait()
            PlanStore(folder).put(name, {"name": name})

        threads = [threading.Thread(target=put, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        opened = PlanStore(tmp_path / str(number))
        assert [opened.get(name) for name in "abcd"] == [{"name": name} for name in "abcd"]


def test_kill_while_writing_loses_nothing_written_before(store: PlanStore) -> None:
    store.put("before", {"x": 1})
    code = (
        "import sys; from pathlib import Path; from torchrlopt.plan.store import PlanStore\n"
        "store = PlanStore(Path(sys.argv[1])); print('ready', flush=True)\n"
        "i = 0\n"
        "while True: i += 1; store.put(f'k{i}', {'text': 'x' * 2000})\n"
    )
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", code, str(store.directory)], stdout=subprocess.PIPE, text=True
        ) as run:
            assert run.stdout is not None
            run.stdout.readline()
            run.kill()
        assert store.get("before") == {"x": 1}
        store.put("after", {"x": 2})
        assert store.get("after") == {"x": 2}


def test_key_depends_on_every_part() -> None:
    base = {"graph": "abc", "options": {"seed": 0}}
    assert make_key(base) == make_key(json.loads(json.dumps(base)))
    assert make_key(base) != make_key({**base, "graph": "abd"})
    assert make_key(base) != make_key({**base, "options": {"seed": 1}})


def test_default_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHRLOPT_CACHE_DIR", "/somewhere")
    assert default_directory() == Path("/somewhere")
    monkeypatch.delenv("TORCHRLOPT_CACHE_DIR")
    assert default_directory().name == "torchrlopt"
