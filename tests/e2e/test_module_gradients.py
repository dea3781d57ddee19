"""Gradients through an optimised module equal those of the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from tests.e2e.models import QUICK, Branches, build, close
from torchrlopt import optimise

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

X = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))


class Point(NamedTuple):
    x: torch.Tensor


@dataclasses.dataclass
class Record:
    inner: dict[str, Any]


class Deep(nn.Module):
    """Takes its tensor out of whatever it comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Branches()

    def forward(self, given: Any = None, *, other: Any = None) -> torch.Tensor:
        value = other if given is None else given
        while not isinstance(value, torch.Tensor):
            if isinstance(value, Record):
                value = value.inner
            value = value["x"] if isinstance(value, dict) else value[0]
        return self.inner(value)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: ((x,), {}),
        lambda x: (([x],), {}),
        lambda x: (({"x": (x, 3)},), {}),
        lambda x: ((Point(x),), {}),
        lambda x: ((Record({"x": x}),), {}),
        lambda x: (([Record({"x": [x]})],), {}),
        lambda x: ((), {"other": [{"x": x}, None, "text"]}),
    ],
    ids=["tensor", "list", "dict", "named tuple", "dataclass", "dataclass in a list", "keyword"],
)
def test_gradients_reach_inputs_in_containers(wrap: Callable[[Any], Any], runs: list[int]) -> None:
    model = build(Deep)
    fast = optimise(model, **QUICK)
    args, kwargs = wrap(X)
    fast(*args, **kwargs)
    assert len(runs) == 1
    grads = []
    for each in (model, fast):
        x = X.clone().requires_grad_()
        args, kwargs = wrap(x)
        each(*args, **kwargs).square().sum().backward()
        grads.append(x.grad)
    assert torch.equal(*grads)
    assert len(runs) == 1
    with torch.no_grad():
        args, kwargs = wrap(X.clone().requires_grad_())
        assert not fast(*args, **kwargs).requires_grad
    assert len(runs) == 2


def test_transforms_of_torch_func() -> None:
    model = build(Branches)
    fast = optimise(model, X, **QUICK)
    weights = {name: value.detach() for name, value in model.named_parameters()}
    for each in (torch.func.grad, torch.func.jacrev, torch.func.jacfwd):
        ours, theirs = (each(lambda x, m=m: m(x).square().sum())(X) for m in (fast, model))
        close(ours, theirs)
        ours, theirs = (
            each(lambda w, m=m: torch.func.functional_call(m, w, X).square().sum())(weights)
            for m in (fast, model)
        )
        close(ours, theirs)
    with torch.no_grad():
        close(torch.func.vmap(fast)(X), torch.func.vmap(model)(X))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, torch.ones_like(X))
        with torch.no_grad():
            ours, theirs = (forward_ad.unpack_dual(each(dual)).tangent for each in (fast, model))
        assert theirs is not None
        close(ours, theirs)
    close(fast(X), model(X).detach())


@pytest.mark.parametrize("weights", ["check", "frozen"])
def test_calls_without_gradients_see_transforms(weights: str) -> None:
    model = nn.Sequential(build(Branches), nn.Dropout(0.9)).eval()
    fast = optimise(model, X, **{**QUICK, "weights": weights})
    several = torch.stack([X, 2 * X, -X])
    with torch.no_grad():
        for _ in range(4):
            fast(X)
        close(torch.func.vmap(fast)(several), torch.func.vmap(model)(several))
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(X, torch.ones_like(X))
            ours, theirs = (forward_ad.unpack_dual(each(dual)).tangent for each in (fast, model))
            assert theirs is not None
            close(ours, theirs)
        with torch.enable_grad():
            assert fast(X.clone().requires_grad_()).requires_grad
        fast.train()
        assert (fast(X) == 0).float().mean() > 0.5
        fast.eval()
        close(fast(X), model(X))


def test_training_records_gradients_of_weights() -> None:
    model = build(Branches)
    fast = optimise(model, **QUICK)
    assert fast.train() is fast
    assert model.training
    assert model.a.training
    fast(X).sum().backward()
    assert model.a.weight.grad is not None
    assert fast.reports == [], "nothing is compiled for training"
    model.eval()
    assert not fast.training
    fast(X)
    assert fast.report.kept == "rewritten"
    outer = nn.Sequential(fast)
    assert outer.train()[0].training
    assert outer(X).requires_grad
