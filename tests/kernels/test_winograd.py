"""Winograd convolutions against float64 and sums, for all windows, layouts and thread counts."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import ACTIVATIONS, check, convolved, epilogue, one_by_one, threads
from torchrlopt.executors.eager.inventory import inventory
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.epilogues import Epilogue

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")

LAST = torch.channels_last


def window(
    outputs: int, padding: tuple[int, int] = (1, 1), behind: tuple[int, int] | None = None
) -> indirect.Window:
    return indirect.Window(outputs, (3, 3), (1, 1), padding, (1, 1), behind)


def convolve(x: Tensor, w: Tensor, tile: int, bias: Tensor | None = None) -> Tensor:
    return convolved(x, w, bias, window(w.shape[0]), 1, tile)


def expect_right(
    draw: random.Random, shape: tuple[int, ...], window: indirect.Window, method: int, tolerance: float
) -> None:
    """A convolution with some bias, summand and activation is that in float64, also as a part of an image."""
    images, channels, height, width = shape
    # Some channels of a larger image, of which only a part is read.
    whole = rand(images, channels + 5, height + 2, width + 3, seed=draw.getrandbits(16))
    x = whole.contiguous(memory_format=LAST)[:, 2 : 2 + channels, 1 : 1 + height, 2 : 2 + width]
    outputs, before = window.out_channels, window.padding
    behind = before if window.behind is None else window.behind
    w, bias = weight(outputs, channels, *window.kernel), rand(outputs) if draw.random() < 0.7 else None
    read = x
    if method == indirect.BF16:  # rounded here, or while it is read
        w, rounded = w.bfloat16(), x.bfloat16()
        read, x = draw.choice([x, rounded]), rounded
    padded = F.pad(x.double(), (before[1], behind[1], before[0], behind[0]))
    wide = None if bias is None else bias.double()
    expected = F.conv2d(padded, w.double(), wide, window.stride, 0, window.dilation)
    summand = rand(*expected.shape).contiguous(memory_format=LAST) if draw.random() < 0.5 else None
    activation = draw.choice(list(ACTIVATIONS))
    expected = ACTIVATIONS[activation](expected if summand is None else expected + summand)
    numbers = window.of_convolution(1, epilogue(activation), method, w.dtype, torch.float32)
    packed = indirect.pack(w, bias, 1, method)
    for count in (1, 2, 3):
        with threads(count):
            got = indirect.convolve(read, packed, summand, numbers)
            assert (got - expected).abs().max() < tolerance * max(1.0, expected.abs().max())
            room = torch.full((images, outputs + 7, *expected.shape[2:]), 5.0).contiguous(memory_format=LAST)
            indirect.convolve(read, packed, summand, numbers, room, 3)
            assert torch.equal(room[:, 3 : 3 + outputs], got)
            assert bool((room[:, :3] == 5.0).all())
            assert bool((room[:, 3 + outputs :] == 5.0).all())


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("seed", range(30))
def test_any_image(seed: int, tile: int) -> None:
    draw = random.Random(seed)
    images, channels, outputs = (
        draw.randint(1, 3),
        draw.choice([8, 13, 16, 40, 72]),
        draw.choice([8, 15, 33, 64, 130, 200]),
    )
    before, behind = ((draw.randint(0, 2), draw.randint(0, 2)) for _ in range(2))
    size = draw.randint(3, 21), draw.randint(3, 21)
    expect_right(draw, (images, channels, *size), window(outputs, before, behind), tile, 1e-5)


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize(("channels", "times"), [(64, 2.5), (512, 1.0)])
def test_rounding_is_that_of_a_sum(channels: int, times: float, tile: int) -> None:
    """The error is at most about twice that of a sum of the products one by one, and with many less."""
    x, w = rand(1, channels, 30, 30).relu().contiguous(memory_format=LAST), weight(64, channels, 3, 3)
    expected = F.conv2d(x.double(), w.double(), padding=1)
    sums = one_by_one(w.reshape(64, -1), F.unfold(x, 3, padding=1)[0].t())
    results = (convolve(x, w, tile), sums.reshape(expected.shape))
    error, known = ((each - expected).square().mean().sqrt() for each in results)
    assert error < times * known
    assert not torch.equal(convolve(x, w, tile), convolve(x, w, 0))  # it is not sums that were compared


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 3e38])
def test_what_is_not_finite_stays_where_it_is(value: float, tile: int) -> None:
    """A sum is not finite only where the window lies over such a value; nor is a tile any more."""
    x, w, bias = rand(2, 16, 13, 11).contiguous(memory_format=LAST), weight(40, 16, 3, 3), rand(40)
    x[0, 3, 5, 6] = x[1, 15, 0, 0] = value
    got, expected = convolve(x, w, tile, bias), convolve(x, w, 0, bias)
    assert torch.equal(got.isfinite(), expected.isfinite())
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    w[5, 7, 1, 1] = value
    x = rand(2, 16, 13, 11).contiguous(memory_format=LAST)
    torch.testing.assert_close(convolve(x, w, tile), convolve(x, w, 0), rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_windows_that_see_zeros_only_give_the_bias(share: float, tile: int) -> None:
    """As in images of scattered points."""
    x, w, bias = rand(2, 16, 40, 37), weight(40, 16, 3, 3), rand(40)
    x = (x * (rand(2, 1, 40, 37, seed=1).abs() < 1.25 * share)).contiguous(memory_format=LAST)
    got = convolve(x, w, tile, bias)
    torch.testing.assert_close(got, F.conv2d(x, w, bias, padding=1), rtol=1e-5, atol=1e-5)
    is_unseen = F.max_pool2d(x.abs().amax(1, keepdim=True), 3, 1, 1).expand_as(got) == 0
    assert is_unseen.any()
    assert torch.equal(got[is_unseen], bias.view(1, -1, 1, 1).expand_as(got)[is_unseen])


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("step", [1.0, 0.125])
def test_integers_stay_integers(step: float, tile: int) -> None:
    """As where neighbours are counted and compared with a number."""
    x = (rand(1, 16, 30, 31) > 0).float().contiguous(memory_format=LAST)
    w = torch.ones(24, 16, 3, 3)
    w[::2] = (rand(12, 16, 3, 3) * 3 / step).round() * step
    assert torch.equal(convolve(x, w, tile), F.conv2d(x.double(), w.double(), padding=1).float())


# Channels in and out, height and width, images.
SHARED = {
    "tiles": (32, 32, 93, 2),
    "panels": (96, 330, 17, 2),
    "parts of panels": (64, 1100, 17, 1),
    "less than a panel": (64, 48, 50, 2),
    "many images": (64, 256, 7, 19),
}
"""By what threads share out."""


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("name", SHARED)
def test_threads_share_what_they_compute(name: str, tile: int) -> None:
    inside, outside, size, images = SHARED[name]
    x, w = rand(images, inside, size, size).contiguous(memory_format=LAST), weight(outside, inside, 3, 3)
    numbers, packed = (
        window(outside).of_convolution(1, Epilogue("relu"), tile),
        indirect.pack(w, None, 1, tile),
    )
    with threads(1):
        alone = indirect.convolve(x, packed, None, numbers)
    expected = F.conv2d(x.double(), w.double(), padding=1).relu()
    torch.testing.assert_close(alone.double(), expected, rtol=1e-5, atol=1e-5)
    for count in (2, 3, 7):
        with threads(count):
            for _ in range(8):
                room = torch.full(alone.shape, torch.nan).contiguous(memory_format=LAST)
                assert torch.equal(indirect.convolve(x, packed, None, numbers, room, 0), alone)


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("size", [(0, 16, 5, 5), (1, 16, 1, 1), (2, 16, 1, 7)])
def test_small_images(size: tuple[int, ...], tile: int) -> None:
    x, w = rand(*size).contiguous(memory_format=LAST), weight(24, 16, 3, 3)
    torch.testing.assert_close(convolve(x, w, tile), F.conv2d(x, w, padding=1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tile", [2, 4])
def test_nothing_but_padding(tile: int) -> None:
    x, w = torch.empty(1, 16, 0, 4).contiguous(memory_format=LAST), weight(24, 16, 3, 3)
    numbers = window(24, (2, 1)).of_convolution(1, Epilogue(), tile)
    got = indirect.convolve(x, indirect.pack(w, None, 1, tile), None, numbers)
    assert torch.equal(got, torch.zeros(1, 24, 2, 4))


@pytest.mark.parametrize(
    ("outputs", "channels", "kernel", "groups", "tile"),
    [(16, 16, 3, 1, 3), (16, 16, 3, 1, -2), (16, 16, 5, 1, 4), (64, 64, 3, 2, 4), (16, 4, 3, 1, 4)],
)
def test_other_tiles_are_refused(outputs: int, channels: int, kernel: int, groups: int, tile: int) -> None:
    ours = indirect.kernels()
    assert ours is not None
    with pytest.raises(ValueError, match=r"tiles|groups|no such method"):
        ours.packed_size(outputs, channels, kernel, kernel, groups, tile)


@pytest.mark.parametrize("change", [{"kernel": (1, 9)}, {"stride": (2, 1)}, {"dilation": (1, 2)}])
def test_other_windows_have_no_tiles(change: dict[str, tuple[int, int]]) -> None:
    given = {"kernel": (3, 3), "stride": (1, 1), "padding": (4, 4), "dilation": (1, 1)} | change
    numbers = indirect.Window(16, **given).of_convolution(1, Epilogue(), 4)
    packed = indirect.pack(weight(16, 16, 3, 3), None, 1, 4)
    with pytest.raises(ValueError, match="tiles"):
        indirect.convolve(rand(1, 16, 9, 9).contiguous(memory_format=LAST), packed, None, numbers)


def test_strict_numerics_have_no_tiles() -> None:
    args = [rand(1, 32, 40, 40), weight(48, 32, 3, 3)]
    for is_real in (False, True):
        prepared = check(lambda x, w: F.conv2d(x, w, padding=1), args, static=[1], is_real=is_real)
        (kernel,) = inventory(prepared.split.main.graph).packed
        assert ("tiles" in kernel) == is_real
