"""Planning data kept for the report page: small, copied like a drawing, and drawn as the plan was made."""

from __future__ import annotations

import copy
import pickle

import pytest

from tests.report.page_cases import CONVOLUTION, blocks, report_of, tangle
from torchrlopt.plan import record
from torchrlopt.report import Drawing, Report, Source


def drawn(report: Report) -> Drawing:
    return report.records[0].draw()


@pytest.mark.parametrize("text", [CONVOLUTION, blocks(3), *(tangle(seed, 40) for seed in range(4))])
def test_prices_add_up_to_the_plans_costs(text: str) -> None:
    report = report_of(text)
    drawing = drawn(report)
    for graph, cost_ms in (
        (drawing.before, report.cost_before_ms),
        (drawing.after, report.cost_after_ms),
    ):
        assert sum(price.time_us for price in graph.prices.values()) / 1000 == pytest.approx(cost_ms)
    assert len(drawing.steps) == len(report.steps) > 0


@pytest.mark.parametrize("text", [CONVOLUTION, *(tangle(seed, 40) for seed in range(4))])
def test_every_step_says_what_it_took_and_what_it_put_there(text: str) -> None:
    drawing = drawn(report_of(text))
    alive = {each.key: each for each in drawing.before.operators}
    for step in drawing.steps:
        assert {each.key for each in step.removed} <= set(alive)
        assert not {each.key for each in step.added} & set(alive)
        for each in step.removed:
            del alive[each.key]
        alive |= {each.key: each for each in step.added}
        known = {each.key for each in (*step.removed, *step.added)} | set(step.around)
        assert {key for each in (*step.removed, *step.added) for key in each.inputs} <= known
        assert step.read_before, "something read what is gone"
        assert step.read_after
        assert step.proof in ("proved", "tested")
    assert set(alive) >= {each.key for each in drawing.after.operators}


def test_operators_know_where_they_come_from() -> None:
    drawing = drawn(report_of(CONVOLUTION, {"c": Source("net.py", 3, "conv(x)"), "gone": Source("", 0, "")}))
    names = {each.key: each.name for each in drawing.before.operators}
    (fused,) = [each for each in drawing.after.operators if each.op == "FusedConv"]
    origins = {names[key] for key in drawing.origins[fused.key] if names[key]}
    assert {"c", "n", "r"} <= origins
    assert "t" not in origins
    (stays,) = [each for each in drawing.after.operators if each.op == "Transpose"]
    assert drawing.origins[stays.key] == (stays.key,)
    assert {names[key]: source.line for key, source in drawing.sources.items()} == {"c": 3}


def test_a_step_without_a_changed_neighbour_is_drawn_as_it_is() -> None:
    """The output of the graph may be what a step replaces."""
    drawing = drawn(report_of("graph (x: f32[4], y: f32[4]) { a = Neg(y) b = Add(x, a) return b }"))
    for step in drawing.steps:
        assert set(step.read_before) <= {each.key for each in step.removed}
        assert step.read_after


def test_copies_and_pickles_hold_the_drawing() -> None:
    report = report_of(CONVOLUTION)
    drawing = drawn(report)
    for other in (copy.deepcopy(report), pickle.loads(pickle.dumps(report))):
        assert other == report
        assert drawn(other) == drawing


def test_nothing_is_replayed_until_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_of(CONVOLUTION)
    monkeypatch.setattr(record, "load_library", lambda **_: pytest.fail("the steps are replayed"))
    assert "records" not in report.to_json()
    assert str(report)
    assert Report.merged([report, report]).records == report.records * 2
