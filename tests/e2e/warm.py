"""A model that depends on a fact of every kind, and calls of it that are compared with the original's."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from tests.e2e.models import QUICK
from torchrlopt import optimise

X = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
FACTOR = 1.0


def helper(x: torch.Tensor) -> torch.Tensor:
    return x + 1


class Config:
    """An object of no special kind."""

    def __init__(self) -> None:
        self.uses_norm, self.shift = True, 0.5


class Rich(nn.Module):
    """Hangs on a fact of every kind."""

    gain: ClassVar[float] = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 8), nn.Linear(16, 24)
        self.norm = nn.BatchNorm1d(32)
        nn.init.uniform_(self.norm.running_mean)
        self.rest = nn.ModuleList([nn.Linear(32, 32), nn.Linear(32, 32)])
        self.tied = nn.Linear(32, 32)
        self.tied.weight = self.rest[0].weight
        self.register_buffer("offset", torch.ones(32))
        self.extra: torch.Tensor | None = None
        self.register_parameter("absent", None)
        self.flag, self.scale, self.numbers = True, 2.0, [1, 2]
        self.config, self.table, self.sizes = Config(), {"one": 1.0}, (1, 2)

    @property
    def twice(self) -> float:
        return 2 * self.config.shift

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, *, times: float = 1.0, name: str = "relu"
    ) -> dict[str, Any]:
        y = torch.cat([self.a(x), self.b(x)], 1)
        if self.config.uses_norm:
            y = self.norm(y)
        for layer in self.rest:
            y = layer(y) + self.tied(y)
        y = torch.relu(y) if name == "relu" else torch.tanh(y)
        if self.flag:
            y = y * self.scale * self.gain * FACTOR + self.twice
        for number in self.numbers:
            y = helper(y) * number
        if self.absent is not None:
            y = y + self.absent
        y = (y + self.offset + self.table["one"] + self.sizes[0]) * times
        return {"y": y if mask is None else y * mask, "parts": (y.relu(), None, [y[0]])}


class Warm:
    """An optimised model that has been called some times.

    Args:
        model: the original.
        args: of its calls.
        weights: how it treats them.
        kwargs: of its calls.
    """

    def __init__(self, model: nn.Module, *args: Any, weights: str = "check", **kwargs: Any) -> None:
        self.model, self.args, self.kwargs = model, args, kwargs
        self.fast: Any = optimise(model, **{**QUICK, "weights": weights})
        self.expect_all_right()

    def expect_all_right(self) -> None:
        """Also of calls that are like one that was made before."""
        for _ in range(3):
            self.expect_right()

    def expect_right(self) -> None:
        with torch.no_grad():
            expected = self.model(*self.args, **self.kwargs)
            expect_equal(self.fast(*self.args, **self.kwargs), expected)


def expect_equal(got: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert list(got) == list(expected)
        got, expected = list(got.values()), list(expected.values())
    if isinstance(expected, (list, tuple)):
        assert type(got) is type(expected)
        for parts in zip(got, expected, strict=True):
            expect_equal(*parts)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    else:
        assert got == expected
