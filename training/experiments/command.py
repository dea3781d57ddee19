"""The command line of `training/reproduce.py`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from training.collectors.collector import KINDS
from training.experiments.dissertation.of_rows import EXPERIMENTS_OF_ROWS
from training.experiments.dissertation.subjects import TRAINABLE
from training.experiments.reproduction import EXPERIMENTS, reproduce
from training.experiments.runs import MINUTES, Scale, Workplace

#: Kinds of workers of distributed runs: those of this process would not be distributed.
_SEVERAL = tuple(kind for kind in KINDS if kind != "in_process")


def main(
    experiments: Annotated[
        list[str], typer.Argument(help=f"What to reproduce: all, or some of {', '.join(EXPERIMENTS)}.")
    ],
    full: Annotated[
        bool,
        typer.Option("--full/--quick", help="What is meant for a machine of two cores, or a hundredth."),
    ] = False,
    share: Annotated[
        float | None, typer.Option(min=0.001, max=1.0, help="Another share of the full size.")
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
        str, typer.Option(help=f"Workers of the distributed runs: {', '.join(_SEVERAL)}.")
    ] = "processes",
    ray: Annotated[str, typer.Option(help="Address of a cluster, for the collector ray.")] = "",
) -> None:
    """Reproduce tables and figures of the papers."""
    if unknown := [name for name in experiments if name not in ("all", *EXPERIMENTS)]:
        known = ", ".join(EXPERIMENTS)
        raise typer.BadParameter(f"there is no {', '.join(unknown)}; there are: all, {known}")
    if collector not in _SEVERAL:
        raise typer.BadParameter(f"there is no collector {collector}; there are: {', '.join(_SEVERAL)}")
    if ray and collector != "ray":
        raise typer.BadParameter("--ray is the address for --collector ray")
    if collector == "ray" and importlib.util.find_spec("ray") is None:
        raise typer.BadParameter("Ray is not installed: pip install 'torchrlopt[ray]'")
    wanted = tuple(dict.fromkeys(filter(None, (name.strip() for name in graphs.split(",")))))
    if graphs and not wanted:
        raise typer.BadParameter(f"no graph given; there are: {', '.join(TRAINABLE)}")
    if foreign := [name for name in wanted if name not in TRAINABLE]:
        raise typer.BadParameter(f"there is no graph {', '.join(foreign)}; there are: {', '.join(TRAINABLE)}")
    names = list(EXPERIMENTS) if "all" in experiments else list(dict.fromkeys(experiments))
    if (wanted or minutes != MINUTES) and not any(name in EXPERIMENTS_OF_ROWS for name in names):
        raise typer.BadParameter(f"--graphs and --minutes are only for {', '.join(EXPERIMENTS_OF_ROWS)}")
    scale = Scale(share or (1.0 if full else 0.01), seeds or (3 if full else 1), wanted, minutes)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"there can be no folder {out}: {error.strerror}") from error
    reproduce(names, scale, Workplace(out, jobs, collector, ray))
    typer.echo(out / "REPORT.md")
