"""Channel shuffles: our kernel, and where it replaces views and a permutation."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import check, prepare, threads
from tests.kernels.network_cases import shuffled
from torchrlopt.executors.eager.kernels import indirect

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")


@pytest.mark.parametrize("seed", range(24))
def test_any_groups(seed: int) -> None:
    draw = random.Random(seed)
    groups = draw.choice([1, 2, 2, 2, 3, 4, 8, 29])
    channels = groups * draw.choice([1, 5, 8, 16, 17, 33, 58])
    image = rand(draw.randint(0, 3), channels + 5, draw.randint(1, 9), draw.randint(1, 9))
    image = image.contiguous(memory_format=torch.channels_last)[:, 2 : channels + 2]  # pixels lie apart
    with threads(draw.randint(1, 3)):
        got = indirect.shuffle(image, groups)
    assert torch.equal(got, shuffled(image, groups))
    assert got.is_contiguous(memory_format=torch.channels_last)


def test_an_image_may_lie_anyhow() -> None:
    for image in (
        rand(2, 12, 5, 4),
        torch._neg_view(rand(2, 12, 5, 4)),
        rand(2, 12, 1, 4).expand(2, 12, 5, 4),
    ):
        assert torch.equal(indirect.shuffle(image, 3), shuffled(image, 3))
    with pytest.raises(ValueError, match="no such groups"):
        indirect.shuffle(rand(2, 12, 5, 4), 5)


def unit(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """ShuffleNet V2: one half of the channels goes on as it is."""
    left, right = x.chunk(2, 1)
    right = F.relu(F.conv2d(right, a))
    right = F.conv2d(right, b, padding=1, groups=b.shape[0])
    return shuffled(torch.cat([left, F.relu(F.conv2d(right, c))], 1), 2)


UNIT = [weight(24, 24, 1, 1), weight(24, 1, 3, 3), weight(24, 24, 1, 1)]


@pytest.mark.parametrize("dynamic", [False, True])
def test_units_are_one_sequence(dynamic: bool) -> None:
    def function(x: Tensor, first: Tensor, *weights: Tensor) -> Tensor:
        return F.conv2d(unit(unit(F.conv2d(x, first), *weights), *weights), first[:, :8].repeat(1, 6, 1, 1))

    args = [rand(2, 8, 9, 11), weight(48, 8, 1, 1), *UNIT]
    prepared = check(function, args, static=[1, 2, 3, 4], dynamic=dynamic)
    assert prepared.count("shuffle") == 2
    if not dynamic:
        assert prepared.gathered is not None
        calls = [node.name for node in prepared.gathered.graph.nodes if node.op.startswith("call")]
        assert sum("sequence" in name for name in calls) == 1
        assert not any("permute" in name or "view" in name for name in calls)


@pytest.mark.parametrize("is_read", [False, True])
def test_groups_that_others_read_stay(is_read: bool) -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y = F.conv2d(x, w)
        grouped = y.view(2, 3, 8, 9, 11)
        z = grouped.transpose(1, 2).reshape(2, 24, 9, 11)
        return (z, grouped.amax(2)) if is_read else (z,)

    assert check(function, [rand(2, 8, 9, 11), weight(24, 8, 1, 1)], static=[1]).count("shuffle") == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda y: y.view(2, 3, 8, 9, 11).permute(0, 2, 1, 4, 3).reshape(2, 24, 9, 11),
        lambda y: y.view(2, 3, 8, 9, 11).permute(0, 1, 2, 3, 4).reshape(2, 24, 9, 11).relu(),
        lambda y: y.view(2, 6, 4, 9, 11).transpose(1, 2).reshape(2, 12, 18, 11),
        lambda y: y.view(2, 24, 9, 11, 1).transpose(1, 2).reshape(2, 24, 9, 11),
        lambda y: y.view(1, 2, 24, 9, 11).transpose(1, 2).reshape(2, 24, 9, 11),
        lambda y: y.view(2, 8, 3, 99).transpose(1, 2).reshape(2, 24, 9, 11),
    ],
)
def test_what_is_no_shuffle_stays(wrong: Callable[[Tensor], Tensor]) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return wrong(F.conv2d(x, w)) * 2.0

    assert check(function, [rand(2, 8, 9, 11), weight(24, 8, 1, 1)], static=[1]).count("shuffle") == 0


def test_no_channels_are_no_groups() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = F.conv2d(x, w)
        return y.relu(), y[:, :0].reshape(2, 0, 4, 9, 11).transpose(1, 2).reshape(2, 0, 9, 11)

    assert check(function, [rand(2, 8, 9, 11), weight(24, 8, 1, 1)], static=[1]).count("shuffle") == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_numbers_are_left_to_others(dtype: torch.dtype) -> None:
    args = [each.to(dtype) for each in (rand(2, 8, 9, 11), weight(24, 8, 1, 1))]
    prepared = prepare(lambda x, w: shuffled(F.conv2d(x, w), 3), args, static=[1])
    assert prepared.count("shuffle") == 0
