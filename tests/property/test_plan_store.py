"""The plan store against a dictionary, while the file undergoes everything that can happen to it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from torchrlopt.plan.store import PlanStore

MAX_ENTRIES = 4
keys = st.sampled_from("abcdef")
payloads = st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=8) | st.none(), max_size=3)


class Cache(RuleBasedStateMachine):
    """What was put is found, or nothing is; never something else, and never an error.

    `certain` must be found, the one used last at the end; `possible` may be: it was put before something
    happened to the file. In a damaged file nothing is certain until the store makes a new one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.certain: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self.possible: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        self.is_damaged = False
        self.reopen()
        self.file = self.inode()

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def inode(self) -> int | None:
        return os.stat(self.store.path).st_ino if self.store.path.exists() else None

    def watch(self) -> bool:
        """Whether the store has put the file aside: all that was in it is gone."""
        is_new = self.inode() != self.file
        if is_new:
            self.file, self.is_damaged = self.inode(), False
            self.certain.clear()
            self.possible.clear()
        return is_new

    @rule(key=keys, payload=payloads)
    def put(self, key: str, payload: dict[str, Any]) -> None:
        self.store.put(key, payload)
        self.watch()
        if self.is_damaged:
            self.possible[key].append(payload)
        else:
            self.possible.pop(key, None)
        self.certain[key] = payload
        self.certain.move_to_end(key)
        while len(self.certain) > MAX_ENTRIES:
            self.certain.popitem(last=False)

    @rule(key=keys)
    def get(self, key: str) -> None:
        found = self.store.get(key)
        if self.is_damaged:
            assert found is None or found in [*self.possible[key], self.certain.get(key)]
        elif key in self.certain:
            assert found == self.certain[key]
            self.certain.move_to_end(key)
        else:
            assert found is None or found in self.possible[key]
            if found is not None:
                self.certain[key] = found
        self.watch()

    @rule()
    def reopen(self) -> None:
        self.store = PlanStore(self.folder / "plans", max_entries=MAX_ENTRIES)

    @rule()
    def clear(self) -> None:
        assert self.store.clear()
        self.watch()
        self.certain.clear()
        if not self.is_damaged:
            self.possible.clear()

    @rule(noise=st.binary(min_size=1, max_size=64), where=st.floats(0, 1))
    def damage(self, noise: bytes, where: float) -> None:
        if self.store.path.exists():
            data = bytearray(self.store.path.read_bytes())
            at = int(where * len(data))
            data[at : at + len(noise)] = noise
            self.overwrite(bytes(data))

    @rule(part=st.floats(0, 1))
    def cut_off(self, part: float) -> None:
        if self.store.path.exists():
            data = self.store.path.read_bytes()
            self.overwrite(data[: int(part * len(data))])

    def overwrite(self, data: bytes) -> None:
        self.remove_log()
        self.store.path.write_bytes(data)
        self.lose()
        self.is_damaged = True

    def remove_log(self) -> None:
        for suffix in ("-wal", "-shm"):
            Path(f"{self.store.path}{suffix}").unlink(missing_ok=True)

    @rule(columns=st.sampled_from(["key text", "key text, payload text", "x, y, z"]))
    def other_version(self, columns: str) -> None:
        self.remove_log()
        self.store.path.unlink(missing_ok=True)
        self.store.path.parent.mkdir(mode=0o700, exist_ok=True)
        with contextlib.closing(sqlite3.connect(self.store.path)) as db:
            db.execute(f"create table plans ({columns})")
        self.lose()
        self.is_damaged = False

    @rule(column=st.sampled_from(["payload", "digest", "key", "used_at", "num_bytes"]))
    def poison(self, column: str) -> None:
        if self.store.path.exists():
            with (
                contextlib.suppress(sqlite3.Error),
                contextlib.closing(sqlite3.connect(self.store.path)) as db,
                db,
            ):
                db.execute(f"update plans set {column} = {column} || 'x'")
            self.lose()

    def lose(self) -> None:
        for key, payload in self.certain.items():
            self.possible[key].append(payload)
        self.certain.clear()
        self.file = self.inode()

    @invariant()
    def is_bounded_and_private(self) -> None:
        assert len(self.store.entries()) <= MAX_ENTRIES
        self.watch()
        if self.store.path.exists():
            assert self.store.path.parent.stat().st_mode & 0o777 == 0o700


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
