"""The command line of `training/reproduce.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from training.collectors.collector import KINDS
from training.experiments.dissertation.subjects import TRAINABLE
from training.experiments.reproduction import EXPERIMENTS, reproduce
from training.experiments.runs import MINUTES, Scale, Workplace


def main(
    experiments: Annotated[
        list[str], typer.Argument(help=f"What to reproduce: all, or some of {', '.join(EXPERIMENTS)}.")
    ],
    full: Annotated[
        bool, typer.Option("--full/--quick", help="The paper's numbers of training steps, or a hundredth.")
    ] = False,
    share: Annotated[
        float | None, typer.Option(min=0.001, max=1.0, help="Another share of the paper's steps.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs of each setting, with seeds 0, 1, ... [3, quick: 1]")
    ] = None,
    graphs: Annotated[
        str, typer.Option(help=f"What rows are trained on, of {', '.join(TRAINABLE)}. [those of the share]")
    ] = "",
    minutes: Annotated[float, typer.Option(min=0.1, help="Most of one training of a row.")] = MINUTES,
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for CSV, PNG and REPORT.md.")] = Path(
        "runs/reproduce"
    ),
    jobs: Annotated[
        int, typer.Option(min=1, help="Runs at the same time; those that are timed run alone.")
    ] = 1,
    collector: Annotated[
        str, typer.Option(help=f"Workers of the distributed runs: {', '.join(KINDS)}.")
    ] = "processes",
    ray: Annotated[str, typer.Option(help="Address of a cluster, for the collector ray.")] = "",
) -> None:
    """Reproduce tables and figures of the papers."""
    names = list(EXPERIMENTS) if "all" in experiments else experiments
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        known = ", ".join(EXPERIMENTS)
        raise typer.BadParameter(f"there is no {', '.join(unknown)}; there are: all, {known}")
    if collector not in KINDS:
        raise typer.BadParameter(f"there is no collector {collector}; there are: {', '.join(KINDS)}")
    wanted = tuple(dict.fromkeys(filter(None, (name.strip() for name in graphs.split(",")))))
    if foreign := [name for name in wanted if name not in TRAINABLE]:
        raise typer.BadParameter(f"there is no graph {', '.join(foreign)}; there are: {', '.join(TRAINABLE)}")
    scale = Scale(share or (1.0 if full else 0.01), seeds or (3 if full else 1), wanted, minutes)
    reproduce(names, scale, Workplace(out, jobs, collector, ray))
    typer.echo(out / "REPORT.md")
