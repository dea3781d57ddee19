"""Outputs that are views with gaps or repeated elements, over weight expressions and rolled images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.crosses import nightly_but
from torchrlopt import optimise

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

OPTIONS: dict[str, Any] = {"measure": False, "cache": False, "on_error": "raise", "searcher": "greedy"}
View = Callable[[torch.Tensor, torch.Tensor], Any]

VIEWS: dict[str, View] = {
    "expanded": lambda p, x: (p * 2).expand(x.shape[0], 8),
    "expanded with a new axis": lambda p, x: (p * 2).unsqueeze(0).expand(4, -1),
    "broadcast": lambda p, x: torch.broadcast_to(p + 1, (3, 8)),
    "every second": lambda p, x: (p * 2)[::2],
    "every second of two rows": lambda p, x: torch.stack([p * 2, p])[:, ::2],
    "meshgrid": lambda p, x: torch.meshgrid(p * 2, p * 3, indexing="ij"),
    "two of one": lambda p, x: (lambda doubled: (doubled[::2], doubled[1::2], doubled[:5]))(p * 2),
    "a constant, expanded": lambda p, x: torch.arange(8.0).expand(4, 8),
}


class OfWeights(nn.Module):
    def __init__(self, view: View, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.p, self.view = nn.Linear(8, 8), nn.Parameter(torch.randn(8)), view
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(x), self.view(self.p, x)


def same(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-2, check_stride=True)


@pytest.mark.parametrize("dtype", nightly_but([torch.float32], [torch.float32, torch.bfloat16]))
@pytest.mark.parametrize("weights", nightly_but(["check"], ["check", "frozen", "live"]))
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_expressions_over_weights(name: str, weights: str, dtype: torch.dtype) -> None:
    model = OfWeights(VIEWS[name], dtype).eval()
    fast = optimise(model, weights=weights, **OPTIONS)
    for rows in (4, 5):
        x = torch.randn(rows, 8, dtype=dtype)
        with torch.no_grad():
            got, expected = fast(x), model(x)
            same(got, expected)
            # whoever writes to one output writes to those that share its memory, and to no later call's
            outputs = torch.utils._pytree.tree_leaves(got[1])
            if len(outputs) == 3:
                outputs[0][0] = 100.0
                assert outputs[2][0] == 100.0
            same(fast(x), expected)
    assert {report.kept for report in fast.reports} == {"rewritten"}


class Normalised(nn.Module):
    """Channels at the end, but for the norm between, as in models of tokens and of time series."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> Any:
        normalised = self.norm(x.transpose(1, 2))
        return normalised, self.linear(normalised.transpose(1, 2).reshape(-1, 16))


def test_a_norm_of_transposed_channels() -> None:
    model = Normalised().eval()
    fast = optimise(model, **OPTIONS)
    for batch in (4, 3, 6):
        x = torch.randn(batch, 5, 16)
        with torch.no_grad():
            same(fast(x), model(x))
    assert {report.kept for report in fast.reports} == {"rewritten"}


class Rolled(nn.Module):
    def __init__(self, shifts: tuple[int, ...], dims: tuple[int, ...] | None) -> None:
        super().__init__()
        self.shifts, self.dims = shifts, dims

    def forward(self, x: torch.Tensor) -> Any:
        rolled = torch.roll(x, self.shifts, self.dims)
        memory = torch.as_strided(rolled, (5, 10), (4, 1), 0)
        return rolled, rolled * 2, memory, rolled.reshape(-1), rolled.permute(0, 2, 3, 1).flatten(1)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("shifts", "dims"), [((1,), (0,)), ((-2,), (1,)), ((1, -1), (2, 3)), ((3,), (-1,)), ((5,), None)]
)
def test_rolled_images_keep_their_layout(
    shifts: tuple[int, ...], dims: tuple[int, ...] | None, layout: torch.memory_format
) -> None:
    model = Rolled(shifts, dims).eval()
    fast = optimise(model, **OPTIONS)
    for batch in (2, 4, 3):
        x = torch.arange(50.0 * batch).reshape(batch, 5, 2, 5).to(memory_format=layout)
        same(fast(x), model(x))
    assert {report.kept for report in fast.reports} == {"rewritten"}
