"""Our bfloat16 image kernels: sums in float32, each result rounded once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.image_cases import rand, weight
from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.epilogues import NONE

pytestmark = pytest.mark.skipif(
    "bfloat16" not in _C.kernel_dtypes(), reason="needs AVX-512 with products of bfloat16"
)

HALF = torch.bfloat16


def half(*given: Tensor) -> list[Tensor]:
    return [each.to(HALF) for each in given]


def is_rounded_once(got: Tensor, exact: Tensor, terms: Tensor | float = 0.0) -> bool:
    """Whether results are the exact ones, rounded to the nearest but for what float32 rounds of terms."""
    error = (got.double() - exact).abs()
    return bool((error <= exact.abs() * (2**-8 + 2**-16) + 2**-20 * terms + 1e-37).all())


@pytest.mark.parametrize("outputs", [17, 18, 20, 23, 24, 31, 33, 40, 47, 72])
@pytest.mark.parametrize("kind", ["dense", "depthwise", "pool"])
def test_nothing_is_written_beside_a_part(kind: str, outputs: int) -> None:
    room = torch.full((2, outputs + 9, 6, 7), 7.0, dtype=HALF).contiguous(memory_format=torch.channels_last)
    channels = 24 if kind == "dense" else outputs
    x = half(rand(2, channels, 6, 7))[0].contiguous(memory_format=torch.channels_last)
    groups = 1 if kind == "dense" else outputs
    w = half(weight(outputs, channels // groups, 3, 3))[0]
    window = indirect.Window(outputs, (3, 3), (1, 1), (1, 1), (1, 1))
    if kind == "pool":
        indirect.pool(x, window.of_pool("max"), room, 4)
        exact = F.max_pool2d(x, 3, 1, 1).double()
    else:
        indirect.convolve(
            x, indirect.pack(w, None, groups), None, window.of_convolution(groups, NONE), room, 4
        )
        exact = F.conv2d(x.double(), w.double(), padding=1, groups=groups)
    assert is_rounded_once(room[:, 4 : 4 + outputs], exact, 10.0)
    assert (room[:, :4] == 7).all()
    assert (room[:, 4 + outputs :] == 7).all()


def test_queries_that_see_no_key_or_one() -> None:
    q, k, v = half(rand(1, 1, 16, 8), rand(1, 1, 5, 8), rand(1, 1, 5, 9))
    mask = torch.zeros(16, 5, dtype=HALF)
    mask[3], mask[4, :4] = -torch.inf, -torch.inf
    got = indirect.attend(q * 100, k * 100, v, mask, False, 1.0, True)
    assert got is not None
    assert (got[0, 0, 3] == 0).all()
    assert torch.equal(got[0, 0, 4], v[0, 0, 4])
    assert got.isfinite().all()


def test_numbers_below_the_smallest_normal_one_are_zero() -> None:
    x = torch.full((1, 32, 3, 3), 1e-39, dtype=HALF).contiguous(memory_format=torch.channels_last)
    assert x.amax() > 0
    window = indirect.Window(32, (3, 3), (1, 1), (0, 0), (1, 1))
    assert (indirect.pool(x, window.of_pool("max")) == x.amax()).all()  # it compares bits
    assert (indirect.pool(x, window.of_pool("mean")) == 0).all()
    ones = torch.ones(32, 32, 3, 3, dtype=HALF)
    assert (
        indirect.convolve(x, indirect.pack(ones, None, 1), None, window.of_convolution(1, NONE)) == 0
    ).all()


def test_operands_of_another_type_are_refused() -> None:
    image = half(rand(1, 16, 4, 4))[0].contiguous(memory_format=torch.channels_last)
    packed = indirect.pack(half(weight(16, 16, 1, 1))[0], None, 1)
    numbers = indirect.Window(16, (1, 1), (1, 1), (0, 0), (1, 1)).of_convolution(1, NONE)
    ours = indirect.kernels(HALF)
    assert ours is not None
    assert ours.convolve(image, packed, image, numbers) is not None
    assert ours.convolve(image.double(), packed, None, numbers) is None
    assert ours.convolve(image, packed, image.float(), numbers) is None
    for call in (
        lambda: ours.convolve(image, packed.to(HALF), None, numbers),
        lambda: ours.convolve(image.float(), packed, None, numbers),
        lambda: ours.convolve(image, packed, None, numbers, indirect.room_for((1, 16, 4, 4)), 0),
    ):
        with pytest.raises((TypeError, ValueError), match=r"is expected|does not fit"):
            call()


def test_a_shuffle_keeps_every_bit() -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(HALF).reshape(1, 64, 32, 32)
    image = every.contiguous(memory_format=torch.channels_last)
    assert torch.equal(
        indirect.shuffle(image, 2).view(torch.int16), F.channel_shuffle(image, 2).view(torch.int16)
    )
