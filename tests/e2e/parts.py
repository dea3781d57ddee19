"""Models with operators that runtimes do not support, and tests of their optimisation."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import torchrlopt
from tests.e2e.models import QUICK
from torchrlopt.report import Report

WIDTH = 32


@torch.library.custom_op("torchrlopt_tests::wave", mutates_args=())
def wave(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + x


@wave.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("torchrlopt_tests::wave_to_double", mutates_args=())
def wave_to_double(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x.double())


@wave_to_double.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, dtype=torch.float64)


class Layer(nn.Module):
    """Keeps its operand's size, so that a difference in the last digit does not grow."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x)) / 8


def tower(depth: int = 10) -> nn.Sequential:
    """Enough work for a region."""
    return nn.Sequential(*(Layer() for _ in range(depth)))


class Waves(nn.Module):
    """Towers with the user's operator before, between or behind them."""

    def __init__(self, *places: str) -> None:
        super().__init__()
        self.places = places
        self.towers = nn.ModuleList(tower() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "start" in self.places:
            x = wave(x)
        y = self.towers[0](x)
        if "middle" in self.places:
            y = wave(y)
        y = self.towers[1](y) + x  # past the operator
        if "later" in self.places:
            y = wave(y)
        y = self.towers[2](y)
        return wave(y) if "end" in self.places else y


def build(kind: type[nn.Module], *given: Any) -> nn.Module:
    torch.manual_seed(0)
    return kind(*given).eval()


def optimised(model: nn.Module, *inputs: torch.Tensor, **options: Any) -> Any:
    return torchrlopt.optimise(model, inputs, **(QUICK | options))


def check(fast: Any, model: nn.Module, *inputs: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(fast(*inputs), model(*inputs), rtol=1e-4, atol=1e-5, check_stride=True)


def ran(report: Report) -> list[str]:
    return [part.executor for part in report.parts]
