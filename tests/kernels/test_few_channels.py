"""The kernel for convolutions with few channels."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.image_cases import rand, weight
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.epilogues import Epilogue

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
