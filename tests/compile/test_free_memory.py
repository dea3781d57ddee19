"""What is left of a rewritten graph that does not run."""

from __future__ import annotations

import os
import platform
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchrlopt
from torchrlopt.compile import backend
from torchrlopt.compile.free_memory import return_free_memory
from torchrlopt.executors.weights.prologue_cache import PrologueCache


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators return memory themselves")
def test_freed_blocks_below_a_used_one_go_back_to_the_system() -> None:
    torch.ones(4 << 20)  # as it is freed, glibc starts to take smaller blocks from its heap
    blocks, used = [], []
    for _ in range(32):
        blocks.append(torch.ones(1 << 20))
        used.append(bytes(4096))
    before = _resident_bytes()
    blocks.clear()
    return_free_memory()
    assert before - _resident_bytes() > 100 << 20, "of 128 MiB"
    assert len(used) == 32


@pytest.mark.usefixtures("fresh_dynamo")
def test_packed_weights_of_a_dropped_graph_are_free_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[weakref.ref[torch.Tensor]] = []
    living: list[int] = []
    evaluate = PrologueCache._evaluated

    def evaluated(self: PrologueCache, weights: Any) -> tuple[Any, ...]:
        results = evaluate(self, weights)
        packed.extend(map(weakref.ref, results))
        return results

    monkeypatch.setattr(PrologueCache, "_evaluated", evaluated)
    monkeypatch.setattr(
        backend, "return_free_memory", lambda: living.append(sum(each() is not None for each in packed))
    )
    model, x = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64)).eval(), torch.randn(32, 256)
    options: dict[str, Any] = {"cache": False, "executor": "eager", "measure_ms": 1.0}
    fast = torchrlopt.optimise(model, x, **options, min_gain=0.99)
    assert fast.report.kept == "original"
    assert packed
    assert living == [0]
