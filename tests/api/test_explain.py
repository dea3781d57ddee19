"""The output of `explain` for real models agrees with plans, prices and lowered graphs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import torchrlopt
from tests.report.page_cases import Page
from torchrlopt import _C
from torchrlopt.api.explain import explainer
from torchrlopt.errors import OptionsError, UnsupportedError
from torchrlopt.executors import registry
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.machine.cost import cost_model
from torchrlopt.options import SearchOptions
from torchrlopt.plan.search import search
from torchrlopt.substitutions import load_library


class Net(nn.Module):
    """Two convolutions of one sum, a batch norm, an activation, a linear."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(3, channels, 1)
        self.norm, self.head = nn.BatchNorm2d(channels), nn.Linear(channels, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.a(x) + self.b(x))).mean((2, 3)))


def test_it_says_what_the_compilation_does() -> None:
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(2, 3, 32, 32)
    found = torchrlopt.explain(model, x, cache=False)
    (graph,) = found.graphs
    assert [view.executor for view in graph.executors] == list(registry.available("cpu"))
    eager = graph.executors[0]
    torch._dynamo.reset()
    report = torchrlopt.optimise(
        model, x, cache=False, on_error="raise", measure=False, executor="eager"
    ).report
    assert {each.substitution: each.count for each in eager.rewrites} == report.step_counts()
    assert (eager.cost_before_ms, eager.cost_after_ms) == (report.cost_before_ms, report.cost_after_ms)
    assert graph.num_nodes == report.num_nodes_before
    gained = sum(each.gain_ms for each in eager.rewrites)
    assert gained == pytest.approx(eager.cost_before_ms - eager.cost_after_ms)
    if indirect.kernels() is not None:
        assert eager.packed == {"convolution + relu": 1, "linear": 1}
        assert eager.plain == {}
    assert eager.prices == {}
    assert eager.needless == ()


def test_rewrites_that_bring_nothing_are_those_that_the_prices_do_not_pay_for() -> None:
    graph = _C.parse_graph(
        "graph (x: f32[1,8,16,16], %w: f32[8,8,3,3]) { y = Conv(x, %w) z = Relu(y) return z }"
    )
    library, eager = load_library(), cost_model("eager")
    steps = search(graph, library, eager, SearchOptions(searcher="greedy")).steps
    assert steps
    free = _C.DeviceModel()
    for name in ("launch_us", "contraction_launch_us", "view_us"):
        setattr(free, name, 0.0)
    free.flops_per_us = free.bytes_per_us = free.cache_bytes_per_us = 1e18
    assert explainer._needless(graph, steps, eager, eager) == ()
    found = explainer._needless(graph, steps, _C.CostModel(free), eager)
    gains = explainer._priced(graph, steps, eager)
    assert {each.substitution for each in found} == {n for n, each in gains.items() if each.gain_ms > 0}


@pytest.mark.usefixtures("without_own_kernels")  # which need no conversion of three channels
def test_json_and_table() -> None:
    found = torchrlopt.explain(Net().eval(), {"x": torch.randn(2, 3, 32, 32)}, cache=False)
    fields = json.loads(found.to_json())
    assert fields["graphs"][0]["executors"][0]["executor"] == "eager"
    text = str(found)
    for part in (
        "eager",
        "predicted",
        "% less; the plan was found by greedy search",
        "computed otherwise",
        "1 x add_enlarged_biased_conv (tested only): ",
        "packed",
        "1 x convolution + relu",
        "1 to channels_last, 0 back",
        "inductor",
        "its prices",
        "views are free: 1, in eager PyTorch 0",
        "launch us: 0.5, in eager PyTorch 2.5",
    ):
        assert part in text
    assert "fuse_conv_relu (tested" not in text, "it is proved"


def test_the_plan_of_an_executor_is_saved_as_a_page(tmp_path: Path) -> None:
    found = torchrlopt.explain(Net().eval(), torch.randn(2, 3, 32, 32), cache=False, searcher="greedy")
    found.save(tmp_path / "plan.html", "inductor", "net")
    page = Page((tmp_path / "plan.html").read_text(encoding="utf-8"))
    assert "A plan, not built: " in page.text
    assert "self.head(torch.relu(self.norm(self.a(x) + self.b(x))).mean((2, 3)))" in page.text
    names = [each["name"] for each in page.data()["steps"]]
    (view,) = [each for each in found.graphs[0].executors if each.executor == "inductor"]
    assert {name: names.count(name) for name in names} == {e.substitution: e.count for e in view.rewrites}
    with pytest.raises(OptionsError, match="eager, "):
        found.save(tmp_path / "plan.html", "inductr")


def test_a_graph_that_is_left_alone_says_why() -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    found = torchrlopt.explain(Noisy().eval(), torch.randn(3), cache=False)
    assert found.graphs[0].executors == ()
    assert found.graphs[0].reason is not None
    assert "left alone" in str(found)


def test_an_executor_that_cannot_says_why() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.bessel_j0(x) + 1

    views = {v.executor: v for v in torchrlopt.explain(Odd().eval(), torch.randn(4)).graphs[0].executors}
    assert views["eager"].reason is None
    assert "bessel_j0" in (views["onnxruntime"].reason or "")


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match="eval"):
        torchrlopt.explain(Net().train(), torch.randn(2, 3, 32, 32))
    with pytest.raises(OptionsError, match="searcher"):
        torchrlopt.explain(Net().eval(), torch.randn(2, 3, 32, 32), searchr="beam")


def test_the_model_is_only_looked_at() -> None:
    model, x = Net().eval(), torch.randn(2, 3, 32, 32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torchrlopt.explain(model, x, cache=False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_groups_are_left_out_one_by_one(tmp_path: Path) -> None:
    options = {"cache": False, "searcher": "greedy", "measure_ms": 50.0}
    found = torchrlopt.explain(Net().eval(), torch.randn(2, 3, 32, 32), leave_out=True, **options)
    eager = found.graphs[0].executors[0]
    meanings = list(dict.fromkeys(each.meaning for each in eager.rewrites))
    assert sorted(each.meaning for each in eager.left_out) == sorted(meanings)
    by_meaning = {each.meaning: each for each in eager.left_out}
    assert by_meaning["computed otherwise"].predicted_ms > 0.01, "two convolutions instead of one"
    assert all(each.predicted_ms >= 0 for each in eager.left_out)
    assert all(each.spread_ms >= 0 and each.measured_ms != 0 for each in eager.left_out)
    text = str(found)
    assert "without 'fused': " in text
    found.save(tmp_path / "plan.html")
    page = Page((tmp_path / "plan.html").read_text(encoding="utf-8"))
    assert "without them, measured" in page.text
    (report,) = found.reports["eager"]
    assert type(report).from_json(report.to_json()).left_out == eager.left_out
    plain = torchrlopt.explain(Net().eval(), torch.randn(2, 3, 32, 32), **options)
    assert plain.graphs[0].executors[0].left_out == ()


def test_the_gain_is_split_by_measurement(tmp_path: Path) -> None:
    options = {"executor": "eager", "min_gain": -10.0, "measure_ms": 20.0, "on_error": "raise"}
    x = torch.randn(2, 3, 32, 32)
    found = torchrlopt.explain(Net().eval(), x, measure=True, searcher="greedy", **options)
    report = found.measured
    assert report is not None
    assert [each.part for each in report.split] == ["all", "plan", "kernels"]
    assert all(each.without_ms > 0 and each.with_ms > 0 for each in report.split)
    (profile,) = report.profiles
    assert sum(each.us for each in profile.calls) + profile.rest_us == pytest.approx(profile.call_ms * 1e3)
    drawing = report.records[0].draw()
    known = {each.key for each in drawing.after.operators}
    assert known.issuperset(key for call in profile.calls for key in call.keys)
    assert drawing.after.prices.keys() <= {key for call in profile.calls for key in call.keys}
    assert {call.module for call in profile.calls} >= {"head"}
    assert "test_explain.py:" in profile.calls[0].place
    assert report.environment is not None
    assert report.environment.options == {**options, "searcher": "greedy", "measure_parts": True}
    assert "by the kernels" in str(found)
    assert json.loads(found.to_json())["measured"]["split"][1]["part"] == "plan"
    found.save(tmp_path / "page.html")
    assert "measured one by one" in Page((tmp_path / "page.html").read_text(encoding="utf-8")).text
    rejected = torchrlopt.optimise(
        Net().eval(), x, searcher="greedy", measure_parts=True, **{**options, "min_gain": 0.99}
    ).report
    assert rejected.kept == "original"
    assert [each.part for each in rejected.split] == ["all", "plan", "kernels"]
    assert rejected.calls == report.calls
    unplanned = torchrlopt.optimise(Net().eval(), x, searcher="none", measure_parts=True, **options).report
    assert str(unplanned.split[1]).startswith("1.00x")
    assert unplanned.split[2].part == "kernels"
    with pytest.raises(UnsupportedError, match="measured by parts"):
        torchrlopt.explain(torch.relu, x, measure=True)


def test_a_budget_is_shown_with_what_is_used_of_it() -> None:
    options = {"executor": "eager", "searcher": "greedy", "min_gain": -10.0, "measure_ms": 20.0}
    found = torchrlopt.explain(Net().eval(), torch.randn(2, 3, 32, 32), max_error=1e-2, **options)
    assert found.measured is not None
    (record,) = found.measured.precision
    assert record.max_error == 1e-2
    assert "rms at most 0.01" in str(found)
    assert found.measured.profiles == (), "that takes seconds, and was not asked for"
