"""torchrlopt/api/runner.py: the graphs of a call after others that have gained nothing."""

from __future__ import annotations

import torch
from torch import nn

import torchrlopt


class Cut(nn.Module):
    """Four small graphs, and a large one behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(8, 8), nn.ReLU()] * 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x + 1) / 2
        torch._dynamo.graph_break()
        x = torch.relu(x + 1) / 2
        torch._dynamo.graph_break()
        x = torch.relu(x + 1) / 2
        torch._dynamo.graph_break()
        x = torch.relu(x + 1) / 2
        torch._dynamo.graph_break()
        return self.layers(x)


def test_later_graphs_that_are_no_larger_are_left_alone() -> None:
    model, x = Cut().eval(), torch.randn(3, 8)
    with torch.no_grad():
        fast = torchrlopt.optimise(model, (x,), min_gain=0.99, cache=False, on_error="raise")
        torch.testing.assert_close(fast(x), model(x))
    left = ["no smaller than this one" in (each.fallback_reason or "") for each in fast.reports]
    assert left == [False, False, True, True, False]


def test_later_graphs_are_tried_after_a_gain() -> None:
    model, x = Cut().eval(), torch.randn(3, 8)
    with torch.no_grad():
        fast = torchrlopt.optimise(model, (x,), measure=False, cache=False, on_error="raise")
        torch.testing.assert_close(fast(x), model(x))
    assert not any("no smaller than this one" in (each.fallback_reason or "") for each in fast.reports)
