"""No operator in a runtime is less accurate than PyTorch's, at any scale."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.crosses import nightly_but
from tests.e2e.models import STRICT
from tests.e2e.runtime_operators import CASES, verdicts
from torchrlopt import optimise
from torchrlopt.executors.onnx_runtimes.conditioning import ROWS

RUNTIMES = tuple(ROWS)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_an_operator_is_as_exact_as_pytorch(runtime: str, name: str) -> None:
    pytest.importorskip(runtime)
    found = verdicts(runtime, name)
    assert "worse" not in found.values(), found
    # A row that a later version of the runtime does not need any more is to go.
    if CASES[name].operator in {row.operator for row in ROWS[runtime]} - {
        "AveragePool",  # of free sizes only
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
    }:
        assert {"mended", "refused"} & set(found.values())


def in_turns(names: Iterable[str]) -> list[Any]:
    """Pairs with all runtimes, of which `make test` has one for each name."""
    each = list(names)
    kept = [(RUNTIMES[at % len(RUNTIMES)], name) for at, name in enumerate(each)]
    return nightly_but(kept, itertools.product(RUNTIMES, each))


class Around(nn.Module):
    """A function of what a linear gives, which is its input.

    Args:
        function: what is computed.
    """

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(8, 8, bias=False)
        nn.init.eye_(self.linear.weight)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.linear(x))


def _images(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(2, 8, 4, 8)


# What is computed, and what is added to and multiplied with numbers around 0.
MODELS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, float]] = {
    "group_norm of 16-bit images": (lambda x: F.group_norm(_images(x), 4), 1e4, 1.0),
    "log(sigmoid)": (lambda x: torch.log(torch.sigmoid(x)), -30.0, 1.0),
    "1 / sigmoid": (lambda x: 1 / torch.sigmoid(x), -30.0, 1.0),
    "silu": (F.silu, -30.0, 1.0),
    "log(sigmoid + epsilon)": (lambda x: torch.log(torch.sigmoid(x) + 1e-20), -30.0, 1.0),
    "silu, added to nothing": (lambda x: F.relu(x) + 1e3 * F.silu(x), -30.0, 1.0),
    "logsigmoid": (F.logsigmoid, 60.0, 1.0),
    "celu": (F.celu, 0.0, 1e-6),
    "mish": (F.mish, -30.0, 1.0),
    "var": (lambda x: x.reshape(8, -1).var(-1), 1e6, 1.0),
    "cumsum": (lambda x: x.reshape(-1).cumsum(0), 0.0, 1.0),
}
# They have no stable form there, and models of nothing else run in PyTorch.
REFUSED = {("openvino", "cumsum"), ("openvino", "mish")}


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize(("runtime", "name"), in_turns(MODELS))
def test_a_model_is_as_exact_as_pytorch(runtime: str, name: str) -> None:
    """Element by element, at a scale that neither the check nor the example has."""
    pytest.importorskip(runtime)
    function, offset, factor = MODELS[name]
    model, x = Around(function).eval(), torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    run = optimise(model, (x,), **{**STRICT, "on_error": "fallback", "cache": False}, executor=runtime)
    assert run.report.kept == ("original" if (runtime, name) in REFUSED else "rewritten")
    given = x * factor + offset
    with torch.no_grad():
        exact = function(given.double())
        own, found = (
            (each.double() - exact).abs() / exact.abs().clamp(min=1e-30)
            for each in (model(given), run(given))
        )
    # Another right way to compute may be some times as far off, and 64 units in the last place in any case.
    assert float(found.max()) <= 16 * float(own.max()) + 64 * 2**-23


SMALL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "abs": torch.abs,
    "asin": torch.asin,
    "atan": torch.atan,
    "clamp": lambda x: x.clamp(0, 0.9),
    "cumsum": lambda x: x.cumsum(1),
    "elu": F.elu,
    "erf": torch.erf,
    "gelu": F.gelu,
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "l1": lambda x: x.norm(1, 1, keepdim=True),
    "relu": F.relu,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "softsign": F.softsign,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "layer_norm": lambda x: F.layer_norm(x, (8,), eps=1e-30).amax(1, keepdim=True),
}
"""What keeps the relative error of a number near 0, or magnifies the number."""


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("runtime", nightly_but(RUNTIMES[:1], RUNTIMES))
def test_a_tiny_sigmoid_is_followed_to_the_output(runtime: str) -> None:
    """ONNX Runtime's own is off by up to 1e-8. A gate, as of the cell of NASRNN, multiplies it by more."""
    pytest.importorskip(runtime)

    def results(x: torch.Tensor) -> list[torch.Tensor]:
        # Of another number each: one sigmoid for all would be exact if one of them needed it.
        return [
            torch.tanh(x.abs() * function(torch.sigmoid(x - at / 8)))
            for at, function in enumerate(SMALL.values())
        ]

    model, x = Around(results).eval(), torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    run = optimise(model, (x,), **{**STRICT, "cache": False}, executor=runtime)
    given = x - 20
    with torch.no_grad():
        for name, found, expected in zip(SMALL, run(given), model(given), strict=True):
            torch.testing.assert_close(found, expected, rtol=2e-5, atol=0, msg=lambda m, n=name: f"{n}: {m}")


def _squares(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(1, 2, 16, 16)


NAN, TIES, OPAQUE = "mean of nothing is not NaN", "two are equally near", "operators that ONNX does not have"


def _attended(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    q = x.reshape(2, 4, 8, 8)
    return F.scaled_dot_product_attention(q, q, q, mask)


def _masked(x: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A mask [8, 8] of which no number is left where no number is above 0."""
    return torch.where(x[:8] > 0, 0, torch.finfo(dtype).min).to(dtype)


# Where no number is right but one: what is computed, and why PyTorch does it; None where the runtime does.
EXACT: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str | None]] = {
    "mean of nothing": (lambda x: x[:0].mean(0), NAN),
    "largest of -inf": (lambda x: x.masked_fill(x.abs() >= 0, -math.inf).amax(1), None),
    "smallest of inf": (lambda x: x.masked_fill(x.abs() >= 0, math.inf).amin(1), None),
    "largest of logarithms": (lambda x: x.relu().log().amax(1), None),
    "pool of logarithms": (lambda x: F.max_pool2d(_squares(x).relu().log(), 2), None),
    "at most 1": (lambda x: x.relu().log().clamp(max=1.0), None),
    "at least 1": (lambda x: (1 / x.relu()).clamp(min=1.0), None),
    "at most 2": (lambda x: F.hardtanh(x.relu().log(), -math.inf, 2.0), None),
    "padded pool of logarithms": (lambda x: F.max_pool2d(_squares(x).relu().log(), 3, 2, 1), None),
    "nearest-exact": (lambda x: F.interpolate(_squares(x), scale_factor=2.3, mode="nearest-exact"), TIES),
    "nearest by 2": (lambda x: F.interpolate(_squares(x), scale_factor=2, mode="nearest"), None),
    "scatter_reduce, mean": (lambda x: x.scatter_reduce(0, (x > 0).long(), x, "mean"), OPAQUE),
    "attention to the lowest": (lambda x: _attended(x, _masked(x)), None),
    "attention to nothing": (lambda x: _attended(x, x[:8] > 0), None),
    "attention to some columns": (lambda x: _attended(x, _masked(x)[:1]), None),
    "attention to -inf and the lowest": (
        lambda x: _attended(x, _masked(x).where(x[8:16] > -1, -math.inf)),
        None,
    ),
    "attention to nothing, float64": (lambda x: _attended(x.double(), x[:8] > 0), "run it elsewhere"),
    "attention to the lowest, float16": (lambda x: _attended(x.half(), _masked(x, torch.float16)), None),
}


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize(("runtime", "name"), in_turns(EXACT))
def test_special_results_are_those_of_pytorch(runtime: str, name: str) -> None:
    """Also of a call with other numbers than the check has seen: none of them is above 0."""
    pytest.importorskip(runtime)
    function, reason = EXACT[name]
    model, x = Around(function).eval(), torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    run = optimise(model, (x,), **{**STRICT, "on_error": "fallback", "cache": False}, executor=runtime)
    with torch.no_grad():
        for given in (x, -x.abs()):
            expected = model(given)
            digits: dict[str, Any] = {"rtol": 0, "atol": 2e-3} if expected.dtype is torch.float16 else {}
            torch.testing.assert_close(run(given), expected, equal_nan=True, **digits)
    if reason is None:
        assert run.report.kept == "rewritten"
    else:
        assert reason in str(run.report.fallback_reason)


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize(("runtime", "pool"), in_turns(["avg_pool2d", "max_pool2d"]))
def test_the_only_window_of_an_image_is_rounded_up(runtime: str, pool: str) -> None:
    """Also where another size was compiled for. OpenVINO returns nothing for sizes that it does not know."""
    pytest.importorskip(runtime)

    def model(x: torch.Tensor) -> Any:
        return getattr(F, pool)(x * 2, 9, ceil_mode=True) + 1

    options = {"executor": runtime, "cache": False, "measure": False}
    fast = torch.compile(model, backend="rlopt", dynamic=True, options=options)
    with torch.no_grad():
        for size in (16, 5):
            x = torch.randn(3, 4, size, size)
            torch.testing.assert_close(fast(x), model(x))
