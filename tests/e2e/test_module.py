"""`optimise` and `torch.compile` as Python objects: copies, state_dict, stances, options, memory."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import torchrlopt
from tests.e2e.models import (
    STRICT,
    Branches,
    ConvNorm,
    assert_same,
    build,
    compiled,
    last_report,
)
from torchrlopt import optimise
from torchrlopt.compile import backend
from torchrlopt.compile.compiled import Compiled
from torchrlopt.errors import OptionsError, UnsupportedError
from torchrlopt.executors import registry
from torchrlopt.report import Report
from torchrlopt.substitutions import load_library

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def test_report_of_optimise() -> None:
    model = build(ConvNorm)
    optimised = optimise(model, torch.randn(2, 3, 9, 9), **STRICT)
    report = optimised.report
    assert report.kept == "rewritten"
    assert report.fallback_reason is None
    assert report.steps
    assert report.cost_after_ms is not None
    assert report.cost_before_ms is not None
    assert report.cost_after_ms < report.cost_before_ms
    assert report.numerical_error is not None
    assert report.num_nodes_after < report.num_nodes_before
    assert {"trace", "capture", "read", "plan", "write", "lower", "check"} <= set(report.phases_ms)
    assert all(ms >= 0 for ms in report.phases_ms.values())
    assert Report.from_json(report.to_json()) == report


def test_keyword_inputs() -> None:
    model = build(Branches)
    optimised = optimise(model, {"x": torch.randn(5, 16)}, **STRICT)
    assert optimised.report.kept == "rewritten"
    assert_same(model, optimised, torch.randn(5, 16))
    assert [report.is_cache_hit for report in optimised.reports] == [False, True], (
        "positional: traced, not planned"
    )


def test_more_than_eight_models_of_one_class() -> None:
    """Dynamo gives up on a code object after eight recompilations; each model has its own."""
    for seed in range(10):
        optimised = optimise(build(Branches, seed), torch.randn(5, 16), **STRICT)
        assert optimised.report.kept == "rewritten"


def test_equal_options_share_a_compile() -> None:
    model, x = build(Branches), torch.randn(5, 16)
    with torch.no_grad():
        for _ in range(3):
            torch.compile(model, backend="rlopt", options=dict(STRICT))(x)
    assert len(torchrlopt.reports()) == 1


def test_recompile_of_the_same_graph_is_answered_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = build(Branches), torch.randn(5, 16)

    def scaled(x: torch.Tensor, flag: str) -> Any:
        return model(x) if flag else x

    run = compiled(scaled)
    with torch.no_grad():
        run(x, "one")
        monkeypatch.setattr(backend, "capture_traced", lambda *_: pytest.fail("captured again"))
        run(x, "two")
    assert len(torchrlopt.reports()) == 2
    assert last_report().is_cache_hit
    assert last_report().kept == "rewritten"


@pytest.mark.usefixtures("young_heap")
def test_reset_frees_memory() -> None:
    def compiled_graphs() -> int:
        gc.collect()
        return sum(isinstance(o, Compiled) for o in gc.get_objects())

    before = compiled_graphs()
    model, x = build(Branches), torch.randn(5, 16)
    run = compiled(model)
    assert_same(model, run, x)
    assert compiled_graphs() == before + 1
    torch._dynamo.reset()
    assert compiled_graphs() == before
    assert torchrlopt.reports() == []
    assert_same(model, run, x)


@pytest.mark.hides_errors
def test_wrong_rewrite_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        def refusals(self, model: Any, captured: Any, options: Any) -> dict[Any, str]:
            return {}

        def lower(self, model: Any, captured: Any, options: Any) -> Any:
            return lambda *inputs: tuple(out * 1.01 for out in captured.aten(*inputs))

    monkeypatch.setattr(registry, "get", lambda _: Wrong())
    model, x = build(Branches), torch.randn(5, 16)
    optimised = optimise(model, x, measure=False)
    assert optimised.report.kept == "original"
    assert "other numbers" in str(optimised.report.fallback_reason)
    assert_same(model, optimised, x)
    assert optimise(model, x, measure=False, verify=False).report.kept == "rewritten"


def test_save_dir(tmp_path: Any) -> None:
    import onnx

    report = optimise(build(Branches), torch.randn(5, 16), **STRICT, save_dir=str(tmp_path / "saved")).report
    assert "save" in report.phases_ms
    (folder,) = (tmp_path / "saved").iterdir()
    expected = {"before.onnx", "after.onnx", "report.json", "report.html"}
    assert {each.name for each in folder.iterdir()} == expected
    before, after = (onnx.load(folder / name) for name in ("before.onnx", "after.onnx"))
    assert len(after.graph.node) != len(before.graph.node)
    weights = {name for name, _ in build(Branches).named_parameters()}
    for graph in (before.graph, after.graph):
        assert {each.name for each in graph.input} >= weights
        names = [node.name for node in graph.node]
        assert len(set(names)) == len(names)
    assert [each.name for each in before.graph.output] == [each.name for each in after.graph.output]
    made = [node for node in after.graph.node if "rlopt_" in node.name and node.op_type != "Constant"]
    library = load_library()
    assert made
    for node in made:
        assert library.find(node.name.rpartition("/")[2].partition(".")[0]) >= 0, node.name
    assert any("tests/e2e/models.py:" in node.doc_string for node in made)
    assert Report.from_json((folder / "report.json").read_text()).steps


def test_settings_that_no_key_can_hold_are_refused() -> None:
    for wrong in ({"a": torch.float32}, {"a": float("nan")}, {("a",): 1}):
        with pytest.raises(OptionsError, match="executor_options is no JSON"):
            optimise(build(Branches), torch.randn(5, 16), executor_options=wrong)


def test_reports_are_those_of_optimised_modules() -> None:
    with pytest.raises(UnsupportedError, match="made by optimise have reports; got: ReLU"):
        torchrlopt.reports(torch.nn.ReLU())
