"""Threads that process images of a batch through many kernel calls."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.crosses import nightly_but
from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import check, compare, kernel_sequences, prepare, threads
from tests.kernels.network_cases import random_net
from torchrlopt.executors.eager.kernels import indirect

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")


def with_batch(function: Callable, args: list[Tensor], batch: int) -> tuple[Callable, list[Tensor]]:
    image, *weights = args
    return function, [rand(batch, *image.shape[1:]), *weights]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", nightly_but(range(20), range(60)))
def test_any_number_of_images_at_a_time_gives_the_same(seed: int, dtype: torch.dtype) -> None:
    if indirect.kernels(dtype) is None:
        pytest.skip("no kernels of this type for this processor")
    draw = random.Random(seed)
    function, args = with_batch(*random_net(draw), batch=draw.choice([2, 3, 4, 6, 12]))
    args = [each.to(dtype) for each in args]
    with threads(draw.randint(1, 3)):
        has_tiles = dtype is torch.float32 and seed % 2 == 1  # of convolutions
        prepared = check(function, args, static=range(1, len(args)), is_real=has_tiles)
        got = {}
        for at_a_time in ([0], [draw.randint(0, 4) for _ in range(draw.randint(1, 9))]):
            for each in kernel_sequences(prepared):
                each.take_images(at_a_time)
            got[tuple(at_a_time)] = [prepared.run(*args) for _ in range(3)]
    expected, *others = [results for runs in got.values() for results in runs]
    for each in others:
        for ours, theirs in zip(each, expected, strict=True):
            if has_tiles:  # which of them are summed up depends on those beside them
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
            else:
                assert torch.equal(ours, theirs)


def narrow(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Large images, small weights; and at the end the other way round."""
    y = F.relu(F.conv2d(F.relu(F.conv2d(x, a, padding=1)), b, padding=1))
    return F.conv2d(F.max_pool2d(y, 16, 16), c)


WEIGHTS = [weight(32, 8, 3, 3), weight(32, 32, 3, 3), weight(4096, 32, 1, 1)]


def test_other_batches_are_cut_anew() -> None:
    prepared = prepare(narrow, [rand(16, 8, 64, 64), *WEIGHTS], static=[1, 2, 3], dynamic=True)
    (sequence,) = kernel_sequences(prepared)
    assert sequence.images_at_a_time() == []
    for batch in (16, 1, 0, 5, 64, 2):
        x = rand(batch, 8, 64, 64)
        got = prepared.run(x, *WEIGHTS)[0]
        torch.testing.assert_close(got, narrow(x, *WEIGHTS), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [3, 8])  # of 3 it is read where it lies
def test_inputs_that_repeat_one_image(channels: int) -> None:
    args = [rand(1, channels, 64, 64).expand(16, -1, -1, -1), weight(32, channels, 3, 3), *WEIGHTS[1:]]
    check(narrow, args, static=[1, 2, 3])


def test_large_memory_is_not_taken_as_one_block() -> None:
    """It would be mapped again at each call: kernels run one by one if no chunk of images is small."""

    def function(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return F.conv2d(F.relu(F.conv2d(F.relu(F.conv2d(x, a)), a)), b)

    large, small = rand(1, 24, 500, 500), rand(1, 24, 50, 50)  # 24 MB in between, twice
    weights = [weight(24, 24, 1, 1), weight(8, 24, 1, 1)]
    prepared = prepare(function, [large, *weights], static=[1, 2], dynamic=True)
    (sequence,) = kernel_sequences(prepared)
    packed = [indirect.pack(each, None, 1) for each in weights]
    images = [each.contiguous(memory_format=torch.channels_last) for each in (large, small)]

    def work() -> list[bool]:
        return [sequence(each, *packed) is None for each in images]

    assert work() == [True, False]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == [True, False]
    compare(function, [large, *weights], prepared)


def test_rows_of_a_batch() -> None:
    def rows(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return F.linear(F.gelu(F.linear(x, a)), b)

    for shape in ((4, 6, 16), (12, 16), (16,), (1, 12, 16)):
        args = [rand(*shape), rand(24, 16) / 4, rand(8, 24) / 5]
        prepared = check(rows, args, static=[1, 2])
        for each in kernel_sequences(prepared):
            for images in (1, 2, 3):
                each.take_images([images])
                torch.testing.assert_close(prepared.run(*args)[0], rows(*args), rtol=1e-4, atol=1e-5)
                parts = shape[0] if len(shape) > 1 else 1
                assert each.images_at_a_time() == [images if parts % images == 0 else 0]


def test_a_view_that_mixes_images_is_of_the_whole_batch() -> None:
    def function(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        y = F.relu(F.conv2d(x, a)).mean((2, 3), keepdim=True)
        return F.linear(F.relu(F.linear(y.view(4, 24), b)), c)

    args = [rand(12, 8, 6, 6), weight(8, 8, 1, 1), rand(16, 24) / 5, rand(8, 16) / 4]
    prepared = check(function, args, static=[1, 2, 3])
    for each in kernel_sequences(prepared):
        for images in (1, 2, 3, 4):
            each.take_images([images])
            torch.testing.assert_close(prepared.run(*args)[0], function(*args), rtol=1e-4, atol=1e-5)
