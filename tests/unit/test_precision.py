"""Expressions over weights are rounded once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from tests.unit.kernel_cases import check, prepare
from tests.unit.test_kernels import conv_args, rand, weight
from torchrlopt.executors.precision import widen


def fold(w: Tensor, scale: Tensor, variance: Tensor) -> Tensor:
    return F.pad(w * (scale * torch.rsqrt(variance + 1e-5)).view(-1, 1, 1, 1), [1, 1, 1, 1]) + F.pad(
        w, [1] * 4
    )


def test_folded_weight_is_the_rounded_exact_one() -> None:
    args = [rand(24, 16, 1, 1), rand(24), rand(24).abs()]
    module = make_fx(fold, tracing_mode="fake")(*args)
    widen(module.graph)
    module.recompile()
    got = module(*args)
    assert got.dtype == torch.float32
    assert torch.equal(got, fold(*[arg.double() for arg in args]).float())
    assert not torch.equal(got, fold(*args))


def test_split_uses_it() -> None:
    x, w, b = conv_args(kernel=1)
    args = [x, w, b, rand(24), rand(24).abs()]
    prepared = check(lambda x, w, b, s, v: F.conv2d(x, fold(w, s, v), b), args, static=[1, 2, 3, 4])
    assert "float64" in prepared.split.prologue.code
    assert "float64" not in prepared.split.main.code


def test_movement_alone_stays_narrow() -> None:
    prepared = prepare(
        lambda x, w, v: x @ torch.cat([w, v]).t(), [rand(4, 8), weight(8, 8), weight(8, 8)], static=[1, 2]
    )
    assert "float64" not in prepared.split.prologue.code


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64])
def test_other_dtypes_stay(dtype: torch.dtype) -> None:
    args = [(rand(4, 4) * 3).to(dtype), (rand(4, 4) * 3).to(dtype)]
    module = make_fx(lambda w, v: w * v + 1, tracing_mode="fake")(*args)
    before = module(*args)
    widen(module.graph)
    module.recompile()
    assert torch.equal(module(*args), before)


def test_calls_in_between_that_are_no_arithmetic() -> None:
    def function(w: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        product = w @ v
        first, second = product.split([1, 3])
        values, places = torch.max(product, 0)
        return first * 2, torch.softmax(second, 0) + w[:3], values * places

    args = [rand(4, 4), rand(4, 4) + 2]
    module = make_fx(function, tracing_mode="fake")(*args)
    widen(module.graph)
    module.recompile()
    module.graph.lint()
    for got, exact in zip(module(*args), function(*[arg.double() for arg in args]), strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), exact, rtol=1e-6, atol=1e-6)


def test_weights_of_two_precisions_stay() -> None:
    args = [rand(4, 4), rand(4, 4).bfloat16()]
    module = make_fx(lambda w, v: (w * 3) * v, tracing_mode="fake")(*args)
    before = module(*args)
    widen(module.graph)
    module.recompile()
    torch.testing.assert_close(module(*args), before, rtol=1e-6, atol=0)
