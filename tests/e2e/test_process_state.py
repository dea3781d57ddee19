"""Compilation does not change process-wide state, as seen by other threads, including new ones."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.crosses import nightly_but
from tests.e2e.models import Branches, ConvNorm, build, compiled
from tests.process_state import changes, loggers, process_state
from torchrlopt import searcher_table

SEARCHERS = searcher_table.names()
#: AOTAutograd itself sets these for a while, with any backend.
BY_AOTAUTOGRAD = ("anomaly", "warnings")
#: Inductor itself raises the recursion limit when it compiles, and writes an address into the environment;
#: the setuptools that it imports adds to the path.
BY_INDUCTOR = ("environment", "limits", "path")


def in_new_thread(work: Callable[[], Any]) -> Any:
    """The result of a function in a thread that is born for it."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture(autouse=True)
def _nothing_frozen() -> Iterator[None]:
    """The state counts what is left out of garbage collection; what tests left out may die meanwhile."""
    gc.unfreeze()
    yield
    gc.freeze()


class Watcher:
    """A thread of the user's that looks all the time, with others that are born and look once."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.02):
            self.seen.append(process_state())
            self.seen.append(in_new_thread(process_state))


class Both(nn.Module):
    """A convolution with its normalisation, and linears that are merged."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = build(ConvNorm), build(Branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def unchanged(before: dict[str, Any], seen: list[dict[str, Any]], but: Collection[str] = ()) -> None:
    found = {
        name: values for each in seen for name, values in changes(before, each).items() if name not in but
    }
    assert found == {}, sorted(found)


def seeded() -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)


@pytest.mark.parametrize("name", nightly_but(["agent"], SEARCHERS))
def test_nothing_is_seen_of_a_compilation(name: str, two_threads: None, fresh_dynamo: None) -> None:
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))  # what Dynamo itself sets
    model, x = Both().eval(), torch.ones(1, 3, 16, 16)
    seeded()
    before, others = process_state(), in_new_thread(process_state)
    assert before["threads"] == others["threads"] == 2
    with Watcher() as watcher, torch.no_grad():
        compiled(model, budget_ms=100, searcher=name, measure=True)(x)
    unchanged(before, [process_state()])
    unchanged(others, [in_new_thread(process_state)])
    assert watcher.seen
    unchanged(others, watcher.seen, but=BY_AOTAUTOGRAD)


@pytest.mark.parametrize("executor", nightly_but(["onnxruntime"], ["inductor", "onnxruntime", "openvino"]))
def test_nothing_is_left_by_an_executor(executor: str, two_threads: None, fresh_dynamo: None) -> None:
    if executor != "inductor":
        pytest.importorskip(executor, reason="the executor needs it")
    x = torch.ones(1, 3, 16, 16)
    if executor == "inductor":
        with torch.no_grad():
            torch.compile(build(ConvNorm), backend="inductor")(x)  # what inductor itself sets
    model = Both().eval()
    seeded()
    before, others = process_state(), in_new_thread(process_state)
    with torch.no_grad():
        compiled(model, budget_ms=100, searcher="greedy", executor=executor)(x)
    unchanged(before, [process_state()], but=BY_INDUCTOR)
    unchanged(others, [in_new_thread(process_state)], but=BY_INDUCTOR)


def test_loggers_are_as_they_were(fresh_dynamo: None) -> None:
    with torch.no_grad():
        compiled(nn.Hardtanh(), searcher="greedy")(torch.ones(3))
    before = loggers()
    torch._dynamo.reset()
    with torch.no_grad():
        compiled(Both().eval(), searcher="greedy")(torch.ones(1, 3, 16, 16))
    assert changes(before, loggers()) == {}
