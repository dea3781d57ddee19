"""If anything fails or gives no speed-up, the user's program goes on."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

from tests.crosses import nightly
from tests.e2e.models import STRICT, Branches, assert_same, build, compiled, failing, last_report
from torchrlopt import optimise
from torchrlopt.capture import aot
from torchrlopt.compile import attempt, backend, contestant
from torchrlopt.compile.memory import MEMORY
from torchrlopt.errors import UnsupportedError
from torchrlopt.judge import right, timing
from torchrlopt.plan import planning
from torchrlopt.report import Timing

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

STAGES = [
    (backend, "trace"),
    (backend, "capture_traced"),
    (backend, "read_captured"),
    (attempt, "make_plan"),
    (contestant, "write"),
    (attempt.registry, "get"),
    (right, "verify_against"),
    (timing, "measure"),
    (planning, "plan_store"),
    (planning, "search_plan"),
]

ERRORS = [
    UnsupportedError("no such luck"),
    KeyError("no such luck"),
    OSError(28, "no such luck"),
    ValueError("no such luck"),
    torch.OutOfMemoryError("no such luck"),
    MemoryError("no such luck"),
    torch._dynamo.exc.TorchDynamoException("no such luck"),
]


# Every stage fails, and every error is met, in one stage at least.
CASES = [*((stage, ERRORS[at % 2]) for at, stage in enumerate(STAGES)),
         *((STAGES[0], error) for error in ERRORS[1:]), ((attempt, "make_plan"), ERRORS[-1])]  # fmt: skip


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.hides_errors
@pytest.mark.parametrize(
    ("where", "error"), CASES, ids=[f"{stage}-{type(error).__name__}" for (_, stage), error in CASES]
)
def test_a_failing_stage(
    where: tuple[Any, str],
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(*where, failing(error))
    model, x = build(Branches), torch.randn(5, 16)
    for _ in range(2):
        fast = optimise(model, x)
        assert fast.report.kept == "original"
        assert "no such luck" in str(fast.report.fallback_reason)
        assert_same(model, fast, x)
    warnings = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert sum("no such luck" in each for each in warnings) == 1, "one warning per cause"
    with pytest.raises(Exception, match="no such luck"):
        optimise(model, x, on_error="raise")


@pytest.mark.hides_errors
def test_what_fails_before_any_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aot, "only_computes", failing(KeyError("no such luck")))
    model, x = build(Branches), torch.randn(5, 16)
    fast = optimise(model, x)
    assert "no such luck" in str(fast.report.fallback_reason)
    assert_same(model, fast, x)
    with pytest.raises(Exception, match="no such luck"):
        optimise(model, x, on_error="raise")


@pytest.mark.hides_errors
def test_instances_that_share_a_graph_report_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of the second fails: the original runs from then on, for both, and both reports say so."""
    x = torch.randn(5, 16)
    first, second = (optimise(build(Branches), x, measure=False) for _ in range(2))
    (graph,) = MEMORY.compiled.values()
    assert (first.report.kept, second.report.kept) == ("rewritten", "rewritten")
    monkeypatch.setattr(graph, "lowered", failing(RuntimeError("a kernel failed")))
    second(x)
    for report in (first.report, second.report):
        assert report.kept == "original"
        assert report.fallback_reason == "a call failed: RuntimeError: a kernel failed"


class Counting(nn.Module):
    """Writes to its own buffers at every call, and would run out of them."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(1, dtype=torch.long))
        self.register_buffer("cache", torch.zeros(6, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.lin(x)) + torch.relu(self.lin(x + 1))
        self.cache.index_copy_(0, self.count, y)
        self.count += 1
        return self.cache.sum(0)


@pytest.mark.parametrize("options", [{}, {"weights": "frozen"}, nightly({"executor": "auto"}), STRICT])
def test_a_graph_that_writes_to_its_buffers_finds_them_as_they_were(options: dict[str, Any]) -> None:
    plain, mine = build(Counting), build(Counting)
    run = torch.compile(
        mine, backend="rlopt", options={"on_error": "raise", "min_gain": -10, "measure_ms": 20, **options}
    )
    with torch.no_grad():
        for number in range(6):
            x = torch.full((1, 4), float(number))
            torch.testing.assert_close(run(x), plain(x))
            assert mine.count.item() == number + 1
    torch.testing.assert_close(mine.cache, plain.cache)


def test_arguments_that_are_written_to_find_their_values() -> None:
    def step(cache: torch.Tensor, position: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, position, torch.relu(x @ x.T) @ x)
        position += 1
        return cache @ x.T

    run = compiled(step, measure=True, min_gain=-10, measure_ms=20)
    mine, theirs = torch.zeros(4, 8), torch.zeros(4, 8)
    at, other = torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(1, 8)
            torch.testing.assert_close(run(mine, at, x), step(theirs, other, x))
    torch.testing.assert_close(mine, theirs)
    assert last_report().kept == "rewritten"


def test_nothing_gained_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for seed in range(2):
        optimise(build(Branches, seed), torch.randn(5, 16), min_gain=0.99)
    (warning,) = warnings_of(caplog)
    assert "not faster" in warning
    assert "executor='auto'" in warning


def test_what_the_wrapper_eats_up_is_not_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph by itself is faster by some microseconds; as it is called, with AOTAutograd, it is not."""
    seen: list[Any] = []

    def measure(before: Any, after: Any, inputs: Any, *_: Any, **__: Any) -> Timing:
        seen.append(after)
        after(*inputs())
        gain = 0.5 if len(seen) == 1 else -0.5
        return Timing(0.1, 0.1 * (1 - gain), gain, 0.0, 3)

    monkeypatch.setattr(timing, "measure", measure)
    model, x = build(Branches), torch.randn(5, 16)
    for _ in range(2):
        with torch.no_grad():
            run = torch.compile(model, backend="rlopt", options={"on_error": "raise", "cache": False})
            torch.testing.assert_close(run(x), model(x))
        report = last_report()
        assert report.kept == "original"
        assert "not faster" in str(report.fallback_reason)
        torch._dynamo.reset_code_caches()
    assert len(seen) == 2, "the verdict is remembered"
    assert report.is_cache_hit
