"""A deleted model is released completely: its weights as well as everything compiled for it.

`torch._dynamo.reset()` would release it all. It is not called here, as users who compile many models do not.
"""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch._dynamo.eval_frame import cached_backends

import torchrlopt
from tests.crosses import nightly_but
from tests.e2e.models import QUICK, RUNTIMES, Branches, build
from torchrlopt.capture import trace
from torchrlopt.compile.compiled import Compiled

pytestmark = pytest.mark.usefixtures("young_heap")


def compiled_graphs() -> int:
    gc.collect()
    return sum(type(each) is Compiled for each in gc.get_objects())


def known_backends() -> set[int]:
    """Backends that Dynamo keeps; None is among them where it ran without one."""
    return {key for key, backend in cached_backends.items() if backend is not None}


def dynamos_globals() -> set[str]:
    """Functions that Dynamo puts beside ours for the code that it makes."""
    return {name for name in vars(trace) if name.startswith("__compiled_fn")}


@pytest.mark.parametrize(
    ("executor", "weights"),
    nightly_but(
        [("eager", "check"), ("eager", "frozen"), *((name, "check") for name in RUNTIMES[:1])],
        [("eager", "check"), ("eager", "live"), ("eager", "frozen"), *((name, "check") for name in RUNTIMES)],
    ),
)
def test_an_optimised_model(executor: str, weights: str) -> None:
    num_graphs, names, backends = compiled_graphs(), dynamos_globals(), known_backends()
    model, x = build(Branches), torch.randn(5, 16)
    storages = [weakref.ref(weight.untyped_storage()) for weight in model.parameters()]
    fast = torchrlopt.optimise(model, x, **{**QUICK, "executor": executor, "weights": weights})
    fast(torch.randn(6, 16))
    fast(torch.randn(7, 16))
    assert compiled_graphs() > num_graphs
    alive = [*storages, weakref.ref(model), weakref.ref(fast)]
    del model, fast
    gc.collect()
    assert not any(reference() is not None for reference in alive)
    assert compiled_graphs() == num_graphs
    assert dynamos_globals() == names
    assert known_backends() == backends


class Failing(Branches):
    """Ends between two graphs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        torch._dynamo.graph_break()
        if y.shape[0] == 5:
            raise ValueError("no five rows")
        return y + 1


@pytest.mark.parametrize(
    ("keywords", "error", "on_error"), [({}, ValueError, "fallback"), ({"y": 1}, TypeError, "raise")]
)
def test_a_model_whose_first_call_fails(
    keywords: dict[str, int], error: type[Exception], on_error: str
) -> None:
    gc.collect()
    names, backends = dynamos_globals(), known_backends()
    model = build(Failing)
    fast = torchrlopt.optimise(model, **{**QUICK, "on_error": on_error})
    with pytest.raises(error):
        fast(torch.randn(5, 16), **keywords)
    alive = [weakref.ref(each) for each in (model, fast, model.a.weight.untyped_storage())]
    del model, fast
    gc.collect()
    assert not any(reference() is not None for reference in alive)
    assert dynamos_globals() == names
    assert known_backends() == backends


def test_what_was_compiled_for_others_stays() -> None:
    models = [build(Branches, seed) for seed in range(2)]
    x = torch.randn(5, 16)
    first, second = (torchrlopt.optimise(model, x, **QUICK) for model in models)
    del first, models[0]
    gc.collect()
    reports = len(second.reports)
    with torch.no_grad():
        torch.testing.assert_close(second(x), models[0](x))
    assert len(second.reports) == reports, "nothing was compiled again"
