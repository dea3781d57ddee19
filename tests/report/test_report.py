"""Report: JSON, merging, printing."""

from __future__ import annotations

import dataclasses
import json

import pytest

from torchrlopt.errors import UnsupportedError
from torchrlopt.report import Choice, Report, ReportStep, SearchRecord, Status
from torchrlopt.report.page.page import page
from torchrlopt.report.parts import Calls, Contribution, Environment, Profile, TimedCall
from torchrlopt.substitutions import load_library


def example() -> Report:
    return Report(
        Status("rewritten"),
        searcher="greedy",
        executor="eager",
        steps=(
            ReportStep("fuse_conv_relu", 0, 2.5, 0.5, "activation"),
            ReportStep("fuse_conv_relu", 1, 2.0, 0.5, "activation"),
            ReportStep("normalise_sub", 0, 2.0, 0.0, "normalise"),
        ),
        cost_before_ms=3.0,
        cost_after_ms=2.0,
        measured_before_ms=6.0,
        measured_after_ms=4.0,
        measured_spread=0.01,
        numerical_error=1.1,
        phases_ms={"capture": 10.0, "plan": 5.0},
        num_nodes_before=4,
        num_nodes_after=2,
        opaque=("aten.foo.default",),
        searches=(SearchRecord("networks", 3, 40, False, 0.25, ((0.0, 3.0), (0.25, 2.0))),),
    )


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '"kept"',
        '["kept"]',
        "[" * 100_000,
        '{"field_of_a_newer_version": 1}',
        '{"notes": "a text has characters, too"}',
        '{"steps": [[]]}',
        '{"phases_ms": {"plan": "long"}}',
        '{"kept": "both"}',
        '{"cost_before_ms": ' + "9" * 400 + "}",
        '{"measured_before_ms": true}',
        '{"precision": [{"curve": [[1]]}]}',
    ],
)
def test_damaged_and_newer_json_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedError, match="no report"):
        Report.from_json(text)


def test_json_round_trip() -> None:
    report = example()
    assert Report.from_json(report.to_json()) == report
    assert json.loads(report.to_json())["steps"][1] == {
        "substitution": "fuse_conv_relu",
        "location": 1,
        "cost_ms": 2.0,
        "saved_ms": 0.5,
        "family": "activation",
        "proof": "",
    }


def test_speedup_is_of_what_is_kept() -> None:
    report = example()
    assert report.speedup == 1.5
    report.status.keep_original("a call failed")
    assert report.speedup == 1.0


def test_reports_of_one_compiled_graph_say_the_same_of_it() -> None:
    first = example()
    second = dataclasses.replace(first, is_cache_hit=True)
    second.status.keep_original("a call failed")
    assert (first.kept, first.fallback_reason) == ("original", "a call failed")
    assert json.loads(first.to_json())["kept"] == "original"
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.executor = "inductor"  # type: ignore[misc]


def test_reasons_that_differ_in_numbers_are_one() -> None:
    texts = ["not faster: gain -0.697, min_gain 0.02", "not faster: gain 0.01, min_gain 0.02", "no operators"]
    merged = Report.merged([dataclasses.replace(example(), status=Status(fallback_reason=t)) for t in texts])
    assert merged.fallback_reason == "not faster: gain -0.697, min_gain 0.02 (2 graphs); no operators"


def test_a_notebook_shows_the_table_escaped() -> None:
    shown = dataclasses.replace(example(), status=Status(fallback_reason="<b>because</b>"))._repr_html_()
    assert "&lt;b&gt;because" in shown
    assert "<b>" not in shown


def test_merged_adds_times_and_keeps_reasons() -> None:
    left_alone = Report(
        Status(fallback_reason="because"),
        searcher="greedy",
        executor="eager",
        phases_ms={"plan": 1.0},
        opaque=("x",),
    )
    merged = Report.merged([example(), left_alone, left_alone])
    assert merged.kept == "rewritten"
    assert merged.fallback_reason == "because (2 graphs)"
    assert merged.num_graphs == 3
    assert merged.phases_ms == {"capture": 10.0, "plan": 7.0}
    assert merged.measured_before_ms == 6.0
    assert merged.opaque == ("aten.foo.default", "x")
    assert merged.searcher == "greedy"
    assert len(merged.steps) == 3


def test_merged_of_one_is_that_one() -> None:
    report = example()
    assert Report.merged([report]) is report


def test_printed_table_says_what_matters() -> None:
    text = str(example())
    for part in (
        "1.50x as fast (6.000 -> 4.000 ms a call, spread 1%), 2 instead of 4 operators",
        "fused",
        "1.000 ms less: 2 x fuse_conv_relu",
        "6.000 -> 4.000 ms",
        "1.50x",
        "1.10 times",
        "aten.foo.default",
        "4 -> 2",
        "3 steps, found by the agent's network",
    ):
        assert part in text
    assert "measured" not in str(Report())


def test_measured_share_of_the_price_is_weighted_when_merged() -> None:
    parts = [
        Report(cost_after_ms=3.0, measured_share=1.0),
        Report(cost_after_ms=1.0, measured_share=0.2),
        Report(),
    ]
    assert Report.merged(parts).measured_share == 0.8
    assert Report.merged([Report(), Report()]).measured_share is None
    priced = Report(cost_before_ms=2.0, cost_after_ms=1.0, measured_share=0.75)
    assert "50% less for the plan alone" in (priced.prediction or "")
    assert "75% of it measured" in (priced.prediction or "")
    assert "none of it measured" in (dataclasses.replace(priced, measured_share=0.0).prediction or "")


def test_the_sentence_says_no_more_than_was_found() -> None:
    report = dataclasses.replace(example(), measured_spread=0.6)
    assert "as fast as the original within the spread of 60%" in report.summary
    assert "busy" not in report.summary
    report = dataclasses.replace(report, measured_is_calm=False)
    assert report.summary.endswith("the machine was busy")
    report = dataclasses.replace(report, measured_after_ms=None)
    assert report.summary == "2 instead of 4 operators, not timed"
    report = dataclasses.replace(report, status=Status("original"))
    assert report.summary == "the original runs"
    assert Report(num_graphs=0).summary == "nothing has been compiled so far"


def test_a_cut_call_is_not_said_to_be_faster_as_a_whole() -> None:
    part = dataclasses.replace(example(), cut="Dynamo ended the graph at a.py:3")
    left = Report(Status(fallback_reason="because"))
    assert "a call" in example().summary
    merged = Report.merged([part, left])
    assert "ms in the graphs alone" in merged.summary
    assert "ms in the graphs alone" in page(merged)
    rows = dict(merged.rows())
    assert rows["kept"] == "rewritten, other graphs as they were: because"
    assert rows["operators"].endswith(" in 2 graphs")
    assert rows["cut"].startswith(part.cut)


def test_steps_are_grouped_by_what_they_mean() -> None:
    report = Report.merged([example(), example()])
    fused, normal = report.step_groups()
    assert (fused.meaning, fused.counts, fused.saved_ms) == ("fused", {"fuse_conv_relu": 4}, 2.0)
    assert (normal.meaning, normal.counts) == ("normal form", {"normalise_sub": 2})
    (other,) = Report(steps=(ReportStep("new", 0, 1.0, 0.1, "unheard_of"),)).step_groups()
    assert other.meaning == "other steps"


def test_every_family_of_the_library_has_a_meaning() -> None:
    library = load_library()
    steps = tuple(ReportStep(name, 0, 0.0, 0.0, library.family(name)) for name in library.names)
    assert "other steps" not in {group.meaning for group in Report(steps=steps).step_groups()}


def explained() -> Report:
    """A report whose parts were measured."""
    calls = (TimedCall("convolution + relu", 2500.0, (7,), "stem", "net.py:7"), TimedCall("mean", 500.0))
    return dataclasses.replace(
        example(),
        calls=Calls({"convolution + relu": 1}, {"linear": 1}, 1, 2),
        split=(Contribution("plan", 5.0, 4.0, 0.01), Contribution("kernels", 6.0, 4.0, 0.02)),
        profiles=(Profile("hash", 4.0, calls, 7),),
        environment=Environment("a processor", 2, {"torch": "2.13"}, {"weights": "frozen"}, "2026-11-29"),
    )


def test_parts_of_the_gain_are_told_and_survive_json() -> None:
    report = explained()
    assert Report.from_json(report.to_json()) == report
    rows = report.rows()
    texts = dict(rows)
    assert texts["  by the plan"].startswith(
        "1.25x against the same executor without the plan (5.000 -> 4.000"
    )
    assert texts["  by the kernels"].startswith("1.50x against the same graph by PyTorch's own calls")
    assert texts["kernels"].startswith(
        "1 calls (1 x convolution + relu); PyTorch's own: 1 x linear, 1 other;"
    )
    assert texts["a call takes"] == "2.500 ms (62%): convolution + relu in stem"
    assert ("", "+1.000 ms (25%): overhead between calls") in rows
    assert texts["made"] == "2026-11-29 on a processor, 2 threads; torch 2.13"
    assert texts["options"] == "weights=frozen"


def test_merged_parts_are_added() -> None:
    merged = Report.merged([explained(), dataclasses.replace(explained(), calls=None)])
    assert [(each.part, each.without_ms, each.with_ms) for each in merged.split] == [
        ("plan", 10.0, 8.0),
        ("kernels", 12.0, 8.0),
    ]
    assert merged.calls == explained().calls
    assert Report.merged([explained(), explained()]).calls == Calls(
        {"convolution + relu": 2}, {"linear": 2}, 2, 4
    )
    assert merged.environment == explained().environment


def test_what_is_known_of_the_plan_needs_no_measurement() -> None:
    report = dataclasses.replace(example(), steps=())
    assert str(report.contributions[0]) == "1.00x: it has no steps"
    tried = (Choice("eager", "greedy", 0.5, 1.0, None), Choice("eager", "none", 0.75, 1.0, None))
    (plan,) = dataclasses.replace(example(), choices=tried).contributions
    assert (plan.part, plan.without_ms, plan.with_ms) == ("plan", 6.0, 4.0)
    assert example().contributions == ()
    assert any("measure_parts" in each for each in example().advice)
    assert not any("measure_parts" in each for each in explained().advice)


def test_calls_of_repeated_layers_are_one_row() -> None:
    calls = tuple(TimedCall("linear", 10.0 * at, (), f"layer.{at}.fc1", "net.py:7") for at in range(4))
    profile = Profile("", 0.1, (*calls, TimedCall("mean", 1.0, (), "3", "net.py:8")), 7)
    assert profile.alike() == [
        ("linear", "layer.*.fc1", "net.py:7", [0, 1, 2, 3]),
        ("mean", "3", "net.py:8", [4]),
    ]
    assert profile.rows()[0] == "0.060 ms (60%): 4 x linear in layer.*.fc1"


def test_a_difference_within_the_spread_is_not_clear() -> None:
    assert str(Contribution("plan", 1.1, 1.0, 0.2)).endswith("spread 20%, no clear difference)")
    assert str(Contribution("plan", 1.5, 1.0, 0.2)).endswith("spread 20%)")
