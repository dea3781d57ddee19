"""Long float32 sums: accumulated in parts, for all thread counts and tiles."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import convolved, multiplied, one_by_one, threads, window_of
from torchrlopt.executors.eager.kernels import indirect

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")


@pytest.mark.parametrize("terms", [768, 3072])
@pytest.mark.parametrize("outputs", [16, 70])
def test_the_error_is_half_of_that_of_one_by_one(terms: int, outputs: int) -> None:
    x, w = rand(30, terms), rand(outputs, terms)
    expected = x.double() @ w.double().t()
    found = multiplied(x, w), one_by_one(x, w)
    error, known = ((each - expected).square().mean().sqrt() for each in found)
    assert error < known / 2


@pytest.mark.parametrize("channels", [8, 100, 128, 200])
def test_a_border_that_some_tiles_do_not_see_changes_nothing(channels: int) -> None:
    """Tiles leave out taps that none of their pixels sees: parts end at the same places all the same."""
    x = rand(1, channels, 12, 12).contiguous(memory_format=torch.channels_last)
    w = weight(64, channels, 5, 5)
    found = []
    for count in (1, 2, 3):
        with threads(count):
            found.append(convolved(x, w, window=window_of(w, 1, 2)))
    assert all(torch.equal(each, found[0]) for each in found)
    expected = F.conv2d(x.double(), w.double(), padding=2)
    assert (found[0] - expected).abs().max() < 2e-6 * max(1.0, expected.abs().max())
