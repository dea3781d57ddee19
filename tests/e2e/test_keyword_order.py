"""Keyword arguments of any name: if a result depends on their order, another order is another call."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tests.e2e.models import QUICK, build
from torchrlopt import optimise

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Base(nn.Module):
    """Two linears of one input, which are merged."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 8), nn.Linear(16, 8)

    def both(self, x: Tensor) -> Tensor:
        return torch.cat([self.a(x), self.b(x)], 1)


class InTurn(Base):
    def forward(self, x: Tensor, **changes: Tensor) -> Tensor:
        y = self.both(x)
        for change in changes.values():
            y = torch.relu(y + change) * change
        return y


class HandedOn(Base):
    """No function that is compiled looks at the order itself."""

    def forward(self, x: Tensor, **changes: Any) -> Any:
        return self._changed(self.both(x), **changes)

    def _changed(self, y: Tensor, scale: Any = 1.0, **changes: Any) -> Any:
        for change in changes.values():
            y = torch.relu(y + change) * change * scale
        return y


class Named(Base):
    def forward(self, x: Tensor, scale: Any = None, shift: Any = None) -> Tensor:
        return self.both(x) * scale + shift


@pytest.mark.parametrize("weights", ["check", "frozen"])
@pytest.mark.parametrize("kind", [InTurn, HandedOn, Named])
def test_every_order_has_its_own_result(kind: type[nn.Module], weights: str) -> None:
    model, x = build(kind), torch.randn(3, 16)
    given = {"shift": torch.full((1,), 0.5), "scale": torch.full((1,), 2.0)}
    fast = optimise(model, **QUICK, weights=weights)
    for order in (*[("shift", "scale")] * 4, *[("scale", "shift")] * 4, ("shift", "scale")):
        keywords = {name: given[name] for name in order}
        with torch.no_grad():
            assert_close(fast(x, **keywords), model(x, **keywords))
    assert fast.report.kept == "rewritten"


def test_more_orders_than_dynamo_compiles() -> None:
    model, x = build(InTurn), torch.randn(3, 16)
    given = {name: torch.full((1,), 1.0 + at) for at, name in enumerate(("first", "second", "third", "last"))}
    fast = optimise(model, **QUICK)
    for order in itertools.islice(itertools.permutations(given), 12):
        keywords = {name: given[name] for name in order}
        with torch.no_grad():
            assert_close(fast(x, **keywords), model(x, **keywords))
