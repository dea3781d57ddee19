"""Integers that depend on the last digit of a float equal those of eager PyTorch, in every executor."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from tests.crosses import nightly_but
from tests.e2e.models import STRICT, build
from torchrlopt import optimise

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Rounding(nn.Module):
    """Numbers that eager PyTorch computes to the bit, beside linears that every plan rewrites."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, z: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        exact = (
            torch.floor(z / 61),
            torch.round(z * 0.1 * 10),
            torch.sign(z / 7 * 7 - z),
            torch.floor(z * z / (z + 1)),
            torch.floor((z + 1e8) - 1e8),
            torch.sign(z * 1.1 * z - z * z * 1.1),
            torch.floor(z**2 / 61),
            (z / 61).to(torch.int32),
            (z / 7 > z * 0.14).to(torch.int32),
            torch.topk(z / 61 * 3, 5).values.floor(),
            torch.isnan(torch.sqrt(z / 61 - 3)).to(torch.int32),
            torch.isinf(torch.log(z / 61 - 3)).to(torch.int32),
            torch.isinf(1 / (z / 61 - 3)).to(torch.int32),
            torch.floor(torch.nn.functional.hardswish(z / 61 - 3)),
        )
        return (*exact, self.second(self.first(x)))


@pytest.mark.parametrize(
    ("executor", "numerics"),
    nightly_but(
        [("eager", "real"), ("eager", "strict"), ("inductor", "strict"), ("onnxruntime", "real"),
         ("openvino", "real")],
        itertools.product(["eager", "inductor", "onnxruntime", "openvino"], ["real", "strict"]),
    ),
)  # fmt: skip
def test_integers_are_those_of_the_original(executor: str, numerics: str) -> None:
    if executor in ("onnxruntime", "openvino"):
        pytest.importorskip(executor)
    model, x = build(Rounding), torch.randn(4, 16)
    options = {**STRICT, "on_error": "fallback", "cache": False, "numerics": numerics, "executor": executor}
    with torch.no_grad():
        fast = optimise(model, (torch.randn(199) * 100, x), **options)
        for factor in (61.0, 49.0, 7.0, 0.1):
            z = factor * torch.arange(1, 200)
            *exact, linear = fast(z, x)
            *expected, expected_linear = model(z, x)
            for index, (ours, theirs) in enumerate(zip(exact, expected, strict=True)):
                assert torch.equal(ours, theirs), f"output {index} at multiples of {factor}"
            torch.testing.assert_close(linear, expected_linear)
    if executor in ("onnxruntime", "openvino"):
        assert "last digit" in " ".join([*map(str, fast.report.parts), str(fast.report.fallback_reason)])
    elif numerics == "real":
        assert "compose_biased_linears" in {step.substitution for step in fast.report.steps}


class Masked(nn.Module):
    """As models make a mask for their attention of one for their tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        inverted = 1.0 - mask
        return self.second(self.first(x)) + inverted.masked_fill(inverted.to(torch.bool), -3e38)


@pytest.mark.parametrize("executor", ["onnxruntime", "openvino"])
def test_a_single_difference_is_the_same_everywhere(executor: str) -> None:
    pytest.importorskip(executor)
    model, x, mask = build(Masked), torch.randn(4, 16), (torch.arange(16) < 9).float()
    with torch.no_grad():
        fast = optimise(model, (x, mask), **STRICT, cache=False, executor=executor)
        torch.testing.assert_close(fast(x, mask), model(x, mask))
    assert fast.report.executor == executor
    assert fast.report.fallback_reason is None
