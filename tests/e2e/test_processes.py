"""Optimised modules in DataLoader workers, forked and spawned processes, which share one cache."""

from __future__ import annotations

import functools
import gc
import os
import random
import signal
import sqlite3
import threading
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tests.crosses import nightly_but
from tests.e2e.models import QUICK, Branches, build, close
from tests.forks import fork, run, wait
from torchrlopt import optimise
from torchrlopt.plan.store import PlanStore

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

X = torch.randn(4, 5, 16, generator=torch.Generator().manual_seed(0))
LIMIT_S = 60


class Features(Dataset[torch.Tensor]):
    """What a model makes of each of a few tensors, computed in the worker."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.model(X[index]).detach()


@pytest.mark.parametrize("way", ["fork", pytest.param("spawn", marks=pytest.mark.nightly)])
def test_workers_of_a_data_loader(way: str) -> None:
    model = build(Branches)
    fast = optimise(model, X[0], **QUICK)
    loader = DataLoader(
        Features(fast), batch_size=2, num_workers=1, multiprocessing_context=way, timeout=LIMIT_S
    )
    close(torch.cat([*loader]), model(X).detach())


@pytest.mark.parametrize("executor", nightly_but(["eager"], ["eager", "onnxruntime", "openvino"]))
def test_a_fork_goes_on_with_what_was_compiled(executor: str) -> None:
    """Threads of a runtime do not live on in the child, which must not wait for them to end."""
    if executor != "eager":
        pytest.importorskip(executor)
    model = build(Branches)
    before = torch.get_num_threads()
    try:
        # Two threads for the runtime; PyTorch's own cannot live on in a child, whoever calls it.
        torch.set_num_threads(1 if executor == "eager" else 2)
        fast = optimise(model, X[0], **{**QUICK, "executor": executor})
    finally:
        torch.set_num_threads(before)
    assert fast.report.kept == "rewritten"

    def work() -> None:
        close(fast(X[0]), model(X[0]).detach())
        with torch.no_grad():
            model.a.weight.add_(1)
        close(fast(X[0]), model(X[0]).detach())
        close(fast(X[0, :3]), model(X[0, :3]).detach())
        torch._dynamo.reset()
        gc.collect()

    run(work)
    close(fast(X[0]), model(X[0]).detach())


def test_a_fork_compiles_for_itself() -> None:
    model = build(Branches)
    fast = optimise(model, **QUICK)

    def work() -> None:
        close(fast(X[0]), model(X[0]).detach())
        assert fast.report.kept == "rewritten"

    run(work)
    assert fast.reports == []


# ---- the cache

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

    thread = threading.Thread(target=store.write, args=(change,))
    thread.start()
    has_begun.wait()
    run(child, child)
    thread.join()
    assert store.get("child") == {"x": 1}
