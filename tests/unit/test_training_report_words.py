"""Sentences of the papers' report follow from the data: training/experiments/."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from training.experiments import graph_samplers, sampling
from training.experiments.cores_run import CoresOutcome, CoresRun
from training.experiments.dissertation import (
    applied,
    improvements,
    latencies,
    metric_pairs,
    properties,
    rewards,
    search_curve,
    toy_bert,
)
from training.experiments.dissertation.latency_run import AGAIN, ORIGINAL, LatencyOutcome
from training.experiments.dissertation.measured_run import AS_WRITTEN, UNOPTIMISED, Measured, Times
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


def test_other_graphs_are_not_judged_by_the_papers_values() -> None:
    assert toy_bert._verdict("here", [("MF", 60.0, 1.0, 2.0, 3.0)], False).startswith(
        "- Not their graph here"
    )


def test_the_command_tells_the_cluster_and_only_seeds_that_count() -> None:
    place = Workplace(Path("x"), collector="ray", ray="10.0.0.1:6379")
    assert (
        "--seeds 2 --collector ray --ray 10.0.0.1:6379`"
        in _made_by("table6.1", Scale(1, 2), place, ["a"], None)[0]
    )
    assert "--seeds" not in _made_by("table4.1", Scale(1, 2), Workplace(Path("x")), ["a"], None, False)[0]


#: Ten seeds of each sampler around a mean.
def _around(**means: float) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    values = {name: mean + 0.01 * rng.standard_normal(10) for name, mean in means.items()}
    return {name: (each, each) for name, each in values.items()}


@pytest.mark.parametrize(
    ("theirs", "mine", "said"),
    [
        (1.0, 1.0, "agrees"),  # one that is surely better is enough
        (1.0, 0.1, "does not agree"),
        (0.1, 0.1, "agrees"),
        (0.1, 1.0, "does not agree"),
        (0.1, 0.5, "is not confirmed"),
    ],
)
def test_what_the_thesis_says_of_mixed_samplers_is_judged_by_differences(
    theirs: float, mine: float, said: str
) -> None:
    means = {"random": 1.0, "latin_hypercube": 0.5, "uncertainty": 0.5, "heterogeneous": theirs}
    paper = {name: (mean,) * 5 for name, mean in means.items()}
    ends = _around(random=1.0, latin_hypercube=0.5, uncertainty=0.5, heterogeneous=mine)
    assert sampling._claim(ends, 0, paper, 0).endswith(f"as the thesis has it, {said}.")


def test_a_correlation_is_called_strong_only_where_it_is() -> None:
    times = np.arange(1.0, 9.0)
    columns = {
        "predicted ms": times, "GFLOP": times, "memory MB": -times, "launches": times, "measured ms": times
    }  # fmt: skip
    told = metric_pairs._words("toy_bert", columns)[0]
    assert "that does not agree (-1.00" in told
    assert "holds" not in told


def test_an_order_of_one_graph_is_none() -> None:
    assert properties._order(["toy_bert"], ["toy_bert"]) == []
    assert "it agrees" in properties._order(["resnet18", "toy_bert"], ["resnet18", "toy_bert"])[0]
    told = properties._order(["resnet18", "toy_bert"], ["toy_bert", "resnet18"])[0]
    assert "they have most in ResNet-18" in told


def _search(expansions: int, gain: float = 0.1, is_exhausted: bool = False) -> search_curve.Found:
    return search_curve.Found([(1, 0.1, 1.0)], [(1, gain)], expansions, 600.0, is_exhausted)


def test_a_search_that_the_clock_ended_is_said_so_and_equal_widths_are_no_order() -> None:
    found = {
        (name, who, seed): _search(120)
        for name in ("toy_bert", "resnet18")
        for who in search_curve.CONTENDERS
        for seed in (1, 2)
    }
    told = "\n".join(search_curve._words(found, ["toy_bert", "resnet18"], range(1, 3), 50_000))
    assert "The clock ended the search on BERT (TASO's toy), ResNet-18" in told
    assert "These steps ended" not in told
    assert "widest interval" not in told
    assert not _search(120).is_cut(120)
    assert not _search(3, is_exhausted=True).is_cut(120)


def test_a_plan_without_steps_has_no_time_of_a_step() -> None:
    assert math.isnan(applied._mean([math.nan]))
    assert applied._mean([math.nan, 2.0]) == 2.0
    assert "no steps" in applied._of_steps("BERT", {"environment_wm": math.nan})
    told = applied._of_steps("BERT", {"environment_wm": 0.25, "real_wm": 1.0, "imagined": 0.5})
    assert "75 % of a real step" in told
    assert "0.5 times an imagined step" in told


def test_an_alpha_is_called_best_only_where_seeds_can_tell() -> None:
    assert "All alphas save the same" in rewards._of_grid(0.3, 0.0, "no")
    assert "one seed has no intervals" in rewards._of_grid(0.3, 2.0, "no")
    assert "cannot be told from chance" in rewards._of_grid(0.3, 2.0, "no more than their")
    assert rewards._of_grid(0.3, 2.0, "more than their").endswith("more than their intervals.")


def test_rewards_that_teach_nothing_are_said_so() -> None:
    assert rewards._learnt({"R1": [12.0], "R2": [11.0]}, random=2.0, greedy=10.0) == []
    assert "nothing was learnt beyond" in rewards._learnt({"R1": [10.0]}, random=2.0, greedy=10.0)[0]
    assert "Random play is better" in rewards._learnt({"R1": [1.0]}, random=2.0, greedy=10.0)[0]


def test_samplers_on_graphs_are_ranked_only_beyond_chance() -> None:
    apart = {name: first for name, (first, _) in _around(
        random=1.0, latin_hypercube=1.0, uncertainty=1.0, heterogeneous=2.0
    ).items()}  # fmt: skip
    told = graph_samplers._words(apart, 10)
    assert told[0].startswith("- Order by what was learned, best first: heterogeneous")
    assert told[-1].endswith("agrees.")
    rng = np.random.default_rng(0)
    alike = {name: rng.permutation([1.0, 2.0, 3.0, 4.0, 5.0]) for name in apart}
    told = graph_samplers._words(alike, 5)
    assert "of no pair" in told[1]
    assert told[-1].endswith("is not confirmed on graphs.")
    assert "One seed tells nothing" in graph_samplers._words(alike, 1)[-1]


def _times(title: str, ms: float, own_hash: str, predicted_us: float) -> Times:
    calls = [ms * (1 + 0.001 * (number % 3)) for number in range(9)]
    return Times(title, own_hash, {"time_us": predicted_us, "flops": 1.0}, 1, calls, calls)


def test_plans_are_called_faster_or_slower_beyond_the_interval_only() -> None:
    greedy, taso, rules = latencies.FORMS[1:]
    forms = [
        _times(AS_WRITTEN, 20.0, AS_WRITTEN, 100.0),
        _times(UNOPTIMISED, 10.0, "a", 100.0),
        _times(greedy.title, 8.0, "b", 80.0),
        _times(taso.title, 12.0, "c", 90.0),
        _times(rules.title, 10.0, "a", 100.0),  # the same graph is no comparison
    ]
    told = "\n".join(latencies._words({("resnet18", "eager"): Measured(forms)}))
    assert "Each of 2 intervals" in told
    assert (
        "Faster than unoptimised beyond the interval: ResNet-18 in eager (greedy, our library, 1.25)." in told
    )
    assert "Slower beyond the interval: ResNet-18 in eager (TASO's search, our library, 0.83)." in told
    assert "Of 2 predictions 1 lie within" in told
    assert "ResNet-18 2.00" in told
