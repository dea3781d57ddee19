"""The dissertation's experiments that need no agent: training/experiments/dissertation/."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.e2e.reproduced import check_section
from torchrlopt import _C
from training.experiments.command import main
from training.experiments.dissertation.measured_run import AS_WRITTEN, UNOPTIMISED
from training.experiments.dissertation.properties import properties_of
from training.experiments.dissertation.search_run import Found, prices
from training.experiments.intervals import half_width, median_interval

APP = typer.Typer(add_completion=False)
APP.command()(main)
ROUNDING = 1e-12


def reproduce(out: Path, *names: str) -> str:
    result = CliRunner().invoke(APP, [*names, "--share", "0.001", "--seeds", "2", "--out", str(out)])
    assert result.exit_code == 0, result.output
    return (out / "REPORT.md").read_text(encoding="utf-8")


def rows_of(out: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((out / f"{name}.csv").open(encoding="utf-8")))


def test_searches_are_reproduced_and_the_rest_of_the_report_stays(tmp_path: Path) -> None:
    (tmp_path / "REPORT.md").write_text(
        "# The papers' experiments\n\n## table6.2: Samplers\n\nOld.\n", encoding="utf-8"
    )
    report = reproduce(tmp_path, "table4.1", "fig4.2")
    assert (
        report.index("## table4.1:")
        < report.index("## fig4.2:")
        < report.index("## table6.2: Samplers\n\nOld.")
    )
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*.json")}
    assert reproduce(tmp_path, "fig4.2") == report
    assert all(path.stat().st_mtime_ns == when for path, when in made.items()), "no run is made twice"
    (properties,) = rows_of(tmp_path, "table4.1")
    assert properties["graph"] == "toy_bert"
    assert int(properties["layers"]) == 48
    assert int(properties["taso_places"]) > 0
    curves: dict[tuple[str, ...], list[float]] = {}
    for row in rows_of(tmp_path, "fig4.2"):
        key = tuple(row[name] for name in ("graph", "searcher", "alpha", "rules", "seed"))
        curves.setdefault(key, []).append(float(row["gain"]))
    assert len(curves) == 6 * 2
    for (*_, seed), gains in curves.items():
        assert max(gains) < 1
        if seed == "0":  # others search by disturbed prices, and are scored by these
            assert all(later >= gain - ROUNDING for gain, later in pairwise([0.0, *gains]))
    for name in ("table4.1", "fig4.2"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_latencies_are_measured_in_turns(tmp_path: Path) -> None:
    report = reproduce(tmp_path, "fig4.1", "table4.2", "fig4.5")
    for name in ("fig4.1", "table4.2", "fig4.5"):
        check_section(name, tmp_path, report)
    rows = rows_of(tmp_path, "fig4.1")
    assert {row["executor"] for row in rows} == {"eager", "onnxruntime"}
    assert {AS_WRITTEN, UNOPTIMISED} < {row["form"] for row in rows}
    for row in rows:
        assert row["reason"] == ""
        assert 0 < float(row["cpu_least_ms"]) <= float(row["cpu_median_ms"])
        assert float(row["wall_least_ms"]) <= float(row["wall_median_ms"])
    predicted = {(row["executor"], row["form"]): float(row["predicted_ms"]) for row in rows}
    for (executor, form), cost in predicted.items():
        assert cost <= predicted[executor, UNOPTIMISED], form
    before, after = rows_of(tmp_path, "table4.2")
    assert float(before["call_mb"]) > 0
    assert float(after["cpu_median_ms"]) > 0
    variants = rows_of(tmp_path, "fig4.5")
    assert len(variants) > 5
    assert all(float(row["measured ms"]) > 0 for row in variants)
    assert "Kendall's tau" in report
    peers = {row["peer"]: row for row in rows_of(tmp_path, "fig4.1_peers")}
    assert {"eager", "onnxruntime", "torchrlopt"} <= set(peers)
    for peer, row in peers.items():
        assert row["reason"] == "", peer
        assert float(row["ratio_q1"]) <= float(row["ratio"]) <= float(row["ratio_q3"])
        assert peer != "eager" or float(row["ratio"]) == 1
    assert ("Not installed here: TensorFlow" in report) == ("tensorflow" not in peers)
    assert len(list((tmp_path / "runs").glob("measured-*.json"))) == 3, (
        "table 4.2 reads the runs of figure 4.1"
    )


def test_prices_of_other_seeds_are_disturbed() -> None:
    graph = _C.parse_graph("graph (x: f32[8,8]) {\n  y = Relu(x)\n  return y\n}")
    costs = [prices("eager", seed).total(graph)["time_us"] for seed in (0, 1, 2, 1)]
    assert len(set(costs)) == 3
    assert costs[1] == costs[3]
    assert max(costs) < 1.3 * costs[0]


def test_gains_are_those_of_the_best_so_far() -> None:
    progress = [(0, 0.0, 100.0), (3, 0.1, 80.0), (9, 0.2, 50.0), (20, 0.3, 50.0)]
    found = Found(progress, [(3, 0.2), (10, 0.5), (20, 0.5)], 20, 0.3, True)
    assert [found.gain_at(at) for at in (0, 2, 3, 9, 10, 99)] == pytest.approx([0, 0, 0.2, 0.2, 0.5, 0.5])
    assert found.found_at == 9
    assert found.gain == pytest.approx(0.5)


def test_properties_of_a_small_graph() -> None:
    graph = _C.parse_graph(
        "graph (x: f32[4,8], %v: f32[8,8], %w: f32[8,8]) {\n"
        "  a = MatMul(x, %v)\n  b = MatMul(x, %w)\n  y = Add(a, b)\n  return y\n}"
    )
    found = properties_of(graph)
    assert (found.operators, found.edges, found.layers, found.unique_layers, found.depth) == (3, 2, 2, 1, 2)
    assert found.places > 0


def test_intervals() -> None:
    assert half_width([1.0]) == 0
    middle, low, high = median_interval([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (middle, low, high) == (3.0, 1.0, 100.0)
