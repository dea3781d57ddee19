"""What each searcher finds on the suite: baselines/search_gap.py."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="the comparison's command line needs typer")
pytest.importorskip("transformers", reason="the suite's transformers come from the transformers package")

import typer
from typer.testing import CliRunner

from baselines.search_gap import gaps, main, verdict
from baselines.shared.curves import CSV_COLUMNS, SEARCHERS, Point


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
def test_the_command_writes_curves(tmp_path: Path, arguments: list[str]) -> None:
    file, plot = tmp_path / "search.csv", tmp_path / "search.png"
    app = typer.Typer()
    app.command()(main)
    command = ["--models", "ensemble_mlp", "--search-s", "0.3", "--best-known-s", "0.6", *arguments]
    result = CliRunner().invoke(app, [*command, "--csv", str(file), "--plot", str(plot)])
    assert result.exit_code == 0, result.output
    assert "above the best known plan" in result.output
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert {row["searcher"] for row in rows} == set(SEARCHERS)
    for searcher in SEARCHERS:
        costs = [float(row["cost_ms"]) for row in rows if row["searcher"] == searcher and row["seed"] == "0"]
        assert costs == sorted(costs, reverse=True)
    assert plot.read_bytes().startswith(b"\x89PNG")
