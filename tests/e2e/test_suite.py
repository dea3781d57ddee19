"""The whole suite of models through both entry points, without fallback, before and after a weight update."""

from __future__ import annotations

import pytest
import torch

from baselines.models import NAMES, build
from tests.crosses import nightly_but
from tests.e2e.models import STRICT, assert_same, compiled, last_report
from torchrlopt import optimise

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.mark.parametrize("name", nightly_but(["linear_attention", "mobilenet_v3"], NAMES))
def test_model(name: str) -> None:
    model, inputs = build(name)
    run = compiled(model)
    before = assert_same(model, run, *inputs)
    report = last_report()
    assert report.kept == "rewritten"
    assert report.fallback_reason is None
    assert report.steps
    assert report.opaque == ()
    assert report.numerical_error is not None

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.95)
    after = assert_same(model, run, *inputs)
    assert not torch.equal(_first(before), _first(after))

    optimised = optimise(model, inputs, **STRICT)
    assert optimised.report.kept == "rewritten"
    assert optimised.report.is_cache_hit, "the same graph: nothing is planned again"
    assert list(optimised.state_dict()) == list(model.state_dict())
    assert_same(model, optimised, *inputs)


def _first(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return outputs[0] if isinstance(outputs, tuple) else outputs
