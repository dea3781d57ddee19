"""Error bound of tiles relative to sums, for all magnitudes of images, of weights, and of both.

A tile's rounding error is relative to everything under the tile. So every case here has numbers, or weights,
that are far larger than their neighbours, and checks each pixel and each output individually.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.image_cases import rand, weight
from tests.kernels.test_winograd import LAST, convolve
from torchrlopt.executors.eager.kernels import indirect

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")

UNIT = 2.0**-24
"""What one rounding of float32 loses at most."""

MOST = 500 * UNIT
"""Of the magnitudes of an output's own terms. Measured: 229 with 16 channels, 158 with 64."""

MOST_OF_SUMS = 50.0
"""Times the error of sums, in one pixel of an image and over all outputs. Measured: 20."""


def normal(*sizes: int, seed: int) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def spread(*sizes: int, seed: int, decades: float = 8) -> Tensor:
    """Magnitudes from 10^-decades to 10^decades."""
    return normal(*sizes, seed=seed) * 10 ** (normal(*sizes, seed=seed + 1).clamp(-2, 2) * decades / 2)


def mask(x: Tensor, share: float, seed: int) -> Tensor:
    return (torch.rand(x.shape[-2:], generator=torch.Generator().manual_seed(seed)) < share).float()


Case = tuple[Tensor, Tensor]
CASES: dict[str, Callable[[Tensor, Tensor, int], Case]] = {}


def case(function: Callable[[Tensor, Tensor, int], Case]) -> Callable[[Tensor, Tensor, int], Case]:
    CASES[function.__name__.replace("_", " ")] = function
    return function


@case
def nothing_unusual(x: Tensor, w: Tensor, seed: int) -> Case:
    return x.relu(), w


@case
def a_mask_with_a_heavy_weight(x: Tensor, w: Tensor, seed: int) -> Case:
    """Masked positions are suppressed: each pixel looks at its own mask only."""
    x[:, 0], w[:, 0] = mask(x, 0.02, seed), 0.0
    w[:, 0, 1, 1] = -1e6
    return x, w


@case
def a_dense_mask_seen_beside_its_heavy_tap(x: Tensor, w: Tensor, seed: int) -> Case:
    """Every window sees the mask, and most of them by light taps."""
    x[:, 0] = mask(x, 0.5, seed)
    w[:, 0, 1, 1] = -1e6
    return x, w


@case
def a_mask_that_is_heavy_for_one_output(x: Tensor, w: Tensor, seed: int) -> Case:
    x[:, 0] = mask(x, 0.1, seed)
    w[5, 0] = -1e6
    w[6] *= 1e6  # all of it: its mask is none
    return x, w


@case
def a_coordinate_and_no_data(x: Tensor, w: Tensor, seed: int) -> Case:
    x[:, 0] = torch.linspace(9000, 12000, x.shape[3])
    w[:, 0] *= 1e-4
    x[0, 1, 9, 11], x[0, 2, 20, 3] = 1e6, -9999.0
    return x, w


@case
def a_channel_that_one_output_reads(x: Tensor, w: Tensor, seed: int) -> Case:
    x[:, 3], w[1:, 3] = 1e5, 0.0
    x[0, 1, 9, 11] = 1e6
    return x, w


@case
def no_data_in_all_channels(x: Tensor, w: Tensor, seed: int) -> Case:
    x[:, :, 4:9, 13:17] = -9999.0
    return x, w


@case
def outlying_channels(x: Tensor, w: Tensor, seed: int) -> Case:
    return x * spread(1, x.shape[1], 1, 1, seed=seed, decades=4), w


@case
def channels_of_all_sizes(x: Tensor, w: Tensor, seed: int) -> Case:
    """As large in the image as they are small in the weight."""
    size = spread(x.shape[1], 1, 1, seed=seed).abs()
    return x * size, w / size


@case
def channels_of_all_sizes_and_a_mask(x: Tensor, w: Tensor, seed: int) -> Case:
    size = spread(x.shape[1], 1, 1, seed=seed).abs()
    x[:, 0] = mask(x, 0.05, seed)
    w[:, 0] = 1e7
    return x * size, w / size


@case
def outputs_of_all_sizes(x: Tensor, w: Tensor, seed: int) -> Case:
    x[0, 1, 9, 11] = 1e6
    return x, w * spread(w.shape[0], 1, 1, 1, seed=seed)


@case
def images_of_all_magnitudes(x: Tensor, w: Tensor, seed: int) -> Case:
    return spread(*x.shape, seed=seed), w


@case
def weights_of_all_magnitudes(x: Tensor, w: Tensor, seed: int) -> Case:
    return x, spread(*w.shape, seed=seed)


@case
def both_of_all_magnitudes(x: Tensor, w: Tensor, seed: int) -> Case:
    return spread(*x.shape, seed=seed), spread(*w.shape, seed=seed + 5)


@case
def half_an_image_in_the_dark(x: Tensor, w: Tensor, seed: int) -> Case:
    x[..., 14:] *= 1e-6
    return x, w


@case
def taps_of_which_one_is_heavy(x: Tensor, w: Tensor, seed: int) -> Case:
    w[:, :, 0, 2] *= 1e5
    x[0, 1, 9, 11] = 1e6
    return x, w


@case
def kernels_that_only_shift(x: Tensor, w: Tensor, seed: int) -> Case:
    centre = w[:, :, 1, 1].clone()
    w.zero_()[:, :, 1, 1] = centre
    x[0, 1, 9, 11] = 1e4
    return x, w


def usual(w: Tensor) -> Tensor:
    """The size that weights of each output [out, 1, 1, 1] usually have."""
    means = w.double().abs().mean((2, 3))
    return means.masked_fill(means == 0, torch.nan).nanmedian(1).values.view(-1, 1, 1, 1)


def sizes(w: Tensor) -> Tensor:
    """Magnitudes of weights. Any of them may be next to zero beside others: then a tenth of what is usual."""
    w = w.double().abs()
    return torch.maximum(w, 0.1 * torch.minimum(w.mean((2, 3), keepdim=True), usual(w)))


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("channels", [16, 64])
@pytest.mark.parametrize("name", CASES)
def test_what_a_pixel_may_lose(name: str, channels: int, tile: int) -> None:
    """Of the terms that it sees, and next to what sums lose."""
    for seed in range(6):
        x, w = CASES[name](
            normal(1, channels, 30, 33, seed=seed), normal(40, channels, 3, 3, seed=seed + 90), seed
        )
        x = x.contiguous(memory_format=LAST)
        expected = F.conv2d(x.double(), w.double(), padding=1)
        terms = F.conv2d(x.double().abs(), sizes(w), padding=1).clamp_min(1e-300)
        by_tiles, by_sums = ((convolve(x, w, method).double() - expected).abs() for method in (tile, 0))
        worst = (by_tiles / terms).max().item()
        assert worst <= MOST, f"seed {seed}: {worst / UNIT:.0f} units of the terms"
        # Each pixel next to what sums lose there, all outputs over their own sizes.
        lost, known = ((each[0] / terms[0]).square().mean(0).sqrt() for each in (by_tiles, by_sums))
        ratio = (lost / (known + UNIT)).max().item()
        assert ratio <= MOST_OF_SUMS, f"seed {seed}: {ratio:.0f} times what sums lose"


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("channels", [16, 64, 256])
def test_usual_images_are_computed_by_tiles(channels: int, tile: int) -> None:
    """Else the bound would cost what tiles bring: with edges, dark parts and half of the numbers zero."""
    picture = F.interpolate(normal(1, 4, 6, 6, seed=1), size=(36, 36), mode="bilinear")
    picture[..., 20:] += 2.0
    picture[..., :12, :] *= 0.1
    x = F.conv2d(picture, normal(channels, 4, 1, 1, seed=2)) + 0.3 * normal(1, channels, 36, 36, seed=3)
    x, w = x.relu().contiguous(memory_format=LAST), normal(32, channels, 3, 3, seed=4) / channels**0.5
    by_tiles, by_sums = convolve(x, w, tile), convolve(x, w, 0)
    # Rounding tells by what a tile was computed: sums are the same to the last bit.
    places = [slice(at, at + tile) for at in range(0, 36, tile)]
    same = sum(torch.equal(by_tiles[..., i, j], by_sums[..., i, j]) for i in places for j in places)
    assert same <= 0.05 * len(places) ** 2


def test_a_weight_that_no_image_suits_has_no_tiles() -> None:
    x, w = rand(1, 16, 20, 20).contiguous(memory_format=LAST), weight(24, 16, 3, 3)
    w[:, :, 0] = 0.0  # a row of taps that nothing is seen by
    assert torch.equal(convolve(x, w, 4), convolve(x, w, 0))
