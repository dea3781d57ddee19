"""The value of networks: training/scores/networks.py."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from torchrlopt.agent import catalogue
from torchrlopt.agent.checkpoint import Agent, load
from torchrlopt.machine.cost import cost_model
from torchrlopt.substitutions import load_library
from training.scores import networks
from training.scores.evaluate import held_out_graph

APP = typer.Typer()
APP.command()(networks.main)


@pytest.mark.nightly
def test_rows_and_files_stand_beside_their_controls() -> None:
    file = str(catalogue.FOLDER / "mf.safetensors")
    given = ["plan", file, "--graphs", "1", "--steps", "20,40"]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(APP, given)
    assert result.exit_code == 0, result.output
    rows = [line.split("│")[1:-1] for line in result.output.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == ["plan", file, "random", "none"]
    assert [row[1].strip() == "" for row in rows] == [False, False, False, True]
    costs = [float(cell) for row in rows for cell in row[2:]]
    assert len(costs) == 8
    assert max(costs) < 100


@pytest.mark.nightly
def test_what_is_printed_is_above_the_reference() -> None:
    graph, library, cost = held_out_graph(0).graph, load_library(), cost_model("eager", threads=1)
    best = networks._reference_us(graph, library, cost)
    assert networks._above([best, 2 * best], [best, best]) == "41.42"
    agent: Agent = load(catalogue.FOLDER / "plan.safetensors", library)
    first = float(cost.total(graph)["time_us"])
    assert best <= networks._searched_us(agent, graph, library, cost, 200) < first
    assert best <= networks._alone_us(agent, graph, library, cost) <= first


@pytest.mark.parametrize(
    ("name", "message"), [("wm", "plays in a world model"), ("no/such.safetensors", "no/such")]
)
def test_other_agents_are_refused(name: str, message: str) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(APP, [name, "--graphs", "1"])
    assert result.exit_code == 2
    assert message in result.output
