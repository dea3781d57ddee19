"""What the eager executor makes of a graph on CUDA: seen on fake tensors, run on the CPU if possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from torchrlopt.executors.eager.kernels import cublas, cudnn
from torchrlopt.executors.eager.passes import PASSES, Program, run_passes
from torchrlopt.executors.weights.split_fx import Split

aten = torch.ops.aten


def lowered(
    function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype, weights: int
) -> Split:
    """The parts of a function of an input and weights on CUDA, after all passes."""
    with FakeTensorMode():
        fakes = [torch.empty(shape, dtype=dtype, device="cuda") for shape in shapes]
        module = make_fx(lambda *args: (function(*args),))(*fakes)
    names = [str(node.target) for node in module.graph.find_nodes(op="placeholder")]
    program = Program(module, names[len(names) - weights :], True)
    run_passes(program, PASSES)
    assert program.is_on_cuda
    return program.parts


def targets(split: Split) -> list[Any]:
    return [node.target for node in split.main.graph.nodes if node.op == "call_function"]


def called(split: Split, tensors: list[torch.Tensor], weights: int) -> Any:
    """The result on the CPU."""
    results = split.prologue(*[tensors[at] for at in split.weights])
    return split.main(*[tensors[at] for at in split.inputs], *results)


def random(*shapes: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape).to(dtype) for shape in shapes]


@pytest.fixture
def nan_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """CuDNN's kernels hand NaN on; returns what was asked."""
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(cudnn, "hands_nan_on", lambda *args: asked.append(args) or True)
    return asked


def block(x: torch.Tensor, a: torch.Tensor, bias: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = torch.relu(F.conv2d(x, a, bias, padding=1))
    return torch.relu(F.conv2d(y, b, None, padding=1) + x)


BLOCK = ((1, 8, 6, 6), (8, 8, 3, 3), (8,), (8, 8, 3, 3))


def test_convolutions_take_bias_sum_and_relu_along(nan_is_handed_on: list[tuple[Any, ...]]) -> None:
    split = lowered(block, *BLOCK, dtype=torch.bfloat16, weights=3)
    found = targets(split)
    assert [found.count(target) for target in (cudnn.RELU, cudnn.ADD_RELU)] == [1, 1]
    assert not any("relu" in str(target) and "cudnn" not in str(target) for target in found)
    assert [has_residual for *_, has_residual in nan_is_handed_on] == [False, True]
    first = split.main.graph.find_nodes(op="call_function", target=cudnn.RELU)[0]
    assert list(first.args[3:]) == [[1, 1], [1, 1], [1, 1], 1]


def test_a_kernel_that_makes_zero_of_nan_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn, "hands_nan_on", lambda *args: False)
    split = lowered(block, *BLOCK, dtype=torch.float32, weights=3)
    assert not {cudnn.RELU, cudnn.ADD_RELU} & set(targets(split))
    tensors = random(*BLOCK, dtype=torch.float32)
    (got,) = called(split, tensors, 3)
    torch.testing.assert_close(got, block(*tensors), rtol=1e-5, atol=1e-5)
    assert got.stride() == block(*tensors).stride()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_single_pixels_are_a_product(dtype: torch.dtype) -> None:
    """With float32 only where no bias is saved: cuDNN is quicker there."""

    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.hardswish(F.conv2d(x, weight, bias))

    shapes = ((2, 8, 5, 5), (12, 8, 1, 1), (12,))
    split = lowered(function, *shapes, dtype=dtype, weights=2)
    assert (cudnn.pixel_product in targets(split)) == (dtype is torch.bfloat16)
    tensors = random(*shapes, dtype=dtype)
    (got,), expected = called(split, tensors, 2), function(*tensors)
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
    assert got.stride() == expected.stride()


@pytest.mark.parametrize(
    ("function", "width", "per_group"),
    [
        (lambda x, w, b: torch.relu(F.conv2d(x, w, b, groups=8, padding=1)), 6, 1),  # depthwise
        (lambda x, w, b: torch.relu(F.conv2d(x, w, b, padding=1) + b), 8, 8),  # what is added is broadcast
        (lambda x, w, b: F.conv2d(x, w, b, padding=1).sigmoid(), 6, 8),
    ],
)
def test_what_is_left_to_aten(
    function: Callable[..., Any], width: int, per_group: int, nan_is_handed_on: list[tuple[Any, ...]]
) -> None:
    shapes = ((1, 8, 6, width), (8, per_group, 3, 3), (8,))
    split = lowered(function, *shapes, dtype=torch.float32, weights=2)
    assert not {cudnn.RELU, cudnn.ADD_RELU} & set(targets(split))
    assert not nan_is_handed_on
    tensors = random(*shapes, dtype=torch.float32)
    (got,), expected = called(split, tensors, 2), function(*tensors)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert got.stride() == expected.stride()


@pytest.mark.parametrize("activation", [torch.relu, lambda x: F.gelu(x, approximate="tanh"), F.gelu, None])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_products_take_bias_and_activation_along(dtype: torch.dtype, activation: Any) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        y = torch.addmm(bias, x.reshape(-1, 16), weight.t()).reshape(2, 5, 24)
        return y if activation is None else activation(y)

    shapes = ((2, 5, 16), (24, 16), (24,))
    split = lowered(function, *shapes, dtype=dtype, weights=2)
    found = targets(split)
    is_fused = dtype is torch.bfloat16 and activation not in (F.gelu, None)
    if is_fused:
        assert found == [cublas.linear_activation]
    else:
        assert torch.nn.functional.linear in found or aten.linear.default in found or torch.linear in found
        assert len(found) == 1 + (activation is not None)
    tensors = random(*shapes, dtype=dtype)
    (got,), expected = called(split, tensors, 2), function(*tensors)
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
    assert got.stride() == expected.stride()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("is_nan", [False, True])
def test_the_block_on_a_gpu(dtype: torch.dtype, is_nan: bool) -> None:
    import torchrlopt

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (torch.nn.Conv2d(64, 64, size, padding=size // 2) for size in (3, 1))
            self.c, self.d = torch.nn.Conv2d(64, 64, 1), torch.nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.b(torch.relu(self.a(x))) + x)
            return torch.relu(self.d(F.hardswish(self.c(y)).mean((2, 3))))

    torch.manual_seed(0)
    model = Block().eval().to("cuda", dtype)
    x = torch.randn(2, 64, 14, 14, device="cuda", dtype=dtype)
    torch._dynamo.reset()
    ours = torchrlopt.optimise(model, x, executor="eager", min_gain=-10.0, on_error="raise", cache=False)
    assert ours.report.kept == "rewritten"
    if is_nan:
        x[0, 3, 5, 5] = torch.nan
    with torch.no_grad():
        torch.testing.assert_close(ours(x), model(x), rtol=3e-2, atol=3e-2, equal_nan=True)
        assert bool(torch.isnan(ours(x)[0]).all()) == is_nan
        assert not torch.isnan(ours(x)[1]).any()
