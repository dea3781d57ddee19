"""Choosing plans by measurement: the option `measure_plans`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchrlopt
from tests.crosses import nightly_but
from torchrlopt.compile import plan_contest
from torchrlopt.errors import OptionsError
from torchrlopt.report import Report, Timing

INTERRUPT = 100.0  # no gain


class Block(nn.Module):
    """Something with several substitutions that can be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(2))
        for norm in self.norms:
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
        self.head = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = torch.relu(norm(conv(x)) + x)
        return torch.relu(self.head(x.mean((2, 3))))


def run(model: nn.Module, x: torch.Tensor, **options: Any) -> Report:
    """The report, after the result was compared."""
    torch._dynamo.reset()
    fast = torchrlopt.optimise(model, (x,), on_error="raise", **{"min_gain": -10.0, **options})
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    return fast.report


@pytest.fixture
def case() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Block().eval(), torch.randn(2, 16, 20, 20)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the contests' timings say, in order: gains; what is over is a loss."""
    given: list[float] = []

    def measure(before: Any, after: Any, **rest: Any) -> Timing:
        gain = given.pop(0) if given else -1.0
        if gain == INTERRUPT:
            raise KeyboardInterrupt
        return Timing(1.0, 1.0 - gain, gain, 0.05, 9)

    monkeypatch.setattr(plan_contest, "measure", measure)
    return given


@pytest.mark.nightly
@pytest.mark.parametrize("executor", nightly_but(["eager"], ["eager", "onnxruntime", "inductor"]))
def test_the_fastest_of_some_plans_runs(executor: str, case: tuple[nn.Module, torch.Tensor]) -> None:
    if executor == "onnxruntime":
        pytest.importorskip("onnxruntime")
    report = run(*case, executor=executor, measure_plans=3, measure_ms=20)
    assert 1 <= len(report.measured_plans) <= 2
    assert "measure plans" in report.phases_ms
    assert Report.from_json(report.to_json()).measured_plans == report.measured_plans
    assert str(report).count("plan timed") == len(report.measured_plans)


def test_a_plan_that_is_faster_twice_is_used_and_remembered(
    case: tuple[nn.Module, torch.Tensor], times: list[float]
) -> None:
    options = {"executor": "eager", "measure_plans": 4, "measure": True, "verify": True}
    searched = run(*case, executor="eager")
    times += [-0.2, 0.5, 0.5, 0.01]  # the second is faster, and faster than the searched one too
    report = run(*case, **options)
    kept = [each for each in report.measured_plans if each.is_kept]
    assert [each.is_kept for each in report.measured_plans] == [False, True, False]
    assert report.steps != searched.steps
    assert report.plans[0]["found_by"] == "measurements"
    assert report.cost_after_ms == pytest.approx(kept[0].predicted_ms)
    assert len(report.steps) == len(report.plans[0]["steps"])
    again = run(*case, **options)
    assert again.is_cache_hit
    assert again.steps == report.steps
    assert not again.measured_plans


@pytest.mark.parametrize("gains", nightly_but([[0.5, 0.01]], [[0.5, -0.1], [0.5, 0.01], [0.04]]))
def test_a_plan_that_was_lucky_once_is_not(
    gains: list[float], case: tuple[nn.Module, torch.Tensor], times: list[float]
) -> None:
    times += gains  # beside the searched one a second time slower; within the spread
    report = run(*case, executor="eager", measure_plans=2, cache=False)
    assert [each.is_kept for each in report.measured_plans] == [False]
    assert report.plans[0]["found_by"] != "measurements"


def test_ctrl_c_keeps_the_fastest_so_far(case: tuple[nn.Module, torch.Tensor], times: list[float]) -> None:
    options = {"executor": "eager", "measure_plans": 4}
    times += [0.5, 0.5, INTERRUPT]
    report = run(*case, **options)
    assert [each.is_kept for each in report.measured_plans] == [True]
    assert report.plans[0]["found_by"] == "measurements"
    assert not run(*case, **options).is_cache_hit


def test_measured_plans_need_measurement() -> None:
    with pytest.raises(OptionsError, match="nothing is measured without measure"):
        torchrlopt.optimise(nn.Identity(), (torch.ones(1),), measure_plans=2, measure=False)
    with pytest.raises(OptionsError, match="out of range"):
        torchrlopt.optimise(nn.Identity(), (torch.ones(1),), measure_plans=0)
