"""Pooling kernels with special numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torchrlopt.executors.eager.kernels import indirect

DTYPES = [dtype for dtype in (torch.float32, torch.bfloat16) if indirect.kernels(dtype) is not None]


def largest(x: Tensor, size: int, padding: int = 0) -> Tensor:
    window = indirect.Window(x.shape[1], (size, size), (1, 1), (padding, padding), (1, 1))
    return indirect.pool(x.contiguous(memory_format=torch.channels_last), window.of_pool("max"))


def with_plain_zeros(x: Tensor) -> Tensor:
    """Of zeros ours takes the positive one in bfloat16, and ATen the first."""
    return torch.where(x == 0, torch.zeros_like(x), x)


@pytest.mark.skipif(torch.bfloat16 not in DTYPES, reason="no kernels of bfloat16 for this processor")
@pytest.mark.parametrize("seed", range(4))
def test_every_number_of_bfloat16(seed: int) -> None:
    """All 65536 of them, each among others: NaN of either sign, infinities, zeros, what is below 2^-126."""
    order = torch.randperm(1 << 16, generator=torch.Generator().manual_seed(seed))
    x = (order - (1 << 15)).to(torch.int16).view(torch.bfloat16).reshape(1, 64, 32, 32)
    for size in (1, 2, 3):
        got, expected = largest(x, size), F.max_pool2d(x, size, 1)
        assert torch.equal(got.isnan(), expected.isnan())
        assert torch.equal(*(with_plain_zeros(each.nan_to_num(7.0)) for each in (got, expected)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [8, 16, 24, 40, 64])
def test_nan_at_each_place_of_a_window(dtype: torch.dtype, channels: int) -> None:
    for place in range(9):
        for nan in (float("nan"), -float("nan")):
            x = torch.randn(1, channels, 3, 3).to(dtype)
            x[0, :, place // 3, place % 3] = nan
            assert largest(x, 3).isnan().all()
            whole = largest(x, 3, padding=1)
            assert torch.equal(whole.isnan(), F.max_pool2d(x, 3, 1, 1).isnan())


def test_the_first_of_zeros() -> None:
    zeros = torch.tensor([0.0, -0.0, -0.0, 0.0, -0.0]).reshape(1, 1, 1, 5).expand(1, 16, 2, 5)
    for size in (1, 2):
        expected = F.max_pool2d(zeros, size, 1)
        assert torch.equal(largest(zeros, size).signbit(), expected.signbit())


@pytest.mark.parametrize("dtype", DTYPES)
def test_windows_of_infinities(dtype: torch.dtype) -> None:
    x = torch.full((2, 16, 4, 5), -torch.inf, dtype=dtype)
    x[1, 3, 2, 2] = torch.inf
    for padding in (0, 1):
        assert torch.equal(largest(x, 3, padding), F.max_pool2d(x, 3, 1, padding))
