"""Depthwise and small-group convolutions: by row strips, or otherwise."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.image_cases import rand
from tests.kernels.kernel_cases import ACTIVATIONS, convolved, epilogue, threads
from torchrlopt.executors.eager.kernels import indirect

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")

DTYPES = [torch.float32, torch.bfloat16]
WINDOWS = [(height, width) for width in (3, 5, 7) for height in (1, 2, width)]


def _skip_without(dtype: torch.dtype) -> None:
    if indirect.kernels(dtype) is None:
        pytest.skip("no kernels of this type for this processor")


def computed(x: Tensor, w: Tensor, b: Tensor, window: indirect.Window, *rest: Any) -> Tensor:
    x = x.contiguous(memory_format=torch.channels_last)
    return convolved(x, w, b, window, x.shape[1] // w.shape[1], indirect.SUMS, *rest)


def check_rows(window: tuple[int, int], stride: int, dtype: torch.dtype, inputs: int = 1) -> None:
    """Every width of an image: strips of 14, 7 and 4 pixels, some of which are computed twice, or none."""
    draw = random.Random(f"{window} {stride} {inputs}")
    for width in range(1, 36):
        before, behind = ([draw.randint(0, window[0]), draw.randint(-1, window[1] + 1)] for _ in range(2))
        dilation = [draw.randint(1, 2), draw.choice([1, 1, 1, 2])]
        height = draw.randint(1, 9)
        seen = [d * (k - 1) + 1 for d, k in zip(dilation, window, strict=True)]
        if height + before[0] + behind[0] < seen[0] or width + before[1] + behind[1] < seen[1]:
            continue
        channels = draw.choice([8, 16, 24, 40, 72, *([11, 13, 31, 33] if inputs == 1 else [])])
        channels = draw.choice([32, 48, 80]) if inputs == 16 else channels
        groups = channels // inputs
        x, w = rand(2, channels, height, width).to(dtype), rand(channels, inputs, *window).to(dtype)
        b, name = rand(channels).to(dtype), draw.choice(["none", "relu", "relu6", "hardswish", "silu"])
        padded = F.pad(x.double(), (before[1], behind[1], before[0], behind[0]))
        exact = F.conv2d(padded, w.double(), b.double(), stride, 0, dilation, groups)
        terms = F.conv2d(padded.abs(), w.double().abs(), b.double().abs(), stride, 0, dilation, groups)
        other = None
        if draw.random() < 0.4:
            other = rand(*exact.shape).to(dtype).contiguous(memory_format=torch.channels_last)
            exact, terms = exact + other.double(), terms + other.double().abs()
        exact = ACTIVATIONS[name](exact)
        ours = indirect.Window(channels, window, (stride, stride), before, dilation, behind)
        with threads(draw.randint(1, 3)):
            got = computed(x, w, b, ours, epilogue(name), other)
        rounding = 0.0 if dtype is torch.float32 else 2**-8 + 2**-16
        error = (got.double() - exact).abs()
        assert (error <= rounding * exact.abs() + 2**-19 * terms).all(), (
            width,
            before,
            behind,
            dilation,
            channels,
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("window", WINDOWS, ids=lambda of: f"{of[0]}x{of[1]}")
def test_every_width(window: tuple[int, int], stride: int, dtype: torch.dtype) -> None:
    _skip_without(dtype)
    check_rows(window, stride, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("inputs", [2, 4, 8, 16])
@pytest.mark.parametrize("window", [(3, 3), (2, 3), (1, 1), (5, 5)], ids=lambda of: f"{of[0]}x{of[1]}")
def test_every_width_of_groups(window: tuple[int, int], inputs: int, stride: int, dtype: torch.dtype) -> None:
    _skip_without(dtype)
    check_rows(window, stride, dtype, inputs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("channels", "inputs"),
    [(8, 1), (16, 1), (40, 1), (8, 2), (40, 2), (16, 4), (40, 4), (16, 8), (40, 8), (48, 16)],
)
@pytest.mark.parametrize("kernel", [3, 5, 7])
def test_a_number_is_seen_by_its_group_in_the_windows_over_it_alone(
    kernel: int, channels: int, inputs: int, dtype: torch.dtype
) -> None:
    """Rows of a kernel go in pairs, of which one may lie outside, or not be there: nothing of it is read."""
    _skip_without(dtype)
    size, groups = 15, channels // inputs
    w, b = torch.ones(channels, inputs, kernel, kernel, dtype=dtype), torch.zeros(channels, dtype=dtype)
    for stride in (1, 2):
        window = indirect.Window(channels, (kernel, kernel), (stride, stride), [kernel // 2] * 2, (1, 1))
        for at in range(size):
            x = torch.zeros(1, channels, size, size, dtype=dtype)
            x[:, 5, at, (4 * at) % size] = torch.inf
            seen = F.conv2d(x.isinf().double(), w.double(), None, stride, kernel // 2, groups=groups) > 0
            got = computed(x, w, b, window)
            assert torch.equal(got.isinf(), seen)
            assert torch.equal(got == 0, ~seen)


def test_the_factors_of_a_norm_are_not_rounded() -> None:
    _skip_without(torch.bfloat16)
    x = torch.full((1, 16, 1, 1), 2.0**10, dtype=torch.bfloat16)
    factor, shift = torch.full((16, 1, 1, 1), 1 + 2**-12), torch.full((16,), -(2.0**10))
    window = indirect.Window(16, (1, 1), (1, 1), (0, 0), (1, 1))
    assert (computed(x, factor, shift, window) == 0.25).all()
