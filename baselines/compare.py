"""Times torchrlopt against its peers on the suite: `python baselines/compare.py --help`."""

from __future__ import annotations

import itertools
import os
import sys
import typing
from pathlib import Path
from typing import Annotated, Any

import typer

if __package__ in (None, ""):
    # Run as a file: python has put baselines/ on the path, and the package's parent is what is needed.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from baselines.models import EXTENDED, GROUPS, HELD_OUT, NAMES
from baselines.peers.case import DTYPES, OURS, PEERS, Case
from baselines.peers.registry import installed_peers
from baselines.shared import terminal
from baselines.shared.arguments import CsvFile, PlotFile, Rounds, choose, one, searchers
from baselines.shared.comparison import render
from baselines.shared.comparison_plot import write_plot
from baselines.shared.rounds import Settings
from baselines.shared.suite import conclude, measure_suite
from torchrlopt import executor_table
from torchrlopt.options import Weights

WEIGHTS: tuple[str, ...] = typing.get_args(Weights)


def main(
    models: Annotated[
        str,
        typer.Option(
            help="Models, separated by commas, or 'all' of the suite, or others: 'extended', 'held_out'."
        ),
    ] = "all",
    peers: Annotated[
        str,
        typer.Option(help=f"Peers, separated by commas, or 'all' that are installed: {', '.join(PEERS)}."),
    ] = "all",
    rounds: Rounds = 7,
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 1,
    dtype: Annotated[str, typer.Option(help=f"Type of weights and inputs: {', '.join(DTYPES)}.")] = "float32",
    threads: Annotated[int, typer.Option(min=1, help="Threads of each peer.")] = 2,
    executor: Annotated[
        str,
        typer.Option(
            help="torchrlopt's executors, by commas; 'auto' times all, 'default' is what users get."
        ),
    ] = "eager",
    searcher: Annotated[
        str,
        typer.Option(
            help="torchrlopt's searchers, separated by commas; 'none': the executor without a plan."
        ),
    ] = "agent",
    weights: Annotated[
        str,
        typer.Option(help=f"torchrlopt's treatment of weights, separated by commas: {', '.join(WEIGHTS)}."),
    ] = "check",
    csv: CsvFile = None,
    plot: PlotFile = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that one compilation may take.")] = 600.0,
) -> None:
    """Time torchrlopt and its peers on the suite, each model and peer in a process of its own.

    Eager always runs. Peers compile one after the other, then take turns, round by round. The speed-up is the
    median of the rounds' ratios to eager PyTorch. The first call counts compilation, from caches that do not
    know the model, but not imports. Errors are against float64; a result that is further from it
    than eager's own rounding explains is reported as wrong and does not count. "kept" is the executor whose
    graph was the fastest, with its searcher where that is not the agent, or the original.

    torchrlopt has a row for each combination of executor, weights and searcher. Default options are
    "torchrlopt/default", or "torchrlopt/eager" where no runtime is installed, max-autotune is
    "torchrlopt/auto"; with frozen weights they end in "/frozen".

    One model takes about a minute, most of it inductor's compilations; all of them less than 40 minutes.

    Example: python baselines/compare.py --executor eager,auto --weights check,frozen --csv out.csv
    """
    dtype = one(dtype, DTYPES, "dtype")
    chosen_peers = choose(peers, PEERS, "peer", installed_peers())
    settings_of_ours = itertools.product(
        choose(executor, executor_table.choices(), "executor"),
        choose(weights, WEIGHTS, "treatment of weights"),
        choose(searcher, searchers(), "searcher"),
    )
    own: dict[str, list[tuple[Any, ...]]] = {OURS: list(settings_of_ours)}
    groups = [
        [
            Case(model, peer, batch, dtype, threads, *each)
            for peer in dict.fromkeys([PEERS[0], *chosen_peers])
            for each in own.get(peer, [()])
        ]
        for model in GROUPS.get(models) or choose(models, (*NAMES, *EXTENDED, *HELD_OUT), "model", NAMES)
    ]
    console = terminal.console()
    console.print(f"{terminal.machine()}; batch {batch}, {dtype}, {threads} threads", highlight=False)
    load = os.getloadavg()[0]
    if load > 0.5:
        console.print(f"The machine is busy (load {load:.1f}): expect wide quartiles.", style="yellow")
    rows = measure_suite(groups, Settings(rounds=rounds, timeout_s=timeout), console, csv)
    console.print(render(rows))
    if plot is not None:
        write_plot(rows, plot)
    conclude(rows, console)


if __name__ == "__main__":
    typer.run(main)
