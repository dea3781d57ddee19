"""Threads that call an optimised module: one compiles, the others wait or run the original meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import torchrlopt
from tests import forks
from tests.crosses import nightly_but
from tests.e2e.models import QUICK, Branches, ConvBranches, build
from tests.e2e.threads import in_threads
from torchrlopt.api import gate, whole_call
from torchrlopt.capture import aot
from torchrlopt.compile import backend

LIMIT_S = 120
IMAGE = torch.randn(2, 3, 10, 10, generator=torch.Generator().manual_seed(0))
X = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Held:
    """Compilations that begin and then wait until they are released, or raise an error instead."""

    def __init__(self, compile_graph: Callable[..., Any]) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        self.num = 0
        self.error: BaseException | None = None
        self._compile_graph = compile_graph

    def __call__(self, *args: Any) -> Any:
        self.num += 1
        self.began.set()
        assert self.go_on.wait(LIMIT_S)
        error, self.error = self.error, None
        if error is not None:
            raise error
        return self._compile_graph(*args)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    found = Held(backend.compile_graph)
    monkeypatch.setattr(backend, "compile_graph", found)
    return found


class Calling(threading.Thread):
    """A call in a thread of its own."""

    def __init__(self, fast: Any, *args: Any, around: AbstractContextManager[Any] | None = None) -> None:
        super().__init__(daemon=True)
        self.result: Any = None
        self.error: BaseException | None = None
        self._call = lambda: fast(*args)
        self._around = nullcontext() if around is None else around
        self.start()

    def run(self) -> None:
        try:
            with torch.no_grad(), self._around:
                self.result = self._call()
        except BaseException as error:  # noqa: BLE001  # of the call, for the test
            self.error = error

    def returned(self) -> Any:
        """The result, once the call is over."""
        self.join(LIMIT_S)
        assert not self.is_alive(), "the call hangs"
        if self.error is not None:
            raise self.error
        return self.result


@contextmanager
def first_call(held: Held, fast: Any, *args: Any) -> Iterator[Calling]:
    """While another thread compiles."""
    caller = Calling(fast, *args)
    assert held.began.wait(LIMIT_S)
    try:
        yield caller
    finally:
        held.go_on.set()


@pytest.mark.parametrize("num_threads", nightly_but([8], [8, 16]))
@pytest.mark.parametrize("weights", ["check", "frozen"])
def test_many_first_calls_compile_once(num_threads: int, weights: str, held: Held) -> None:
    fast = torchrlopt.optimise(build(ConvBranches), **QUICK, weights=weights)
    results: list[torch.Tensor] = []
    held.go_on.set()
    in_threads(*[lambda: results.append(fast(IMAGE))] * num_threads)
    assert held.num == len(fast.reports) == 1
    assert fast.report.kept == "rewritten"
    with torch.no_grad():
        expected = fast(IMAGE)
    assert len(results) == num_threads
    assert all(torch.equal(result, expected) for result in results)


def test_others_wait_for_the_thread_that_compiles(held: Held) -> None:
    fast = torchrlopt.optimise(build(ConvBranches), **QUICK)
    with first_call(held, fast, IMAGE) as first:
        others = [Calling(fast, IMAGE) for _ in range(3)]
        others[0].join(0.3)
        assert all(each.is_alive() for each in others)
    assert all(torch.equal(each.returned(), first.returned()) for each in others)
    assert held.num == 1


@pytest.mark.parametrize("change", ["none", "attribute", "class"])
def test_no_call_waits_where_the_original_runs_meanwhile(change: str, held: Held) -> None:
    model = build(Branches)
    fast = torchrlopt.optimise(model, **QUICK, while_compiling="original")
    if change != "none":
        held.go_on.set()
        Calling(fast, X).returned()
        held.go_on.clear()
        held.began.clear()
        if change == "attribute":
            model.a = nn.Linear(16, 12)
        else:
            model.__class__ = type(
                "Other", (Branches,), {"forward": lambda self, x: Branches.forward(self, x) + 1}
            )
    expected = model(X).detach()
    with first_call(held, fast, X) as first:
        for _ in range(3):
            assert torch.equal(Calling(fast, X).returned(), expected)
        recorded = Calling(fast, X, around=torch.enable_grad()).returned()
        assert torch.equal(recorded, expected)
        assert not recorded.requires_grad, "as of compiled code"
        assert first.is_alive()
    torch.testing.assert_close(first.returned(), expected)
    assert torch.equal(Calling(fast, X).returned(), first.returned())


def test_what_is_compiled_runs_while_a_thread_compiles_another_size_or_model(
    held: Held, runs: list[int]
) -> None:
    """PyTorch says in all threads that it is compiling."""
    fast, other = (torchrlopt.optimise(build(Branches, seed), **QUICK) for seed in (0, 1))
    held.go_on.set()
    expected = Calling(fast, X).returned()
    for slow, x in ((fast, X[:3]), (other, X)):
        held.go_on.clear()
        held.began.clear()
        with first_call(held, slow, x) as first:
            runs.clear()
            assert torch.equal(Calling(fast, X).returned(), expected)
            assert len(runs) == 1
            assert first.is_alive()
        first.returned()


@pytest.mark.parametrize("error", [ValueError("of a stage"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_an_error_in_the_thread_that_compiles_is_its_own(error: BaseException, held: Held) -> None:
    fast = torchrlopt.optimise(build(ConvBranches), **QUICK)
    held.error = error
    with first_call(held, fast, IMAGE) as first:
        others = [Calling(fast, IMAGE) for _ in range(3)]
    with pytest.raises(BaseException) as raised:  # noqa: PT011  # one of ours is wrapped by Dynamo
        first.returned()
    assert isinstance(raised.value, KeyboardInterrupt) or "of a stage" in str(raised.value)
    results = [each.returned() for each in others]
    assert held.num == 2
    with torch.no_grad():
        assert all(torch.equal(result, fast(IMAGE)) for result in results)
    assert fast.report.kept == "rewritten"


@pytest.mark.hides_errors
def test_a_model_that_cannot_be_compiled_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[Any] = []

    def fail(code: Any) -> None:
        tries.append(code)
        raise KeyError("no such luck")

    monkeypatch.setattr(aot, "only_computes", fail)
    model = build(Branches)
    fast = torchrlopt.optimise(model, **{**QUICK, "on_error": "fallback"})
    results: list[torch.Tensor] = []
    in_threads(*[lambda: results.append(fast(X))] * 8)
    assert len(tries) == len(fast.reports) == 1
    assert all(torch.equal(result, model(X)) for result in results)


class Cut(nn.Module):
    """Two graphs, the second of which depends on a flag that the first does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = build(Branches), nn.ModuleList([nn.Linear(40, 8), nn.Linear(40, 8)])

    def forward(self, x: torch.Tensor, number: list[int]) -> torch.Tensor:
        y = self.first(x)
        torch._dynamo.graph_break()
        return torch.relu(self.rest[number[0]](y))


def test_a_call_of_several_graphs_compiles_each_once(held: Held) -> None:
    model = Cut().eval()
    fast = torchrlopt.optimise(model, **QUICK, min_gain=-10.0)
    held.go_on.set()
    results: list[torch.Tensor] = []
    in_threads(*[lambda: results.append(fast(X, [0]))] * 8)
    assert held.num == len(fast.reports) == 2
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close(results[0], model(X, [0]).detach(), rtol=1e-4, atol=1e-5)


def test_a_later_graph_runs_as_it_is_while_another_thread_compiles_it(held: Held) -> None:
    """The call has begun: it can neither begin again, nor is it worth waiting for the rest."""
    model = Cut().eval()
    fast = torchrlopt.optimise(model, **QUICK, min_gain=-10.0)
    held.go_on.set()
    Calling(fast, X, [0]).returned()
    held.go_on.clear()
    held.began.clear()
    with first_call(held, fast, X, [1]) as first:
        result = Calling(fast, X, [1]).returned()
        assert first.is_alive()
    for each in (result, first.returned(), Calling(fast, X, [1]).returned()):
        torch.testing.assert_close(each, model(X, [1]).detach(), rtol=1e-4, atol=1e-5)
    assert held.num == 3


class Outer(nn.Module):
    """Calls an optimised module between its graphs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.last = inner, nn.Linear(40, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        y = torch._dynamo.disable(self.inner)(x * 2)
        return torch.relu(self.last(y))


def test_optimised_modules_inside_of_another_and_called_by_themselves() -> None:
    model = build(Branches)
    inner = torchrlopt.optimise(model, **QUICK)
    outer, plain = Outer(inner).eval(), Outer(model).eval()
    plain.last = outer.last
    fast = torchrlopt.optimise(outer, **QUICK)

    def call(module: nn.Module, expected: torch.Tensor) -> None:
        for _ in range(3):
            torch.testing.assert_close(module(X), expected, rtol=1e-4, atol=1e-5)

    with torch.no_grad():
        whole, part = plain(X), model(X)
    in_threads(*[lambda: call(fast, whole), lambda: call(inner, part)] * 4)


def test_a_fork_while_another_thread_compiles(held: Held, runs: list[int]) -> None:
    """PyTorch's tables are half changed in the child: it runs what is compiled, and originals."""
    models = [build(Branches, seed) for seed in range(2)]
    warm, fast = (torchrlopt.optimise(model, **QUICK) for model in models)
    held.go_on.set()
    Calling(warm, X).returned()
    held.go_on.clear()
    held.began.clear()
    runs.clear()

    def child() -> None:
        for number, x in enumerate((X, X[:3])):
            torch.testing.assert_close(fast(x), models[1](x).detach(), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(warm(x), models[0](x).detach(), rtol=1e-4, atol=1e-5)
            assert len(runs) == 1, number

    with first_call(held, fast, X) as first:
        number = forks.fork(child)
        assert forks.wait(number) == 0
    torch.testing.assert_close(first.returned(), models[1](X).detach(), rtol=1e-4, atol=1e-5)


def test_a_fork_by_a_thread_that_others_need_to_compile(held: Held) -> None:
    """Python, and modules, hold locks across a fork."""
    fast = torchrlopt.optimise(build(Branches), **{**QUICK, "cache": True})
    with first_call(held, fast, X) as first:
        forking = threading.Thread(target=lambda: forks.run(lambda: None))
        forking.start()
        forking.join(LIMIT_S)
        assert not forking.is_alive()
    first.returned()


def test_a_fork_while_another_thread_times_its_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(Branches)
    fast = torchrlopt.optimise(model, cache=False, searcher="greedy", min_gain=-10.0, measure_ms=1.0)
    began, go_on = threading.Event(), threading.Event()

    def time_calls(*args: Any) -> Any:
        began.set()
        assert go_on.wait(LIMIT_S)
        return real(*args)

    real = whole_call.time_calls
    monkeypatch.setattr(whole_call, "time_calls", time_calls)
    monkeypatch.setattr(whole_call, "is_decided_by_graphs", lambda *_: False)
    first = Calling(fast, X)
    assert began.wait(LIMIT_S)
    number = forks.fork(lambda: torch.testing.assert_close(fast(X[:3]), model(X[:3]), rtol=1e-4, atol=1e-5))
    try:
        assert forks.wait(number) == 0
    finally:
        go_on.set()
    first.returned()


def test_gradients_that_calls_of_the_original_lose_are_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While Dynamo traces, nobody knows yet that the model reads a tensor that requires them."""
    scale = torch.ones(8, requires_grad=True)

    class Scaled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * scale

    held = Held(aot.only_computes)
    monkeypatch.setattr(aot, "only_computes", held)
    fast = torchrlopt.optimise(Scaled(16, 8).eval(), **QUICK, while_compiling="original")
    with first_call(held, fast, X) as first:
        Calling(fast, X, around=torch.enable_grad()).returned()
    first.returned()
    assert "were not recorded in calls of the original while another thread compiled" in caplog.text
    recorded = Calling(fast, X, around=torch.enable_grad()).returned()
    assert recorded.requires_grad


def test_torch_compile_plans_once_for_many_threads() -> None:
    """Dynamo compiles in each thread, up to its limit; all but the first find the graph."""
    model = build(ConvBranches)
    fast = torch.compile(model, backend="rlopt", options=QUICK)
    results: list[torch.Tensor] = []
    in_threads(*[lambda: results.append(fast(IMAGE))] * 8)
    assert [report.is_cache_hit for report in torchrlopt.reports()].count(False) == 1
    assert all(torch.equal(result, results[0]) for result in results)


def test_code_of_a_first_call_may_wait_for_a_thread_that_calls_the_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That thread would wait for the first call for ever, which waits for it."""
    monkeypatch.setattr(gate, "_PATIENCE_S", 0.3)
    pool = ThreadPoolExecutor(1)

    @torch._dynamo.disable
    def elsewhere(part: torch.Tensor) -> torch.Tensor:
        def call() -> torch.Tensor:
            with torch.no_grad():
                return fast(part)

        return pool.submit(call).result(timeout=60)

    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] > 4:
                return torch.cat([elsewhere(part) for part in x.chunk(2)])
            return torch.relu(self.linear(x))

    model, x = Split().eval(), torch.randn(8, 16)
    fast: Any = torchrlopt.optimise(model, measure=False)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), torch.relu(model.linear(x)))
