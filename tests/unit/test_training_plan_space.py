"""Whether further substitutions are worth having: training/plan_space/."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from torchrlopt import _C
from torchrlopt.substitutions import load_library
from training.device.prices import cost_of, typical_prices
from training.plan_space import instances
from training.plan_space.__main__ import COLUMNS, main
from training.plan_space.search import LEAST_SHARE, Found, ask, decisions, is_admitted

COST = cost_of(typical_prices("eager"))
APP = typer.Typer(add_completion=False)
APP.command()(main)


def test_a_decision_that_pays_is_found_to_pay() -> None:
    """Where the library has no merges, those of two siblings save what they save."""
    graph = _C.parse_graph(
        "graph (x: f32[8,256], %a: f32[256,256], %b: f32[256,256]) {\n"
        "  p = MatMul(x, %a)\n  q = MatMul(x, %b)\n  y = Relu(p)\n  z = Tanh(q)\n  return y, z\n}"
    )
    poor = "# family: clean\n" + load_library().text("remove_transpose") + "\n"
    libraries = {"": _C.Library(poor), "subsets": _C.Library(poor + decisions()["subsets"])}
    (found,) = ask("matmuls", "two", graph, libraries, COST, 0.1)
    assert found.steps == 1
    assert found.is_won
    assert found.with_us < found.best_us == found.chains_us == found.first_us
    everything = load_library()
    known = {"": everything, "subsets": _C.Library(_text(everything) + decisions()["subsets"])}
    (known_found,) = ask("matmuls", "two", graph, known, COST, 0.1)
    assert not known_found.is_won, "the library merges all siblings already"


def _text(library: _C.Library) -> str:
    return "".join(f"# family: {library.family(name)}\n{library.text(name)}\n" for name in library.names)


@pytest.mark.parametrize("name", sorted(decisions()))
def test_decisions_are_proved_or_tested_and_no_part_of_the_library(name: str) -> None:
    library = _C.Library(decisions()[name])
    assert {library.family(each) for each in library.names} == {name}
    assert not set(library.names) & set(load_library(with_generated=True).names)
    assert decisions()[name].count("\nproof ") == decisions()[name].count("\nsubstitution ")
    assert "proof assumed" not in decisions()[name]


def found_of(gain: float) -> Found:
    return Found("d", "f", "g", 100.0, 60.0, 50.0, 50.0 * (1 - gain), 1)


def test_a_fifth_of_the_graphs_admits() -> None:
    assert LEAST_SHARE == 0.2
    assert not is_admitted([found_of(0.03)] + [found_of(0.0)] * 5)
    assert is_admitted([found_of(0.03)] + [found_of(0.0)] * 4)
    assert not is_admitted([found_of(0.019)] * 5)


@pytest.mark.parametrize("family", ["gated_mlp", "relations", "separable_cell"])
def test_graphs_of_a_family_differ_and_are_the_same_each_time(family: str) -> None:
    graphs = dict(instances.blocks(family, 3))
    assert len(graphs) == len({graph.text() for graph in graphs.values()}) == 3
    assert [graph.text() for graph in graphs.values()] == [g.text() for _, g in instances.blocks(family, 3)]


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "found.csv"
    given = ["--families", "gated_mlp", "--models", "toy_bert", "--graphs", "2", "--seconds", "0.05"]
    told = CliRunner().invoke(APP, [*given, "--csv", str(path)])
    assert told.exit_code == 0, told.output
    assert "of no family" in " ".join(told.output.split())
    rows = list(csv.DictReader(path.open(encoding="utf-8")))
    assert tuple(rows[0]) == COLUMNS
    assert [row["family"] for row in rows] == ["gated_mlp"] * 4 + ["models"] * 2
    assert all(float(row["with_us"]) <= float(row["first_us"]) for row in rows)
    assert CliRunner().invoke(APP, ["--families", "gated_mpl"]).exit_code == 2
