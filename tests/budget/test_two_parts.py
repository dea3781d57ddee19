"""Float32 in two parts of bfloat16, where the budget has room for it and there is a matrix unit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import torchrlopt
from tests.budget.models import Block, Images
from tests.budget.test_max_error import OPTIONS, Made, error_of, twice_as_fast
from torchrlopt import _C
from torchrlopt.compile import mixed_precision
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.precision.state import Times

pytestmark = pytest.mark.skipif(
    indirect.kernels(torch.bfloat16) is None or not _C.kernel_has_matrix_unit(),
    reason="no matrix unit in this processor",
)


@pytest.fixture(autouse=True)
def _as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lowered: it would not save time."""

    def times(calls: list[torch.fx.Node], *_: object) -> Times:
        names = [each.name for each in calls]
        return Times(dict.fromkeys(names, 1.0), dict.fromkeys(names, 1.0))

    monkeypatch.setattr(mixed_precision, "measured_times", times)


def transformer() -> Made:
    torch.manual_seed(0)
    return Block(256).eval(), (torch.randn(2, 128, 256),)


def convolutions() -> Made:
    torch.manual_seed(0)
    return Images(256).eval(), (torch.randn(1, 3, 20, 20),)


@pytest.mark.parametrize("make", [transformer, convolutions])
def test_what_stays_float32_is_split(make: Callable[[], Made]) -> None:
    model, inputs = make()
    fast = torchrlopt.optimise(model, inputs, max_error=1e-3, **OPTIONS)
    (record,) = fast.report.precision
    assert record.is_split
    assert not record.lowered
    assert "two parts of bfloat16" in str(fast.report)
    found = error_of(fast, model, inputs)
    assert 5e-7 < found < 1e-4, "float32 by itself is at 7e-8"
    assert found == pytest.approx(record.error, rel=0.05)
    assert torchrlopt.Report.from_json(fast.report.to_json()).precision == (record,)


def test_not_within_a_budget_that_it_would_use_up() -> None:
    model, inputs = transformer()
    fast = torchrlopt.optimise(model, inputs, max_error=5e-6, **OPTIONS)
    assert not fast.report.precision[0].is_split
    assert error_of(fast, model, inputs) < 1e-6


def test_not_where_it_takes_longer() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(16, 16).eval(), torch.randn(1, 16)
    fast = torchrlopt.optimise(model, x, max_error=1e-3, **OPTIONS)
    assert not fast.report.precision[0].is_split


def test_the_choice_is_stored() -> None:
    model, inputs = transformer()
    options = {**OPTIONS, "cache": True}
    first = torchrlopt.optimise(model, inputs, max_error=1e-3, **options).report.precision[0]
    torch._dynamo.reset()
    again = torchrlopt.optimise(model, inputs, max_error=1e-3, **options)
    assert again.report.precision[0].is_split
    assert again.report.precision[0].error == pytest.approx(first.error)


def test_a_saved_model_is_split(tmp_path: Path) -> None:
    model, inputs = transformer()
    fast = torchrlopt.optimise(model, inputs, max_error=1e-3, **OPTIONS)
    torchrlopt.save(fast, tmp_path / "model.rlopt")
    loaded = torchrlopt.load(tmp_path / "model.rlopt")
    with torch.no_grad():
        torch.testing.assert_close(loaded(*inputs), fast(*inputs), rtol=1e-6, atol=1e-6)
    assert 5e-7 < error_of(loaded, model, inputs) < 1e-4


def test_calibration_gives_up_two_parts_before_it_gives_up_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences of outputs cancel, and errors of two parts are as large for all inputs."""

    class Difference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(256, 256)
            self.second = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.first(x) - self.first(y), self.second(x)

    monkeypatch.setattr(mixed_precision, "measured_times", twice_as_fast)
    torch.manual_seed(0)
    model, x = Difference().eval(), torch.randn(256, 256)
    inputs, near = ((x, x + size * torch.randn(256, 256)) for size in (0.1, 1e-4))
    fast = torchrlopt.optimise(model, inputs, max_error=1e-2, calibration=[near], **OPTIONS)
    (record,) = fast.report.precision
    assert record.lowered or record.quantised, record.reason
    assert not record.is_split
