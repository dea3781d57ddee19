"""`torchrlopt bench`: torchrlopt/api/bench/ and torchrlopt/api/cli/bench.py."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.api.command import run
from tests.e2e.models import RUNTIMES
from tests.onnx.onnx_text import proto_of
from torchrlopt.api.bench import contestants, rounds
from torchrlopt.api.bench.process import WorkerError
from torchrlopt.api.bench.rounds import Row, Settings
from torchrlopt.api.cli import bench
from torchrlopt.errors import OptionsError

MODEL = "tests.api.test_cli_optimise:branches"
SHORT = ("--rounds", "2", "--seconds", "0", "--threads", "1")


@pytest.mark.nightly
def test_a_model_in_everything_that_is_installed(tmp_path: Path) -> None:
    table, plot = tmp_path / "times.csv", tmp_path / "times.png"
    names = ["eager", *RUNTIMES, "torchrlopt", "torchrlopt/frozen"]
    outputs = ("--csv", str(table), "--plot", str(plot), "--json")
    status, printed, error = run("bench", MODEL, "--in", ",".join(names[1:]), *SHORT, *outputs)
    assert status == 0, error
    found = json.loads(printed)
    assert [row["name"] for row in found["rows"]] == names
    assert found["is_whole"]
    for row in found["rows"]:
        assert 0 < row["min_ms"] <= row["median_ms"]
        assert row["spread"] >= 0
        assert row["first_call_s"] > 0
        assert row["difference"] < 1e-4
        assert row["reason"] == ""
    assert found["rows"][0]["speedup"] == 1
    assert found["rows"][-1]["kept"] in ("eager", "original")
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == names
    assert float(rows[0]["median_ms"]) == found["rows"][0]["median_ms"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "median ms" in bench.render(MODEL, [Row(**row) for row in found["rows"]], Settings())


def test_a_file_with_a_contestant_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(proto_of("g (float[2] x) => (float[2] y) { y = Relu(x) }").SerializeToString())
    plain = rounds.Worker.ask

    def ask(self: Any, do: str, **arguments: Any) -> Any:
        if "torchrlopt" in self._process.args and do == "time":
            raise WorkerError("no such luck")
        return plain(self, do, **arguments)

    monkeypatch.setattr(rounds.Worker, "ask", ask)
    given = ("bench", str(path), "--in", "torchrlopt", *SHORT)
    status, printed, _ = run(*given)
    assert status == 1
    assert "torchrlopt: no such luck" in printed


def test_ctrl_c_shows_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, asked = rounds.Worker.ask, []

    def ask(self: Any, do: str, **arguments: Any) -> Any:
        asked.append(do)
        if asked.count("time") == 2:
            raise KeyboardInterrupt
        return plain(self, do, **arguments)

    monkeypatch.setattr(rounds.Worker, "ask", ask)
    status, printed, _ = run("bench", MODEL, "--in", "eager", *SHORT, "--json")
    assert status == 130
    found = json.loads(printed)
    assert not found["is_whole"]
    assert found["rows"][0]["median_ms"] > 0


def test_what_cannot_be_timed_is_refused_before_anything_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: Any) -> Any:
        raise AssertionError("measured")

    monkeypatch.setattr(bench, "measure", measure)
    plain = importlib.util.find_spec
    for arguments, message in (
        (("--in", "eagre"), "'eagre' cannot be timed here"),
        (("--plot", str(tmp_path / "plot.doc")), "no such kind of plot"),
    ):
        status, _, error = run("bench", MODEL, *arguments)
        assert (status, message in error) == (2, True), error
    missing = ("matplotlib", "openvino")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else plain(name))
    with pytest.raises(OptionsError, match="pip install matplotlib"):
        bench.check_plot(tmp_path / "plot.png")
    assert "openvino" not in bench.chosen("all")
    with pytest.raises(OptionsError, match="not installed"):
        bench.chosen("openvino")


def test_a_budget_reaches_torchrlopt_only(tmp_path: Path) -> None:
    status, _, error = run("bench", MODEL, "--max-error", "-1", *SHORT)
    assert status == 2
    assert "max_error" in error
    model = contestants.Model(torch.nn.ReLU().eval(), (torch.ones(8),))
    contestants.make("eager", model, tmp_path, {"max_error": -1.0})
    with pytest.raises(OptionsError, match="max_error"):
        contestants.make("torchrlopt", model, tmp_path, {"max_error": -1.0})
