"""Composed weights that overflow where the original does not: torchrlopt/executors/weights/overflow.py."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from tests.capture.capture_calls import capture_module
from torchrlopt import _C, executor_table
from torchrlopt.errors import WeightsError
from torchrlopt.executors.eager.executor import EagerCallable, assemble
from torchrlopt.executors.registry import Lowered, get
from torchrlopt.executors.weights.half_precision import lacks_kernels
from torchrlopt.onnx.reader import read
from torchrlopt.onnx.writer import write
from torchrlopt.options import LoweringOptions

LIBRARY = _C.Library("""
substitution compose
  t = MatMul(x, a)
  y = MatMul(t, b)
=>
  c = MatMul(a, b)
  y = MatMul(x, c)
proof test
""")


class Chain(nn.Module):
    """Two products in a row, whose weights can be composed."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.a @ self.b


def composed(model: nn.Module, x: torch.Tensor, executor: str = "eager") -> tuple[Lowered, Sequence[Any]]:
    """The model with composed weights, and its arguments."""
    record = capture_module(model, x)
    program = read(record.captured.model, record.captured.static_inputs | record.captured.constants.keys())
    graph = LIBRARY.apply(program.graph, "compose", 0)
    model_now = write(dataclasses.replace(program, graph=graph))
    return get(executor).lower(model_now, record.captured, LoweringOptions()), record.inputs


def fill(model: Chain, value: float) -> None:
    with torch.no_grad():
        model.a.fill_(value)
        model.b.fill_(value)


@pytest.mark.parametrize("executor", ["eager", "inductor", "onnxruntime", "openvino"])
def test_a_composed_weight_that_overflows_is_refused(executor: str) -> None:
    row = executor_table.row_of(executor)
    if row is not None and row.package is not None:
        pytest.importorskip(row.package, reason="the executor needs it")
    torch.manual_seed(0)
    model, x = Chain().eval(), torch.full((3, 8), 1e-30)
    lowered, inputs = composed(model, x, executor)
    assert lowered.num_evaluations == 0
    fill(model, 1e22)
    with torch.no_grad():
        assert model(x).isfinite().all()
        for _ in range(2):
            with pytest.raises(WeightsError, match=r"overflows.*float32.*64 of 64"):
                lowered(*inputs)
    assert lowered.num_evaluations == 1, "the refusal is known"
    with torch.no_grad():
        model.a.normal_()
        model.b.normal_()
        for _ in range(2):
            torch.testing.assert_close(lowered(*inputs)[0], model(x), rtol=1e-4, atol=0)
    assert lowered.num_evaluations == 2


@pytest.mark.parametrize(
    ("dtype", "weight", "number"),
    [(torch.float64, 1e200, 1e-300), (torch.float16, 200.0, 0.01), (torch.bfloat16, 1e22, 1e-30)],
    ids=str,
)
def test_every_dtype(dtype: torch.dtype, weight: float, number: float) -> None:
    model, x = Chain().to(dtype).eval(), torch.full((3, 8), number, dtype=dtype)
    lowered, inputs = composed(model, x)
    fill(model, weight)
    with torch.no_grad():
        expected = model(x)
        assert expected.isfinite().all()
        if dtype is torch.float16 and lacks_kernels():  # it is computed in float32, which has room
            torch.testing.assert_close(lowered(*inputs)[0], expected, rtol=1e-2, atol=0)
            return
        with pytest.raises(WeightsError):
            lowered(*inputs)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_weights_that_are_not_finite_themselves_are_nobodys_fault(value: float) -> None:
    model, x = Chain().eval(), torch.ones(3, 8)
    lowered, inputs = composed(model, x)
    with torch.no_grad():
        model.a[0, 0] = value
        (got,) = lowered(*inputs)
        torch.testing.assert_close(got.isfinite(), model(x).isfinite())


def assembled(function: Callable[..., Any], *args: torch.Tensor) -> EagerCallable:
    """A function of an input and weights in the eager executor."""
    fakes = FakeTensorMode()
    with torch.no_grad(), fakes:
        module = make_fx(lambda *given: (function(*given),))(*[fakes.from_tensor(arg) for arg in args])
    names = [node.name for node in module.graph.find_nodes(op="placeholder")]
    return assemble(module, set(names[1:]), LoweringOptions())


@pytest.mark.parametrize(
    ("function", "weight"),
    [
        (lambda x, w: x * (1 / w), torch.tensor([0.0, 1.0])),
        (lambda x, w: x + w.log(), torch.tensor([0.0, 1.0])),
        (lambda x, w: x + w.masked_fill(w > 0, -math.inf), torch.tensor([0.0, 1.0])),
        (lambda x, w: x * w.rsqrt() * 2, torch.tensor([0.0, 1.0])),
        (lambda x, w: x + w * 1.0, torch.tensor([3e38, 3e38])),
        (lambda x, w: x + torch.cat([w, w])[:2], torch.tensor([3e38, 3e38])),
    ],
    ids=["quotient", "logarithm", "mask", "root", "large sum", "large parts"],
)
def test_infinities_of_the_original_are_no_overflow(
    function: Callable[..., torch.Tensor], weight: torch.Tensor
) -> None:
    x = torch.ones(2)
    (got,) = assembled(function, x, weight)(x, weight)
    assert torch.equal(got, function(x, weight))
