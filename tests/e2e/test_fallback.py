"""If anything fails or gives no speed-up, the user's program goes on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.crosses import nightly, nightly_but
from tests.e2e.models import RUNTIMES, STRICT, Branches, assert_same, build, compiled, failing, last_report
from torchrlopt import optimise, optimise_onnx
from torchrlopt.api import whole_call
from torchrlopt.capture import aot
from torchrlopt.compile import artefacts, attempt, backend, contestant, rewrite_file
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
@pytest.mark.parametrize("where", [(backend, "take_ms"), (aot, "cut_at")], ids=["imports", "cut"])
def test_what_the_report_begins_with_fails(
    where: tuple[Any, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(*where, failing(KeyError("no such luck")))
    model, x = build(Branches), torch.randn(5, 16)
    run = torch.compile(model, backend="rlopt")
    with torch.no_grad():
        assert_same(model, run, x)
    assert "no such luck" in str(last_report().fallback_reason)
    (warning,) = warnings_of(caplog)
    assert "no such luck" in warning
    torch._dynamo.reset_code_caches()
    with pytest.raises(Exception, match="no such luck"), torch.no_grad():
        compiled(model)(x)


@pytest.mark.hides_errors
def test_a_trace_that_cannot_be_written_costs_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefacts, "trace_structured", failing(OSError(28, "no such luck")))
    model, x = build(Branches), torch.randn(5, 16)
    for run in (optimise(model, x, measure=False), compiled(model)):
        with torch.no_grad():
            assert_same(model, run, x)
        assert MEMORY.compiled, "the rewritten graph runs"


@pytest.mark.hides_errors
def test_timing_of_whole_calls_that_fails_costs_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "measure", lambda *_, **__: Timing(0.1, 0.05, 0.5, 0.0, 9))
    monkeypatch.setattr(whole_call, "against", failing(KeyError("no such luck")))
    model, x = build(Branches), torch.randn(5, 16)
    fast = optimise(model, save_dir=str(tmp_path))
    for _ in range(2):
        assert_same(model, fast, x)
    assert fast.report.kept == "original"
    assert "no such luck" in str(fast.report.fallback_reason)
    (saved,) = tmp_path.glob("*/report.json")
    assert "no such luck" in saved.read_text(), "the file says what became of it"
    with pytest.raises(KeyError, match="no such luck"):
        optimise(model, x, on_error="raise")


@pytest.mark.hides_errors
@pytest.mark.parametrize("stage", [(right, "verify_against"), (timing, "measure")])
def test_a_graph_that_fails_leaves_its_report_beside_its_files(
    stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*stage, failing(KeyError("no such luck")))
    model, x = build(Branches), torch.randn(5, 16)
    assert_same(model, optimise(model, x, save_dir=str(tmp_path)), x)
    (saved,) = tmp_path.glob("*/report.json")
    assert (saved.parent / "after.onnx").exists()
    assert "no such luck" in saved.read_text()


@pytest.mark.hides_errors
def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    model, x = build(Branches), torch.randn(5, 16)
    fast = optimise(model, x, measure=False, save_dir=str(tmp_path / "file" / "saved"))
    assert "Error" in str(fast.report.fallback_reason)
    assert_same(model, fast, x)


@pytest.mark.hides_errors
def test_a_file_whose_plan_fails_is_written_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, result = tmp_path / "in.onnx", tmp_path / "out.onnx"
    torch.onnx.export(build(Branches), (torch.randn(5, 16),), source, external_data=False, verbose=False)
    monkeypatch.setattr(rewrite_file, "make_plan", failing(KeyError("no such luck")))
    assert "no such luck" in str(optimise_onnx(source, result).fallback_reason)
    assert result.exists()


@pytest.mark.hides_errors
@pytest.mark.skipif(not RUNTIMES, reason="no other executor is installed that starts as fast")
def test_an_executor_that_fails_with_a_bug_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = attempt.registry.get

    def get(name: str) -> Any:
        if name == "eager":
            raise KeyError("a bug")
        return plain(name)

    monkeypatch.setattr(attempt.registry, "get", get)
    monkeypatch.setattr(attempt.registry, "available", lambda _: ("eager", RUNTIMES[0]))
    model, x = build(Branches), torch.randn(64, 16)
    report = optimise(model, x, executor="auto", min_gain=-10, measure_ms=20, cache=False).report
    assert report.executor == RUNTIMES[0]
    assert "a bug" in str(report.choices[0].reason)
    with pytest.raises(Exception, match="a bug"):
        optimise(model, x, executor="auto", on_error="raise", cache=False)


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


@pytest.mark.parametrize("implementation", nightly_but(["static"], ["static", None]))
def test_a_language_model_with_a_cache_generates_the_same(implementation: str | None) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 50}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    model = LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 50, (1, 7))
    settings = {"max_new_tokens": 12, "do_sample": False, "cache_implementation": implementation}
    with torch.no_grad():
        expected = model.generate(ids, **settings)
        model.forward = torch.compile(
            model.forward,
            backend="rlopt",
            options={"on_error": "raise", "min_gain": -10, "measure_ms": 20, "searcher": "greedy"},
        )
        got = model.generate(ids, **settings)
    assert torch.equal(got, expected)
    assert any(report.kept == "rewritten" for report in backend.reports())


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


def test_weights_whose_composition_overflows(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)).eval()
    fast = optimise(model, torch.randn(2, 4), measure=False)
    assert fast.report.steps, "the two are composed into one"
    with torch.no_grad():
        for linear in model:
            linear.weight.fill_(1e22)
        x = torch.full((2, 4), 1e-30)
        for _ in range(2):
            assert torch.equal(fast(x), model(x))
            assert bool(fast(x).isfinite().all())
        (warning,) = warnings_of(caplog)
        assert "overflows" in warning
        for linear in model:
            linear.weight.uniform_()
    assert_same(model, fast, torch.randn(2, 4))
    assert fast.report.kept == "rewritten"


def test_new_weights_are_checked_and_counted() -> None:
    model = build(Branches)
    fast = optimise(model, torch.randn(5, 16), measure=False, on_error="raise")
    assert (fast.report.weight_sets, fast.report.checked_sets) == (1, 1)
    for number in (2, 3, 4):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        assert_same(model, fast, torch.randn(5, 16))
        assert fast.report.weight_sets == number
    assert fast.report.checked_sets == 3
    assert "3 of 4 sets of weights" in str(fast.report)
