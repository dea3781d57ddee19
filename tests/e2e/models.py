"""Small models that the substitution library certainly rewrites, and how the tests compare."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torchrlopt.compile import check
from torchrlopt.compile.backend import reports
from torchrlopt.report import Report

# errors are raised, and the rewritten graph is used whether or not it is faster on a busy machine
STRICT: dict[str, Any] = {"on_error": "raise", "measure": False}


class Branches(nn.Module):
    """Three linears of unequal widths on one input: merged into one."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.a = nn.Linear(width, 8)
        self.b = nn.Linear(width, 24)
        self.c = nn.Linear(width, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.relu(self.a(x)), self.b(x), torch.tanh(self.c(x))], dim=-1)


class ConvNorm(nn.Module):
    """Convolution, batch norm and activation: folded and fused."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        for tensor in (self.norm.weight, self.norm.bias, self.norm.running_mean, self.norm.running_var):
            nn.init.uniform_(tensor.detach(), 0.5, 1.5)  # type: ignore[union-attr]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)))


def build(kind: type[nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return kind().eval()


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend="rlopt", options={**STRICT, **options})


def last_report() -> Report:
    return reports()[-1]


def was_rewritten() -> bool:
    report = last_report()
    return report.kept == "rewritten" and len(report.steps) > 0


def widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value.clone()
    return value


def assert_same(model: nn.Module, run: Callable[..., Any], *inputs: Any) -> Any:
    """`run` gives what the model gives, within the project's tolerance; returns what `run` gave."""
    with torch.no_grad():
        expected = model(*copy.deepcopy(inputs))
        reference = copy.deepcopy(model).double()(*(widened(x) for x in inputs))
        got = run(*copy.deepcopy(inputs))
    tuples = [out if isinstance(out, tuple) else (out,) for out in (reference, expected, got)]
    check.compare(*tuples)
    return got
