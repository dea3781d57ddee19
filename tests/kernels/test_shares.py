"""Work distribution between threads: every part is computed exactly once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import Prepared, check, threads
from torchrlopt import _C
from torchrlopt.executors.eager.inventory import inventory
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.epilogues import Epilogue

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")

# Channels in and out, height and width, kernel, stride, groups; each of many parts.
CONVOLUTIONS = {
    "pixels, of few weights": (32, 128, 60, 1, 1, 1),
    "pixels, of many weights": (256, 320, 28, 1, 1, 1),
    "one panel": (64, 64, 40, 3, 1, 1),
    "channels": (128, 330, 9, 3, 1, 1),
    "few channels": (3, 40, 120, 5, 2, 1),
    "depthwise rows": (72, 72, 56, 3, 1, 72),
    "depthwise rows, otherwise": (72, 72, 56, 9, 1, 72),
    "depthwise channels": (700, 700, 14, 5, 1, 700),
    "two of a group": (64, 64, 56, 3, 1, 32),
    "four of a group": (200, 200, 30, 3, 2, 50),
    "eight of a group": (136, 136, 30, 3, 1, 17),
    "sixteen of a group": (512, 512, 14, 3, 1, 32),
    "whole groups": (160, 320, 20, 3, 1, 8),
    "pixels of groups": (120, 120, 40, 3, 1, 3),
}
"""By what threads share out."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_threads_share_what_they_compute(name: str, dtype: torch.dtype) -> None:
    inside, outside, size, kernel, stride, groups = CONVOLUTIONS[name]
    if indirect.kernels(dtype) is None:
        pytest.skip("no kernels of this type for this processor")
    x = rand(2, inside, size, size).to(dtype).contiguous(memory_format=torch.channels_last)
    w = weight(outside, inside // groups, kernel, kernel).to(dtype)
    window = indirect.Window(outside, (kernel, kernel), (stride, stride), (kernel // 2,) * 2, (1, 1))
    numbers = window.of_convolution(groups, Epilogue("relu"))
    packed = indirect.pack(w, rand(outside), groups)
    summand = torch.zeros(F.conv2d(x, w, None, stride, kernel // 2, 1, groups).shape)
    summand = rand(*summand.shape).to(dtype).contiguous(memory_format=torch.channels_last)
    expected = F.conv2d(x.double(), w.double(), rand(outside).double(), stride, kernel // 2, 1, groups)
    expected = F.relu(expected + summand)
    with threads(1):
        alone = indirect.convolve(x, packed, summand, numbers)
    rtol = 1e-4 if dtype is torch.float32 else 2**-7
    torch.testing.assert_close(alone.double(), expected, rtol=rtol, atol=rtol)
    for count in (2, 3, 7):  # these wait for each other's cores, so that some do others' parts
        with threads(count):
            for _ in range(8):
                room = torch.full(alone.shape, torch.nan, dtype=dtype).contiguous(
                    memory_format=torch.channels_last
                )
                assert torch.equal(indirect.convolve(x, packed, summand, numbers, room, 0), alone)


def bottleneck(x: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    y = F.max_pool2d(F.relu(F.conv2d(x, a, padding=1)), 3, 2, 1)
    z = F.relu(F.conv2d(F.relu(F.conv2d(y, b)), c, padding=1, groups=32))
    return F.conv2d(z * torch.sigmoid(z.mean((2, 3), keepdim=True)), d) + y


@pytest.mark.parametrize("has_tiles", [False, True])
def test_a_sequence_in_turns_gives_the_same_bits(has_tiles: bool) -> None:
    weights = [weight(64, 64, 3, 3), weight(128, 64, 1, 1), weight(128, 4, 3, 3), weight(64, 128, 1, 1)]
    x = rand(2, 64, 96, 96)
    prepared: Prepared = check(bottleneck, [x, *weights], static=[1, 2, 3, 4], is_real=has_tiles)
    packed = inventory(prepared.split.main.graph).packed
    assert any("tiles" in name for name in packed) == has_tiles
    assert prepared.gathered is not None
    results = []
    for count in (1, 2, 3, 7):
        with threads(count):
            results += [prepared.run(x, *weights)[0] for _ in range(5)]
    assert all(torch.equal(each, results[0]) for each in results)


REFUSED: dict[str, Callable[[_C.ImageKernels], object]] = {
    "size": lambda ours: ours.packed_size(64, 64, 3, 3, 3, 0),
    "no groups": lambda ours: ours.packed_size(64, 64, 3, 3, 0, 0),
    "packing": lambda ours: ours.pack(torch.ones(64, 2, 3, 3), None, 64, 64, 3, 3, 3, 0, torch.empty(64)),
    "call": lambda ours: ours.convolve(
        rand(1, 64, 8, 8).contiguous(memory_format=torch.channels_last),
        indirect.pack(torch.ones(64, 64, 1, 1), None, 1),
        None,
        indirect.Window(64, (1, 1), (1, 1), (0, 0), (1, 1)).of_convolution(3, Epilogue()),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_groups_that_are_none_are_refused(name: str) -> None:
    ours = indirect.kernels()
    assert ours is not None
    with pytest.raises(ValueError, match="no such groups of channels"):
        REFUSED[name](ours)


@pytest.mark.parametrize("width", [1, 5, 14])
def test_an_image_without_rows_and_zeros_behind_it(width: int) -> None:
    w, b = weight(16, 16, 1, 1), rand(16)
    window = indirect.Window(16, (1, 1), (1, 1), (0, 0), (1, 1), behind=(1, 0))
    x = torch.empty(1, 16, 0, width).contiguous(memory_format=torch.channels_last)
    got = indirect.convolve(x, indirect.pack(w, b, 1), None, window.of_convolution(1, Epilogue()))
    assert torch.equal(got, b.view(1, 16, 1, 1).expand(1, 16, 1, width))
