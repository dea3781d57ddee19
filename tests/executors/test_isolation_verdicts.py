"""Remembered results of tasks in separate processes: torchrlopt/executors/isolation/verdicts.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchrlopt.errors import LoweringError
from torchrlopt.executors.isolation import verdicts
from torchrlopt.executors.isolation.task import Task, tried


@pytest.fixture(scope="module")
def helper() -> Path:
    return Path(__file__).with_name("isolated_runtime.py")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A store on disk, and no memory of this process."""
    kept: dict[str, Any] = {}

    class Store:
        def get(self, key: str) -> dict[str, Any] | None:
            return json.loads(kept[key]) if key in kept else None

        def put(self, key: str, payload: Any) -> None:
            kept[key] = json.dumps(payload)

    place = verdicts._Place()
    place.store = Store
    monkeypatch.setattr(verdicts, "_PLACE", place)
    monkeypatch.setattr(verdicts, "_KNOWN", {})
    return kept


def tries(helper: Path, what: str, key: str, is_stored: bool = True, **options: Any) -> dict[str, Any]:
    task = Task(what, options, {"x": np.ones(8)}, 60.0, 1 << 30)
    return tried(helper, "This", task, "built it", key, is_stored)


def forget() -> None:
    verdicts._KNOWN.clear()  # as another process has it


@pytest.mark.parametrize("is_stored", [True, False])
def test_what_survived_is_not_tried_again(is_stored: bool, helper: Path, store: dict[str, Any]) -> None:
    first = tries(helper, "pids", "a", is_stored)
    assert tries(helper, "pids", "a", is_stored) == first
    forget()
    again = tries(helper, "pids", "a", is_stored)
    assert (again == first) == is_stored == bool(store)


def test_a_crash_is_remembered_with_its_day(helper: Path, store: dict[str, Any]) -> None:
    with pytest.raises(
        LoweringError, match=r"This was tried .* its process ended with SIGSEGV while it built it$"
    ):
        tries(helper, "crash", "a")
    for _ in range(2):
        with pytest.raises(
            LoweringError, match=r"SIGSEGV while it built it, on \d{4}-\d\d-\d\d; remembered$"
        ):
            tries(helper, "pids", "a")  # is not begun
        forget()


@pytest.mark.parametrize("what", ["killed", "fill", "refuse"])
def test_what_may_have_come_from_outside_is_not_kept_on_disk(
    what: str, helper: Path, store: dict[str, Any]
) -> None:
    for _ in range(2):
        with pytest.raises(LoweringError):
            tries(helper, what, "a", bytes=20 << 30)
    assert not store


@pytest.mark.parametrize("kept", ["{}", '{"trial": 3}', '{"trial": {"answer": {}}}',
    '{"trial": {"answer": [], "at": 1e9}}', '{"trial": {"death": "x", "at": "today"}}',
    '{"trial": {"death": "x", "at": 1e999}}', '{"trial": {"death": "x", "at": 0}}'])  # fmt: skip
def test_a_verdict_that_is_malformed_or_old_is_a_miss(kept: str, helper: Path, store: dict[str, Any]) -> None:
    store["a"] = kept
    assert "worker" in tries(helper, "pids", "a")


def test_the_key_has_everything_in_it(store: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        verdicts.key_of({"a": 1}, b"x"),
        verdicts.key_of({"a": 2}, b"x"),
        verdicts.key_of({"a": 1}, b"y"),
        verdicts.key_of({"a": 1}, b"x", b""),
    ]
    monkeypatch.setattr(verdicts._PLACE, "machine", "another")
    keys.append(verdicts.key_of({"a": 1}, b"x"))
    assert len(set(keys)) == len(keys)
