"""Outputs that share elements: writing to one shows in the others, in every executor, checked or not."""

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
