"""The agent without composites against greedy search with them: training/scores/composites.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from baselines.shared.tables import Results
from training.scores import composites


def written(path: Path, *rows: tuple[str, str, str, int, float]) -> Path:
    """Rows of limit, graph, searcher, seed and cost."""
    results = Results("search", path)
    for limit, graph, searcher, seed, cost_ms in rows:
        results.add(graph, searcher, "cost", cost_ms, "ms", setting=limit, round=seed)
    results.save()
    return path


def test_each_graph_is_compared_by_the_mean_of_its_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without = written(
        tmp_path / "without.csv",
        ("0.3 s", "a", "agent", 0, 2.0),
        ("0.3 s", "a", "agent", 1, 8.0),
        ("0.3 s", "a", "greedy", 0, 1.0),
        ("100 steps", "a", "agent", 0, 50.0),
        ("0.3 s", "b", "agent", 0, 3.0),
        ("0.3 s", "c", "agent", 0, 1.0),
    )
    with_them = written(
        tmp_path / "with.csv",
        ("0.3 s", "a", "greedy", 0, 2.0),
        ("0.3 s", "b", "greedy", 0, 3.0000001),
        ("0.3 s", "c", "greedy", 0, 2.0),
        ("0.3 s", "a", "agent", 0, 9.0),
    )
    composites.main(without, with_them, "agent", "greedy", "0.3 s")
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["a: 2.0000", "c: 0.5000"]
    assert "no worse than greedy with them on 2 of 3 graphs, better on 1; geometric mean 1.0000" in said[-1]


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    one = written(tmp_path / "one.csv", ("0.3 s", "a", "agent", 0, 2.0))
    other = written(tmp_path / "other.csv", ("0.3 s", "b", "greedy", 0, 2.0))
    with pytest.raises(typer.BadParameter, match="other graphs"):
        composites.main(one, other, "agent", "greedy", "0.3 s")
    with pytest.raises(typer.BadParameter, match="nothing of agent within 1 s"):
        composites.main(one, other, "agent", "greedy", "1 s")
