"""A model as quantisers of exported graphs leave it: its integers are multiplied, no less exactly."""

from __future__ import annotations

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines the operators
from torch import Tensor, nn

import torchrlopt
from torchrlopt.executors.eager.kernels import indirect

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.skipif(
        not indirect.has_int8(torch.float32), reason="no products of 8-bit integers in this processor"
    ),
]
ops = torch.ops.quantized_decomposed


class Quantised(nn.Module):
    """A convolution with a ReLU, a residual convolution and a linear layer, of random integers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name, shape in (("a", (32, 16, 3, 3)), ("b", (32, 32, 1, 1)), ("c", (10, 32))):
            self.register_buffer(name, torch.randint(-127, 128, shape).to(torch.int8))
            self.register_buffer(f"{name}_scales", torch.rand(shape[0]) / 2000 + 1e-4)
            self.register_buffer(f"{name}_zeros", torch.zeros(shape[0], dtype=torch.int64))
            self.register_buffer(f"{name}_bias", torch.randn(shape[0]) / 8)

    def weight(self, name: str) -> tuple[Tensor, Tensor]:
        given = [getattr(self, name + part) for part in ("", "_scales", "_zeros")]
        return ops.dequantize_per_channel(*given, 0, -128, 127, torch.int8), getattr(self, f"{name}_bias")

    def forward(self, x: Tensor) -> Tensor:
        x = torch.conv2d(rounded(x, 0.04, 128), *self.weight("a"), padding=1).relu()
        x = rounded(x, 0.03, 0)
        x = rounded((torch.conv2d(x, *self.weight("b")) + x).relu(), 0.03, 0)
        return nn.functional.linear(rounded(x.mean((2, 3)), 0.01, 0), *self.weight("c"))


def rounded(x: Tensor, scale: float, zero: int) -> Tensor:
    q = ops.quantize_per_tensor(x, scale, zero, 0, 255, torch.uint8)
    return ops.dequantize_per_tensor(q, scale, zero, 0, 255, torch.uint8)


def test_integers_are_multiplied_and_no_less_exact() -> None:
    model, x = Quantised().eval(), torch.randn(2, 16, 14, 14)
    fast = torchrlopt.optimise(model, (x,), executor="eager", measure=False, cache=False, on_error="raise")
    assert fast.report.kept == "rewritten"
    assert fast.report.numerical_error <= 1
    assert fast.report.calls.kernels == {
        "convolution of integers + relu": 1,
        "convolution of integers": 1,
        "linear of integers": 1,
    }
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
