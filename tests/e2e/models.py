"""Small models that the substitution library is certain to rewrite, and comparisons for the tests."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torchrlopt.compile.backend import reports
from torchrlopt.compile.memory import MEMORY
from torchrlopt.report import Report

# errors are raised, and the rewritten graph is used whether or not it is faster on a busy machine
STRICT: dict[str, Any] = {"on_error": "raise", "measure": False}
# for tests of what is around the plan
QUICK: dict[str, Any] = {**STRICT, "cache": False, "searcher": "greedy"}


RUNTIMES = [name for name in ("onnxruntime", "openvino") if importlib.util.find_spec(name) is not None]
"""The executors that are other projects' runtimes for the CPU, where they are installed."""


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


class ConvBranches(nn.Module):
    """A convolution with a normalisation to fold, and two linears to merge."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.left, self.right = nn.Linear(8, 6), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return torch.cat([self.left(z), self.right(z)], 1)


def build(kind: type[nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return kind().eval()


def apply(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Compiled once, it serves all instances of a class."""
    result: torch.Tensor = model(x)
    return result


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend="rlopt", options={**STRICT, **options})


def last_report() -> Report:
    return reports()[-1]


def was_rewritten() -> bool:
    report = last_report()
    return report.kept == "rewritten" and len(report.steps) > 0


_TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""Of an element, relative to the largest one; independent of the product's own table."""


def assert_right(got: Any, expected: Any, reference: Any) -> None:
    """Each output is what the model gives: type, shape, strides, and numbers close to those in float64."""
    assert type(got) is type(expected)
    if isinstance(expected, (tuple, list)):
        for parts in zip(got, expected, reference, strict=True):
            assert_right(*parts)
    elif not isinstance(expected, torch.Tensor):
        assert got == expected
    else:
        assert (got.dtype, got.shape, got.device) == (expected.dtype, expected.shape, expected.device)
        assert got.stride() == expected.stride() or got.numel() < 2 or 1 in got.shape
        tolerance = _TOLERANCES.get(got.dtype, 0.0)
        if tolerance:
            got, reference = got.double(), reference.double()
            finite = reference[reference.isfinite()].abs()
            scale = float(finite.max()) if finite.numel() else 1.0
            torch.testing.assert_close(got, reference, rtol=0, atol=tolerance * scale, equal_nan=True)
        else:
            torch.testing.assert_close(got, expected, rtol=0, atol=0)


def widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value.clone()
    return value


def assert_same(model: nn.Module, run: Callable[..., Any], *inputs: Any) -> Any:
    """`run` gives what the model gives; returns what `run` gave."""
    with torch.no_grad():
        expected = model(*copy.deepcopy(inputs))
        reference = copy.deepcopy(model).double()(*(widened(x) for x in inputs))
        got = run(*copy.deepcopy(inputs))
    assert_right(got, expected, reference)
    return got


def close(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def lowered() -> Any:
    """What the executor made of the one graph that this process has compiled."""
    (compiled,) = MEMORY.compiled.values()
    return compiled.lowered


def failing(error: Exception) -> Any:
    """A function that raises, whatever it is given."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail
