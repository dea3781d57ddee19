"""Every option has an effect: tests for those that no other test covers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.e2e.models import STRICT, Branches, ConvNorm, assert_same, build
from torchrlopt import explain, optimise
from torchrlopt.compile import backend
from torchrlopt.errors import OptionsError
from torchrlopt.executors import registry
from torchrlopt.judge import right, timing
from torchrlopt.machine import profiling
from torchrlopt.machine.cost import profile_store
from torchrlopt.plan import planning, search
from torchrlopt.report import Report
from torchrlopt.substitutions import load_library

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

X = torch.randn(64, 16)


def report_of(**options: Any) -> Report:
    model = build(Branches)
    optimised = optimise(model, X, **{**STRICT, "cache": False, **options})
    assert_same(model, optimised, X)
    return optimised.report


@pytest.mark.parametrize("searcher", ["greedy", "local", "beam", "taso", "annealing", "agent"])
def test_searcher(searcher: str, caplog: pytest.LogCaptureFixture) -> None:
    report = report_of(searcher=searcher, budget_ms=100)
    assert report.searcher == searcher
    assert report.steps
    assert "are used instead" not in caplog.text, "the agent itself planned"


def test_the_agent_is_the_default_and_leaves_torch_as_it_was() -> None:
    model = build(Branches)
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    compiled = torch.compile(model, backend="rlopt", options={**STRICT, "cache": False})
    with torch.no_grad():
        compiled(X)
    (report,) = backend.reports()
    assert report.searcher == "agent"
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_default_dtype() == torch.float32


def test_no_search_means_no_steps() -> None:
    assert report_of(searcher="none").steps == ()
    assert report_of(budget_ms=0).steps == ()


def test_budget_steps() -> None:
    assert len(report_of(budget_steps=1).steps) < len(report_of().steps)


def test_seed_changes_what_is_drawn() -> None:
    plans = {report_of(searcher="annealing", budget_steps=3, seed=seed).steps for seed in range(4)}
    assert len(plans) > 1


@pytest.mark.parametrize(("option", "small", "large"), [("beam_width", 1, 8), ("alpha", 1.0, 2.0)])
def test_wider_searches_look_at_more(
    option: str, small: float, large: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = []
    plain_search = planning.search_plan

    def recorded(*arguments: Any) -> search.Plan:
        plans.append(plain_search(*arguments))
        return plans[-1]

    monkeypatch.setattr(planning, "search_plan", recorded)
    searcher = "beam" if option == "beam_width" else "taso"
    for value in (small, large):
        report_of(searcher=searcher, budget_ms=2000, budget_steps=200, **{option: value})
    assert plans[0].expansions < plans[1].expansions


def test_strict_numerics_uses_exact_substitutions_only() -> None:
    library = load_library()
    model, x = build(ConvNorm), torch.randn(2, 3, 9, 9)
    real, strict = (optimise(model, x, **STRICT, numerics=kind).report for kind in ("real", "strict"))
    assert any(not library.is_exact(step.substitution) for step in real.steps)
    assert all(library.is_exact(step.substitution) for step in strict.steps)


CONVOLUTIONS = torch.nn.Sequential(
    torch.nn.Conv2d(8, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3), torch.nn.ReLU()
).eval()


@pytest.mark.parametrize(
    ("names", "num_plain"), [((), 0), ("0", 1), (["aten.convolution"], 2), ({"Conv"}, 2)]
)
def test_excluded_calls_run_as_they_are(names: Any, num_plain: int) -> None:
    """Neither a substitution nor a kernel takes their place."""
    x = torch.randn(2, 8, 9, 9)
    (eager,) = (
        view
        for view in explain(CONVOLUTIONS, x, exclude=names).graphs[0].executors
        if view.executor == "eager"
    )
    assert (sum(eager.plain.values()), sum(eager.packed.values())) == (num_plain, 2 - num_plain)
    optimised = optimise(CONVOLUTIONS, x, **STRICT, exclude=names)
    assert_same(CONVOLUTIONS, optimised, x)
    assert optimised.report.opaque == (("aten.convolution.default",) if names else ())


def test_an_excluded_linear_keeps_its_product_and_its_views() -> None:
    model, x = (
        torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.ReLU()).eval(),
        torch.randn(2, 3, 8),
    )
    for name in ("0", "MatMul"):
        optimised = optimise(model, x, **STRICT, exclude=name)
        assert_same(model, optimised, x)
        assert "aten.mm.default" in optimised.report.opaque


def test_excluded_substitutions_are_in_no_plan() -> None:
    name = report_of().steps[0].substitution
    assert name not in {step.substitution for step in report_of(exclude=[name]).steps}


def test_a_name_of_nothing_is_refused_or_noted() -> None:
    with pytest.raises(OptionsError, match="did you mean 'fuse_conv_relu'"):
        optimise(CONVOLUTIONS, exclude="fuse_conv_rely")
    with torch.no_grad():
        torch.compile(CONVOLUTIONS, backend="rlopt", options={"exclude": "4"})(torch.randn(2, 8, 9, 9))
    assert any("'4'" in note for note in backend.reports()[-1].notes)


@pytest.mark.nightly
def test_prices_are_measured_ones_where_there_are_any() -> None:
    before = report_of(prices="measured")
    assert before.measured_share == 0
    assert before.cost_before_ms == report_of(prices="typical").cost_before_ms, "nothing was measured yet"
    (source,) = profiling.trace(build(Branches), (X,))
    profiling.profile(source, "eager", load_library(), profile_store(), seconds=0)
    torch._dynamo.reset()  # what was compiled before goes on as it was planned
    measured, typical = report_of(prices="measured"), report_of(prices="typical")
    assert measured.measured_share
    assert "from measured prices" in str(measured)
    assert typical.measured_share == 0
    assert typical.cost_before_ms == before.cost_before_ms != measured.cost_before_ms


def test_verify_and_measure_fill_the_report() -> None:
    assert report_of().numerical_error is not None
    assert report_of(verify=False).numerical_error is None
    assert report_of().measured_after_ms is None
    assert report_of(measure=True, min_gain=-10).measured_after_ms is not None


def test_measure_ms_is_the_limit_of_the_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []
    plain_measure = timing.measure

    def recorded(before: Any, after: Any, inputs: Any, limit_ms: float, min_gain: float, *others: Any) -> Any:
        limits.append((limit_ms, min_gain))
        return plain_measure(before, after, inputs, limit_ms, min_gain, *others)

    monkeypatch.setattr(timing, "measure", recorded)
    report_of(measure=True, measure_ms=7, min_gain=0.25)
    assert set(limits) == {(7.0, 0.25)}


def test_operators_are_dispatched_in_the_timing_as_in_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """AOTAutograd has every operator looked for in Python first, which only graphs of many calls pay for."""
    seen = []
    plain_measure = timing.measure

    def seeing(*args: Any, **others: Any) -> Any:
        seen.append(torch._C._dispatch_tls_local_include_set().has(torch._C.DispatchKey.PythonDispatcher))
        return plain_measure(*args, **others)

    monkeypatch.setattr(timing, "measure", seeing)
    report_of(measure=True)
    assert set(seen) == {False}


def test_what_was_verified_once_is_not_verified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until options or the package change; the rewritten graph is still run."""
    verified, run = [], []
    plain_verify, plain_run = right.verify_against, right.run

    def verify(*args: Any) -> right.Errors:
        verified.append(args)
        return plain_verify(*args)

    def run_rewritten(*args: Any) -> tuple[Any, ...]:
        run.append(args)
        return plain_run(*args)

    monkeypatch.setattr(right, "verify_against", verify)
    monkeypatch.setattr(right, "run", run_rewritten)

    def optimised(**options: Any) -> tuple[float | None, int, int]:
        backend.reset()
        torch._dynamo.reset()
        verified.clear()
        run.clear()
        report = report_of(cache=True, **options)
        return report.numerical_error, len(verified), len(run)

    error, *calls = optimised()
    # On usual inputs, on extreme ones, and on the user's own.
    assert calls == [1, 3]
    assert optimised() == (error, 0, 1)
    assert optimised(weights="live")[1] == 1
    # Frozen weights are the user's: what holds for these says nothing of the next ones.
    assert [optimised(weights="frozen")[1] for _ in range(2)] == [1, 1]
    monkeypatch.setattr(planning, "_installation", lambda: "a file has changed")
    assert optimised()[1] == 1
    assert optimised(verify=False)[1:] == (0, 0)


def test_a_verdict_holds_for_one_layout_and_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []
    plain_search = planning.search_plan
    monkeypatch.setattr(planning, "search_plan", lambda *a: searched.append(1) or plain_search(*a))
    model, x = build(ConvNorm), torch.randn(2, 3, 9, 9)

    def searches(inputs: torch.Tensor) -> int:
        torch._dynamo.reset()
        searched.clear()
        optimise(model, inputs, **{**STRICT, "cache": True})
        return len(searched)

    assert [searches(x), searches(x)] == [1, 0]
    last = x.to(memory_format=torch.channels_last)
    assert [searches(last), searches(last)] == [1, 0]
    monkeypatch.setattr(registry, "version", lambda name: "of tomorrow")
    assert [searches(x), searches(x)] == [1, 0]
