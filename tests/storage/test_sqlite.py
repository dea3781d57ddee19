"""Databases that survive damage: the files of torchrlopt/storage/."""

from __future__ import annotations

import logging
import os
import random
import resource
import sqlite3
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.forks import as_ordinary_user, ordinary_directory, run
from torchrlopt.plan.store import PlanStore
from torchrlopt.storage import sqlite
from torchrlopt.storage.directory import make_private
from torchrlopt.storage.sqlite import Database

TABLES = {"facts": "(name text primary key, value real not null)"}


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "cache" / "facts.sqlite", "the facts", TABLES)


def put(database: Database, name: str, value: float = 1.0) -> bool:
    return database.write(lambda db: db.execute("insert or replace into facts values (?, ?)", (name, value)))


def names(database: Database) -> list[str]:
    return [name for (name,) in database.rows("select name from facts order by name")]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def modes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in (directory, *directory.iterdir())}


def test_files_are_for_this_user_only(database: Database) -> None:
    before = os.umask(0)
    try:
        seen: dict[str, int] = {}
        assert database.write(lambda db: seen.update(modes(database.path.parent)))
    finally:
        os.umask(before)
    assert seen == {
        "cache": 0o700,
        "facts.sqlite": 0o600,
        "facts.sqlite-wal": 0o600,
        "facts.sqlite-shm": 0o600,
    }


def test_files_from_before_are_closed_to_others(database: Database) -> None:
    folder = database.path.parent
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with sqlite3.connect(database.path) as db:
        db.execute("pragma journal_mode=wal")
        db.execute(f"create table facts {TABLES['facts']}")
        db.execute("insert into facts values ('old', 1.0)")
        db.commit()
        for path in folder.iterdir():
            path.chmod(0o644)
        assert put(database, "new")
        assert set(modes(folder).values()) == {0o700, 0o600}
    assert names(database) == ["new", "old"]


@pytest.mark.parametrize(
    "spelling", ["{}", "{}/", "{}//", "{}/.", "{}/../cache", "cache", "./cache", "{}-link"]
)
def test_a_named_directory_keeps_its_mode_however_it_is_spelled(
    database: Database, spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = database.path.parent
    folder.mkdir()
    folder.chmod(0o755)
    Path(f"{folder}-link").symlink_to(folder)
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("TORCHRLOPT_CACHE_DIR", spelling.format(folder))
    PlanStore().put("a", {})
    assert modes(folder) == {"cache": 0o755, "plans.sqlite": 0o600}


def test_a_directory_that_others_can_write_is_not_made_trusted(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    make_private(folder)
    assert folder.stat().st_mode & 0o777 == 0o777


def test_a_table_with_other_columns_is_made_anew(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.path.parent.mkdir(mode=0o700)
    with sqlite3.connect(database.path) as db:
        db.execute("create table facts (name text, other blob)")
        db.execute("insert into facts values ('old', 'x')")
    assert put(database, "a")
    assert put(database, "b")
    assert names(database) == ["a", "b"]
    (message,) = warnings_of(caplog)
    assert "other columns" in message
    with sqlite3.connect(database.aside) as db:
        assert db.execute("select name from facts").fetchall() == [("old",)]


def test_a_reader_finds_other_columns_too(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    database.path.parent.mkdir(mode=0o700)
    with sqlite3.connect(database.path) as db:
        db.execute("create table facts (name text, value real not null)")  # no key: rows would double
    assert names(database) == []
    assert not database.path.exists()
    assert put(database, "a")
    assert names(database) == ["a"]
    assert len(warnings_of(caplog)) == 1


def test_tables_of_others_stay(database: Database) -> None:
    database.path.parent.mkdir(mode=0o700)
    with sqlite3.connect(database.path) as db:
        db.execute("create table facts_2 (anything text)")
    assert names(database) == []
    assert put(database, "a")
    with sqlite3.connect(database.path) as db:
        assert db.execute("select count(*) from facts_2").fetchone() == (0,)


# Bytes of the header that say which versions of SQLite may read and write the file, and the schema.
@pytest.mark.parametrize(("at", "value"), [(18, 3), (18, 255), (19, 3), (19, 255), (47, 5), (47, 132)])
def test_a_damaged_header_costs_what_was_there_and_not_what_comes(
    database: Database, at: int, value: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert put(database, "a")
    damage(database, at, value)
    assert put(Database(database.path, "the facts", TABLES), "b"), "written to the new one at once"
    assert names(database) == ["b"]
    (message,) = warnings_of(caplog)
    assert "was damaged and starts anew" in message


def damage(database: Database, at: int, value: int) -> None:
    with sqlite3.connect(database.path) as db:
        db.execute("pragma wal_checkpoint(truncate)")
    db.close()
    content = bytearray(database.path.read_bytes())
    assert content[at] != value
    content[at] = value
    database.path.write_bytes(content)


def test_random_damage_heals(database: Database) -> None:
    """Four wrong bytes, in every third case in the header: whatever SQLite says of them."""
    for number in range(40):
        assert put(database, f"{number:02}" * 200)
    with sqlite3.connect(database.path) as db:
        db.execute("pragma wal_checkpoint(truncate)")
    db.close()
    content, draw = database.path.read_bytes(), random.Random(0)
    for case in range(300):
        for part in ("-wal", "-shm"):
            Path(f"{database.path}{part}").unlink(missing_ok=True)
        damaged = bytearray(content)
        for _ in range(4):
            damaged[draw.randrange(len(content) if case % 3 else 100)] = draw.randrange(256)
        database.path.write_bytes(damaged)
        names(database)
        assert put(database, "new"), f"case {case}"
        assert put(database, "new"), f"case {case}"


def test_a_damaged_database_heals_where_nothing_can_be_put_aside(database: Database) -> None:
    assert put(database, "a")
    database.aside.mkdir()
    (database.aside / "theirs").write_text("x")
    database.path.write_bytes(b"no database at all" * 1000)
    assert put(database, "b")
    assert names(database) == ["b"]
    assert (database.aside / "theirs").exists()


def test_a_pipe_is_no_database(database: Database) -> None:
    """And is not waited for."""
    database.path.parent.mkdir(mode=0o700)
    os.mkfifo(database.path)
    assert names(database) == []
    assert not put(database, "a")
    assert stat.S_ISFIFO(database.path.stat().st_mode)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to others")
@pytest.mark.parametrize("part", ["", "-wal"])
def test_a_database_of_another_user_is_put_aside(
    database: Database, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert put(database, "theirs")
    path = Path(f"{database.path}{part}")
    path.touch()
    os.chown(path, 4321, 4321)
    assert names(database) == []
    assert put(database, "ours")
    assert names(database) == ["ours"]
    assert database.path.stat().st_uid == 0
    (message,) = warnings_of(caplog)
    assert "another user" in message


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_database_that_others_can_write_is_put_aside(database: Database, mode: int) -> None:
    assert put(database, "theirs")
    database.path.chmod(mode)
    assert names(database) == []
    assert put(database, "ours")
    assert names(database) == ["ours"]
    assert database.path.stat().st_mode & 0o777 == 0o600


def test_what_another_process_made_anew_is_not_put_aside(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert put(database, "a")
    database.path.write_bytes(b"no database at all" * 1000)
    other = Database(database.path, "the facts", TABLES)
    plain = Database._quarantine

    def late(self: Database, error: Exception, file: int | None) -> None:
        if self is database:  # the other one has seen the damage first
            monkeypatch.setattr(Database, "_quarantine", plain)
            assert put(other, "theirs")
        plain(self, error, file)

    monkeypatch.setattr(Database, "_quarantine", late)
    assert put(database, "ours")
    assert names(database) == ["ours", "theirs"]


def test_broken_text_does_not_hide_other_rows(database: Database) -> None:
    assert put(database, "a")
    with sqlite3.connect(database.path) as db:
        db.execute("insert into facts values (cast(x'ff41' as text), 1.0)")
    assert names(database) == ["a", "�A"]


class _Small(sqlite3.Connection):
    """A connection on a disk that is nearly full."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.execute("pragma max_page_count=8")


def test_a_full_disk_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = sqlite3.connect
    monkeypatch.setattr(sqlite.sqlite3, "connect", lambda *a, **k: plain(*a, factory=_Small, **k))
    store = PlanStore(tmp_path / "plans")
    for number in range(8):
        store.put(f"key {number}", {"text": str(number) * 3000})
    assert store.get("key 7") is None
    assert store.get("key 0") == {"text": "0" * 3000}
    (message,) = warnings_of(caplog)
    assert "full" in message


def test_a_file_that_may_not_grow_keeps_what_was_there(tmp_path: Path) -> None:
    """The system refuses the write, as it does on a full disk."""

    def work() -> None:
        store = PlanStore(tmp_path / "plans")
        store.put("before", {"x": 1})
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        for number in range(20):
            store.put(f"key {number}", {"text": str(number) * 3000})
        assert store.get("key 19") is None
        assert store.get("before") == {"x": 1}

    run(work)
    assert PlanStore(tmp_path / "plans").get("before") == {"x": 1}


def test_a_read_only_directory_is_read() -> None:
    with ordinary_directory() as folder:

        def fill() -> None:
            PlanStore(folder).put("old", {"x": 1})

        def use() -> None:
            store = PlanStore(folder)
            assert store.get("old") in (None, {"x": 1})
            store.put("new", {"x": 2})
            assert store.get("new") is None

        as_ordinary_user(fill)
        for path in folder.iterdir():
            path.chmod(0o400)
        folder.chmod(0o500)
        as_ordinary_user(use)
        folder.chmod(0o700)


def test_a_directory_behind_a_closed_door_is_no_error() -> None:
    with ordinary_directory() as folder:
        inside = folder / "closed" / "plans"

        def work() -> None:
            store = PlanStore(inside)
            store.put("a", {"x": 0})
            inside.parent.chmod(0)
            try:
                assert PlanStore(inside).get("a") is None
                PlanStore(inside).put("a", {"x": 1})
            finally:
                inside.parent.chmod(0o700)

        as_ordinary_user(work)


def test_what_is_not_vital_does_not_wait(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    assert put(database, "a")
    with sqlite3.connect(database.path, isolation_level=None) as other:
        other.execute("begin immediate")
        assert not database.write(lambda db: db.execute("delete from facts"), is_vital=False)
        other.execute("rollback")
    assert names(database) == ["a"]
    assert not warnings_of(caplog)


def test_writers_in_threads_wait_for_each_other(database: Database) -> None:
    def fill(name: str) -> None:
        for number in range(20):
            assert put(database, f"{name} {number:02}")

    threads = [threading.Thread(target=fill, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names(database)) == 80


def test_clearing_gives_the_space_back(tmp_path: Path) -> None:
    store = PlanStore(tmp_path / "plans")
    for number in range(50):
        store.put(f"key {number}", {"text": "x" * 20_000})
    (tmp_path / "plans" / "plans.corrupt").write_bytes(b"x" * 100_000)
    assert store.num_bytes > 1_100_000
    assert store.clear()
    assert store.num_bytes < 100_000
    assert store.entries() == []
    store.put("a", {"x": 1})
    assert store.get("a") == {"x": 1}
