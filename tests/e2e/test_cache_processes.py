"""Several processes sharing one cache: killed writers, concurrent readers and writers, forks."""

from __future__ import annotations

import functools
import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.e2e.models import Branches, ConvNorm, build, compiled, last_report
from tests.forks import fork, run, wait
from torchrlopt.plan.store import PlanStore

#: Rounds of killing two writers; the reliability of the cache was established with 100.
KILLS = int(os.environ.get("TORCHRLOPT_TEST_KILLS", "10"))


def payload_of(name: str) -> dict[str, str]:
    return {"name": name, "text": name * 200}


def write_on(folder: Path, name: str, told: int) -> None:
    """Put entries for ever, and tell of each that was put."""
    store = PlanStore(folder)
    number = 0
    while True:
        number += 1
        store.put(f"{name} {number}", payload_of(f"{name} {number}"))
        os.write(told, f"{name} {number}\n".encode())


def test_killed_writers_lose_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    generator = random.Random(1)
    told: list[str] = []
    for round_ in range(KILLS):
        read, write = os.pipe()
        children = [
            fork(functools.partial(write_on, tmp_path / "plans", f"{name}{round_}", write)) for name in "ab"
        ]
        os.close(write)
        with os.fdopen(read) as pipe:
            told.append(pipe.readline().strip())  # one of them is at work
            time.sleep(generator.uniform(0.0, 0.1))
            for child in children:
                os.kill(child, signal.SIGKILL)
            assert [wait(child) for child in children] == [-signal.SIGKILL] * 2
            told += pipe.read().split("\n")[:-1]
        found = {entry.payload["name"]: entry.payload for entry in PlanStore(tmp_path / "plans").entries()}
        assert [name for name in told if found.get(name) != payload_of(name)] == []
        told = told[-50:]  # of earlier rounds the last ones are enough
    assert not caplog.records


def test_four_write_while_four_read(tmp_path: Path) -> None:
    names = [f"{name} {number}" for number in range(25) for name in "abcd"]

    def write(name: str) -> None:
        store = PlanStore(tmp_path / "plans")
        for number in range(25):
            store.put(f"{name} {number}", payload_of(f"{name} {number}"))
        assert not store._memory, "all of it is on disk"

    def read(seed: int) -> None:
        store, left = PlanStore(tmp_path / "plans"), set(names)
        deadline = time.monotonic() + 60
        while left and time.monotonic() < deadline:
            name = min(left, key=lambda each: hash((seed, each)))
            for each in [name, *list(left)[:3]]:
                found = store.get(each)
                assert found is None or found == payload_of(each)
                if found is not None:
                    left.discard(each)
        assert not left
        assert not store._database._warned

    writers = [lambda name=name: write(name) for name in "abcd"]
    readers = [lambda seed=seed: read(seed) for seed in range(4)]
    run(*writers, *readers)
    store = PlanStore(tmp_path / "plans")
    assert [name for name in names if store.get(name) != payload_of(name)] == []


@pytest.mark.nightly
def test_two_processes_plan_the_same_at_once(tmp_path: Path, fresh_dynamo: None) -> None:
    x = torch.randn(5, 16)
    read, write = os.pipe()  # both begin when it is closed

    def work(name: str) -> None:
        os.close(write)
        os.read(read, 1)
        model = build(Branches)
        fast = compiled(model)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x))
        report = last_report()
        assert report.kept == "rewritten"
        (tmp_path / name).write_text(str(report.steps))

    children = [fork(lambda name=name: work(name)) for name in "ab"]
    os.close(write)
    assert [wait(child) for child in children] == [0, 0]
    os.close(read)
    with torch.no_grad():
        compiled(build(Branches))(x)
    assert last_report().is_cache_hit
    assert str(last_report().steps) in [(tmp_path / name).read_text() for name in "ab"]


def test_a_child_calls_what_its_parent_compiled_and_compiles_more(fresh_dynamo: None) -> None:
    model, x, image = build(Branches), torch.randn(5, 16), torch.randn(1, 3, 8, 8)
    fast = compiled(model)

    def compare(fast: Callable[..., torch.Tensor], model: torch.nn.Module, x: torch.Tensor) -> None:
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x))

    def child() -> None:
        compare(fast, model, x)
        compare(fast, model, torch.randn(7, 16))
        other = build(ConvNorm)
        compare(compiled(other), other, image)
        assert last_report().kept == "rewritten"
        torch._dynamo.reset()
        compare(compiled(model), model, x)
        assert last_report().is_cache_hit

    compare(fast, model, x)
    run(child, child)
    compare(fast, model, x)
    other = build(ConvNorm)
    compare(compiled(other), other, image)
    assert last_report().is_cache_hit, "planned by the children"


def test_a_fork_waits_until_nobody_is_inside_sqlite(tmp_path: Path) -> None:
    store, has_begun = PlanStore(tmp_path / "plans"), threading.Event()
    is_over: list[bool] = []

    def change(db: sqlite3.Connection) -> None:
        has_begun.set()
        time.sleep(0.2)  # a fork that does not wait happens now
        is_over.append(True)

    def child() -> None:
        assert is_over
        store.put("child", {"x": 1})
        assert store.get("child") == {"x": 1}

    thread = threading.Thread(target=store._database.write, args=(change,))
    thread.start()
    has_begun.wait()
    run(child, child)
    thread.join()
    assert store.get("child") == {"x": 1}


@pytest.mark.nightly
def test_children_of_a_process_that_writes(tmp_path: Path) -> None:
    store, is_over = PlanStore(tmp_path / "plans"), threading.Event()

    def write() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            store.put(f"parent {number % 50}", payload_of("parent"))

    def child(name: str) -> None:
        for number in range(5):
            store.put(f"{name} {number}", payload_of(name))
            assert store.get(f"{name} {number}") == payload_of(name)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for round_ in range(5):
            run(*(functools.partial(child, f"{name} {round_}") for name in "ab"))
    finally:
        is_over.set()
        thread.join()
    assert store.get("b 4 4") == payload_of("b 4")
