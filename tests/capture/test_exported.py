"""torch.export's graph is the one that the backend sees, so that plans and kernels fit both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from torchrlopt.capture.exported import export
from torchrlopt.capture.trace import Traced, visit


class Composites(nn.Module):
    """Convolutions, pools and products, which torch.export keeps as they were called."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.deconv = nn.ConvTranspose2d(8, 8, 2, groups=2)
        self.linear, self.layer = nn.Linear(8, 5), nn.LayerNorm(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        x = self.deconv(x)
        x = functional.adaptive_avg_pool2d(x, 1).flatten(1)
        return self.layer(self.linear(x)) @ self.linear.weight


def operators(aten: torch.fx.GraphModule) -> list[str]:
    return sorted(str(node.target) for node in aten.graph.nodes if node.op == "call_function")


@pytest.mark.usefixtures("fresh_dynamo")
def test_composites_are_taken_apart_as_for_the_backend() -> None:
    model, x, live = Composites().eval(), torch.randn(2, 3, 9, 9), list[Traced]()
    visit(model, x, live.append, pytest.fail)
    exported = export(model, (x,), {}, None).traced
    assert operators(exported.aten) == operators(live[0].aten)
    assert "aten.convolution.default" in operators(exported.aten)


def test_what_is_first_asked_for_while_we_trace_does_not_spoil_later_exports(tmp_path: Path) -> None:
    """Importing inductor asks for all decompositions, and torch keeps the answer."""
    program = """
import sys, torch
from torchrlopt.capture.whole import whole_operators
with whole_operators():
    import torch._inductor.decomposition
torch.onnx.export(torch.nn.ReLU(), (torch.ones(2),), sys.argv[1], dynamo=True, verbose=False)
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "relu.onnx")], check=True)
