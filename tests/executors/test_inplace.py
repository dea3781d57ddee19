"""Which elementwise calls may run in place, and which may not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from tests.kernels.image_cases import rand
from torchrlopt.executors.eager.inplace import reuse_memory


def targets(function: Callable[..., object], *args: Tensor) -> list[str]:
    """Names of the calls after the pass; checks that it changed neither results nor inputs."""
    module: fx.GraphModule = make_fx(function, tracing_mode="fake")(*args)
    before = [arg.clone() for arg in args]
    expected = function(*args)
    reuse_memory(module)
    module.recompile()
    torch.testing.assert_close(module(*args), expected, rtol=0, atol=0)
    assert all(torch.equal(arg, kept) for arg, kept in zip(args, before, strict=True))
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


A, B = rand(4, 4), rand(4, 4).abs() + 1


@pytest.mark.parametrize(
    ("function", "last"),
    [
        (lambda x, y: F.relu(x @ y), "aten.relu_.default"),
        (lambda x, y: F.gelu(x @ y), "aten.gelu_.default"),
        (lambda x, y: F.hardswish(x @ y), "aten.hardswish_.default"),
        (lambda x, y: x @ y + x, "aten.add_.Tensor"),
        (lambda x, y: x + x @ y, "aten.add_.Tensor"),
        (lambda x, y: x * (x @ y), "aten.mul_.Tensor"),
        (lambda x, y: (x @ y).clamp(-1, 1), "aten.clamp_.default"),
        (lambda x, y: torch.exp(x * y), "aten.exp_.default"),
        (lambda x, y: (z := x @ y) + z, "aten.add_.Tensor"),
        (lambda x, y: (x @ y) / y, "aten.div_.Tensor"),
        (lambda x, y: x @ y - y[:1], "aten.sub_.Tensor"),
    ],
)
def test_written_over(function: Callable[..., object], last: str) -> None:
    assert targets(function, A, B)[-1] == last


def test_chain_in_one_memory() -> None:
    names = targets(lambda x, y: torch.tanh(F.relu(x @ y) * y), A, B)
    assert names == ["aten.mm.default", "aten.relu_.default", "aten.mul_.Tensor", "aten.tanh_.default"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: F.relu(x),
        lambda x, y: F.relu(x.t()),
        lambda x, y: F.relu((x @ y).t()),
        lambda x, y: F.relu((x @ y).view(-1)),
        lambda x, y: F.relu((x @ y)[:2]),
        lambda x, y: (z := x @ y, F.relu(z)),
        lambda x, y: torch.cat([F.relu(z := x @ y), z.t()]),
        lambda x, y: y - x @ y,
        lambda x, y: torch.add(x, x @ y, alpha=2),
        lambda x, y: (x @ y)[0] + x.sum(),
        lambda x, y: (x.sum(0) * 2) + y,
        lambda x, y: (x @ y) > y,
        lambda x, y: (x.int() + 1) + y,
        lambda x, y: F.relu(x.reshape(4, 4)),
        lambda x, y: F.relu(x.contiguous()),
        lambda x, y: F.relu(torch.ops.aten._unsafe_view(x, [16])),
    ],
)
def test_left_alone(function: Callable[..., object]) -> None:
    names = targets(function, A, B)
    assert not any(name.split(".")[1].endswith("_") for name in names if name.startswith("aten"))


def test_program_that_writes_is_left_alone() -> None:
    names = targets(lambda x, y: F.relu((x @ y).add_(y)), A, B)
    assert names[-1] == "aten.relu.default"


def test_layouts_that_differ_are_left_alone() -> None:
    x, y = rand(2, 3, 4, 5), rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    module = make_fx(lambda x, y: y.mul(x.mul(y)), tracing_mode="fake")(x, y)
    reuse_memory(module)
    module.recompile()
    assert module(x, y).stride() == y.mul(x.mul(y)).stride()
