"""The modes `--search` and `--env` of the comparison."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="the comparison's command line needs typer")
pytest.importorskip("transformers", reason="the suite's transformers come from the transformers package")

from typer.testing import CliRunner

from baselines import env_speed, search_gap
from baselines.compare import compare
from baselines.graphs import chain
from baselines.search_gap import Point, gaps, verdict


def points() -> list[Point]:
    return [
        Point("a", "greedy", 0, 0, 0.0, 10.0),
        Point("a", "greedy", 0, 3, 0.1, 8.0),
        Point("a", "annealing", 0, 9, 0.1, 6.0),
        Point("a", "annealing", 1, 9, 0.1, 4.0),
        Point("b", "greedy", 0, 0, 0.0, 5.0),
        Point("b", "annealing", 0, 2, 0.1, 5.01),
    ]


def test_gap_is_to_the_best_of_all_and_seeds_count_by_their_mean() -> None:
    assert gaps(points())["a"] == pytest.approx({"greedy": 1.0, "annealing": 0.25})
    assert gaps(points())["b"] == pytest.approx({"greedy": 0.0, "annealing": 0.002})


def test_verdict_is_plain() -> None:
    assert verdict(points()) == (
        "greedy is within 0.5 % of best known on 1 of 2 models; left to win: a 100.0 %."
    )
    assert verdict(points()[4:]).endswith("1 of 1 models: there is nothing to plan for.")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["--primitives-only"]])
def test_search_mode_writes_curves(tmp_path: Path, arguments: list[str]) -> None:
    file, plot = tmp_path / "search.csv", tmp_path / "search.png"
    command = [
        "--search",
        "--models",
        "ensemble_mlp",
        "--search-s",
        "0.3",
        "--best-known-s",
        "0.6",
        *arguments,
    ]
    result = CliRunner().invoke(_app(), [*command, "--csv", str(file), "--plot", str(plot)])
    assert result.exit_code == 0, result.output
    assert "above the best known plan" in result.output
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert tuple(rows[0]) == search_gap.CSV_COLUMNS
    assert {row["searcher"] for row in rows} == set(search_gap.SEARCHERS)
    for searcher in search_gap.SEARCHERS:
        costs = [float(row["cost_ms"]) for row in rows if row["searcher"] == searcher and row["seed"] == "0"]
        assert costs == sorted(costs, reverse=True)
    assert plot.stat().st_size > 0


@pytest.mark.slow
def test_env_mode_times_steps_and_first_match(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_speed, "CHAINS", (100, 200))
    file = tmp_path / "env.csv"
    result = CliRunner().invoke(_app(), ["--env", "--models", "ensemble_mlp", "--csv", str(file)])
    assert result.exit_code == 0, result.output
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert tuple(rows[0]) == env_speed.CSV_COLUMNS
    assert {row["metric"] for row in rows} == {"step", "first_match"}
    assert {row["model"] for row in rows} == {"ensemble_mlp", "chain_100", "chain_200"}
    assert all(float(row["us"]) > 0 for row in rows)


def test_a_chain_is_as_long_as_asked() -> None:
    graph = chain(37)
    graph.check()
    assert graph.num_operators == 37


def _app() -> object:
    import typer

    app = typer.Typer()
    app.command()(compare)
    return app
