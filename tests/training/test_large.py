"""The comparison on large graphs: its output, and its table."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from training.scores import large


def found(number: int, searcher: str, cost_ms: float) -> large.Found:
    return large.Found(100, number, "image x1", 104, searcher, 0.5, 0.4, 2.0, cost_ms, 12)


def test_each_searcher_is_compared_with_chains_on_the_same_graphs() -> None:
    results = [found(number, "chains", 1.0) for number in range(6)]
    results += [found(number, "parts", 0.9 if number < 5 else 1.0) for number in range(6)]
    results += [found(number, "greedy", 1.0) for number in range(6)]
    head, _, parts, greedy = large.table_of(results)
    assert head.startswith("| operators | seconds | searcher | of the cost of chains |")
    assert parts.startswith("| 100 | 0.5 | parts | 0.9159 |")
    assert "| 5, 0 |" in parts
    assert greedy == "| 100 | 0.5 | greedy | 1.0000 | 1.0000 to 1.0000 | 0, 0 | 1 |"


def test_the_command_searches_every_graph_by_every_searcher(tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    arguments = ["--operators", "40,90", "--seconds", "0.05,0.1", "--graphs", "2", "--csv", str(path)]
    app = large.typer.Typer()
    app.command()(large.main)
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 0, answer.output
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * (1 + len(large.SEARCHERS))
    assert {row["kind"].split()[1] for row in rows} == {"x1", "x8"}
    for row in rows:
        assert int(row["size"]) >= int(row["operators"])
        assert float(row["cost_ms"]) <= float(row["before_ms"])
    assert answer.output.count("| parts |") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--operators", "10,20", "--seconds", "1"], "2 sizes need as many times, got 1"),
        (["--operators", "ten"], "ten"),
        (["--csv", "nowhere/large.csv"], "no folder"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: list[str], message: str) -> None:
    app = large.typer.Typer()
    app.command()(large.main)
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 2
    assert message in answer.output
