"""Times torchrlopt against its peers on a CUDA device: `python -m baselines.gpu --help`."""

from __future__ import annotations

import itertools
from typing import Annotated

import torch
import typer

from baselines.models import NAMES
from baselines.peers.case import DTYPES, PEERS, Case
from baselines.peers.cuda import CUDA_PEERS, installed_cuda_peers
from baselines.shared import terminal
from baselines.shared.arguments import CsvFile, Models, Rounds, choose, numbers
from baselines.shared.comparison import render
from baselines.shared.rounds import Settings
from baselines.shared.suite import conclude, measure_suite

_MAX_BATCH = 65_536


def main(
    models: Models = "all",
    peers: Annotated[
        str, typer.Option(help=f"Peers, or 'all' that are installed: {', '.join(CUDA_PEERS)}.")
    ] = "all",
    dtypes: Annotated[str, typer.Option(help=f"Types, of: {', '.join(DTYPES)}.")] = "bfloat16,float32",
    batch: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,16",
    rounds: Rounds = 7,
    csv: CsvFile = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that one compilation may take.")] = 1800.0,
) -> None:
    """Time torchrlopt and its peers on the suite on a GPU, each model and peer in a process of its own.

    Peers compile one after the other, then take turns, round by round; calls are timed by events of the
    device, and memory is the device's. Rows are as `baselines/compare.py` has them.

    Example: python -m baselines.gpu --models resnet50,bert_base --batch 1,16 --csv gpu.csv
    """
    chosen_peers = choose(peers, CUDA_PEERS, "peer", installed_cuda_peers())
    settings = list(
        itertools.product(choose(dtypes, DTYPES, "dtype"), numbers(batch, int, "batch sizes", 1, _MAX_BATCH))
    )
    chosen_models = choose(models, NAMES, "model")
    if not torch.cuda.is_available():
        raise typer.BadParameter("there is no CUDA device here; baselines/compare.py measures on the CPU")
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
    rows = measure_suite(groups, Settings(rounds=rounds, timeout_s=timeout), console, csv)
    for dtype, size in settings:
        console.print(f"batch {size}, {dtype}", style="bold", highlight=False)
        console.print(render([row for row in rows if (row.case.dtype, row.case.batch) == (dtype, size)]))
    conclude(rows, console)


if __name__ == "__main__":
    typer.run(main)
