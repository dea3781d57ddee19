"""`torch.utils.swap_tensors`, which `model.to(...)` may use, refuses tensors that have weak references."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import torchrlopt
from tests.e2e.models import QUICK, Branches, build

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

X = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def swapping() -> Iterator[None]:
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    with torch.no_grad():
        yield
    torch.__future__.set_swap_module_params_on_conversion(before)


def expect_swapped(model: nn.Module, run: Callable[..., Any]) -> None:
    """Convert the weights, and compare."""
    weights = list(model.parameters())
    model.double()
    assert all(
        now is weight and now.dtype == torch.float64
        for now, weight in zip(model.parameters(), weights, strict=True)
    )
    torch.testing.assert_close(run(X.double()), model(X.double()), rtol=0, atol=1e-12)


def test_watched_weights_are_refused_and_stay_what_they_are() -> None:
    """As docs/faq.md says."""
    model = build(Branches)
    run = torchrlopt.optimise(model, X, **QUICK)
    run(X)
    weights = [weight.detach().clone() for weight in model.parameters()]
    with pytest.raises(RuntimeError, match="swap"):
        model.double()
    assert all(map(torch.equal, weights, model.parameters()))
    torch.testing.assert_close(run(X), model(X))


def test_live_weights_can_be_swapped() -> None:
    model = build(Branches)
    run = torchrlopt.optimise(model, X, **QUICK, weights="live")
    run(torch.randn(6, 16))  # compiles once more, for any size
    expect_swapped(model, run)


def test_watched_weights_can_be_swapped_once_all_is_forgotten() -> None:
    model = build(Branches)
    run = torchrlopt.optimise(model, X, **QUICK)
    torch._dynamo.reset()
    gc.collect()
    expect_swapped(model, run)
