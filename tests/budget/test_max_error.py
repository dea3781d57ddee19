"""The option `max_error` as users give it."""

from __future__ import annotations

import copy
import dataclasses
import gc
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchrlopt
from tests.budget.models import block, images, uneven
from torchrlopt.artefact import module
from torchrlopt.compile import mixed_precision, precision_note, within_budget
from torchrlopt.errors import BudgetError, OptionsError
from torchrlopt.executors.eager.kernels.indirect import has_int8
from torchrlopt.executors.registry import available
from torchrlopt.judge.budget import rms, top1
from torchrlopt.plan.planning import plan_store
from torchrlopt.precision.state import Times

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]
OPTIONS: Any = {
    "executor": "eager",
    "searcher": "greedy",  # the plan does not matter here
    "measure": False,
    "cache": False,
    "on_error": "raise",
}


@pytest.fixture(autouse=True)
def _units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors without bfloat16 units emulate it with equal results, but times decide what is lowered."""
    monkeypatch.setattr(within_budget, "has_bfloat16", lambda device: True)
    monkeypatch.setattr(mixed_precision, "measured_times", twice_as_fast)


def twice_as_fast(
    calls: Sequence[torch.fx.Node], high: Any, low: Any, integers: Any, quantisable: Any, inputs: Any
) -> Times:
    """Every call takes half the time in bfloat16, a fourth with integers, and longer than a conversion."""
    names = [each.name for each in calls]
    times = dict.fromkeys(names, 200.0), dict.fromkeys(names if low is not None else (), 100.0)
    return Times(*times, quantised={each.name: 50.0 for each in quantisable})


def error_of(fast: nn.Module, model: nn.Module, inputs: Sequence[torch.Tensor]) -> float:
    """Measure against float64."""
    with torch.no_grad():
        reference = copy.deepcopy(model).double()(*(each.double() for each in inputs))
        return rms([fast(*inputs)], [reference])


@pytest.mark.parametrize(("make", "budget"), [(block, 1e-3), (block, 1e-2), (images, 2e-3), (uneven, 1e-2)])
def test_the_error_is_within_the_budget_and_reported(make: Callable[[], Made], budget: float) -> None:
    model, inputs = make()
    fast = torchrlopt.optimise(model, inputs, max_error=budget, **OPTIONS)
    (record,) = fast.report.precision
    assert record.error is not None, record.reason
    assert record.lowered or record.quantised
    found = error_of(fast, model, inputs)
    assert 1e-5 < found <= budget, "something is rounded, within the budget"
    assert found == pytest.approx(record.error, rel=0.05)
    assert "in bfloat16" in str(fast.report)
    assert torchrlopt.Report.from_json(fast.report.to_json()).precision == (record,)


def test_torch_compile_takes_the_option() -> None:
    model, inputs = images()
    fast = torch.compile(model, backend="rlopt", options={**OPTIONS, "max_error": 1e-2})
    assert 1e-5 < error_of(fast, model, inputs) <= 1e-2
    assert torchrlopt.reports()[-1].precision[0].lowered


def test_bfloat16_stands_for_the_error_of_everything_in_bfloat16() -> None:
    model, inputs = block()
    fast = torchrlopt.optimise(model, inputs, max_error="bfloat16", **OPTIONS)
    (record,) = fast.report.precision
    assert record.max_error == pytest.approx(1.2 * record.error_of_all), "other inputs have other errors"
    assert error_of(fast, model, inputs) <= record.max_error * 1.01


@pytest.mark.parametrize("make", [block, images])
def test_a_budget_below_float32s_own_error_keeps_the_graph_exact(make: Callable[[], Made]) -> None:
    model, inputs = make()
    fast = torchrlopt.optimise(model, inputs, max_error=1e-9, **OPTIONS)
    assert "float32 itself" in str(fast.report.precision[0].reason)
    assert fast.report.kept == "rewritten"
    assert error_of(fast, model, inputs) < 1e-6


def test_the_metric_is_the_users() -> None:
    model, inputs = images()
    seen: list[int] = []

    def differs(outputs: Sequence[Any], reference: Sequence[Any]) -> float:
        seen.append(len(outputs))
        return float((outputs[0].double() - reference[0].double()).abs().max())

    fast = torchrlopt.optimise(model, inputs, max_error=1e-3, error_metric=differs, **OPTIONS)
    (record,) = fast.report.precision
    assert record.metric == "differs"
    assert seen
    assert record.error is not None
    with torch.no_grad():
        assert float((fast(*inputs) - model(*inputs)).abs().max()) <= 1.01e-3


def test_top1_counts_rows() -> None:
    reference = torch.tensor([[1.0, 2.0], [3.0, 1.0], [0.0, 1.0], [0.0, 4.0]], dtype=torch.float64)
    assert top1([reference.float()], [reference]) == 0.0
    assert top1([reference[:, [1, 0]]], [reference]) == 1.0
    model, inputs = images()
    fast = torchrlopt.optimise(model, inputs, max_error=0.01, error_metric="top1", **OPTIONS)
    assert fast.report.precision[0].error == 0.0


def test_a_failing_metric_is_reported_and_the_graph_stays_exact() -> None:
    def broken(outputs: Sequence[Any], reference: Sequence[Any]) -> float:
        raise KeyError("logits")

    model, inputs = images()
    fast = torchrlopt.optimise(model, inputs, max_error=1e-2, error_metric=broken, **OPTIONS)
    assert "the error metric fails" in str(fast.report.precision[0].reason)
    assert error_of(fast, model, inputs) < 1e-6


class Chooses(nn.Module):
    """Returns positions of largest entries besides numbers: rounding may change them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(x)
        return y, y.argsort(-1)


@pytest.mark.parametrize(("budget", "reason"), [(0.5, ""), ("bfloat16", "infinite")])
def test_integers_that_change_are_beyond_any_budget(budget: Any, reason: str) -> None:
    torch.manual_seed(0)
    model, inputs = Chooses().eval(), (torch.randn(256, 64),)
    fast = torchrlopt.optimise(model, inputs, max_error=budget, **OPTIONS)
    assert fast.report.precision[0].error is None
    assert reason in str(fast.report.precision[0].reason)
    with torch.no_grad():
        assert torch.equal(fast(*inputs)[1], model(*inputs)[1])


def test_outputs_that_are_not_finite_keep_the_graph_exact() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU()).eval()
    inputs = (torch.full((4, 16), float("inf")),)
    fast = torchrlopt.optimise(model, inputs, max_error=1e-2, **OPTIONS)
    assert "not finite" in str(fast.report.precision[0].reason)


class Scaled(nn.Module):
    """Cancels for inputs whose halves are nearly equal: then roundings are all that is left."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return y[::2] - y[1::2]


def nearly_equal_rows(distance: float) -> torch.Tensor:
    """Rows of which each second one differs from the one before by about so much."""
    rows = torch.randn(4, 64).repeat_interleave(2, 0)
    return rows + distance * torch.randn_like(rows)


def test_inputs_beyond_the_budget_lead_back_to_the_exact_graph(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model = Scaled().eval()
    options = OPTIONS | {"on_error": "fallback"}
    fast = torchrlopt.optimise(model, (torch.randn(8, 64),), max_error=1e-2, **options)
    assert fast.report.precision[0].lowered
    near = nearly_equal_rows(1e-3)
    with caplog.at_level(logging.WARNING, logger="torchrlopt"), torch.no_grad():
        for _ in range(4):
            result = fast(near)
    assert error_of(fast, model, (near,)) < 1e-3
    assert "beyond the budget" in str(fast.report.status.exact_since)
    assert fast.report.kept == "rewritten"
    (warning,) = (each.message for each in caplog.records if "beyond the budget" in each.message)
    assert warning.startswith("rlopt computes in float32 from now on")
    torch.testing.assert_close(result, model(near), rtol=1e-3, atol=1e-5)


def test_each_set_of_weights_is_compared_with_the_budget() -> None:
    model, inputs = images()
    fast = torchrlopt.optimise(model, inputs, max_error=1e-2, **OPTIONS | {"on_error": "fallback"})
    with torch.no_grad():
        model.last.weight.mul_(-1.0)
        fast(*inputs)
        model.last.bias.sub_(0.999 * model(*inputs)[0])  # cancels what the products have in common
        model.last.bias.sub_(0.999 * model(*inputs)[0])
    for _ in range(2):
        assert error_of(fast, model, inputs) <= 1e-2


@pytest.mark.parametrize(
    "given", [0, -1e-3, float("nan"), float("inf"), "float8", True, [1e-2], torch.ones(2)]
)
def test_budgets_that_are_none_are_refused(given: Any) -> None:
    with pytest.raises(OptionsError, match="max_error"):
        torchrlopt.Options(max_error=given)


def test_options_that_contradict_a_budget_are_refused() -> None:
    for other, message in (
        ({"numerics": "strict"}, "numerics='real'"),
        ({"error_metric": "rmse"}, "error_metric"),
    ):
        with pytest.raises(OptionsError, match=message):
            torchrlopt.Options(max_error=1e-2, **other)


def test_files_keep_their_types(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="keeps the types"):
        torchrlopt.optimise_onnx(tmp_path / "in.onnx", tmp_path / "out.onnx", max_error=1e-2)


@pytest.mark.parametrize("ending", ["rlopt", "pt2"])
def test_a_saved_model_computes_in_the_chosen_types(ending: str, tmp_path: Path) -> None:
    model, inputs = block()
    fast = torchrlopt.optimise(model, inputs, max_error=2e-3, **OPTIONS)
    report = torchrlopt.save(fast, tmp_path / f"model.{ending}")
    assert report.precision == fast.report.precision
    loaded = torchrlopt.load(tmp_path / f"model.{ending}")
    assert 1e-5 < error_of(loaded, model, inputs) <= 2e-3


def test_later_calls_of_a_loaded_model_keep_the_budget(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model, inputs = Scaled().eval(), (torch.randn(8, 64),)
    fast = torchrlopt.optimise(model, inputs, max_error=1e-2, **OPTIONS)
    torchrlopt.save(fast, tmp_path / "model.rlopt")
    loaded = torchrlopt.load(tmp_path / "model.rlopt")
    for _ in range(4):
        assert 1e-5 < error_of(loaded, model, inputs) <= 1e-2
    near = (nearly_equal_rows(1e-3),)
    assert error_of(loaded, model, near) > 1e-2, "not every call is compared"
    with caplog.at_level(logging.WARNING, logger="torchrlopt"):
        assert max(error_of(loaded, model, near) for _ in range(4)) > 1e-2
        assert error_of(loaded, model, near) < 1e-3
    (warning,) = (each.message for each in caplog.records if "saved model" in each.message)
    assert "float32 from now on" in warning
    assert error_of(loaded, model, inputs) < 1e-5


def test_calibration_keeps_the_budget_for_all_of_its_inputs() -> None:
    torch.manual_seed(0)
    model = Scaled().eval()
    near = [nearly_equal_rows(distance) for distance in (0.2, 0.1)]
    options = OPTIONS | {"max_error": 1e-2}
    alone = torchrlopt.optimise(model, (torch.randn(8, 64),), **options)
    with pytest.raises(BudgetError, match="a later call"):
        error_of(alone, model, (near[1],))
    others = [(each,) for each in near]
    fast = torchrlopt.optimise(model, (torch.randn(8, 64),), calibration=others, **options)
    assert max(error_of(fast, model, (each,)) for each in near) <= 1e-2
    assert "where: calibration" in str(fast.report.status.exact_since), "one product: all or nothing"
    assert fast.report.precision[0].error is None


def test_calibration_narrows_the_choice_before_it_gives_up(tmp_path: Path) -> None:
    model, inputs = block()
    # Norms scale the branches of small inputs up, but not the residuals that hide their errors.
    others = [(0.1 * torch.randn_like(inputs[0]),) for _ in range(2)]
    alone = torchrlopt.optimise(model, inputs, max_error=2.5e-3, **OPTIONS)
    fast = torchrlopt.optimise(model, inputs, calibration=others, max_error=2.5e-3, **OPTIONS)
    assert fast.report.status.exact_since is None
    assert "2 calls, largest error" in str(fast.report)
    (before,), (record,) = alone.report.precision, fast.report.precision
    assert 0 < len(record.lowered) < len(before.lowered)
    assert record.error == pytest.approx(error_of(fast, model, inputs), rel=0.05)
    torchrlopt.save(fast, tmp_path / "model.rlopt")
    for run in (fast, torchrlopt.load(tmp_path / "model.rlopt")):
        for each in others:
            assert 1e-5 < error_of(run, model, each) <= 2.5e-3


def test_calibration_that_cannot_be_measured_leads_to_the_exact_graph() -> None:
    model, inputs = block()
    others = [(torch.full_like(inputs[0], float("nan")),)]
    fast = torchrlopt.optimise(model, inputs, calibration=others, max_error=1e-2, **OPTIONS)
    assert fast.report.kept == "rewritten"
    assert error_of(fast, model, inputs) < 1e-6


def test_calibration_without_a_use_is_refused() -> None:
    model, inputs = images()
    with pytest.raises(OptionsError, match="without a budget"):
        torchrlopt.optimise(model, inputs, calibration=[inputs])
    with pytest.raises(OptionsError, match="no inputs"):
        torchrlopt.optimise(model, inputs, calibration=[], max_error=1e-2)
    with pytest.raises(OptionsError, match="example inputs"):
        torchrlopt.optimise(model, calibration=[inputs], max_error=1e-2)


def test_where_lower_precision_would_gain_the_report_says_how_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, inputs = (nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)), (torch.randn(64, 512),)
    model = nn.Sequential(*layers).eval()
    monkeypatch.setattr(precision_note, "bfloat16_speedup", lambda device: 2.0)
    assert "max_error" in str(torchrlopt.optimise(model, inputs, **OPTIONS).report.notes)
    monkeypatch.setattr(precision_note, "bfloat16_speedup", lambda device: 1.0)
    torch._dynamo.reset()
    assert "max_error" not in str(torchrlopt.optimise(model, inputs, **OPTIONS).report.notes)


@pytest.mark.skipif("openvino" not in available("cpu"), reason="OpenVINO is not installed")
def test_openvino_takes_everything_or_nothing() -> None:
    model, inputs = block()
    options = OPTIONS | {"executor": "openvino"}
    fast = torchrlopt.optimise(model, inputs, max_error=5e-2, **options)
    assert fast.report.precision[0].error is not None, fast.report.precision[0].reason
    assert error_of(fast, model, inputs) <= 5e-2
    fast = torchrlopt.optimise(model, inputs, max_error=1e-5, **options)
    assert fast.report.precision[0].error is None or error_of(fast, model, inputs) <= 1e-5


def test_the_page_shows_what_lower_precision_does(tmp_path: Path) -> None:
    model, inputs = block()
    fast = torchrlopt.optimise(model, inputs, max_error=2e-3, **OPTIONS)
    (record,) = fast.report.precision
    by_name = {each.operator: each for each in record.operators}
    assert by_name["addmm"].num_calls == 8
    assert by_name["addmm"].num_lowered > 0
    squares = sum(each.error**2 for each in record.operators)
    assert squares**0.5 == pytest.approx(record.error, rel=0.5), "the parts add to the whole"
    fast.report.save(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "Precision" in text
    assert f">{by_name['addmm'].num_lowered}<" in text
    types = dict(record.types)
    assert set(types.values()) == {"bfloat16"}
    assert 0 < len(types) < len(fast.report.records[0].draw().after.prices)
    assert '<i class="swatch bfloat16"></i>bfloat16' in text
    assert "computed in" in text


def test_a_choice_is_stored_and_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = block()
    options = OPTIONS | {"cache": True, "max_error": 2e-3}
    first = torchrlopt.optimise(model, inputs, **options).report.precision
    torch._dynamo.reset()
    monkeypatch.setattr(mixed_precision, "sensitivities", lambda *_: pytest.fail("they are stored"))
    fast = torchrlopt.optimise(model, inputs, **options)
    assert fast.report.precision == first
    assert error_of(fast, model, inputs) <= 2e-3
    monkeypatch.undo()
    monkeypatch.setattr(within_budget, "has_bfloat16", lambda device: True)
    monkeypatch.setattr(mixed_precision, "measured_times", twice_as_fast)
    torch._dynamo.reset()
    with torch.no_grad():  # other weights, of which the stored choice is too much
        model[0].mlp[2].weight.mul_(30)
        model[0].norms[1].weight.mul_(20)
    fast = torchrlopt.optimise(model, inputs, **options)
    assert error_of(fast, model, inputs) <= 2e-3


@pytest.mark.skipif(not has_int8(torch.float32), reason="the processor does not multiply 8-bit integers")
@pytest.mark.parametrize("make", [block, images])
def test_large_budgets_are_used_for_integers(
    make: Callable[[int], Made], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = make(128)  # smaller products are left to bfloat16
    fast = torchrlopt.optimise(model, inputs, max_error=5e-2, **OPTIONS)
    (record,) = fast.report.precision
    assert record.quantised
    assert "8-bit integers" in record.rows()[0][1]
    assert 1e-3 < error_of(fast, model, inputs) <= 5e-2
    torchrlopt.save(fast, tmp_path / "model.rlopt")
    loaded = torchrlopt.load(tmp_path / "model.rlopt")
    assert error_of(loaded, model, inputs) == pytest.approx(record.error, rel=0.01)
    monkeypatch.setattr(module, "stamp", lambda: {"instructions": "other"})
    rebuilt = torchrlopt.load(tmp_path / "model.rlopt")
    assert rebuilt.report["rebuilt"]
    assert error_of(rebuilt, model, inputs) == pytest.approx(record.error, rel=0.01), "still in integers"


@pytest.mark.skipif(not has_int8(torch.float32), reason="the processor does not multiply 8-bit integers")
def test_integers_need_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(within_budget, "has_bfloat16", lambda device: False)
    model, inputs = block(128)
    fast = torchrlopt.optimise(model, inputs, max_error=5e-2, **OPTIONS)
    (record,) = fast.report.precision
    assert record.quantised, record.reason
    assert not record.lowered
    assert 1e-3 < error_of(fast, model, inputs) <= 5e-2
    torch._dynamo.reset()
    exact = torchrlopt.optimise(model, inputs, max_error="bfloat16", **OPTIONS)
    assert "no bfloat16 units" in str(exact.report.precision[0].reason)
    monkeypatch.setattr(within_budget, "has_int8", lambda device: False)
    torch._dynamo.reset()
    exact = torchrlopt.optimise(model, inputs, max_error=5e-2, **OPTIONS)
    assert "no bfloat16 units" in str(exact.report.precision[0].reason)


def test_a_whole_number_is_a_budget() -> None:
    assert torchrlopt.Options(max_error=1).precision.max_error == 1.0
    assert isinstance(torchrlopt.Options(max_error=1).precision.max_error, float)


class Masked(nn.Module):
    """Attention as sums and products; its mask is part of the sums."""

    def __init__(self, lowest: float) -> None:
        super().__init__()
        self.products, self.lowest = nn.ModuleList(nn.Linear(64, 64) for _ in range(4)), lowest

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.products[at](x) for at in range(3))
        scores = q @ k.transpose(1, 2) / 8 + torch.where(mask, 0.0, self.lowest)
        return self.products[3](scores.softmax(-1) @ v)


@pytest.mark.parametrize("lowest", [float("-inf"), torch.finfo(torch.float32).min])
def test_masks_do_not_hide_what_roundings_cause(lowest: float) -> None:
    torch.manual_seed(0)
    model, inputs = Masked(lowest).eval(), (torch.randn(2, 16, 64), torch.ones(16, 16).tril().bool())
    fast = torchrlopt.optimise(model, inputs, max_error=2e-3, **OPTIONS)
    (record,) = fast.report.precision
    assert record.lowered, record.reason
    with torch.no_grad():
        reference = copy.deepcopy(model).double()(inputs[0].double(), inputs[1])
        assert 1e-5 < rms([fast(*inputs)], [reference]) <= 2e-3


def test_the_error_is_measured_on_the_inputs_of_each_compilation() -> None:
    torch.manual_seed(0)
    near, options = nearly_equal_rows(1e-3), OPTIONS | {"max_error": 1e-2}
    kept = []
    for inputs in (torch.randn(8, 64), torch.randn(8, 64), torch.randn(8, 64), torch.randn(8, 64), near):
        model = Scaled().eval()
        kept.append(torchrlopt.optimise(model, (inputs,), **options))
        assert error_of(kept[-1], model, (inputs,)) <= 1e-2


def test_the_budget_bfloat16_is_that_of_these_weights() -> None:
    torch.manual_seed(0)
    options = OPTIONS | {"cache": True, "max_error": "bfloat16"}
    limits = []
    for distance in (0.05, 1.0):
        torch._dynamo.reset()
        inputs = (nearly_equal_rows(distance),)
        limits.append(torchrlopt.optimise(Scaled().eval(), inputs, **options).report.precision[0].max_error)
    assert limits[1] < 0.5 * limits[0]


def test_a_stored_choice_does_not_say_what_the_budget_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = block()
    options = OPTIONS | {"cache": True}
    everything = torchrlopt.optimise(model, inputs, max_error=5e-2, **options).report.precision[0]
    loose = dataclasses.replace(everything, max_error=1e9)
    monkeypatch.setattr(within_budget, "_stored", lambda key: loose)
    torch._dynamo.reset()
    fast = torchrlopt.optimise(model, inputs, max_error=1e-3, **options)
    assert error_of(fast, model, inputs) <= 1e-3


class Steps(nn.Module):
    """Has an operator without a derivative between two products."""

    def __init__(self, step: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.step = nn.Linear(64, 64), nn.Linear(64, 64), step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.step(self.first(x)))


@pytest.mark.parametrize(
    "step",
    [
        lambda y: torch.heaviside(y, y),
        lambda y: y + torch.cumsum(torch.histc(y, 64), 0, dtype=torch.int32),  # does not even run for one
    ],
)
def test_without_derivatives_the_graph_stays_exact(step: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(0)
    model, inputs = Steps(step).eval(), (torch.randn(16, 64),)
    fast = torchrlopt.optimise(model, inputs, max_error=1e-3, **OPTIONS)
    assert fast.report.kept == "rewritten"
    assert "no derivative" in str(fast.report.precision[0].reason)


def test_later_calls_free_what_only_compilation_needs() -> None:
    model, inputs = block()
    fast = torchrlopt.optimise(model, inputs, max_error=2e-3, **OPTIONS)
    with torch.no_grad():
        for _ in range(4):
            fast(*inputs)
    gc.collect()
    assert not any(type(each) is mixed_precision.MixedPrecision for each in gc.get_objects())


@pytest.mark.parametrize("ending", ["rlopt", "pt2"])
def test_what_was_beyond_the_budget_is_saved_exact(ending: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, inputs = Scaled().eval(), (torch.randn(8, 64),)
    near = (nearly_equal_rows(1e-3),)
    fast = torchrlopt.optimise(model, inputs, calibration=[near], max_error=1e-2, **OPTIONS)
    assert fast.report.status.exact_since is not None
    torchrlopt.save(fast, tmp_path / f"model.{ending}", inputs)
    assert error_of(torchrlopt.load(tmp_path / f"model.{ending}"), model, near) <= 1e-2


def test_everything_in_bfloat16_is_used_if_only_integers_are_beyond_the_budget() -> None:
    def steep(outputs: Sequence[Any], reference: Sequence[Any]) -> float:
        found = rms(outputs, reference)
        return found if found < 5e-3 else float("inf")

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).eval()
    inputs = (torch.randn(64, 256),)
    fast = torchrlopt.optimise(model, inputs, max_error=3e-2, error_metric=steep, **OPTIONS)
    assert fast.report.precision[0].lowered, fast.report.precision[0].reason
    assert 1e-5 < error_of(fast, model, inputs) < 5e-3


def test_a_damaged_entry_of_the_store_is_a_miss() -> None:
    model, inputs = block()
    options = OPTIONS | {"cache": True, "max_error": 2e-3}
    torchrlopt.optimise(model, inputs, **options)
    for entry in plan_store().entries():
        if "lowered" in entry.payload:
            plan_store().put(entry.key, entry.payload | {"lowered": [["0 addmm"]]})
    torch._dynamo.reset()
    fast = torchrlopt.optimise(model, inputs, **options)
    assert fast.report.precision[0].lowered
    assert error_of(fast, model, inputs) <= 2e-3
