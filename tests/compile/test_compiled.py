"""A compiled graph at call time: torchrlopt/compile/compiled.py."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from torchrlopt.compile.compiled import Compiled, Lower
from torchrlopt.compile.fallback import WARNINGS
from torchrlopt.errors import VerificationError, WeightsError
from torchrlopt.judge.budget import Budget
from torchrlopt.report import Status


@pytest.fixture(autouse=True)
def no_earlier_warnings() -> None:
    WARNINGS.clear()


def twice(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor]:
    return (x[index] * 2,)


class Graph:
    """A rewritten graph that evaluates expressions over weights when it is told to."""

    def __init__(self) -> None:
        self.num_evaluations = 1
        self.factor = 2.0
        self.error: Exception | None = None
        self.calls = 0
        self.writes = False

    def __call__(self, x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor]:
        self.calls += 1
        if self.error is not None:
            raise self.error
        if self.writes:
            x.add_(0)  # as another thread would
        return (x[index] * self.factor,)


ATEN = torch.fx.symbolic_trace(twice)
X, INDEX = torch.arange(3.0), torch.tensor([0, 2])


def made(**options: Any) -> tuple[Graph, Compiled]:
    graph = Graph()
    return graph, Compiled(graph, ATEN, Status("rewritten", weight_sets=1, checked_sets=1), **options)


def called(compiled: Compiled, x: torch.Tensor = X, index: torch.Tensor = INDEX) -> list[float]:
    arguments = [x, index]
    (out,) = compiled(arguments)
    assert arguments == [], "AOTAutograd's convention"
    return list(out.tolist())


@pytest.mark.hides_errors
def test_a_call_that_fails_gives_the_original_from_then_on(caplog: pytest.LogCaptureFixture) -> None:
    graph, compiled = made()
    graph.error = OSError("the session is gone")
    assert called(compiled) == called(compiled) == [0.0, 4.0]
    assert graph.calls == 1
    assert compiled.status.kept == "original"
    assert "the session is gone" in str(compiled.status.fallback_reason)
    assert len(caplog.messages) == 1


def test_weights_that_are_refused_are_the_only_ones(caplog: pytest.LogCaptureFixture) -> None:
    graph, compiled = made()
    graph.error = WeightsError("what was composed of the weights overflows")
    assert called(compiled) == called(compiled) == [0.0, 4.0]
    assert len(caplog.messages) == 1
    graph.error = None
    called(compiled)
    assert graph.calls == 3, "other weights may be right"
    assert compiled.status.kept == "rewritten"


def test_weights_that_are_written_to_meanwhile_say_nothing_about_the_graph() -> None:
    graph, compiled = made(on_error="raise")
    graph.factor, graph.num_evaluations, graph.writes = 2.01, 2, True
    called(compiled, X.clone())
    assert (compiled.status.weight_sets, compiled.status.checked_sets) == (2, 1)


def test_a_call_that_fails_raises_where_that_is_asked_for() -> None:
    graph, compiled = made(on_error="raise")
    graph.error = OSError("the session is gone")
    with pytest.raises(OSError, match="gone"):
        called(compiled)
    assert compiled.lowered is graph


def test_a_wrong_call_is_the_callers(caplog: pytest.LogCaptureFixture) -> None:
    graph, compiled = made()
    with pytest.raises(IndexError):
        called(compiled, index=torch.tensor([5]))
    assert caplog.messages == []
    assert called(compiled) == [0.0, 4.0]
    assert graph.calls == 2, "the rewritten graph is still used"


def test_new_weights_are_compared_more_and_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, compiled = made()
    checked = []
    for number in range(2, 20):
        graph.num_evaluations += 1
        before = compiled.status.checked_sets
        called(compiled)
        called(compiled)
        assert compiled.status.weight_sets == number
        if compiled.status.checked_sets > before:
            checked.append(number)
    assert checked == [2, 4, 8, 16]


@pytest.mark.hides_errors
def test_wrong_numbers_for_new_weights_are_found(caplog: pytest.LogCaptureFixture) -> None:
    graph, compiled = made()
    graph.factor = 2.01
    assert called(compiled) == pytest.approx([0.0, 4.02]), "nothing was evaluated anew"
    graph.num_evaluations += 1
    assert called(compiled) == [0.0, 4.0]
    assert compiled.lowered is None
    assert "other numbers" in caplog.text

    graph, compiled = made(on_error="raise")
    graph.factor, graph.num_evaluations = 2.01, 2
    with pytest.raises(VerificationError, match="new weights"):
        called(compiled)

    graph, compiled = made(verify=False)
    graph.factor, graph.num_evaluations = 2.01, 2
    assert called(compiled) == pytest.approx([0.0, 4.02])


def test_two_calls_beyond_the_budget_at_once_lead_to_the_exact_graph_once() -> None:
    other = threading.Thread(target=lambda: [called(compiled) for _ in range(2)])

    def error(outputs: Any, reference: Any) -> float:
        if threading.current_thread() is not other and other.ident is None:
            other.start()
            other.join()  # its second call is sampled, too, and is done first
        return 1.0

    exact = Graph()
    graph, compiled = made(lower=Lower(Budget(0.1, error), lambda: exact))
    graph.factor = 3.0
    assert called(compiled) == [0.0, 6.0]
    assert called(compiled) == called(compiled) == [0.0, 4.0]
    assert compiled.status.kept == "rewritten"
    assert exact.calls == 1


@pytest.mark.hides_errors
def test_an_exact_graph_that_cannot_be_built_leads_to_the_original() -> None:
    def fails() -> Graph:
        raise MemoryError("no room")

    graph, compiled = made(lower=Lower(Budget(0.1, lambda outputs, reference: 1.0), fails))
    graph.factor = 3.0
    assert called(compiled) == [0.0, 6.0]
    assert called(compiled) == called(compiled) == [0.0, 4.0]
    assert "no room" in str(compiled.status.fallback_reason)
