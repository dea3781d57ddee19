"""Sentences of the papers' report follow from the data: training/experiments/."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.experiments.cores_run import CoresOutcome, CoresRun
from training.experiments.dissertation import improvements, toy_bert
from training.experiments.dissertation.latency_run import AGAIN, ORIGINAL, LatencyOutcome
from training.experiments.reproduction import _made_by, _sections
from training.experiments.runs import AllFinished, Finished, Scale, Workplace


@pytest.mark.parametrize(("gain", "said"), [(60.0, "Agrees here"), (58.23, "Agrees here"), (55.0, "Does")])
def test_the_toy_bert_agrees_where_enough_is_saved(gain: float, said: str) -> None:
    cells = [("greedy", 10.0, 1.0, 2.0, 3.0), ("MF", gain, 40.0, 50.0, 21.5)]
    told = toy_bert._verdict("here", cells)
    assert told.startswith(f"- {said}")
    assert f"{gain:.1f} % (MF, with 40.0 % of the launches and 21.5 % of the FLOPs)" in told


def test_the_command_of_a_section_has_all_that_it_depends_on() -> None:
    place = Workplace(Path("x"), collector="threads")
    told = _made_by("fig4.3", Scale(0.1, 2, ("resnet18",)), place, ["a", "b"], 61.2)
    assert told == [
        "Made by `python training/reproduce.py fig4.3 --share 0.1 --seeds 2 --collector threads "
        "--graphs resnet18` on a; and on b.",
        "Its runs took 62 min at least: of one that was killed, the last part counts.",
    ]
    short = _made_by("fig4.3", Scale(0.1, 2, minutes=5.0), Workplace(Path("x")), ["a"], None)
    assert "--seeds 2 --minutes 5` on a." in short[0]
    assert len(_made_by("fig4.3", Scale(0.1, 2), Workplace(Path("x")), ["a"], None)) == 1


def test_sections_of_any_name_stay_in_a_report() -> None:
    report = "# Title\n\n## fig4.1: one\n\ntext\n\n## own-name: two\n\nmore\n"
    assert _sections(report) == {
        "fig4.1": "## fig4.1: one\n\ntext\n",
        "own-name": "## own-name: two\n\nmore\n",
    }


def test_minutes_are_told_only_where_every_run_has_noted_its_own() -> None:
    runs = [CoresRun(0, 1), CoresRun(1, 1)]
    outcome = CoresOutcome(1.0, 1.0)
    known = {run: Finished(outcome, 1.0, "here", 90.0) for run in runs}
    assert AllFinished(known).minutes([*runs, runs[0]]) == 3.0, "each counts once"
    old = {**known, runs[1]: Finished(outcome, 1.0, "here")}
    assert AllFinished(old).minutes(runs) is None


def test_it_is_said_where_the_original_differs_from_itself() -> None:
    slower = [0.97, 0.98, 0.98, 0.97, 0.98, 0.97, 0.98, 0.97, 0.98]
    both = [0.98, 1.02, 0.99, 1.01, 1.0, 0.98, 1.02, 0.99, 1.01]
    (told,) = improvements._against_itself({"eager": {AGAIN: slower}, "onnxruntime": {AGAIN: both}})
    assert told.startswith("  In eager the original differs from itself by 2.")


def test_a_plan_that_changes_nothing_is_as_fast_as_the_original() -> None:
    times = {ORIGINAL: [1.0, 1.02], AGAIN: [1.04, 1.0], "greedy": [0.5, 0.505]}
    measured = LatencyOutcome({"eager": times}, {"random": ORIGINAL, "taso": "greedy"})
    assert measured.ratios("eager", "random") == [1.0, 1.0]
    assert measured.ratios("eager", "greedy") == measured.ratios("eager", "taso") == [2.04, 2.0]
    assert measured.ratios("eager", AGAIN) == [1 / 1.04, 1.02]
