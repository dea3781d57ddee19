"""The kernel for convolutions with few channels, and the memory that image kernels read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels import guarded_memory
from tests.kernels.image_cases import rand, weight
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.epilogues import Epilogue

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")

LAYOUTS = ("contiguous", "channels_last", "columns first", "some channels", "every other")


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same image, with other strides."""
    channels = x.shape[1]
    if layout == "channels_last":
        return x.contiguous(memory_format=torch.channels_last)
    if layout == "columns first":
        return x.transpose(2, 3).contiguous().transpose(2, 3)
    if layout == "some channels":
        whole = rand(x.shape[0], channels + 3, *x.shape[2:]).contiguous(memory_format=torch.channels_last)
        whole[:, 2 : 2 + channels] = x
        return whole[:, 2 : 2 + channels]
    if layout == "every other":
        wide = rand(*x.shape[:3], 2 * x.shape[3])
        wide[..., ::2] = x
        return wide[..., ::2]
    return x


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7])
def test_an_image_may_lie_anyhow(channels: int, layout: str) -> None:
    draw = random.Random(channels * 100 + LAYOUTS.index(layout))
    for _ in range(12):
        kernel = (draw.randint(1, 4), draw.randint(2, 7))
        stride = (draw.randint(1, 3), draw.choice([1, 1, 2, 2, 3, 4]))
        padding = (draw.randint(0, 3), draw.randint(0, 3))
        dilation = (draw.randint(1, 2), draw.randint(1, 2))
        outputs = draw.choice([8, 16, 24, 33, 48, 64, 100])
        size = [d * (k - 1) + draw.choice([1, 9, 40, 70]) for k, d in zip(kernel, dilation, strict=True)]
        x, w = laid_out(rand(2, channels, *size), layout), weight(outputs, channels, *kernel)
        bias = rand(outputs)
        window = indirect.Window(outputs, kernel, stride, padding, dilation)
        expected = F.conv2d(x.double(), w.double(), bias.double(), stride, padding, dilation)
        ours = indirect.kernels()
        assert ours is not None
        numbers = window.of_convolution(1, Epilogue("relu"))
        got = ours.convolve(x, indirect.pack(w, bias, 1), None, numbers)
        assert got is not None, "it is read as it lies"
        torch.testing.assert_close(got.double(), F.relu(expected), rtol=1e-4, atol=1e-5)


_READS = """
for channels in (1, 3, 8, 17, 40):
    for width in (1, 3, 14, 29):
        for stride in (1, 2, 3):
            for padding in (0, 1):
                for layout in (torch.contiguous_format, torch.channels_last):
                    if layout is torch.contiguous_format and channels >= 8:
                        continue
                    x = at_the_end(torch.randn(1, channels, 5, width + 2).contiguous(memory_format=layout))
                    window = indirect.Window(24, (3, 3), (stride, stride), (padding, padding), (1, 1))
                    packed = indirect.pack(torch.randn(24, channels, 3, 3), None, 1)
                    indirect.convolve(x, packed, None, window.of_convolution(1, Epilogue()))
                    if channels >= 8:
                        own = indirect.Window(channels, *((n, n) for n in (3, stride, padding, 1)))
                        taps = at_the_end(indirect.pack(torch.randn(channels, 1, 3, 3), None, channels))
                        indirect.convolve(x, taps, None, own.of_convolution(channels, Epilogue()))
                        indirect.pool(x, own.of_pool("max"))
                    if channels in (8, 40):
                        taps = at_the_end(indirect.pack(torch.randn(channels, 4, 3, 3), None, channels // 4))
                        indirect.convolve(x, taps, None, own.of_convolution(channels // 4, Epilogue()))
"""


@pytest.mark.parametrize("side", ["before", "behind"])
def test_nothing_beside_an_image_is_read(side: str) -> None:
    guarded_memory.check(_READS, side)
