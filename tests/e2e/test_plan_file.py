"""Plans as files: `report.plan.save`, `apply_plan`, `load_plan`."""

from __future__ import annotations

import json
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


def changed(path: Path, change: Callable[[dict[str, Any]], None], digest: bool) -> None:
    """The file with a change; with a check sum that fits, or not."""
    content = json.loads(path.read_text())
    change(content)
    if digest:
        del content["digest"]
        content["digest"] = plan_file._digest(content)
    path.write_text(json.dumps(content))


def set_in_graph(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["graphs"][0].update({name: value})


WRONG: list[tuple[str, Callable[[Path], Any], str]] = [
    ("missing", lambda path: path.unlink(), "cannot be read"),
    ("no text", lambda path: path.write_bytes(b"\xff\xfe\x00"), "cannot be read"),
    ("cut off", lambda path: path.write_text(path.read_text()[:-40]), "no plan, or is damaged"),
    ("other JSON", lambda path: path.write_text('{"a": 1}'), "no plan, or is damaged"),
    ("changed", lambda path: changed(path, set_in_graph("searcher", "x"), False), "check sum"),
    ("format", lambda path: changed(path, lambda c: c.update(format=99), True), "another format"),
    ("graph", lambda path: changed(path, set_in_graph("graph_hash", "0" * 64), True), "another graph"),
    ("library", lambda path: changed(path, set_in_graph("library_hash", "0" * 64), True), "another library"),
    ("fields", lambda path: changed(path, lambda c: c["graphs"][0].pop("steps"), True), "malformed"),
    ("steps", lambda path: changed(path, set_in_graph("steps", [["no_such", 0]]), True), "one cost per step"),
    (
        "names",
        lambda path: changed(path, lambda c: c["graphs"][0]["steps"].__setitem__(0, ["no_such", 0]), True),
        "no_such",
    ),
    (
        "locations",
        lambda path: changed(path, lambda c: c["graphs"][0]["steps"][0].__setitem__(1, 77), True),
        "77",
    ),
    ("executor", lambda path: changed(path, set_in_graph("executor", "toaster"), True), "no such value"),
    ("no graphs", lambda path: changed(path, lambda c: c.update(graphs=[]), True), "another graph"),
    ("graphs", lambda path: changed(path, lambda c: c.update(graphs=[3]), True), "damaged"),
]


@pytest.mark.parametrize(("spoil", "message"), [each[1:] for each in WRONG], ids=[each[0] for each in WRONG])
def test_a_wrong_file_is_refused(
    spoil: Callable[[Path], Any], message: str, saved: tuple[Report, Path]
) -> None:
    _, path = saved
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


def test_strict_numerics_hold_for_plans_of_files(tmp_path: Path) -> None:
    x = torch.randn(1, 3, 8, 8)
    optimise(build(ConvNorm), x, **STRICT_GREEDY).report.plan.save(tmp_path / "plan.json")
    with pytest.raises(SearchError, match="change rounding"):
        apply_plan(build(ConvNorm), x, tmp_path / "plan.json", **STRICT, numerics="strict")


def test_the_result_is_checked(saved: tuple[Report, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = planning.search.replay

    def other(graph: Any, library: Any, plan: Any) -> Any:  # as a false substitution would
        text = plain(graph, library, plan).text()
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
