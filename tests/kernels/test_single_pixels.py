"""Single-pixel convolutions become products, with all their optimisations; others stay convolutions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import check

CONVOLUTION, LINEAR = "conv", "linear"  # of ATen, oneDNN or our own


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("pixels", [(1,), (1, 1), (2, 3), (1, 2, 1)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_kernel_as_large_as_the_image(batch: int, pixels: tuple[int, ...], has_bias: bool) -> None:
    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        convolution = (F.conv1d, F.conv2d, F.conv3d)[len(pixels) - 1]
        return convolution(x, w, b if has_bias else None).sigmoid()

    args = [rand(batch, 12, *pixels), weight(8, 12, *pixels), rand(8)]
    prepared = check(function, args, static=[1, 2])
    assert prepared.count(LINEAR) == 1
    assert prepared.count(CONVOLUTION) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_an_excitation_block(dtype: torch.dtype) -> None:
    def function(x: Tensor, down: Tensor, a: Tensor, up: Tensor, b: Tensor) -> Tensor:
        scale = F.hardsigmoid(F.conv2d(F.relu(F.conv2d(x.mean((2, 3), keepdim=True), down, a)), up, b))
        return x * scale

    shapes = ((2, 16, 6, 5), (4, 16, 1, 1), (4,), (16, 4, 1, 1), (16,))
    prepared = check(function, [weight(*shape).to(dtype) for shape in shapes], static=[1, 2, 3, 4])
    assert prepared.count(LINEAR) == 2
    assert prepared.count(CONVOLUTION) == 0


def test_an_activation_is_fused_as_behind_any_product() -> None:
    args = [rand(64, 512, 1, 1), weight(512, 512, 1, 1), rand(512)]
    prepared = check(lambda x, w, b: F.hardswish(F.conv2d(x, w, b)).tanh(), args, static=[1, 2])
    assert prepared.count("_linear_pointwise") + prepared.count("torchrlopt.linear.default") == 1
    assert prepared.count("hardswish") == 0
    assert prepared.targets[-2:] == ["aten.tanh.default", "aten.view.default"]


def test_weights_that_are_none_and_a_batch_that_varies() -> None:
    args = [rand(3, 12, 1, 1), weight(8, 12, 1, 1)]
    assert check(lambda x, w: F.conv2d(x, w), args, static=[]).count(LINEAR) == 1
    dynamic = check(lambda x, w: F.conv2d(x.mean((2, 3), keepdim=True), w), args, static=[1], dynamic=True)
    assert dynamic.count(LINEAR) == 1


@pytest.mark.parametrize(
    ("x", "w", "window"),
    [
        ((1, 12, 2, 1), (8, 12, 1, 1), {}),
        ((1, 12, 1, 1), (8, 12, 3, 3), {"padding": 1}),
        ((1, 12, 1, 1), (12, 3, 1, 1), {"groups": 4}),
        ((1, 12, 3, 3), (8, 12, 3, 3), {"padding": 1, "stride": 3}),  # one pixel, of a part of the image
        ((1, 12, 5, 5), (8, 12, 1, 1), {"stride": 5}),  # one pixel of many
    ],
)
def test_other_convolutions_stay(x: Any, w: Any, window: dict[str, Any]) -> None:
    prepared = check(lambda x, w: F.conv2d(x, w, **window), [rand(*x), weight(*w)], static=[1])
    assert prepared.count(CONVOLUTION) == 1
