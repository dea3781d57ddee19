"""The benchmark commands with tiny settings, and their output files."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pandas as pd
import pytest
import torch

pytest.importorskip("typer", reason="the command lines need typer")
pytest.importorskip("transformers", reason="the suite's transformers come from the transformers package")

import typer
from typer.testing import CliRunner

from baselines import kernels, search, split
from baselines.models import NAMES
from baselines.shared.tables import COLUMNS, of, read
from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect

COMMANDS = (
    "compare",
    "precision",
    "files",
    "calls",
    "kernels",
    "split",
    "search",
    "prices",
    "traffic",
    "figures",
    "architectures",
    "demo",
)


def run(name: str, *arguments: str) -> str:
    app = typer.Typer()
    app.command()(importlib.import_module(f"baselines.{name}").main)
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, f"{result.output}{result.exception!r}"
    return result.output


def rows(path: Path, benchmark: str) -> pd.DataFrame:
    """Those that a command wrote, which say where they are from."""
    frame = read(path)
    assert list(frame) == list(COLUMNS)
    assert set(frame.benchmark) == {benchmark}
    assert (frame.machine != "").all()
    assert of(frame, metric="failure").note.tolist() == []
    return frame


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_an_example_that_it_can_read(name: str) -> None:
    app = typer.Typer()
    app.command()(importlib.import_module(f"baselines.{name}").main)
    shown = CliRunner().invoke(app, ["--help"], terminal_width=200)
    assert shown.exit_code == 0, shown.output
    example = re.search(rf"Example: python -m baselines\.{name} (.+)", shown.output)
    assert example, shown.output
    options = [word for word in example[1].split() if word.startswith("--")]
    assert set(options) <= set(re.findall(r"--[a-z-]+", shown.output.replace(example[0], "")))


@pytest.mark.nightly
def test_compare(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the peer onnxruntime needs it")
    file = tmp_path / "compare.csv"
    arguments = ("--peers", "onnxruntime,torchrlopt", "--weights", "check,frozen", "--rounds", "2")
    arguments += ("--threads", "1", "--csv", str(file), "--resume")
    shown = run("compare", "--models", "ensemble_mlp", *arguments)
    assert "torchrlopt/eager/frozen" in shown
    frame = rows(file, "compare")
    peers = ["eager", "onnxruntime", "torchrlopt/eager", "torchrlopt/eager/frozen"]
    assert list(dict.fromkeys(frame.peer)) == peers
    calls = of(frame, metric="call")
    assert calls["round"].tolist() == [0, 1] * len(peers)
    assert (calls.value > 0).all()
    assert (of(frame, metric="error").value < 1e-5).all()
    assert (of(frame, metric="peak memory").value > 10).all()
    run("compare", "--models", "ensemble_mlp", *arguments)  # nothing is left to measure
    pd.testing.assert_frame_equal(rows(file, "compare"), frame)


def test_files(tmp_path: Path) -> None:
    """One of the built-in list, then the folder that it was written to."""
    pytest.importorskip("onnxruntime", reason="what runs the files")
    arguments = ("--runtimes", "onnxruntime", "--rounds", "2", "--seconds", "0", "--tools", "torchrlopt")
    arguments += ("--csv", str(tmp_path / "files.csv"))
    run("files", "light_squeezenet", "--folder", str(tmp_path), *arguments)
    frame = rows(tmp_path / "files.csv", "files")
    nodes, errors = (of(frame, metric=name).set_index("peer").value for name in ("nodes", "error"))
    assert nodes["torchrlopt"] <= nodes["original"] == 105
    assert errors["torchrlopt"] < 1e-5
    assert of(frame, metric="call, processor")["round"].tolist() == [0, 0, 1, 1]
    assert "torchrlopt over original" in run("files", str(tmp_path), *arguments, "--resume")
    pd.testing.assert_frame_equal(rows(tmp_path / "files.csv", "files"), frame)


def test_the_models_that_are_split_exist() -> None:
    assert set(split.DEFAULT.split(",")) <= set(NAMES)


@pytest.mark.nightly
def test_split(tmp_path: Path) -> None:
    file = tmp_path / "split.csv"
    arguments = ("--executor", "eager", "--threads", "1", "--measure-ms", "5", "--csv", str(file))
    shown = run("split", "--models", "ensemble_mlp", *arguments)
    assert "ensemble_mlp" in shown
    frame = rows(file, "split")
    names = ["without all", "with all", "without plan", "with plan", "without kernels", "with kernels"]
    assert [name for name in frame.metric if "with" in name] == names
    assert (frame.value > 0).all()


@pytest.mark.nightly
def test_calls(tmp_path: Path) -> None:
    file = tmp_path / "calls.csv"
    run(
        "calls", "--models", "ensemble_mlp", "--ways", "aot_eager,default", "--subjects", "10",
        "--calls", "40", "--texts", "llama_2m", "--tokens", "4", "--callers", "2", "--seconds", "0.1",
        "--spins", "50", "--rounds", "1", "--csv", str(file),
    )  # fmt: skip
    frame = rows(file, "calls")
    assert of(frame, metric="too low").value.tolist() == [0.0]
    assert of(frame, metric="first call, processor").peer.tolist() == ["aot_eager", "default"]
    assert (of(frame, metric="first call").value > 0).all()
    calls, beyond = (
        of(frame, metric=f"{name}, least").set_index("peer").value for name in ("call", "beyond the executor")
    )
    assert list(calls.index) == ["check", "frozen", "compile_check", "compile_frozen", "aot_eager", "eager"]
    assert list(beyond.index) == list(calls.index)[:4]
    assert all(0 < beyond[way] < calls[way] for way in beyond.index)
    assert of(frame, metric="token").peer.tolist() == ["eager", "inductor", "torchrlopt", "torchrlopt_frozen"]
    rates = of(frame, metric="rate")
    assert {"eager", "onnxruntime", "torchrlopt"} <= set(rates.peer)
    assert (rates.value > 0).all()


needs_kernels = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")


@needs_kernels
@pytest.mark.parametrize("what", ["kernels", "methods"])
def test_kernels(what: str, tmp_path: Path) -> None:
    file = tmp_path / "kernels.csv"
    threads = str(torch.get_num_threads())
    run("kernels", "--what", what, "--rounds", "1", "--threads", threads, "--csv", str(file))
    frame = rows(file, "kernels")
    assert {"oneDNN", "ours" if what == "kernels" else "sums"} <= set(frame.peer)
    assert (of(frame, metric="call").value > 0).all()
    assert set(of(frame, metric="chosen").note) <= {*kernels.METHODS, "oneDNN"}


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_ways_compute_the_same(dtype: torch.dtype) -> None:
    if dtype is torch.bfloat16 and "bfloat16" not in _C.kernel_dtypes():
        pytest.skip("no kernels for bfloat16 on this processor")
    close = 1e-4 if dtype is torch.float32 else 3e-2
    with torch.no_grad(), kernels.defaults(dtype):
        for cases in (kernels.cases, kernels.method_cases):
            for what, ways in cases():
                found = {name: way() for name, way in ways.items()}
                # Recurrent layers return states, too.
                made = {name: each[0] if isinstance(each, tuple) else each for name, each in found.items()}
                first, *others = made.values()
                assert others, what
                assert first.dtype is dtype
                for name, other in made.items():
                    error = float((other - first).square().mean().sqrt() / first.square().mean().sqrt())
                    assert error < (3e-2 if name == "int8" else close), (what, name)


@pytest.mark.nightly
def test_search(tmp_path: Path) -> None:
    file = tmp_path / "search.csv"
    shown = run(
        "search", "--parts", "all", "--models", "ensemble_mlp", "--seconds", "0.05", "--steps", "20",
        "--seeds", "2", "--best-known-s", "0.2", "--csv", str(file), "--plot", str(tmp_path / "plot.png"),
    )  # fmt: skip
    assert "The agent against each rival at 0.05 s" in shown
    frame = rows(file, "search")
    costs = of(frame, metric="cost")
    assert {*search.CORE, "agent", "no_network", "best_known"} <= set(costs.peer)
    seeds = of(costs, peer="restarts", setting="20 steps")["round"].tolist()
    assert seeds == [0, 1]
    predicted = of(frame, metric="predicted").set_index("peer").value
    assert predicted["greedy"] < predicted["none"]


@pytest.mark.nightly
def test_traffic(tmp_path: Path) -> None:
    file = tmp_path / "traffic.csv.gz"
    options = ("--models", "ensemble_mlp", "--batches", "1", "--seconds", "0.1", "--calls", "50")
    shown = run("traffic", *options, "--csv", str(file))
    assert shown.count("bandit") == 3
    frame = pd.read_csv(file)
    assert set(frame.candidate) >= {"original", "eager", "eager, no plan"}
    assert (frame[["first_ms", "second_ms"]] > 0).all(axis=None)
    assert "bandit" in run("traffic", "--replay", str(file), "--calls", "50")


@pytest.mark.nightly
@pytest.mark.parametrize("part", ["variants", "regions", "plans"])
def test_prices(part: str, tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    model = "squeezenet1_1" if part == "regions" else "ensemble_mlp"
    run(
        "prices", part, "--models", model, "--variants", "2", "--profile-s", "1", "--seconds", "0.1",
        "--rounds", "2", "--threads", "1", "--csv", str(file),
    )  # fmt: skip
    frame = rows(file, "prices")
    first = {"variants": "measured", "regions": "ours, with", "plans": "gain"}[part]
    assert len(of(frame, metric=first)) == (3 if part == "variants" else 1)


@pytest.mark.nightly
def test_the_time_of_inductor_is_predicted_from_tables() -> None:
    results = Path(__file__).resolve().parents[2] / "baselines" / "results"
    shown = run("prices", "inductor", str(results / "cpu_batch1_float32.csv"))
    assert "squeezenet1_1" in shown


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_says_so() -> None:
    for name in ("compare", "kernels"):
        app = typer.Typer()
        app.command()(importlib.import_module(f"baselines.{name}").main)
        result = CliRunner().invoke(app, ["--device", "cuda"])
        assert result.exit_code == 2
        assert "no CUDA device" in result.output


@pytest.mark.gpu
def test_peers_on_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / "gpu.csv"
    peers = "inductor_cudagraphs,torchrlopt_cudagraphs"
    arguments = ("--models", "ensemble_mlp", "--peers", peers, "--dtype", "bfloat16", "--rounds", "2")
    run("compare", "--device", "cuda", *arguments, "--kernels", "--csv", str(file))
    frame = rows(file, "compare")
    kernels_us, busy_us = (of(frame, metric=name).value.to_numpy() for name in ("kernel", "busy"))
    assert len(kernels_us) > 0
    assert (busy_us <= kernels_us).all()
