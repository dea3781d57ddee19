"""Strides, paddings and dilations far larger than the image: correct or left to PyTorch, never expensive."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchrlopt
from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import convolved
from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.epilogues import Epilogue

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")


@pytest.mark.parametrize("stride", [9, 1000, 4096])
@pytest.mark.parametrize("channels", [3, 16])
def test_one_window(channels: int, stride: int) -> None:
    x, w = rand(2, channels, 8, 8).contiguous(memory_format=torch.channels_last), weight(16, channels, 3, 3)
    window = indirect.Window(16, (3, 3), (stride, stride), (0, 0), (1, 1))
    assert window.is_usual()
    got = convolved(x, w, window=window)
    torch.testing.assert_close(got, F.conv2d(x, w, stride=stride), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["stride", "padding", "dilation", "behind"])
@pytest.mark.parametrize("size", [4097, 2**31, 2**61, 2**62])
def test_what_is_beyond_has_no_kernel(name: str, size: int) -> None:
    given = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)} | {name: (1, size)}
    window = indirect.Window(16, (3, 3), **given)
    assert not window.is_usual()
    ours = indirect.kernels()
    assert ours is not None
    for channels in (3, 16):
        x = rand(1, channels, 8, 8).contiguous(memory_format=torch.channels_last)
        packed = indirect.pack(weight(16, channels, 3, 3), None, 1)
        assert ours.convolve(x, packed, None, window.of_convolution(1, Epilogue())) is None
    x = rand(1, 16, 8, 8).contiguous(memory_format=torch.channels_last)
    pool = indirect.Window(16, (3, 3), **(given | {"behind": None}))
    if name != "behind":
        assert ours.pool(x, pool.of_pool("max")) is None


@pytest.mark.parametrize("stride", [4096, 10**6, 10**9, 2**61])
def test_a_model_is_computed_all_the_same(stride: int) -> None:
    """As eager: one window of the image."""
    model, x = nn.Conv2d(3, 16, 3, stride=stride).eval(), rand(1, 3, 8, 8)
    fast = torchrlopt.optimise(
        model, (x,), executor="eager", searcher="greedy", measure=False, cache=False, on_error="raise"
    )
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)


def test_images_that_are_beyond() -> None:
    """Of no memory: a view that repeats one pixel."""
    ours = indirect.kernels()
    assert ours is not None
    packed = indirect.pack(weight(16, 3, 3, 3), None, 1)
    window = indirect.Window(16, (3, 3), (1, 1), (0, 0), (1, 1))
    x = rand(1, 3, 1, 1).expand(1, 3, 2**31 + 8, 3)
    assert ours.convolve(x, packed, None, window.of_convolution(1, Epilogue())) is None
    assert _C.MOST_KERNEL_STEP == 4096
