"""A 1 x 1 convolution fused by row tiles with a following depthwise or small-group convolution."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.crosses import nightly_but
from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import Prepared, check, kernel_sequences, prepare, threads
from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")


def sequence_of(prepared: Prepared) -> _C.KernelSequence:
    (sequence,) = kernel_sequences(prepared)
    return sequence


def wide(x: Tensor, a: Tensor, b: Tensor, c: Tensor, **window: Any) -> Tensor:
    """A wide image between two narrow ones, as in inverted residual blocks."""
    y = F.hardtanh(F.conv2d(x, a), 0.0, 6.0)
    return F.conv2d(F.hardswish(F.conv2d(y, b, groups=b.shape[0], **window)), c)


def operands(channels: int, size: int | tuple[int, int], kernel: int, batch: int = 1) -> list[Tensor]:
    height, width = (size, size) if isinstance(size, int) else size
    weights = weight(channels, 16, 1, 1), weight(channels, 1, kernel, kernel), weight(24, channels, 1, 1)
    return [rand(batch, 16, height, width), *weights]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", nightly_but(range(15), range(40)))
def test_bands_give_what_whole_images_give(seed: int, dtype: torch.dtype) -> None:
    if indirect.kernels(dtype) is None:
        pytest.skip("no kernels of this type for this processor")
    draw = random.Random(seed)
    kernel, stride = draw.choice([3, 5, 7]), draw.choice([1, 2, 3])
    window = {"stride": stride, "padding": draw.randint(0, kernel - 1), "dilation": draw.choice([1, 1, 2])}
    channels = draw.choice([64, 72, 96, 100, 144])
    args = operands(channels, (draw.randint(70, 130), draw.randint(70, 130)), kernel)
    args = [each.to(dtype) for each in args]

    def function(*given: Tensor) -> Tensor:
        return wide(*given, **window)

    with threads(draw.randint(1, 4)):
        prepared = check(function, args, static=[1, 2, 3])
        got = [prepared.run(*args)[0] for _ in range(3)]
    # Two images are never cut, and each is computed for itself.
    both = [torch.cat([args[0], args[0]]).contiguous(memory_format=torch.channels_last), *args[1:]]
    with threads(1):
        prepared = prepare(function, both, static=[1, 2, 3])
        sequence_of(prepared).take_images([0])
        (expected,) = prepared.run(*both)
        assert sequence_of(prepared).bands() == []
    for each in got:
        assert torch.equal(each, expected[:1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_large_images_are_cut_into_bands(count: int, dtype: torch.dtype) -> None:
    if indirect.kernels(dtype) is None:
        pytest.skip("no kernels of this type for this processor")
    if dtype is torch.bfloat16 and _C.kernel_has_matrix_unit():
        pytest.skip("the matrix unit multiplies whole images")
    with threads(count):
        for channels, kernel, window in (
            (64, 3, {"stride": 2, "padding": 1}),
            (96, 3, {"stride": 2, "padding": 1}),
            (72, 3, {"padding": 1}),
        ):
            args = [each.to(dtype) for each in operands(channels, 112, kernel)]
            prepared = check(lambda *given, window=window: wide(*given, **window), args, static=[1, 2, 3])
            (bands,) = sequence_of(prepared).bands()
            assert bands % count == 0
            assert bands >= 2 * count


@pytest.mark.parametrize("per_group", [2, 4, 8])
def test_small_groups(per_group: int) -> None:
    def grouped(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        y = F.relu(F.conv2d(x, a))
        return F.conv2d(F.relu(F.conv2d(y, b, padding=1, groups=64 // per_group)), c)

    _, a, _, c = operands(64, 8, 3)
    args = [rand(1, 16, 112, 112), a, weight(64, per_group, 3, 3), c]
    with threads(2):
        assert sequence_of(check(grouped, args, static=[1, 2, 3])).bands() != []


def test_what_is_read_and_written_may_be_a_part() -> None:
    """Of the channels of a larger image, or an output of its own."""

    def parts(x: Tensor, stem: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        first, second = F.relu(F.conv2d(x, stem)).split([16, 24], 1)
        y = F.conv2d(F.relu(F.conv2d(first, a)), b, padding=1, groups=b.shape[0])
        alone = F.conv2d(F.relu6(F.conv2d(first, a)), b, padding=1, groups=b.shape[0])
        return torch.cat([second, y], 1), alone

    args = [rand(1, 8, 112, 112), weight(40, 8, 1, 1), weight(64, 16, 1, 1), weight(64, 1, 3, 3)]
    for count in (1, 2):
        with threads(count):
            assert len(sequence_of(check(parts, args, static=[1, 2, 3])).bands()) == 2


def test_what_others_read_too_is_whole() -> None:
    def twice(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        y = F.relu(F.conv2d(x, a))
        return F.conv2d(y, b, padding=1, groups=b.shape[0]) + y

    def added(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        y = F.relu(F.conv2d(x, a))
        return F.max_pool2d(F.conv2d(y, b, padding=1, groups=b.shape[0]) + F.relu(y), 2)

    args = operands(64, 112, 3)[:3]
    with threads(2):
        for function in (twice, added):
            prepared = check(function, args, static=[1, 2])
            assert sequence_of(prepared).bands() == []


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
def test_pools_of_single_pixels_are_no_convolutions(pool: Any) -> None:
    def pooled(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        y = pool(F.relu(F.conv2d(x, a)), 1, 1)
        return F.relu(F.conv2d(y, b, stride=3, groups=b.shape[0]))

    for count in (1, 2):
        with threads(count):
            prepared = check(pooled, operands(64, 112, 3)[:3], static=[1, 2])
            assert sequence_of(prepared).bands() == []


def test_bands_of_padding_alone() -> None:
    args = operands(64, 112, 3)
    with threads(2):
        prepared = check(lambda *given: wide(*given, padding=(40, 1)), args, static=[1, 2, 3])
        assert sequence_of(prepared).bands() != []


def test_what_is_read_is_not_written_over() -> None:
    """The second result must not lie where the first input does, though it fits: later bands read that."""

    def several(x: Tensor, *weights: Tensor) -> Tensor:
        x = F.relu(F.conv2d(x, weights[0]))
        for at in range(1, len(weights), 3):
            x = wide(x, *weights[at : at + 3], stride=2, padding=1)
        return x

    blocks = [weight(16, 3, 1, 1), *[weight(64, 16, 1, 1), weight(64, 1, 3, 3), weight(16, 64, 1, 1)] * 2]
    args = [rand(1, 3, 200, 200), *blocks]
    for count in (1, 2, 4):
        with threads(count):
            prepared = check(several, args, static=range(1, len(args)))
            assert len(sequence_of(prepared).bands()) == 2


@pytest.mark.parametrize("count", [0, 1, 2, 7, 56, 57])
def test_any_number_of_bands_gives_the_same(count: int) -> None:
    def function(*given: Tensor) -> Tensor:
        return wide(*given, stride=2, padding=1)

    args = operands(64, 112, 3)
    with threads(2):
        prepared = check(function, args, static=[1, 2, 3])
        (expected,) = prepared.run(*args)
        sequence_of(prepared).take_bands(count)
        (got,) = prepared.run(*args)
        assert sequence_of(prepared).bands() == ([count] if 0 < count <= 56 else [])
    assert torch.equal(got, expected)
