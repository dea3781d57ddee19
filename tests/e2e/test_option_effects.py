"""Every option has an effect: tests for those that no other test covers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.e2e.models import STRICT, Branches, ConvNorm, assert_same, build
from torchrlopt import explain, optimise
from torchrlopt.compile import backend
from torchrlopt.errors import OptionsError
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


def test_excluded_substitutions_are_in_no_plan() -> None:
    name = report_of().steps[0].substitution
    assert name not in {step.substitution for step in report_of(exclude=[name]).steps}


def test_a_name_of_nothing_is_refused_or_noted() -> None:
    with pytest.raises(OptionsError, match="did you mean 'fuse_conv_relu'"):
        optimise(CONVOLUTIONS, exclude="fuse_conv_rely")
    with torch.no_grad():
        torch.compile(CONVOLUTIONS, backend="rlopt", options={"exclude": "4"})(torch.randn(2, 8, 9, 9))
    assert any("'4'" in note for note in backend.reports()[-1].notes)


def test_verify_and_measure_fill_the_report() -> None:
    assert report_of().numerical_error is not None
    assert report_of(verify=False).numerical_error is None
    assert report_of().measured_after_ms is None
    assert report_of(measure=True, min_gain=-10).measured_after_ms is not None
