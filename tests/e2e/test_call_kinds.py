"""Calls of an optimised module: each returns the current model's result and leaves no side effects."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from tests.e2e import warm as warm_model
from tests.e2e.models import QUICK, assert_right, build
from tests.e2e.warm import Rich, Warm, X, expect_equal
from torchrlopt import optimise

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def change_in_place(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.mul_(-0.5)


def change_silently(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(-0.5)


def test_changes_outside_of_a_model_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    warm = Warm(build(Rich), X)
    monkeypatch.setitem(vars(warm_model), "helper", lambda x: x - 1)
    warm.expect_right()
    warm.expect_all_right()
    monkeypatch.setattr(Rich, "gain", 5.0)
    warm.expect_right()
    monkeypatch.setitem(vars(warm_model), "FACTOR", 3.0)
    warm.expect_right()


def test_calls_of_other_kinds_are_told_apart() -> None:
    model = build(Rich)
    mask = torch.rand(5, 32)
    warm = Warm(model, X)
    kinds: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((X,), {}),
        ((X, mask), {}),
        ((X,), {"mask": mask}),
        ((), {"x": X}),
        ((X,), {"times": 2.0}),
        ((X,), {"name": "tanh"}),
        ((X[:3],), {}),
        ((X.t().contiguous().t(),), {}),
        ((X * 2,), {}),
    ]
    for _ in range(3):
        for args, kwargs in kinds:
            warm.args, warm.kwargs = args, kwargs
            warm.expect_right()


def test_one_tensor_for_two_arguments() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 8), nn.Linear(16, 8)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            both = torch.cat([self.a(x), self.b(x)], 1)
            return both.sum() + (y if x is y else -y)

    warm = Warm(build(Two), X, X.clone())
    warm.args = (X, X)
    for _ in range(4):
        warm.expect_right()
    warm.args = (X, X.clone())
    for _ in range(4):
        warm.expect_right()


def test_a_weight_as_an_argument_is_told_from_another_tensor() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 8), nn.Linear(16, 8)

        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            both = self.a(x) + self.b(x)
            return both if w is self.a.weight else -both

    model = build(Own)
    with torch.no_grad():
        warm = Warm(model, X, model.a.weight.clone().requires_grad_())
        warm.args = (X, model.a.weight)
        for _ in range(4):
            warm.expect_right()
        warm.args = (X, model.b.weight)
        for _ in range(4):
            warm.expect_right()


def test_state_of_the_process() -> None:
    warm = Warm(build(Rich), X)
    warm.fast(X)
    with torch.inference_mode():
        assert warm.fast(X)["y"].is_inference()
        warm.expect_right()
    assert not warm.fast(X)["y"].is_inference()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert warm.fast(X)["parts"][2][0].dtype == warm.model(X)["parts"][2][0].dtype
    warm.expect_right()
    x = X.clone().requires_grad_()
    warm.fast(x)["y"].sum().backward()
    assert x.grad is not None
    warm.expect_all_right()
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        warm.expect_right()
    finally:
        torch.set_default_dtype(default)
    warm.expect_all_right()
    warm.model.train()
    torch.manual_seed(0)
    assert warm.fast(X)["y"].requires_grad
    warm.model.eval()
    warm.expect_all_right()


def test_modes_see_the_operators_of_a_call() -> None:
    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Counting.count += 1
            return func(*args, **(kwargs or {}))

    warm = Warm(build(Rich), X)
    with Counting():
        expect_equal(warm.fast(X), warm.model(X))
    assert Counting.count > 0
    warm.expect_right()


def test_a_stance_is_respected(runs: list[int]) -> None:
    warm = Warm(build(Rich), X)
    before = len(runs)
    with torch.compiler.set_stance("force_eager"):
        warm.expect_right()
    assert len(runs) == before
    warm.expect_right()
    assert len(runs) == before + 1


def test_after_a_reset_everything_is_compiled_again() -> None:
    warm = Warm(build(Rich), X)
    torch._dynamo.reset()
    warm.expect_all_right()


@pytest.mark.parametrize("weights", ["check", "frozen", "live"])
def test_weights_that_change_in_place_by_policy(weights: str) -> None:
    warm = Warm(build(Rich), X, weights=weights)
    with torch.no_grad():
        before = warm.fast(X)
        change_in_place(warm.model)
    if weights == "frozen":
        expect_equal(warm.fast(X), before)
    else:
        warm.expect_right()


def test_what_code_asks_of_a_weight_is_seen() -> None:
    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 8), nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.cat([self.a(x), self.b(x)], 1)
            y = y * 2 if self.a.weight.requires_grad else y
            y = y * 3 if self.b.weight.is_contiguous() else y
            return y * 5 if hasattr(self.b.bias, "note") else y

    warm = Warm(build(Asking), X)
    for change in (
        lambda: warm.model.a.weight.requires_grad_(False),
        lambda: setattr(warm.model.b.weight, "data", torch.randn(16, 8).t()),
        lambda: setattr(warm.model.b.bias, "note", 1),
    ):
        with torch.no_grad():
            before = warm.model(X)
            change()
            assert not torch.allclose(warm.model(X), before)
        warm.expect_right()
        warm.expect_all_right()


def test_numbers_that_change_in_place_compile_nothing() -> None:
    warm = Warm(build(Rich), X)
    num_reports = len(warm.fast.reports)
    with torch.no_grad():
        for change in (change_in_place, change_silently):
            change(warm.model)
            warm.expect_right()
    assert len(warm.fast.reports) == num_reports


@pytest.mark.parametrize("is_wrong", [False, True])
def test_what_a_call_leaves_behind_is_left_by_each(is_wrong: bool) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.count = nn.Linear(16, 8), nn.Linear(16, 8), 0
            self.seen: list[int] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if is_wrong:
                self.seen.append(1)
            else:
                self.count += 1
            return torch.cat([self.a(x), self.b(x)], 1)

    model = build(Counting)
    fast: Any = optimise(model, **QUICK)
    for _ in range(6):
        fast(X)
    assert (len(model.seen) if is_wrong else model.count) == 6


def test_results_that_are_no_outputs_of_the_graph() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.kept = nn.Linear(16, 8), nn.Linear(16, 8), list[Any]()

        def forward(self, x: torch.Tensor) -> Any:
            return torch.cat([self.a(x), self.b(x)], 1), x, self.kept

    model = build(Odd)
    fast: Any = optimise(model, **QUICK)
    for _ in range(5):
        _, given, kept = fast(X)
        assert given is X
        assert kept is model.kept


def test_a_list_that_is_returned_twice_is_one() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 8), nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> Any:
            both = [torch.cat([self.a(x), self.b(x)], 1)]
            return both, both, [both[0]]

    model = build(Twice)
    fast: Any = optimise(model, **QUICK)
    for _ in range(5):
        first, again, own = fast(X)
        assert again is first
        assert own is not first
        assert own[0] is first[0]


def test_a_buffer_that_is_written_to_and_arguments_that_are() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 8), nn.Linear(16, 8)
            self.register_buffer("total", torch.zeros(16))

        def forward(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            y = torch.cat([self.a(x), self.b(x)], 1)
            self.total += y.sum(0)
            out.copy_(y)
            return y + self.total

    first, second = build(Writing), build(Writing)
    fast: Any = optimise(first, **QUICK)
    for _ in range(6):
        outs = torch.zeros(5, 16), torch.zeros(5, 16)
        with torch.no_grad():
            expect_equal(fast(X, outs[0]), second(X, outs[1]))
        expect_equal(outs[0], outs[1])
        expect_equal(first.total, second.total)


def test_the_parts_of_a_model_are_not_held() -> None:
    warm = Warm(build(Rich), X)
    weight = weakref.ref(warm.model.a.weight)
    layer = weakref.ref(warm.model.rest[0])
    warm.model.a = nn.Linear(16, 8)
    warm.model.rest[0] = nn.Linear(32, 32)
    gc.collect()
    assert weight() is None
    assert layer() is None
    warm.expect_right()
    model = weakref.ref(warm.model)
    del warm
    gc.collect()
    assert model() is None


@pytest.mark.parametrize("weights", ["check", "frozen", "live"])
def test_the_arguments_of_a_call_are_not_held(weights: str) -> None:
    fast: Any = optimise(build(Rich), **{**QUICK, "weights": weights})
    living = []
    for _ in range(4):
        x = X.clone()
        fast(x)
        living.append(weakref.ref(x))
        del x
    gc.collect()
    assert not any(each() is not None for each in living[1:]), "the first one is of the compilation"


def test_threads_that_call_while_another_changes_the_model() -> None:
    """Each result is that of one of the two models there were, and nobody crashes."""
    model = build(Rich)
    warm = Warm(model, X)
    layers = [nn.Linear(16, 8), nn.Linear(16, 8)]
    expected = []
    with torch.no_grad():
        for layer in layers:
            model.a = layer
            expected.append(model(X)["y"])
    wrong: list[torch.Tensor] = []
    is_over = threading.Event()

    def call() -> None:
        while not is_over.is_set():
            got = warm.fast(X)["y"]
            if not any(torch.allclose(got, each, rtol=1e-3, atol=1e-3) for each in expected):
                wrong.append(got)

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for step in range(300):
        model.a = copy.deepcopy(layers[step % 2])  # which is gone with the next step
        gc.collect(0)
    is_over.set()
    for caller in callers:
        caller.join()
    assert not wrong


def test_it_is_right_with_the_numbers_of_float64() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 8), nn.Linear(16, 24)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.a(x), self.b(x)

    warm = Warm(build(Plain), X)
    with torch.no_grad():
        assert_right(warm.fast(X), warm.model(X), build(Plain).double()(X.double()))
