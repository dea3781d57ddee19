"""What is left of a rewritten graph that does not run."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import nn

import torchrlopt
from torchrlopt.compile import backend
from torchrlopt.executors.weights.prologue_cache import PrologueCache


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
