"""The models passed to other runtimes: executors/onnx_runtimes/session_call.py.

An operator fused by a plan must not hide a pattern that a runtime recognises.
"""

from __future__ import annotations

import collections
from typing import Any

import onnx_ir
import pytest
import torch
from torch import nn

import torchrlopt
from tests.e2e.models import QUICK
from torchrlopt.executors.onnx_runtimes import session_call
from torchrlopt.onnx.opsets import NATIVE


class Gated(nn.Module):
    """Convolutions with SiLU behind them and beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = nn.functional.silu(self.norm(layer(x))) + nn.functional.silu(x)
        # A window beyond the image, as that of EfficientNet's last pool.
        return nn.functional.avg_pool2d(x, 1280, ceil_mode=True)


@pytest.mark.parametrize("searcher", ["none", "greedy"])
@pytest.mark.parametrize("executor", ["onnxruntime", "openvino"])
def test_runtimes_see_a_sigmoid_and_a_product(
    executor: str, searcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(executor)
    given: list[onnx_ir.Model] = []
    make = session_call.SessionCallable.__init__

    def watched(self: Any, model: onnx_ir.Model, *rest: Any) -> None:
        given.append(model)
        make(self, model, *rest)

    monkeypatch.setattr(session_call.SessionCallable, "__init__", watched)
    module, x = Gated().eval(), torch.randn(1, 8, 6, 6)
    optimised = torchrlopt.optimise(module, x, executor=executor, searcher=searcher, measure=False)
    with torch.no_grad():
        torch.testing.assert_close(optimised(x), module(x), rtol=1e-4, atol=1e-4)
    (model,) = given
    count = collections.Counter(node.op_type for node in model.graph)
    assert count["Sigmoid"] == 6
    assert not count["Swish"]
    assert not count["AveragePool"]
    assert model.graph.opset_imports[""] <= NATIVE
    if searcher == "greedy":
        assert not count["BatchNormalization"], "there was a plan"


@pytest.mark.parametrize("executor", ["onnxruntime", "openvino"])
def test_a_weight_that_nothing_reads(executor: str) -> None:
    """As that of a pooler whose output is left: runtimes are not given it."""
    pytest.importorskip(executor)

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.pooler = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.pooler(x[:, 0]).tanh()
            return self.layer(x).relu()

    module, x = Pooled().eval(), torch.randn(2, 3, 8)
    optimised = torchrlopt.optimise(module, x, **QUICK, executor=executor)
    with torch.no_grad():
        torch.testing.assert_close(optimised(x), module(x), rtol=1e-4, atol=1e-5)
    assert optimised.report.kept == "rewritten"
