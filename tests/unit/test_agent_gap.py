"""Agents and searchers at equal time and steps: baselines/agent_gap.py."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="the comparison's command line needs typer")
pytest.importorskip("transformers", reason="the suite's transformers come from the transformers package")

import typer
from typer.testing import CliRunner

from baselines.agent_gap import AGENTS, CORE, main, wall_times
from baselines.shared import controls
from baselines.shared.agent_tables import (
    CSV_COLUMNS,
    TASO,
    TASO_STEPS,
    Kind,
    Result,
    Settings,
    against,
    gaps,
    read_csv,
    render,
    verdicts,
    write_csv,
)
from baselines.shared.controls import RANDOM_NETWORK
from baselines.shared.curves import BEST_KNOWN, Point
from torchrlopt.agent import catalogue
from torchrlopt.options import Options

SETTINGS = Settings(seconds=(0.1,), seeds=2)
STEPS = SETTINGS.steps


def results(agent: float, control: tuple[float, float]) -> list[Result]:
    """Two models, one agent and its control with two seeds; every limit alike."""
    found = []
    for model, best in (("a", 10.0), ("b", 20.0)):
        for limit in ("0.1 s", *(f"{steps} steps" for steps in STEPS)):
            found.append(Result(limit, Point(model, "agent", 0, 5, 0.1, agent * best)))
            for seed, factor in enumerate(control):
                found.append(Result(limit, Point(model, RANDOM_NETWORK, seed, 5, 0.1, factor * best)))
            found.append(Result(limit, Point(model, "greedy", 0, 5, 0.1, 1.3 * best)))
            found.append(Result(limit, Point(model, "chains", 0, 7, 0.1, 1.3 * best)))
        found.append(
            Result(f"{TASO_STEPS} steps", Point(model, TASO, 0, 5, 1.0, best if model == "a" else 30.0))
        )
        found.append(Result("", Point(model, "best_known", 0, 5, 1.0, best)))
    return found


def test_gaps_are_means_over_models_and_seeds_with_their_interval() -> None:
    found = gaps(results(1.1, (1.2, 1.4)))
    assert found["0.1 s", "agent"].mean == pytest.approx(0.1)
    assert found["0.1 s", "agent"].interval == 0.0
    control = found["0.1 s", RANDOM_NETWORK]
    assert control.mean == pytest.approx(0.3)
    # Two seeds: t of one degree of freedom times the standard error.
    assert control.interval == pytest.approx(12.7062 * 0.2 / math.sqrt(2) / math.sqrt(2), rel=1e-4)
    assert control.by_model == pytest.approx({"a": 0.3, "b": 0.3})


def test_rivals_are_compared_by_structure_with_corrected_p_values() -> None:
    found = gaps(results(1.1, (1.2, 1.4)))
    pairs = against(found, "0.1 s")
    assert list(pairs) == [RANDOM_NETWORK, "greedy", "chains"]
    assert pairs["greedy"].ratio == pytest.approx(1.1 / 1.3)
    assert (pairs["greedy"].better, pairs["greedy"].structures) == (2, 2)
    assert pairs["greedy"].p == 1.0, "two structures show nothing, least of all in three comparisons"
    alike = {name: Kind("same", frozenset({"block"})) for name in ("a", "b")}
    assert against(found, "0.1 s", alike)["greedy"].structures == 1


def test_tables_say_what_each_really_expanded() -> None:
    found = gaps(results(1.1, (1.2, 1.4)))
    assert (found["0.1 s", "chains"].steps, found["0.1 s", "greedy"].steps) == (7, 5)
    kinds = {"a": Kind("x", frozenset({"one"})), "b": Kind("y", frozenset({"one", "two"}))}
    shown = [each for each in results(1.1, (1.2, 1.4)) if each.point.searcher not in (TASO, BEST_KNOWN)]
    titles = [str(table.title) for table in render(shown, SETTINGS, kinds)]
    assert len(titles) == 4
    assert "2 structures" in titles[1]
    assert "by family" in titles[2]


def test_a_file_keeps_all_results(tmp_path: Path) -> None:
    given = results(1.1, (1.2, 1.4))
    write_csv(given, tmp_path / "agent.csv")
    assert read_csv(tmp_path / "agent.csv") == given


def test_the_verdict_names_greedy_and_the_long_search() -> None:
    *_, last = verdicts(results(1.1, (1.2, 1.4)), SETTINGS)
    assert last.endswith("steps (on average 5) on 1 of 2 models")  # 20 * 1.1 is less than 30
    assert not any("greedy" in line for line in verdicts(results(1.3, (1.2, 1.4)), SETTINGS))
    lines = list(verdicts(results(1.4, (1.2, 1.4)), SETTINGS))
    for rival in ("greedy", "chains"):
        told = [line for line in lines if f"{rival} is cheaper than the agent on 2 models" in line]
        assert len(told) == len(STEPS) + 1


@pytest.mark.slow
def test_the_command_compares_everything_that_is_there(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(main)
    file, plot = tmp_path / "agent.csv", tmp_path / "agent.png"
    arguments = ["--models", "ensemble_mlp", "--seconds", "0.05,0.1", "--seeds", "2"]
    result = CliRunner().invoke(
        app, [*arguments, "--best-known-s", "0.5", "--csv", str(file), "--plot", str(plot)]
    )
    assert result.exit_code == 0, result.output
    with file.open(newline="") as rows:
        table = list(csv.DictReader(rows))
    assert tuple(table[0]) == CSV_COLUMNS
    there = {name for name in AGENTS if catalogue.path_of(Options.from_dict({"searcher": name})).exists()}
    assert {row["searcher"] for row in table} == {*CORE, *controls.NAMES, *there, "best_known"}
    assert {row["seed"] for row in table if row["searcher"] == RANDOM_NETWORK} == {"0", "1"}
    costs = {row["searcher"]: float(row["cost_ms"]) for row in table}
    assert costs["best_known"] <= costs["greedy"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "The agent against each rival" in result.output


def test_wall_times_are_sorted_numbers() -> None:
    assert wall_times("1,0.3") == (0.3, 1.0)
    for bad in ("soon", "0.3,", "0", "nan"):
        with pytest.raises(typer.BadParameter, match="expected seconds separated by commas"):
            wall_times(bad)
