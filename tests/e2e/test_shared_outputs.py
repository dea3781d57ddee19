"""Outputs that share elements: writing to one shows in the others. Outputs that are views with gaps."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tests.crosses import nightly_but
from tests.e2e.models import QUICK, RUNTIMES
from torchrlopt import optimise

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

EXECUTORS = ["eager", *RUNTIMES, *(["inductor"] if importlib.util.find_spec("triton") else [])]


def grown(z: Tensor) -> tuple[Tensor, ...]:
    z.add_(1)
    return z, z[1:]


def doubled(z: Tensor) -> tuple[Tensor, ...]:
    view = z[1:]
    view.mul_(2)
    return view, z[:2]


def parts(z: Tensor) -> tuple[Tensor, ...]:
    left, right = z.chunk(2, 1)
    return left, z.t()[3:], right


def put_together(z: Tensor) -> tuple[Tensor, ...]:
    """The columns are those of a copy, which is equal to what the rows are of."""
    rows = z.split(2, 0)
    return rows[0], rows[1], *torch.cat(rows).unbind(1)


def largest(z: Tensor) -> tuple[Tensor, ...]:
    values, places = z.topk(3)
    return values[1:], places, values.t()


RETURNS: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "slices": lambda z: (z[1:], z[:-1]),
    "transposed": lambda z: (z[1:], z.t()),
    "flat": lambda z: (z.view(-1), z.view(-1)[3:]),
    "repeated": lambda z: (z.unsqueeze(0).expand(3, -1, -1), z[2]),
    "windows": lambda z: (z.unfold(1, 4, 2),),
    "windows and more": lambda z: (z.unfold(1, 4, 2), z[1:]),
    "shapes": lambda z: (z.squeeze(), z[1:].unflatten(1, (2, 8)), z.movedim(0, 1)),
    "parts": parts,
    "written before": grown,
    "view written before": doubled,
    "equal copies": put_together,
    "part of a result": largest,
}


class Model(nn.Module):
    """Two linears of one input, which are merged; views of what comes of them."""

    def __init__(self, made: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 8), nn.Linear(16, 8)
        self.made = made

    def forward(self, x: Tensor) -> Any:
        return self.made(torch.relu(torch.cat([self.a(x), self.b(x)], 1)))


def shown(tensors: Sequence[Tensor]) -> list[list[bool]]:
    """For each tensor, in which of them it shows that somebody writes to its first and last element."""
    found = []
    for tensor in tensors:
        before = [each.clone() for each in tensors]
        for at in (0, -1):
            tensor[(at,) * tensor.dim()] += 1
        found.append([not torch.equal(*pair) for pair in zip(tensors, before, strict=True)])
    return found


def expect_same(fast: Callable[..., Any], model: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        found, expected = fast(x), model(x)
    assert_close(found, expected)
    assert [each.stride() for each in found] == [each.stride() for each in expected]
    assert shown(found) == shown(expected)


@pytest.mark.parametrize("verify", nightly_but([False], [False, True]))
@pytest.mark.parametrize(
    ("executor", "name"),
    nightly_but(
        [*((EXECUTORS[0], name) for name in RETURNS), *((each, "slices") for each in EXECUTORS[1:2])],
        itertools.product(EXECUTORS, RETURNS),
    ),
)
def test_writing_shows_where_it_does_in_the_original(name: str, executor: str, verify: bool) -> None:
    torch.manual_seed(0)
    model = Model(RETURNS[name]).eval()
    fast = optimise(model, **QUICK, executor=executor, verify=verify)
    for _ in range(3):
        expect_same(fast, model, torch.randn(4, 16))
    assert fast.report.kept == "rewritten"


@pytest.mark.parametrize("executor", nightly_but(EXECUTORS[1:2], EXECUTORS))
def test_sizes_that_vary(executor: str) -> None:
    model = Model(RETURNS["parts"]).eval()
    fast = optimise(model, **QUICK, executor=executor, verify=False)
    for rows in (4, 5, 6, 7):
        expect_same(fast, model, torch.randn(rows, 16))


def test_a_graph_that_returns_more_is_another_one() -> None:
    """What is added to the outputs of one graph makes it no graph that returns as much."""
    x = torch.randn(4, 16)
    for made in (lambda z: (z[1:], z[:-1]), lambda z: (z[1:], z[:-1], z)):
        torch.manual_seed(0)
        model = Model(made).eval()
        compiled = torch.compile(model, backend="rlopt", options={**QUICK})
        expect_same(compiled, model, x)


# ---- views with gaps or repeated elements, over weight expressions and rolled images

VIEWS: dict[str, Callable[[Tensor, Tensor], Any]] = {
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
    def __init__(self, view: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.p, self.view = nn.Linear(8, 8), nn.Parameter(torch.randn(8)), view

    def forward(self, x: Tensor) -> Any:
        return self.linear(x), self.view(self.p, x)


def same(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-2, check_stride=True)


@pytest.mark.parametrize("weights", nightly_but(["check"], ["check", "frozen", "live"]))
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_expressions_over_weights(name: str, weights: str) -> None:
    model = OfWeights(VIEWS[name]).eval()
    fast = optimise(model, weights=weights, **QUICK)
    for rows in (4, 5):
        x = torch.randn(rows, 8)
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

    def forward(self, x: Tensor) -> Any:
        normalised = self.norm(x.transpose(1, 2))
        return normalised, self.linear(normalised.transpose(1, 2).reshape(-1, 16))


def test_a_norm_of_transposed_channels() -> None:
    model = Normalised().eval()
    fast = optimise(model, **QUICK)
    for batch in (4, 3, 6):
        x = torch.randn(batch, 5, 16)
        with torch.no_grad():
            same(fast(x), model(x))
    assert {report.kept for report in fast.reports} == {"rewritten"}


class Rolled(nn.Module):
    def __init__(self, shifts: tuple[int, ...], dims: tuple[int, ...] | None) -> None:
        super().__init__()
        self.shifts, self.dims = shifts, dims

    def forward(self, x: Tensor) -> Any:
        rolled = torch.roll(x, self.shifts, self.dims)
        memory = torch.as_strided(rolled, (5, 10), (4, 1), 0)
        return rolled, rolled * 2, memory, rolled.reshape(-1), rolled.permute(0, 2, 3, 1).flatten(1)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("shifts", "dims"), [((-2,), (1,)), ((1, -1), (2, 3)), ((5,), None)])
def test_rolled_images_keep_their_layout(
    shifts: tuple[int, ...], dims: tuple[int, ...] | None, layout: torch.memory_format
) -> None:
    model = Rolled(shifts, dims).eval()
    fast = optimise(model, **QUICK)
    for batch in (2, 4, 3):
        x = torch.arange(50.0 * batch).reshape(batch, 5, 2, 5).to(memory_format=layout)
        same(fast(x), model(x))
    assert {report.kept for report in fast.reports} == {"rewritten"}
