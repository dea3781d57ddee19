"""1-D convolutions run in the kernels for images, with everything between them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import check


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_residual_block_of_rows(batch: int, dtype: torch.dtype) -> None:
    def function(x: Tensor, v: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = F.conv1d(F.leaky_relu(F.pad(x, (3, 1), "reflect"), 0.1), v, b, dilation=2)
        y = F.leaky_relu(y + x, 0.1)
        z = F.conv1d(F.pad(y, (1, 1)), w, b) + x
        return torch.cat([F.pad(z, (2, 2), "replicate"), y], 2).tanh()

    args = [rand(batch, 16, 30), weight(16, 16, 3), weight(16, 16, 3), rand(16)]
    prepared = check(function, [arg.to(dtype) for arg in args], static=[1, 2, 3])
    assert prepared.count("torchrlopt.conv") == (2 if dtype is torch.float32 else 0)


def test_a_transposed_convolution_of_rows() -> None:
    args = [rand(2, 16, 5), weight(16, 8, 8), rand(8)]
    prepared = check(lambda x, w, b: F.leaky_relu(F.conv_transpose1d(x, w, b, 4, 2)), args, static=[1, 2])
    assert prepared.count("_convolution_transpose_pointwise") == 1
    assert prepared.count("leaky_relu") == 0


def test_rows_of_varying_length() -> None:
    args: list[Any] = [rand(2, 16, 30), weight(16, 16, 5)]
    prepared = check(lambda x, w: F.conv1d(x, w, padding=2).relu() + x, args, static=[1], dynamic=True)
    assert prepared.count("torchrlopt.conv") == 1
