"""Pools, means and channel concatenation by our kernels."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import check, prepare
from torchrlopt.executors.eager.kernels import indirect

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")


@pytest.mark.parametrize("seed", range(30))
def test_any_pool(seed: int) -> None:
    draw = random.Random(seed)
    kernel = [draw.randint(1, 4), draw.randint(1, 4)]
    stride = [draw.randint(1, 3), draw.randint(1, 3)]
    padding = [draw.randint(0, each // 2) for each in kernel]
    ceil, inside, is_max = draw.random() < 0.5, draw.random() < 0.5, draw.random() < 0.5
    dilation = draw.randint(1, 2) if is_max else 1
    channels = draw.choice([8, 11, 16, 40, 70])
    size = [dilation * (k - 1) + 1 + draw.randint(0, 9) for k in kernel]

    def function(x: Tensor, w: Tensor) -> Tensor:
        y = F.conv2d(x, w)
        if is_max:
            return F.max_pool2d(y, kernel, stride, padding, dilation, ceil_mode=ceil).relu()
        return F.avg_pool2d(y, kernel, stride, padding, ceil_mode=ceil, count_include_pad=not inside).relu()

    x, w = rand(draw.randint(1, 2), 8, *size), weight(channels, 8, 1, 1)
    prepared = check(function, [x, w], static=[1])
    assert prepared.count("torchrlopt.pool") == 1
    x[0, 0, 0, 0] = torch.nan
    torch.testing.assert_close(prepared.run(x, w)[0], function(x, w), rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("is_max", [True, False])
def test_a_window_larger_than_the_image(is_max: bool) -> None:
    pool = F.max_pool2d if is_max else F.avg_pool2d
    args = [rand(1, 8, 2, 2), weight(16, 8, 1, 1)]
    prepared = check(lambda x, w: pool(F.conv2d(x, w), 3, 2, ceil_mode=True), args, static=[1])
    assert prepared.count("torchrlopt.pool") == 1
    args = [rand(1, 8, 3, 14), weight(16, 8, 1, 1)]
    check(
        lambda x, w: F.max_pool2d(F.conv2d(x, w), (5, 3), (3, 1), (2, 0), (2, 1), ceil_mode=True),
        args,
        static=[1],
    )


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_defaults_of_the_user_change_nothing(default: torch.dtype) -> None:
    def function(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        y = F.conv2d(x, a)
        return torch.cat([F.max_pool2d(y, 3, 1, 1), F.conv2d(y, b, padding=1).relu()], 1)

    args = [rand(1, 8, 9, 9), weight(16, 8, 3, 3), weight(16, 16, 3, 3)]
    torch.set_default_dtype(default)
    try:
        prepared = check(function, args, static=[1, 2])
        with torch.device("meta"):
            got = prepared.run(*args)[0]
    finally:
        torch.set_default_dtype(torch.float32)
    assert prepared.count("function joined") == 1
    torch.testing.assert_close(got, function(*args), rtol=1e-4, atol=1e-5)


def test_places_of_a_max_pool_stay() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return F.max_pool2d(F.conv2d(x, w), 2, return_indices=True)

    prepared = check(function, [rand(1, 8, 6, 6), weight(8, 8, 1, 1)], static=[1])
    assert prepared.count("torchrlopt.pool") == 0


@pytest.mark.parametrize("keepdim", [True, False])
def test_a_mean_over_the_pixels(keepdim: bool) -> None:
    prepared = check(
        lambda x, w: F.conv2d(x, w).mean((2, 3), keepdim=keepdim) * 2,
        [rand(2, 8, 6, 5), weight(24, 8, 1, 1)],
        static=[1],
    )
    assert prepared.count("torchrlopt.pool") == int(keepdim)


def test_joined_channels_are_written_where_they_belong() -> None:
    def function(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        y = F.relu(F.conv2d(x, a))
        shared = F.conv2d(y, c)
        parts = [F.conv2d(y, b, padding=1).relu(), shared, F.max_pool2d(y, 3, 1, 1), y.sin()]
        return torch.cat(parts, 1).relu(), shared.exp()

    shapes = ((24, 8, 1, 1), (13, 24, 3, 3), (9, 24, 1, 1))
    prepared = check(function, [rand(2, 8, 9, 7), *(weight(*shape) for shape in shapes)], static=[1, 2, 3])
    assert prepared.count("aten.cat") == 0
    assert (
        prepared.count("torchrlopt.copy_into") == 2
    )  # what others read too, and what no kernel of ours makes
    assert prepared.count("function joined") == 1


def test_a_part_that_is_joined_twice_is_copied() -> None:
    def function(x: Tensor, a: Tensor) -> Tensor:
        y = F.conv2d(x, a)
        return torch.cat([y, y], 1)

    assert check(function, [rand(2, 8, 9, 7), weight(9, 8, 1, 1)], static=[1]).count("aten.cat") == 1


def test_a_mean_over_many_pixels_keeps_its_digits() -> None:
    x, unit = torch.rand(1, 8, 512, 512) + 1, torch.eye(8)[:, :, None, None]
    prepared = prepare(lambda x, w: F.conv2d(x, w).mean((2, 3), keepdim=True), [x, unit], static=[1])
    assert prepared.count("torchrlopt.pool") == 1
    reference = x.double().mean((2, 3), keepdim=True)
    assert ((prepared.run(x, unit)[0] - reference).abs() / reference).max() < 2e-6
