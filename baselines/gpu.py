"""Times torchrlopt against its peers on a CUDA device: `python baselines/gpu.py --help`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

if __package__ in (None, ""):
    # Run as a file: python has put baselines/ on the path, and the package's parent is what is needed.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from baselines.compare import choose
from baselines.cuda_peers import CUDA_PEERS, installed_cuda_peers
from baselines.measure import Row, Settings, measure_model
from baselines.peers import DTYPES, PEERS, Case
from baselines.table import failures, machine, render, write_csv


def batches(text: str) -> list[int]:
    """Batch sizes from a comma-separated list.

    Raises:
        typer.BadParameter: One is no positive number.
    """
    sizes = [size.strip() for size in text.split(",") if size.strip()]
    if not sizes or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise typer.BadParameter(f"batch sizes are positive numbers, separated by commas; got {text!r}")
    return [int(size) for size in sizes]


def compare(
    models: Annotated[str, typer.Option(help="Models of the suite, separated by commas, or 'all'.")] = "all",
    peers: Annotated[
        str, typer.Option(help=f"Peers, or 'all' that are installed: {', '.join(CUDA_PEERS)}.")
    ] = "all",
    dtypes: Annotated[str, typer.Option(help=f"Types, of: {', '.join(DTYPES)}.")] = "bfloat16,float32",
    batch: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,16",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each peer, in turn.")] = 7,
    csv: Annotated[Path | None, typer.Option(help="CSV file to write, anew after each model.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that one compilation may take.")] = 1800.0,
) -> None:
    """Time torchrlopt and its peers on the suite on a GPU, each model and peer in a process of its own.

    Peers compile one after the other, then take turns, round by round; calls are timed by events of the
    device, and memory is the device's. Rows are as `baselines/compare.py` has them.
    """
    chosen_peers = choose(peers, CUDA_PEERS, "peer", installed_cuda_peers())
    chosen_peers = list(dict.fromkeys([PEERS[0], *chosen_peers]))
    chosen_dtypes = choose(dtypes, DTYPES, "dtype")
    sizes = batches(batch)
    if csv is not None and not csv.parent.is_dir():
        raise typer.BadParameter(f"no folder {str(csv.parent)!r} to write {csv.name!r} into")
    import torch

    from baselines.models import NAMES

    chosen_models = choose(models, NAMES, "model")
    if not torch.cuda.is_available():
        raise typer.BadParameter("there is no CUDA device here; baselines/compare.py measures on the CPU")
    console = Console() if sys.stdout.isatty() else Console(width=140)
    console.print(f"{torch.cuda.get_device_name()}; {machine()}", highlight=False)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as caches:
        for dtype in chosen_dtypes:
            for size in sizes:
                own: list[Row] = []
                for model in chosen_models:
                    cases = [Case(model, peer, size, dtype, 1, device="cuda") for peer in chosen_peers]
                    settings = Settings(rounds=rounds, timeout_s=timeout)
                    own += measure_model(cases, settings, Path(caches), lambda phase: None)
                    console.print(f"{model}, batch {size}, {dtype}: done", highlight=False)
                    if csv is not None:
                        write_csv([*rows, *own], csv)
                rows += own
                console.print(f"batch {size}, {dtype}", style="bold", highlight=False)
                console.print(render(own))
    for line in failures(rows):
        console.print(line, style="red", highlight=False, markup=False, soft_wrap=True)
    if all(row.reason for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(compare)
