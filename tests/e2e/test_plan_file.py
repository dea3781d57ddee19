"""Plans as files: `report.plan.save`, `apply_plan`, `load_plan`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.models import QUICK, STRICT, Branches, ConvNorm, assert_same, build
from torchrlopt import _C, apply_plan, load_plan, optimise, optimise_onnx
from torchrlopt.errors import OptionsError, SearchError, VerificationError
from torchrlopt.plan import planning
from torchrlopt.report import Report
from torchrlopt.storage import plan_file

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

X = torch.linspace(-1, 1, 80).reshape(5, 16)
STRICT_GREEDY = {**STRICT, "searcher": "greedy"}


@pytest.fixture(scope="module")
def report() -> Report:
    return optimise(build(Branches), X, **QUICK).report


@pytest.fixture
def saved(report: Report, tmp_path: Path) -> tuple[Report, Path]:
    path = tmp_path / "plan.json"
    report.plan.save(path)
    return report, path


def search_plan(*_: Any) -> Any:
    raise AssertionError("a search")


def test_a_saved_plan_is_applied_without_a_search(
    saved: tuple[Report, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, path = saved
    monkeypatch.setattr(planning, "search_plan", search_plan)
    monkeypatch.setattr(planning, "plan_store", search_plan)
    model = build(Branches, seed=1)
    fast = apply_plan(model, X, path, **STRICT)
    assert [s.substitution for s in fast.report.steps] == [s.substitution for s in before.steps] != []
    assert [s.cost_ms for s in fast.report.steps] == pytest.approx([s.cost_ms for s in before.steps])
    assert fast.report.cost_before_ms == pytest.approx(before.cost_before_ms)
    assert (fast.report.kept, fast.report.searcher, fast.report.executor) == ("rewritten", "greedy", "eager")
    assert fast.report.numerical_error is not None
    assert not fast.report.is_cache_hit
    assert_same(model, fast, X)


def test_what_a_file_says(saved: tuple[Report, Path]) -> None:
    report, path = saved
    plan = load_plan(path)
    assert plan == report.plan
    assert plan.num_steps == len(report.steps)
    assert plan.graphs[0]["graph_hash"] == report.graph_hash
    assert set(plan.versions) == {"torchrlopt", "torch"}
    assert Report.from_json(report.to_json()).plan == plan


class TwoGraphs(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Branches(), Branches(40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(x)
        torch._dynamo.graph_break()
        result: torch.Tensor = self.other(x)
        return result


def test_all_graphs_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(TwoGraphs)
    before = optimise(model, X, **STRICT_GREEDY).report
    assert before.num_graphs == len(before.plan.graphs) == 2
    before.plan.save(tmp_path / "plan.json")
    fast = apply_plan(model, X, tmp_path / "plan.json", **STRICT)
    assert fast.report.step_counts() == before.step_counts()
    assert_same(model, fast, X)


def changed(change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Callable[[Path], Any]:
    """Change the content of a file or its first graph; the check sum fits, unless it is what changes."""

    def spoil(path: Path) -> None:
        content = json.loads(path.read_text())
        del content["digest"]
        change(content, content["graphs"][0])
        content.setdefault("digest", plan_file._digest(content))
        path.write_text(json.dumps(content))

    return spoil


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda path: path.unlink(), "cannot be read"),
    "no text": (lambda path: path.write_bytes(b"\xff\xfe\x00"), "cannot be read"),
    "cut off": (lambda path: path.write_text(path.read_text()[:-40]), "no plan, or is damaged"),
    "other JSON": (lambda path: path.write_text('{"a": 1}'), "no plan, or is damaged"),
    "changed": (changed(lambda c, graph: c.update(digest="0" * 64)), "check sum"),
    "format": (changed(lambda c, graph: c.update(format=99)), "another format"),
    "graph": (changed(lambda c, graph: graph.update(graph_hash="0" * 64)), "another graph"),
    "library": (changed(lambda c, graph: graph.update(library_hash="0" * 64)), "another library"),
    "fields": (changed(lambda c, graph: graph.pop("steps")), "malformed"),
    "steps": (changed(lambda c, graph: graph.update(steps=[["no_such", 0]])), "one cost per step"),
    "names": (changed(lambda c, graph: graph["steps"].__setitem__(0, ["no_such", 0])), "no_such"),
    "locations": (changed(lambda c, graph: graph["steps"][0].__setitem__(1, 77)), "77"),
    "executor": (changed(lambda c, graph: graph.update(executor="toaster")), "no such value"),
    "no graphs": (changed(lambda c, graph: c.update(graphs=[])), "another graph"),
    "graphs": (changed(lambda c, graph: c.update(graphs=[3])), "damaged"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_refused(name: str, saved: tuple[Report, Path]) -> None:
    _, path = saved
    spoil, message = WRONG[name]
    spoil(path)
    model = build(Branches)
    with pytest.raises((SearchError, OptionsError), match=message):
        apply_plan(model, X, path, on_error="raise")
    fast = apply_plan(model, X, path)
    assert fast.report.kept == "original"
    assert message in str(fast.report.fallback_reason)
    assert_same(model, fast, X)


def test_another_model_is_refused(saved: tuple[Report, Path]) -> None:
    with pytest.raises(SearchError, match=r"another graph.*what to do"):
        apply_plan(build(ConvNorm), torch.randn(1, 3, 8, 8), saved[1], on_error="raise")


def test_a_plan_of_another_library_is_refused_as_such(tmp_path: Path) -> None:
    """Its names may be others' here, so nothing is said of its steps."""
    x, path = torch.randn(1, 3, 8, 8), tmp_path / "plan.json"
    optimise(build(ConvNorm), x, **STRICT_GREEDY).report.plan.save(path)
    changed(lambda c, graph: graph.update(library_hash="0" * 64))(path)
    with pytest.raises(SearchError, match=rf"another library; where: {re.escape(str(path))}; .*plan anew"):
        apply_plan(build(ConvNorm), x, path, **STRICT, numerics="strict")


def test_strict_numerics_hold_for_plans_of_files(tmp_path: Path) -> None:
    x = torch.randn(1, 3, 8, 8)
    optimise(build(ConvNorm), x, **STRICT_GREEDY).report.plan.save(tmp_path / "plan.json")
    with pytest.raises(SearchError, match="change rounding"):
        apply_plan(build(ConvNorm), x, tmp_path / "plan.json", **STRICT, numerics="strict")


def test_the_result_is_checked(saved: tuple[Report, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = planning.search.replay

    def other(*given: Any, **named: Any) -> Any:  # as a false substitution would
        text = plain(*given, **named).text()
        assert "Tanh" in text
        return _C.parse_graph(text.replace("Tanh", "Sigmoid"))

    monkeypatch.setattr(planning.search, "replay", other)
    with pytest.raises(VerificationError):
        apply_plan(build(Branches), X, saved[1], **STRICT)


def test_the_executor_is_the_plan_s_own(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    optimise(build(Branches), X, **STRICT_GREEDY, executor="inductor").report.plan.save(path)
    assert apply_plan(build(Branches), X, path, **STRICT).report.executor == "inductor"
    assert apply_plan(build(Branches), X, path, **STRICT, executor="eager").report.executor == "eager"
    with pytest.raises(OptionsError, match="leave executor out"):
        apply_plan(build(Branches), X, path, executor="auto")


def test_no_plan_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(SearchError, match="no plan to save"):
        optimise(build(Branches)).report.plan.save(tmp_path / "plan.json")
    assert not list(tmp_path.glob("*.json*"))


@pytest.mark.nightly
def test_torch_compile_and_files_take_plans(
    saved: tuple[Report, Path], tmp_path: Path, checked_here: None
) -> None:
    model = build(Branches)
    run = torch.compile(model, backend="rlopt", options={**STRICT, "plan": str(saved[1])})
    with torch.no_grad():
        torch.testing.assert_close(run(X), model(X))
    source, result, path = (tmp_path / name for name in ("in.onnx", "out.onnx", "onnx.json"))
    torch.onnx.export(model, (X,), source, external_data=False, verbose=False)
    before = optimise_onnx(source, result, on_error="raise", searcher="greedy")
    before.plan.save(path)
    result.unlink()
    after = optimise_onnx(source, result, on_error="raise", plan=str(path))
    assert after.step_counts() == before.step_counts() != {}
    assert result.exists()
