"""Tests and times torchrlopt against its peers on a CUDA device: `python -m baselines.gpu --help`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from baselines.models import NAMES
from baselines.peers.case import DTYPES, PEERS, Case
from baselines.peers.cuda import CUDA_PEERS, installed_cuda_peers
from baselines.shared import steps as slices
from baselines.shared import terminal
from baselines.shared.arguments import CsvFile, Models, Rounds, choose, numbers
from baselines.shared.comparison import render
from baselines.shared.rounds import Settings
from baselines.shared.suite import conclude, measure_suite

_MAX_BATCH = 65_536


def main(
    what: Annotated[str, typer.Argument(help="'suite' to time it, or 'all' there is.")] = "suite",
    models: Models = "all",
    peers: Annotated[
        str, typer.Option(help=f"Peers, or 'all' that are installed: {', '.join(CUDA_PEERS)}.")
    ] = "all",
    dtypes: Annotated[str, typer.Option(help=f"Types, of: {', '.join(DTYPES)}.")] = "bfloat16,float32",
    batch: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,16",
    rounds: Rounds = 7,
    csv: CsvFile = None,
    kernels: Annotated[
        Path | None,
        typer.Option(help="Of 'suite': a CSV file for the kernels of calls, by PyTorch's profiler."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that one compilation may take.")] = 1800.0,
    jobs: Annotated[
        int, typer.Option(min=1, help="Peers that compile at the same time; calls are timed alone always.")
    ] = 1,
    folder: Annotated[Path, typer.Option(help="Of 'all': where results are kept.")] = Path("gpu"),
    seconds: Annotated[float, typer.Option(min=1, help="Of 'all': how long this run may take.")] = 570.0,
) -> None:
    """Time torchrlopt and its peers on the suite on a GPU, each model and peer in a process of its own.

    Peers compile one after the other, then take turns, round by round; calls are timed by events of the
    device, and memory is the device's. Rows are as `baselines/compare.py` has them.

    With 'all' the device is probed, the tests for GPUs and TensorRT run, and each model, dtype and batch size
    is timed. Run it again until nothing is left: what is done is not done again. Delete a row of `steps.csv`
    to repeat a step.

    Example: python -m baselines.gpu all --seconds 570
    """
    if what not in ("suite", "all"):
        raise typer.BadParameter(f"expected 'suite' or 'all', got {what!r}")
    chosen_peers = choose(peers, CUDA_PEERS, "peer", installed_cuda_peers())
    settings = list(
        itertools.product(choose(dtypes, DTYPES, "dtype"), numbers(batch, int, "batch sizes", 1, _MAX_BATCH))
    )
    chosen_models = choose(models, NAMES, "model")
    if not torch.cuda.is_available():
        raise typer.BadParameter("there is no CUDA device here; baselines/compare.py measures on the CPU")
    if what == "all":
        work(all_steps(chosen_models, chosen_peers, settings, rounds, jobs), folder, seconds)
        return
    groups = [
        [
            Case(model, peer, size, dtype, 1, device="cuda")
            for peer in dict.fromkeys([PEERS[0], *chosen_peers])
        ]
        for dtype, size in settings
        for model in chosen_models
    ]
    console = terminal.console()
    console.print(f"{torch.cuda.get_device_name()}; {terminal.machine()}", highlight=False)
    how = Settings(rounds=rounds, timeout_s=timeout, jobs=jobs, with_kernels=kernels is not None)
    rows = measure_suite(groups, how, console, csv, kernels)
    for dtype, size in settings:
        console.print(f"batch {size}, {dtype}", style="bold", highlight=False)
        console.print(render([row for row in rows if (row.case.dtype, row.case.batch) == (dtype, size)]))
    conclude(rows, console)


def all_steps(
    models: Sequence[str],
    peers: Sequence[str],
    settings: Sequence[tuple[str, int]],
    rounds: int,
    jobs: int = 1,
) -> list[slices.Step]:
    """All there is to do on a GPU, in pieces; what the others rest on comes first."""
    python = (sys.executable, "-m")
    root = Path(__file__).resolve().parents[1]
    marks = ("mark.gpu", "mark.tensorrt")
    tests = [
        path.relative_to(root)
        for path in sorted((root / "tests").rglob("test_*.py"))
        if any(mark in path.read_text(encoding="utf-8") for mark in marks)
    ]
    found = [slices.Step("probe", (*python, "torchrlopt", "device", "--device", "cuda", "--again"))]
    for path in tests:
        found.append(
            slices.Step(f"{path}", (*python, "pytest", "-q", "-m", "gpu or tensorrt", str(root / path)))
        )
    for (dtype, size), model in itertools.product(settings, models):
        asked = ("--models", model, "--dtypes", dtype, "--batch", str(size), "--peers", ",".join(peers))
        command = (*python, "baselines.gpu", *asked, "--rounds", str(rounds), "--jobs", str(jobs))
        command += ("--csv", "{csv}")
        found.append(slices.Step(f"{model} {dtype} {size}", command))
    return found


def work(steps: Sequence[slices.Step], folder: Path, seconds: float) -> None:
    """Do a slice of the steps, and say what has come of it.

    Raises:
        typer.Exit: all are done and some have failed; with status 1.
    """
    left = slices.run_slice(steps, folder, seconds)
    console = terminal.console()
    failed = {name: status for name, status in slices.done(folder).items() if status != "0"}
    for name, status in failed.items():
        console.print(f"{name}: failed ({status})", style="red", highlight=False, markup=False)
    console.print(
        f"{len(steps) - len(left)} of {len(steps)} steps done, in {folder}: {slices.TABLE}, {slices.TIMES}, "
        f"{slices.LOG}" + ("; run it again for the rest" if left else ""),
        highlight=False,
    )
    if failed and not left:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
