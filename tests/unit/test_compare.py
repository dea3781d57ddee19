"""The comparison on made-up rows: its statistics, tables and files; one model from the command line."""

from __future__ import annotations

import csv
import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="the comparison's command line needs typer")
pytest.importorskip("transformers", reason="the suite's transformers come from the transformers package")

import typer
from rich.console import Console

from baselines.models import NAMES
from baselines.peers.case import PEERS, Case
from baselines.shared.arguments import choose, numbers, one, writable
from baselines.shared.comparison import CSV_COLUMNS, failures, ratios_by_peer, render, write_csv
from baselines.shared.comparison_plot import write_plot
from baselines.shared.rounds import Row
from baselines.shared.suite import conclude
from baselines.table import markdown

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
        reason=reason,
    )


def ours(ratio: float, model: str = "ensemble_mlp", **own: str) -> Row:
    of = dataclasses.replace(case("torchrlopt", model), **{"searcher": "agent", **own})
    return dataclasses.replace(row("torchrlopt", ratio, model), case=of)


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


def test_one_is_one() -> None:
    assert one("eager", PEERS, "peer") == "eager"
    with pytest.raises(typer.BadParameter, match="one peer at a time; got 'eager,inductor'"):
        one("eager,inductor", PEERS, "peer")


def test_numbers_are_of_their_kind_and_in_their_range() -> None:
    assert numbers("1, 16", int, "batch sizes", 1, 64) == [1, 16]
    assert numbers("0.5,2", float, "seconds", 0.1, 2) == [0.5, 2.0]
    for bad in ("", "0", "1,x", "-1", "65", "1.5"):
        with pytest.raises(
            typer.BadParameter, match="expected batch sizes separated by commas, each from 1 to"
        ):
            numbers(bad, int, "batch sizes", 1, 64)
    with pytest.raises(typer.BadParameter, match="got 'nan'"):
        numbers("nan", float, "seconds", 0.1, 2)


def test_a_file_needs_its_folder(tmp_path: Path) -> None:
    assert writable(None) is None
    assert writable(tmp_path / "out.csv") == tmp_path / "out.csv"
    with pytest.raises(typer.BadParameter, match=r"no folder .*none' to write 'out\.csv' into"):
        writable(tmp_path / "none" / "out.csv")


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


def test_a_comparison_without_any_result_fails() -> None:
    console = Console(width=200)
    with console.capture() as capture:
        conclude(ROWS, console)
        with pytest.raises(typer.Exit) as ended:
            conclude([row("eager", None, reason="MemoryError")], console)
    assert ended.value.exit_code == 1
    assert "ensemble_mlp, eager: MemoryError" in capture.get()


def test_csv_has_the_columns_and_no_number_that_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    write_csv(ROWS, path)
    lines = path.read_text().splitlines()
    assert lines[0] == (
        "model,peer,executor,weights,searcher,batch,dtype,threads,median_ms,q1_ms,q3_ms,peak_mb,first_call_s"
    )
    assert lines[2] == "nasrnn,inductor,,,,1,float32,1,4.0000,3.5000,4.5000,300.0000,1.5000"
    assert lines[6] == "ensemble_mlp,onnxruntime,,,,1,float32,1,,,,,"
    assert lines[7] == "ensemble_mlp,torchrlopt,,,,1,float32,1,,,,,"
    assert list(tmp_path.iterdir()) == [path]


def test_plot_is_drawn(tmp_path: Path) -> None:
    write_plot(ROWS, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_one_model_from_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the peer onnxruntime needs it")
    command = [
        sys.executable, "baselines/compare.py",
        "--models", "ensemble_mlp", "--peers", "onnxruntime,torchrlopt",
        "--weights", "check,frozen", "--rounds", "2", "--threads", "1", "--csv", str(tmp_path / "rows.csv"),
        "--plot", str(tmp_path / "plot.png"),
    ]  # fmt: skip
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert [(entry["peer"], entry["weights"]) for entry in rows] == [
        ("eager", ""), ("onnxruntime", ""), ("torchrlopt", "check"), ("torchrlopt", "frozen"),
    ]  # fmt: skip
    for entry in rows:
        assert 0 < float(entry["q1_ms"]) <= float(entry["median_ms"]) <= float(entry["q3_ms"])
        assert float(entry["peak_mb"]) > 10
        assert float(entry["first_call_s"]) > 0
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert {"torchrlopt/eager", "torchrlopt/eager/frozen"} <= set(result.stdout.split("geomean")[0].split())


def test_runs_as_a_module_and_refuses_by_name() -> None:
    command = [sys.executable, "-m", "baselines.compare", "--models", "resnet5"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2
    assert "did you mean" in result.stderr


def test_the_markdown_table_of_a_csv_file(tmp_path: Path) -> None:
    auto = ours(4.0, "nasrnn", executor="auto")
    path = tmp_path / "rows.csv"
    write_csv([ROWS[0], ROWS[1], auto, ROWS[3], ROWS[4]], path)
    lines = markdown(path).splitlines()
    assert lines[0].startswith(
        "| model | eager ms | inductor | torchrlopt/auto | torchrlopt/auto / best peer |"
    )
    assert lines[2].startswith("| nasrnn | 8.0 | 2.00x | 4.00x | 2.00x | 300 / 300 / 300 | 1.5 / 1.5 / 1.5")
    assert lines[3].startswith("| ensemble_mlp | 8.0 | 8.00x | - | - | 300 / 300 / - |")
    assert lines[4].startswith("| **geomean** |  | **4.00x** | **4.00x** | **2.00x** |")


def test_one_table_shows_default_options_and_max_autotune(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    write_csv(
        [
            row("eager", 1.0),
            ours(2.0, executor="eager", weights="check"),
            ours(3.0, executor="eager", weights="frozen"),
            ours(4.0, executor="auto", weights="check"),
            ours(5.0, executor="auto", weights="frozen"),
        ],
        path,
    )
    header, _, line, _ = markdown(path).splitlines()
    assert header.startswith(
        "| model | eager ms | torchrlopt/eager | torchrlopt/eager/frozen | torchrlopt/auto "
        "| torchrlopt/auto/frozen | torchrlopt/eager / best peer |"
    )
    assert line.startswith("| ensemble_mlp | 8.0 | 2.00x | 3.00x | 4.00x | 5.00x | 2.00x | 3.00x |")


def test_each_batch_size_and_type_has_a_table_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"

    def in_batch(size: int, made: Row) -> Row:
        return dataclasses.replace(made, case=dataclasses.replace(made.case, batch=size))

    pairs = [(1, 2.0), (16, 4.0)]
    write_csv(
        [in_batch(n, each) for n, ratio in pairs for each in (row("eager", 1.0), row("inductor", ratio))],
        path,
    )
    first, _, *_, second, _, header, _, line, _ = markdown(path).splitlines()
    assert (first, second) == ("batch 1, float32", "batch 16, float32")
    assert header.startswith("| model | eager ms | inductor |")
    assert line.startswith("| ensemble_mlp | 8.0 | 4.00x |")
    assert "| ensemble_mlp | 8.0 | 2.00x |" in markdown(path)


def test_a_model_without_a_base_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    failed = row("eager", None, "nasrnn", reason="MemoryError")
    write_csv([failed, row("inductor", 2.0, "nasrnn"), row("eager", 1.0), row("inductor", 4.0)], path)
    assert "nasrnn" not in markdown(path)
    assert "| ensemble_mlp | 8.0 | 4.00x |" in markdown(path)


@pytest.mark.parametrize("name", ["cpu_batch1_float32", "cpu_batch16_float32", "plan_inductor"])
def test_older_files_can_be_read(name: str) -> None:
    path = ROOT / "baselines" / "results" / f"{name}.csv"
    header, _, *lines, means = markdown(path).splitlines()
    assert "torchrlopt/" in header
    with path.open() as file:
        models = {entry["model"] for entry in csv.DictReader(file)}
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == [n for n in NAMES if n in models]
    assert means.startswith("| **geomean** |  | **")


def test_another_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    with pytest.raises(typer.BadParameter, match=r"there is no file .*other\.csv"):
        markdown(path)
    path.write_text("model,us\nresnet18,1\n")
    with pytest.raises(
        typer.BadParameter, match=r"other\.csv: expected the columns model, peer.*, got model, us"
    ):
        markdown(path)


def test_what_a_plan_brings_in_the_same_executor(tmp_path: Path) -> None:
    def inductor(searcher: str, ratio: float, model: str) -> Row:
        return ours(ratio, model, executor="inductor", searcher=searcher)

    rows = [
        row("eager", 1.0, "nasrnn"), inductor("none", 2.0, "nasrnn"), inductor("agent", 4.0, "nasrnn"),
        row("eager", 1.0), inductor("none", 2.0, "ensemble_mlp"), inductor("agent", 1.0, "ensemble_mlp"),
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
