"""Forms of one graph in other types share what they have in common over weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torchrlopt.capture.job import jobs_of
from torchrlopt.executors.eager.executor import assemble
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.lowering.onnx_to_aten import lower_captured
from torchrlopt.executors.precision.retyped import CONTRACTIONS, lowerable, retyped
from torchrlopt.executors.weights.shared_results import SharedResults
from torchrlopt.options import LoweringOptions
from torchrlopt.torch_private.modes import without_dispatch_modes


@pytest.mark.skipif(indirect.kernels() is None, reason="there are no kernels of our own here")
def test_what_is_packed_alike_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)]
    model = nn.Sequential(*layers).eval()
    (job,) = jobs_of(model, (torch.randn(8, 64),))
    static, inputs = job.captured.static_inputs, job.traced.own_inputs()
    with without_dispatch_modes():
        module = lower_captured(job.captured.model, job.captured)
    products = [each.name for each in lowerable(module.graph, static) if each.target in CONTRACTIONS]
    shared, packed, pack = SharedResults(), [0], indirect.pack

    def counted(*args: Any) -> torch.Tensor:
        packed[0] += 1
        return pack(*args)

    monkeypatch.setattr(indirect, "pack", counted)

    def run(names: list[str], known: SharedResults | None) -> tuple[torch.Tensor, int]:
        before = packed[0]
        with without_dispatch_modes(), torch.no_grad():
            form = assemble(retyped(module, names), static, LoweringOptions(), shared=known)
            return form(*inputs)[0], packed[0] - before

    first, count = run([], shared)
    assert count == len(products) == 3
    again, count = run([], shared)
    assert count == 0
    assert torch.equal(first, again)
    _, count = run(products[:1], shared)
    assert count == 1, "that in another type"
    with torch.no_grad():
        model[2].weight.mul_(-2)
    new, count = run([], shared)
    assert count == 1, "that which has changed"
    assert not torch.equal(first, new)
    assert torch.equal(new, run([], None)[0])
