"""The comparison: its statistics and files on made-up rows, its processes on real peers."""

from __future__ import annotations

import csv
import dataclasses
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer", reason="the comparison's command line needs typer")
pytest.importorskip("transformers", reason="the suite's transformers come from the transformers package")

import typer
from rich.console import Console

from baselines.compare import choose
from baselines.measure import (
    PeerError,
    Row,
    Settings,
    WorkerProcess,
    error_limit,
    measure_model,
    relative_error,
)
from baselines.peers import PEERS, Case, make_peer
from baselines.table import (
    CSV_COLUMNS,
    failures,
    geometric_mean,
    markdown,
    ratios_by_peer,
    render,
    write_csv,
    write_plot,
)
from baselines.worker import time_round

ROOT = Path(__file__).resolve().parents[2]


def case(peer: str, model: str = "ensemble_mlp") -> Case:
    return Case(model, peer, batch=1, dtype="float32", threads=1)


def row(peer: str, ratio: float | None, model: str = "ensemble_mlp", reason: str = "") -> Row:
    if ratio is None:
        return Row(case(peer, model), reason=reason)
    return Row(
        case(peer, model),
        median_ms=8 / ratio,
        q1_ms=7 / ratio,
        q3_ms=9 / ratio,
        ratio=ratio,
        ratio_q1=ratio - 0.1,
        ratio_q3=ratio + 0.1,
        peak_mb=300.0,
        first_call_s=1.5,
        max_error=1e-7,
        eager_error=1e-7,
        reason=reason,
    )


ROWS = [
    row("eager", 1.0, "nasrnn"),
    row("inductor", 2.0, "nasrnn"),
    row("torchrlopt", 4.0, "nasrnn"),
    row("eager", 1.0),
    row("inductor", 8.0),
    row("onnxruntime", None, reason="RuntimeError: no such operator"),
    row("torchrlopt", 9.0, reason="wrong result: error 1.0e+00"),
]


def test_choose_keeps_order_and_drops_repeats() -> None:
    assert choose("inductor, eager,inductor", PEERS, "peer") == ["inductor", "eager"]
    assert choose("all", PEERS, "peer") == list(PEERS)


def test_choose_names_the_nearest() -> None:
    with pytest.raises(typer.BadParameter, match="no peer named 'inductr'; did you mean 'inductor'"):
        choose("eager,inductr", PEERS, "peer")
    with pytest.raises(typer.BadParameter, match="no peer given"):
        choose(" , ", PEERS, "peer")


def test_geometric_mean() -> None:
    assert math.isclose(geometric_mean([1.0, 4.0]), 2.0)
    with pytest.raises(ValueError, match="positive"):
        geometric_mean([1.0, 0.0])


def test_only_good_rows_count() -> None:
    assert ratios_by_peer(ROWS) == {"eager": [1.0, 1.0], "inductor": [2.0, 8.0], "torchrlopt": [4.0]}


def test_table_and_reasons() -> None:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(render(ROWS))
    text = capture.get()
    assert "4.00x" in text.split("geomean")[2]  # inductor: sqrt(2 * 8)
    assert "geomean, 1 of 2" in text
    assert "failed" in text
    assert "wrong" in text
    assert "9.00x" not in text
    assert failures(ROWS) == [
        "ensemble_mlp, onnxruntime: RuntimeError: no such operator",
        "ensemble_mlp, torchrlopt: wrong result: error 1.0e+00",
    ]


def test_csv_has_the_columns_and_no_number_that_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    write_csv(ROWS, path)
    lines = path.read_text().splitlines()
    assert lines[0] == (
        "model,peer,executor,searcher,batch,dtype,threads,median_ms,q1_ms,q3_ms,peak_mb,first_call_s"
    )
    assert lines[2] == "nasrnn,inductor,,,1,float32,1,4.0000,3.5000,4.5000,300.0000,1.5000"
    assert lines[6] == "ensemble_mlp,onnxruntime,,,1,float32,1,,,,,"
    assert lines[7] == "ensemble_mlp,torchrlopt,,,1,float32,1,,,,,"
    assert list(tmp_path.iterdir()) == [path]


def test_plot_is_drawn(tmp_path: Path) -> None:
    write_plot(ROWS, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_relative_error() -> None:
    expected = [np.array([1.0, -4.0]), np.array([np.nan, 2.0])]
    assert relative_error([np.array([1.0, -4.0]), np.array([np.nan, 2.0])], expected) == 0.0
    assert relative_error([np.array([2.0, -4.0]), np.array([np.nan, 2.0])], expected) == 0.25
    assert relative_error([np.array([1.0, -4.0]), np.array([np.nan, 3.0])], expected) == 0.5
    assert relative_error([np.array([0.0])], [np.array([0.0])]) == 0.0


@pytest.mark.parametrize(
    "outputs",
    [
        [],
        [np.zeros((2, 1))],
        [np.array([1.0, np.nan])],
    ],
)
def test_other_structure_is_infinitely_wrong(outputs: list[np.ndarray]) -> None:
    assert relative_error(outputs, [np.array([1.0, 2.0])]) == math.inf


def test_error_limit_follows_eager() -> None:
    assert error_limit(1e-4, "float32") == pytest.approx(8e-4)
    assert 1e-8 < error_limit(0.0, "float32") < error_limit(0.0, "bfloat16") < 0.1


def test_a_round_has_enough_calls_and_ends() -> None:
    class Counting:
        num_calls = 0

        def call(self) -> None:
            self.num_calls += 1

        def call_ms(self) -> float:
            self.call()
            return 0.001

    few, many = Counting(), Counting()
    assert len(time_round(few, seconds=0.0)) == 3  # type: ignore[arg-type]
    assert few.num_calls > 3  # the others warm the caches
    assert len(time_round(many, seconds=5.0)) == 200  # type: ignore[arg-type]


def test_unknown_peer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no peer named 'tensorrt'"):
        make_peer(case("tensorrt"), str(tmp_path))


def test_ratios_need_eager(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'eager' among the cases"):
        measure_model([case("inductor")], Settings(), tmp_path, lambda phase: None)


def test_a_peer_that_hangs_fails_in_time(tmp_path: Path) -> None:
    rows = measure_model([case("eager")], Settings(rounds=1, timeout_s=0.01), tmp_path, lambda phase: None)
    assert rows == [Row(case("eager"), reason="no answer to 'prepare' within 0.01 s")]


def test_a_peer_that_raises_is_a_row_and_the_others_go_on(tmp_path: Path) -> None:
    cases = [case("eager"), case("tensorrt")]
    good, bad = measure_model(cases, Settings(rounds=2, round_s=0.01), tmp_path, lambda phase: None)
    assert good.reason == ""
    assert good.ratio == 1.0
    assert good.median_ms is not None
    assert good.median_ms > 0
    assert bad == Row(case("tensorrt"), reason=bad.reason)
    assert bad.reason.startswith("ValueError: no peer named 'tensorrt'")


def test_a_peer_that_dies_says_how(tmp_path: Path) -> None:
    worker = WorkerProcess(case("eager"), tmp_path, tmp_path, timeout_s=30)
    try:
        os.kill(worker._process.pid, 9)
        with pytest.raises(PeerError, match=r"killed by SIGKILL: it said nothing"):
            worker.ask("prepare")
    finally:
        worker.close()


def test_openvino_computes_in_the_precision_of_the_case(tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="the peer openvino needs it")
    errors = {}
    for dtype in ("float32", "bfloat16"):
        own = [dataclasses.replace(case(peer, "ensemble_mlp"), dtype=dtype) for peer in ("eager", "openvino")]
        ours = measure_model(own, Settings(rounds=2, round_s=0.01), tmp_path, lambda phase: None)[1]
        assert not ours.reason
        errors[dtype] = ours.max_error
    assert errors["float32"] < 1e-5 < errors["bfloat16"]


def test_one_model_from_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the peer onnxruntime needs it")
    command = [
        sys.executable, "baselines/compare.py", "--models", "ensemble_mlp", "--peers", "onnxruntime",
        "--rounds", "2", "--threads", "1", "--csv", str(tmp_path / "rows.csv"),
        "--plot", str(tmp_path / "plot.png"),
    ]  # fmt: skip
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert [entry["peer"] for entry in rows] == ["eager", "onnxruntime"]
    for entry in rows:
        assert 0 < float(entry["q1_ms"]) <= float(entry["median_ms"]) <= float(entry["q3_ms"])
        assert float(entry["peak_mb"]) > 10
        assert float(entry["first_call_s"]) > 0
    assert (tmp_path / "plot.png").exists()
    assert "geomean" in result.stdout


def test_runs_as_a_module_and_refuses_by_name() -> None:
    command = [sys.executable, "-m", "baselines.compare", "--models", "resnet5"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2
    assert "did you mean" in result.stderr


def test_the_markdown_table_of_a_csv_file(tmp_path: Path) -> None:
    ours = dataclasses.replace(row("torchrlopt", 4.0, "nasrnn"), case=dataclasses.replace(
        case("torchrlopt", "nasrnn"), executor="auto", searcher="agent"))  # fmt: skip
    path = tmp_path / "rows.csv"
    write_csv([ROWS[0], ROWS[1], ours, ROWS[3], ROWS[4]], path)
    lines = markdown(path).splitlines()
    assert lines[0].startswith(
        "| model | eager ms | inductor | torchrlopt/auto | torchrlopt/auto / best peer |"
    )
    assert lines[2].startswith("| nasrnn | 8.0 | 2.00x | 4.00x | 2.00x | 300 / 300 / 300 | 1.5 / 1.5 / 1.5")
    assert lines[3].startswith("| ensemble_mlp | 8.0 | 8.00x | - | - | 300 / 300 / - |")
    assert lines[4].startswith("| **geomean** |  | **4.00x** | **4.00x** | **2.00x** |")


def test_what_a_plan_brings_in_the_same_executor(tmp_path: Path) -> None:
    def ours(searcher: str, ratio: float, model: str) -> Row:
        own = dataclasses.replace(case("torchrlopt", model), executor="inductor", searcher=searcher)
        return dataclasses.replace(row("torchrlopt", ratio, model), case=own)

    rows = [
        row("eager", 1.0, "nasrnn"), ours("none", 2.0, "nasrnn"), ours("agent", 4.0, "nasrnn"),
        row("eager", 1.0), ours("none", 2.0, "ensemble_mlp"), ours("agent", 1.0, "ensemble_mlp"),
    ]  # fmt: skip
    path = tmp_path / "rows.csv"
    write_csv(rows, path)
    header, _, *lines = markdown(path).splitlines()
    assert header == (
        "| model | eager ms | torchrlopt/inductor/none | torchrlopt/inductor "
        "| torchrlopt/inductor / without a plan |"
    )
    assert lines == [
        "| nasrnn | 8.0 | 2.00x | 4.00x | 2.00x |",
        "| ensemble_mlp | 8.0 | 2.00x | 1.00x | 0.50x |",
        "| **geomean** |  | **2.00x** | **2.00x** | **1.00x** |",
    ]
    console = Console(width=200)
    with console.capture() as capture:
        console.print(render(rows))
    assert "0.50 to 2.00" in capture.get().split("without a plan")[1]
