"""`F.interpolate` in all modes: to the size of another tensor, and by factors, at several sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.crosses import nightly_but
from torchrlopt import optimise

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

Resize = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
CONVOLUTIONS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
RANKS = {
    ("nearest", 1), ("nearest", 2), ("nearest", 3), ("nearest-exact", 2), ("linear", 1), ("bilinear", 2),
    ("bicubic", 2), ("trilinear", 3),
}  # fmt: skip


class Fused(nn.Module):
    """A coarse map is brought to the size of a fine one, as in U-Nets and feature pyramids."""

    def __init__(self, rank: int, resize: Resize) -> None:
        super().__init__()
        convolution = CONVOLUTIONS[rank]
        self.fine, self.coarse = convolution(3, 4, 3, padding=1), convolution(4, 4, 3, stride=2, padding=1)
        self.last, self.resize = convolution(4, 4, 1), resize

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fine = self.fine(x)
        return self.last(self.resize(self.coarse(fine), fine))  # type: ignore[no-any-return]


def is_right(rank: int, resize: Resize) -> None:
    """At a first size, and at others, for which sizes are symbols."""
    torch.manual_seed(0)
    model = Fused(rank, resize).eval()
    fast = optimise(model, measure=False, cache=False, on_error="raise", searcher="greedy", executor="eager")
    for size in (20, 12):
        x = torch.randn(2, 3, *[size + 2 * (axis % 2) for axis in range(rank)])
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
    assert {report.kept for report in fast.reports} == {"rewritten"}


@pytest.mark.parametrize(("mode", "rank"), sorted(RANKS))
def test_to_the_size_of_another_map(mode: str, rank: int) -> None:
    is_right(rank, lambda coarse, fine: functional.interpolate(coarse, size=fine.shape[2:], mode=mode))


@pytest.mark.parametrize(
    ("mode", "rank", "factor"),
    nightly_but(
        [(mode, rank, 1.3) for mode, rank in sorted(RANKS) if rank == 2],
        [(*each, factor) for each in sorted(RANKS) for factor in (2.0, 1.3, 0.7)],
    ),
)
def test_by_a_factor(mode: str, rank: int, factor: float) -> None:
    """Multiples of 10 by 1.3 or 0.7 are one smaller where the factor is rounded to float32."""
    is_right(rank, lambda coarse, fine: functional.interpolate(coarse, scale_factor=factor, mode=mode))


@pytest.mark.parametrize(("mode", "corners"), [("bilinear", False), ("bicubic", True)])
def test_antialiased(mode: str, corners: bool) -> None:
    resize = functools.partial(functional.interpolate, mode=mode, antialias=True, align_corners=corners)
    is_right(2, lambda coarse, fine: resize(fine, size=coarse.shape[2:]))


class Positions(nn.Module):
    """A grid of weights is brought to the size of the image, as in transformers of images."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.grid = nn.Parameter(torch.randn(1, 4, 4, 8))
        self.patches, self.mixed, self.mode = nn.Conv2d(3, 8, 4, stride=4), nn.Linear(8, 8), mode

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.patches(x)
        grid = functional.interpolate(self.grid.permute(0, 3, 1, 2), size=patches.shape[2:], mode=self.mode)
        places = grid.permute(0, 2, 3, 1).reshape(1, -1, 8)
        return torch.relu(self.mixed(patches.flatten(2).transpose(1, 2) + places))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_weights_to_the_size_of_an_image(mode: str) -> None:
    """The resize is another one than was captured: the transpositions around it are moved."""
    torch.manual_seed(0)
    model = Positions(mode).eval()
    fast = optimise(model, measure=False, cache=False, on_error="raise", executor="eager", min_gain=-10.0)
    for size in (16, 24, 40):
        x = torch.randn(2, 3, size, size + 8)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
    assert {report.kept for report in fast.reports} == {"rewritten"}


@pytest.mark.parametrize("executor", ["onnxruntime", "openvino"])
def test_runtimes_take_the_pixel_that_pytorch_takes(executor: str) -> None:
    """Where out / in is rounded to float32, floor(i / (out / in)) is another pixel: 2 to 82."""
    pytest.importorskip(executor)
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 4, 1).eval()

    def grown(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return torch.relu(convolution(functional.interpolate(torch.relu(x), size=like.shape[2:])))

    options: dict[str, Any] = {"executor": executor, "measure": False, "cache": False}
    fast = torch.compile(grown, backend="rlopt", options=options, dynamic=True)
    for size, wanted in [(8, 16), (2, 82), (3, 41)]:
        x, like = torch.randn(1, 3, size, size), torch.zeros(1, 3, wanted, wanted)
        with torch.no_grad():
            torch.testing.assert_close(fast(x, like), grown(x, like), rtol=1e-4, atol=1e-4)
