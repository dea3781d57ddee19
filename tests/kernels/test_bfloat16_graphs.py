"""Graphs in bfloat16 on the CPU, on processors for which we have kernels."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torchrlopt
from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import ACTIVATIONS, check, prepare
from tests.kernels.network_cases import random_net
from tests.kernels.test_bfloat16_kernels import HALF, half, is_rounded_once
from torchrlopt import _C
from torchrlopt.executors.eager.inventory import inventory
from torchrlopt.executors.eager.kernels import indirect, linear

pytestmark = pytest.mark.skipif(
    "bfloat16" not in _C.kernel_dtypes(), reason="needs AVX-512 with products of bfloat16"
)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("groups", [1, 16, 40])
def test_an_activation_is_right_for_every_operand(name: str, groups: int) -> None:
    channels = max(groups, 16)
    kernel = 3 if groups == 40 else 1
    unit = torch.eye(16)[:, :, None, None] if groups == 1 else torch.ones(channels, 1, kernel, kernel)

    def function(x: Tensor, w: Tensor) -> Tensor:
        return ACTIVATIONS[name](F.conv2d(x, w, groups=groups))

    x = torch.cat([torch.linspace(-110, 110, channels * 900), rand(channels * 900)]).reshape(
        2, channels, 30, 30
    )
    x[0, :, 5, 5], x[0, :, 9, 9], x[0, :, 20, 20] = torch.nan, torch.inf, -torch.inf
    x, unit = half(x, unit)
    prepared = prepare(function, [x, unit], static=[1])
    assert prepared.count("torchrlopt.conv") == 1
    got, exact = prepared.run(x, unit)[0], function(x.double(), unit.double())
    if groups > 1:  # else others see a NaN through every product with zero
        assert torch.equal(got.isnan(), exact.isnan())
        assert torch.equal(got.isinf(), exact.isinf())
    finite = got.isfinite() & exact.isfinite()
    assert finite.float().mean() > 0.9
    assert is_rounded_once(got[finite], exact[finite], 1000.0)


def test_attention_of_a_graph() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    for size, is_ours in ((32, True), (33, False)):
        args = half(rand(1, 2, 64, size), rand(1, 2, 64, size), rand(1, 2, 64, size))
        assert check(function, args, static=[]).count("torchrlopt.attention") == is_ours


@pytest.mark.parametrize("is_affine", [True, False])
def test_a_norm_is_computed_in_float32(is_affine: bool) -> None:
    def function(x: Tensor, w: Tensor, mean: Tensor, var: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        facts = (scale, shift) if is_affine else (None, None)
        y = F.max_pool2d(F.conv2d(x, w), 3, 1, 1)
        norm = torch.ops.aten._native_batch_norm_legit_no_training.default
        return norm(y, *facts, mean, var, 0.1, 1e-3)[0]

    # Of integers all but the norm is exact.
    x, w = (torch.arange(2 * 16 * 81) % 5 - 2.0).reshape(2, 16, 9, 9), torch.eye(24)[:, :16, None, None]
    args = half(x, w, rand(24), rand(24).abs() + 0.1, rand(24, seed=2), rand(24, seed=3))
    prepared = prepare(function, args, static=range(1, 6))
    assert prepared.count("batch_norm") == 0
    assert is_rounded_once(prepared.run(*args)[0], function(*[each.double() for each in args]), 20.0)


@pytest.mark.parametrize("seed", range(40))
def test_random_networks(seed: int) -> None:
    function, args = random_net(random.Random(seed))
    args = half(*args)
    prepared = prepare(function, args, static=range(1, len(args)), is_real=seed % 2 == 1)
    with torch.no_grad():
        exact = function(*[each.double() for each in args])
        theirs = function(*args)
    for got, other, reference in zip(prepared.run(*args), *map(_all, (theirs, exact)), strict=True):
        assert got.dtype is HALF
        assert got.stride() == other.stride()
        error, known = ((each.double() - reference).abs().mean() for each in (got, other))
        assert error <= 1.5 * known + 1e-3


def _all(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


class Autocast(torch.nn.Module):
    """Convolutions in bfloat16, and a norm in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 32, 3), torch.nn.Conv2d(32, 32, 3)
        self.norm, self.last = torch.nn.GroupNorm(4, 32), torch.nn.Conv2d(32, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=HALF):
            return self.last(self.norm(self.second(F.relu(self.first(x)))))


def test_autocast() -> None:
    model, x = Autocast().eval(), rand(1, 3, 20, 20)
    with torch.no_grad():
        fast = torchrlopt.optimise(model, (x,), executor="eager", searcher="greedy", measure=False)
        assert fast.report.kept == "rewritten"
        torch.testing.assert_close(fast(x), model(x), rtol=3e-2, atol=3e-2)


def test_what_there_is_no_kernel_for_is_left_to_others() -> None:
    for dtype in ("float32", "bfloat16"):
        assert not _C.kernel_takes_groups(7, 7, 7, dtype)
        assert _C.kernel_takes_groups(8, 8, 8, dtype)
    ours = indirect.kernels(HALF)
    assert ours is not None
    assert _C.kernel_takes_attention(64, 64, 33, 33)
    odd = half(rand(1, 2, 64, 33))[0]
    assert ours.attend(odd, odd, odd, None, False, 1.0, True) is None
    assert ours.is_finite(torch.ones(4, dtype=HALF)) is None
    window, narrow = indirect.Window(7, (2, 2), (2, 2), (0, 0), (1, 1)), half(rand(1, 7, 4, 4))[0]
    with pytest.raises(ValueError, match="too few channels"):
        indirect.pool(narrow, window.of_pool("max"))
    for dtype in (torch.float16, torch.float64):
        assert indirect.kernels(dtype) is None
        example = torch.empty(1, dtype=dtype)
        with pytest.raises(ValueError, match="no kernels for such numbers"):
            _C.ImageKernels(example)


def test_strict_numerics_use_no_tiles() -> None:
    """They multiply float32, so that a conversion in front of them would be dropped."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x.to(HALF), w, padding=1)

    args = [rand(1, 64, 28, 28), *half(weight(64, 64, 3, 3))]
    for is_real in (False, True):
        prepared = prepare(function, args, static=[1], is_real=is_real)
        ways = " ".join(inventory(prepared.split.main.graph).packed)
        assert "convolution" in ways
        assert is_real or "tiles" not in ways


@pytest.mark.skipif(not _C.kernel_has_matrix_unit(), reason="no matrix unit in this processor")
def test_onednn_computes_what_our_kernels_have_no_matrix_unit_for() -> None:
    assert linear.quickest(128, 768, _C.MOST_KERNEL_CHANNELS + 1, dtype=HALF) is None
    assert linear.quickest(None, 768, 768, dtype=HALF) == indirect.BF16
    args = half(rand(1, 128, 14, 14), weight(128, 64, 3, 3))
    prepared = prepare(lambda x, w: F.conv2d(x, w, padding=1, groups=2), args, static=[1])
    assert prepared.count("torchrlopt.conv") == 0
