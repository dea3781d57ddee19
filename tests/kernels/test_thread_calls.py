"""Sixteen threads that call the same kernels: scratch memory belongs to a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.e2e.threads import in_threads
from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import prepare
from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")

NUM_THREADS, NUM_CALLS = 16, 6


def network(x: Tensor, *weights: Tensor) -> Tensor:
    """Of few channels, in groups, by tiles, pointwise, pooled, shuffled and a product."""
    first, depthwise, dense, last, product = weights
    y = F.relu(F.conv2d(x, first, stride=2, padding=1))
    y = F.hardswish(F.conv2d(y, depthwise, padding=1, groups=16))
    y = F.relu(F.conv2d(y, dense, padding=1)) + y
    y = F.channel_shuffle(F.max_pool2d(y, 3, 2, 1), 4)
    return F.linear(F.conv2d(y, last).mean((2, 3)), product)


WEIGHTS = [
    weight(16, 3, 3, 3), weight(16, 1, 3, 3), weight(16, 16, 3, 3), weight(32, 16, 1, 1), rand(10, 32) / 6,
]  # fmt: skip


def expect_single_results(run: Callable[..., Any], inputs: list[Any]) -> None:
    expected = [run(*args) for args in inputs]

    def call(first: int) -> None:
        for number in range(NUM_CALLS):
            at = (first + number) % len(inputs)
            for result, single in zip(run(*inputs[at]), expected[at], strict=True):
                assert torch.equal(result, single)

    in_threads(*(lambda first=first: call(first) for first in range(NUM_THREADS)))


@pytest.mark.parametrize("is_real", [False, True])
def test_kernels_and_their_sequences(is_real: bool) -> None:
    prepared = prepare(
        network, [rand(2, 3, 33, 30), *WEIGHTS], [1, 2, 3, 4, 5], dynamic=True, is_real=is_real
    )
    assert prepared.gathered is not None
    inputs = [(rand(size, 3, 31 + size, 30), *WEIGHTS) for size in (1, 2, 3)]
    expect_single_results(prepared.run, inputs)


@pytest.mark.skipif(not _C.kernel_takes_attention(64, 64, 64, 64), reason="needs AVX-512")
def test_attention() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    inputs = [
        (rand(1, 2, rows, 64), rand(1, 2, rows, 64, seed=1), rand(1, 2, rows, 64)) for rows in (64, 100)
    ]
    expect_single_results(prepare(attend, inputs[0], [], dynamic=True).run, inputs)
