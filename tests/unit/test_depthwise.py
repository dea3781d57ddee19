"""Depthwise convolutions by strips: windows of 3, 5 and 7 columns, and those that are computed otherwise."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.unit import guarded_memory
from tests.unit.image_cases import rand
from tests.unit.kernel_cases import threads
from tests.unit.test_indirect import ACTIVATIONS
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.epilogues import Epilogue

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")

DTYPES = [torch.float32, torch.bfloat16]
WINDOWS = [(height, width) for width in (3, 5, 7) for height in (1, 2, width)]


def _skip_without(dtype: torch.dtype) -> None:
    if indirect.kernels(dtype) is None:
        pytest.skip("no kernels of this type for this processor")


def computed(
    x: Tensor, w: Tensor, b: Tensor, window: indirect.Window, name: str, other: Tensor | None
) -> Tensor:
    packed = indirect.pack(w, b, len(w), dtype=x.dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    if other is not None:
        other = other.contiguous(memory_format=torch.channels_last)
    return indirect.convolve(x, packed, other, window.of_convolution(len(w), Epilogue(name)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("window", WINDOWS, ids=lambda of: f"{of[0]}x{of[1]}")
def test_every_width(window: tuple[int, int], stride: int, dtype: torch.dtype) -> None:
    """Each width of an image has its own tiles: 14, 7 and 4 pixels, or fewer, and some of them twice."""
    _skip_without(dtype)
    draw = random.Random(f"{window} {stride}")
    for width in range(1, 36):
        padding = [draw.randint(0, window[0]), draw.randint(0, window[1])]
        dilation = [draw.randint(1, 2), draw.choice([1, 1, 1, 2])]
        height = draw.randint(1, 9)
        seen = [d * (k - 1) + 1 for d, k in zip(dilation, window, strict=True)]
        if height + 2 * padding[0] < seen[0] or width + 2 * padding[1] < seen[1]:
            continue
        channels = draw.choice([8, 13, 16, 24, 31, 40, 72])
        x, w = rand(2, channels, height, width).to(dtype), rand(channels, 1, *window).to(dtype)
        b, activation = rand(channels).to(dtype), draw.choice(["none", "relu", "hardswish", "silu"])
        exact = F.conv2d(x.double(), w.double(), b.double(), stride, padding, dilation, channels)
        terms = F.conv2d(
            x.double().abs(), w.double().abs(), b.double().abs(), stride, padding, dilation, channels
        )
        other = rand(*exact.shape).to(dtype) if draw.random() < 0.4 else None
        if other is not None:
            exact, terms = exact + other.double(), terms + other.double().abs()
        if activation != "none":
            exact = ACTIVATIONS[activation](exact)
        ours = indirect.Window(channels, window, (stride, stride), padding, dilation)
        with threads(draw.randint(1, 3)):
            name = "swish" if activation == "silu" else activation
            got = computed(x, w, b, ours, name, other)
        rounding = 0.0 if dtype is torch.float32 else 2**-8 + 2**-16
        error = (got.double() - exact).abs()
        assert (error <= rounding * exact.abs() + 2**-19 * terms).all(), (width, padding, dilation, channels)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", [3, 5, 7])
def test_a_number_is_seen_by_the_windows_over_it_and_by_no_others(kernel: int, dtype: torch.dtype) -> None:
    """Rows of a kernel go in pairs, of which one may lie outside, or not be there: nothing of it is read."""
    _skip_without(dtype)
    channels, size = 16, 15
    w, b = torch.ones(channels, 1, kernel, kernel, dtype=dtype), torch.zeros(channels, dtype=dtype)
    for stride in (1, 2):
        window = indirect.Window(channels, (kernel, kernel), (stride, stride), [kernel // 2] * 2, (1, 1))
        for at in range(size):
            x = torch.zeros(1, channels, size, size, dtype=dtype)
            x[:, :, at, (3 * at) % size] = torch.inf
            seen = F.conv2d(x.isinf().double(), w.double(), None, stride, kernel // 2, groups=channels) > 0
            got = computed(x, w, b, window, "none", None)
            assert torch.equal(got.isinf(), seen)
            assert torch.equal(got == 0, ~seen)


@pytest.mark.parametrize("side", ["before", "behind"])
def test_nothing_beside_an_image_is_read(side: str) -> None:
    guarded_memory.check(
        """
for dtype in (torch.float32, torch.bfloat16):
    if indirect.kernels(dtype) is None:
        continue
    for channels in (8, 16, 24, 40):
        for kernel in (3, 5, 7):
            for width in (4, 7, 9, 14, 30):
                x = torch.randn(1, channels, 5, width).to(dtype).contiguous(memory_format=torch.channels_last)
                weight = torch.randn(channels, 1, kernel, kernel).to(dtype)
                packed = at_the_end(indirect.pack(weight, None, channels))
                window = indirect.Window(channels, (kernel, kernel), (1, 1), [kernel // 2] * 2, (1, 1))
                indirect.convolve(at_the_end(x), packed, None, window.of_convolution(channels, Epilogue()))
""",
        side,
    )
