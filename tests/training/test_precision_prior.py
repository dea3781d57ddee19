"""Priors for the error of roundings, and their comparison: training/precision_prior.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("torch_geometric", reason="priors need the extra train")

import typer
from typer.testing import CliRunner

from baselines.shared.gap_closed import table_of
from baselines.shared.tables import of, read
from training import precision_prior
from training.precision.graphs import HELD_OUT, LEARNT, Table
from training.precision.priors import Learned, Prior, by_operator, ridge


def made(seed: int) -> Table:
    """A chain of calls of two operators; what a rounding adds depends on the call two places before."""
    draw = np.random.default_rng(seed)
    count = 40
    features = draw.normal(size=(count, 3)).astype(np.float32)
    edges = np.stack([np.arange(count - 1), np.arange(1, count)])
    logs = 2.0 * np.roll(features[:, 0], 2).astype(np.float32)
    parts = [("result", f"c{number}", f"c{number}") for number in range(count)]
    places = np.stack([np.arange(count)] * 2, 1)
    return Table([draw.choice(["mm", "add"]) for _ in range(count)], features, edges, parts, places, logs)


def correlation(prior: Prior, table: Table) -> float:
    return float(np.corrcoef(prior(table), table.logs)[0, 1])


def test_a_network_learns_from_neighbours_what_features_of_a_call_do_not_say() -> None:
    tables, new = [made(seed) for seed in range(20)], made(100)
    assert correlation(Learned(tables, seed=0, epochs=30), new) > 0.8
    assert abs(correlation(ridge(tables), new)) < 0.5
    assert abs(correlation(by_operator(tables), new)) < 0.5


def test_families_that_are_compared_are_not_learned() -> None:
    assert len(set(LEARNT)) == 30
    assert len(set(HELD_OUT)) == 10
    assert not set(LEARNT) & set(HELD_OUT)


def test_the_gap_is_closed_by_what_is_as_fast_as_measured() -> None:
    shares = {"constant": (0.9, 0.8), "measured": (0.6, 0.5), "half": (0.9, 0.5), "same": (0.6, 0.5)}
    rows = [
        {"peer": way, "model": model, "setting": "budget=0.01", "metric": "time", "value": value, "round": 0}
        for way, values in shares.items()
        for model, value in zip("ab", values, strict=True)
    ]
    rows.append(rows[0] | {"metric": "runs", "value": 2.0})
    table = table_of(pd.DataFrame(rows)).set_index("by")["gap closed"]
    assert table["same"] == "1.00 (1.00 to 1.00)"
    assert table["half"].startswith("0.54 (0.00 to 1.00")
    assert table["constant"] == table["measured"] == ""


@pytest.mark.nightly
def test_the_command_compares_all_ways_and_continues(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(precision_prior.main)
    file = tmp_path / "prior.csv"
    arguments = ["--folder", str(tmp_path), "--seeds", "1", "--epochs", "2", "--csv", str(file)]
    arguments += ["--learnt", "bert_tiny_128,gated_experts", "--held-out", "temporal_convs"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    times = of(read(file), metric="time")
    ways = {"measured", "constant", "operator", "ridge", "network", "uniform", "random", "shuffled"}
    assert ways <= set(times.peer)
    assert times.value.between(0.4, 1.0).all()
    before = file.read_bytes()
    assert CliRunner().invoke(app, [*arguments, "--resume"]).exit_code == 0
    assert len(read(file)) == before.count(b"\n") - 1
