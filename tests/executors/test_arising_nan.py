"""NaN that arises inside a graph: where it may, and what runtimes make of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.capture.capture_calls import capture_module
from tests.crosses import nightly_but
from tests.e2e.models import QUICK, RUNTIMES
from torchrlopt import optimise
from torchrlopt.executors.onnx_runtimes.arising_nan import may_be_nan
from torchrlopt.executors.onnx_runtimes.conditioning import make_stable

USUAL: dict[str, Callable[..., Any]] = {
    "acosh": lambda x, w: (x * x + 1).acosh(),
    "complement": lambda x, w: (1 - x.sigmoid()).log() + (1 - x.softmax(1)).log(),
    "cosine_similarity": lambda x, w: F.cosine_similarity(x, w),
    "entropy": lambda x, w: (x.softmax(1) * x.softmax(1).log()).sum(1),
    "frozen batch norm": lambda x, w: x * (w + 1e-5).rsqrt(),
    "generalised mean": lambda x, w: x.clamp(min=1e-6).pow(w.sum()).mean(1).pow(1 / w.sum()),
    "group_norm": lambda x, w: F.group_norm(x, 2),
    "layer_norm by hand": lambda x, w: (x - x.mean(1, True)) / torch.sqrt(x.var(1, keepdim=True) + 1e-5),
    "local response norm": lambda x, w: F.local_response_norm(x[None, :, :, None].relu(), 3),
    "log1p, which PyTorch runs": lambda x, w: x.log1p(),
    "log_softmax": lambda x, w: x.log_softmax(1),
    "logarithm of a clamp": lambda x, w: x.clamp(1e-5, 1.0).log(),
    "logsigmoid": lambda x, w: F.logsigmoid(x),
    "logsumexp": lambda x, w: x.logsumexp(1),
    "norm": lambda x, w: x / x.norm(dim=1, keepdim=True),
    "normalize": lambda x, w: F.normalize(x + w),
    "power": lambda x, w: x.pow(3) + x.pow(2).mean(0).pow(-0.5),
    "relu": lambda x, w: x.relu().sqrt(),
    "rms norm in bfloat16": lambda x, w: x.bfloat16() * torch.rsqrt(x.bfloat16().pow(2).mean() + 1e-6),
    "softplus": lambda x, w: (1 + x.exp()).log() + F.softplus(x),
    "spectrogram": lambda x, w: ((x.square() + w.abs()).reshape(4, 8).transpose(0, 1) + 1e-6).log10(),
    "std": lambda x, w: x.std(1, keepdim=True) + x.var(0).sqrt(),
}
UNUSUAL: dict[str, Callable[..., Any]] = {
    "acos": lambda x, w: x.acos(),
    "acosh": lambda x, w: x.exp().acosh(),
    "asin": lambda x, w: x.asin(),
    "atanh": lambda x, w: x.atanh(),
    "log": lambda x, w: (x + 1e-6).log(),
    "log of differences": lambda x, w: (1 - x.exp()).log(),
    "log of a computed limit": lambda x, w: torch.clamp(x * x, max=x.mean()).log(),
    "log of a minimum": lambda x, w: torch.minimum(x, x * x).log(),
    "squares of integers, which wrap": lambda x, w: (x.int() * x.int()).float().sqrt(),
    "power": lambda x, w: x.pow(0.3),
    "power of a variable": lambda x, w: x.pow(x),
    "sqrt": lambda x, w: (x * w).sqrt(),
    "variance of squares": lambda x, w: ((x * x).mean(1) - x.mean(1).square()).sqrt(),
}


class With(nn.Module):
    """A function of the input and a weight [1, 8].

    Args:
        function: what is computed.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("weight", torch.rand(1, 8) + 0.5)

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.weight)


def is_reached(function: Callable[..., Any]) -> bool:
    """Whether the output of a model may be NaN."""
    captured = capture_module(With(function).eval(), torch.rand(4, 8) + 0.5).captured
    fixed = captured.static_inputs | captured.constants.keys()
    found = may_be_nan(captured.model, fixed)
    return not found.isdisjoint(captured.model.graph.outputs)


@pytest.mark.parametrize("name", USUAL)
def test_usual_operands_are_proved_to_be_in_the_domain(name: str) -> None:
    assert not is_reached(USUAL[name])


@pytest.mark.parametrize("name", UNUSUAL)
def test_nan_arises_outside_the_domain(name: str) -> None:
    assert is_reached(UNUSUAL[name])
    assert is_reached(lambda x, w: F.gelu(UNUSUAL[name](x, w)) * 2)


KEPT: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp": lambda y: y.clamp(0, 2),
    "clamp, max": lambda y: y.clamp(max=2),
    "elu": F.elu,
    "exp": torch.exp,
    "greater": lambda y: torch.where(y > 1, 1.0, 2.0),
    "greater or equal": lambda y: torch.where(y >= y.mT @ y, 1.0, 2.0),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "maximum": lambda y: torch.maximum(y.mean(0), y),
    "minimum": lambda y: torch.minimum(y, y.mT),
    "relu": torch.relu,
    "relu of another type": lambda y: y.half().relu().float() * 0,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "threshold": lambda y: F.threshold(y, 1.0, 0.0),
}
REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "amax": lambda y: y.amax(1),
    "amin": lambda y: y.amin(1),
    "argmax": lambda y: y.argmax(1),
    "log_softmax": lambda y: y.log_softmax(1),
    "logsumexp": lambda y: y.logsumexp(1),
    "max_pool and relu": lambda y: F.max_pool2d(y[None, None] * 2, 2).add(1).relu(),
    "max_pool": lambda y: F.max_pool2d(y[None, None], 2),
    "softmax": lambda y: y.softmax(1),
    "topk": lambda y: y.topk(2, 1).values,
}


class Logarithms(nn.Module):
    """A function of the logarithms of what a linear gives, which is its input.

    Args:
        function: what is computed.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(8, 8, bias=False)
        nn.init.eye_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear(x).log())


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("name", [*KEPT, *REFUSED])
@pytest.mark.parametrize("runtime", nightly_but(RUNTIMES[-1:], RUNTIMES))
def test_nan_stays_nan(runtime: str, name: str) -> None:
    """In calls with negative numbers, which the check has not seen."""
    model = Logarithms((KEPT | REFUSED)[name]).eval()
    x = torch.rand(8, 8, generator=torch.Generator().manual_seed(0)) * 9 + 1
    run = optimise(model, (x,), **{**QUICK, "on_error": "fallback", "executor": runtime})
    if name in KEPT:
        assert run.report.kept == "rewritten"
    for first, last in ((0, 2), (3, 4), (0, 8)):
        given = x.clone()
        given[1, first:last] = -1
        with torch.no_grad():
            torch.testing.assert_close(run(given), model(given), rtol=1e-5, atol=1e-5, equal_nan=True)


def test_usual_models_stay_as_they_are() -> None:
    for name in ("frozen batch norm", "layer_norm by hand", "rms norm in bfloat16"):
        model = With(lambda x, w, name=name: USUAL[name](x, w).relu()).eval()
        captured = capture_module(model, torch.rand(4, 8) + 0.5).captured
        make_stable(captured.model, "openvino", captured.static_inputs | captured.constants.keys())
        assert "Where" not in {node.op_type for node in captured.model.graph}
