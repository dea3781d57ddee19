"""By default, installed runtimes are tried if they are predicted to win clearly.

The real winner depends on timing; in these tests it is the one that is tried first.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchrlopt
from tests.crosses import nightly_but
from tests.e2e.models import RUNTIMES, STRICT, build
from torchrlopt.compile.choice import Contest
from torchrlopt.executors import registry
from torchrlopt.executors.onnx_runtimes import session_call

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.skipif(not RUNTIMES, reason="no runtime is installed"),
]

DEFAULT = {**STRICT, "searcher": "greedy", "measure": True, "measure_ms": 50.0, "min_gain": -10.0}
X = torch.linspace(-1, 1, 2 * 16 * 64).reshape(2, 16, 8, 8)


@pytest.fixture(autouse=True)
def _the_first_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Contest, "is_faster", lambda *_: False)


class ManySmall(nn.Module):
    """More calls than arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1, groups=16) for _ in range(90))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            x = x + torch.relu(conv(x))
        return x


def assert_computes(fast: nn.Module, model: nn.Module) -> None:
    with torch.no_grad():
        torch.testing.assert_close(fast(X), model(X), rtol=1e-4, atol=1e-5)


def tried(report: torchrlopt.Report) -> list[str]:
    return [each.executor for each in report.choices]


@pytest.mark.parametrize(
    "closed",
    nightly_but(
        [{"executor": "eager"}],
        [
            {"weights": "live"},
            {"numerics": "strict"},
            {"measure": False},
            {"weights": "frozen", "release_weights": True},
            {"executor_options": {}},
            {"searcher": "none"},
            {"budget_ms": 0.0},
            {"executor": "eager"},
        ],
    ),
    ids=lambda closed: next(reversed(closed)),
)
def test_who_asks_for_what_pytorch_does_gets_pytorch(closed: dict[str, Any]) -> None:
    report = torchrlopt.optimise(build(ManySmall), X, **{**DEFAULT, **closed}).report
    assert (report.executor, report.choices) == ("eager", ())


@pytest.mark.parametrize("executor", nightly_but(["default"], ["default", "auto"]))
def test_many_small_operators_are_tried_in_a_runtime_first_and_can_be_saved(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if executor == "auto":  # eager, which is tried first there, is not installed
        monkeypatch.setattr(registry, "available", lambda device_type: RUNTIMES[:1])
    model = build(ManySmall)
    fast = torchrlopt.optimise(model, X, **DEFAULT, executor=executor)
    assert fast.report.executor in RUNTIMES
    assert tried(fast.report)[0] == fast.report.executor
    assert executor == "auto" or tried(fast.report)[-1] == "eager"
    assert_computes(fast, model)
    report = torchrlopt.save(fast, tmp_path / "fast.pt2")
    assert report.executor == "eager"
    assert_computes(torchrlopt.load(tmp_path / "fast.pt2"), model)


def test_a_runtime_that_is_damaged_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = importlib.import_module

    def damaged(name: str, package: str | None = None) -> Any:
        if name in RUNTIMES:
            raise OSError(f"lib{name}.so: cannot open shared object file")
        return plain(name, package)

    monkeypatch.setattr(session_call.importlib, "import_module", damaged)
    report = torchrlopt.optimise(build(ManySmall), X, **DEFAULT).report
    assert report.executor == "eager"
    assert "cannot open shared object file" in str(report.choices[0].reason)
