"""The command line of `training/reproduce.py`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from torchrlopt.errors import RlOptError
from training.collectors.collector import KINDS
from training.experiments.dissertation.of_rows import EXPERIMENTS_OF_ROWS
from training.experiments.dissertation.subjects import BERT, TINY, TRAINABLE
from training.experiments.reproduction import EXPERIMENTS, reproduce
from training.experiments.runs import MINUTES, RUNS, Scale, Workplace

#: Kinds of workers of distributed runs: those of this process would not be distributed.
_SEVERAL = tuple(kind for kind in KINDS if kind != "in_process")


def main(
    experiments: Annotated[
        list[str],
        typer.Argument(
            help=f"What to reproduce: all, or some of {', '.join(EXPERIMENTS)}.",
            callback=lambda given: _known(given, ("all", *EXPERIMENTS), "experiment"),
        ),
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
        str,
        typer.Option(
            help=f"What rows are trained on, of {', '.join(TRAINABLE)}. [those of the share]",
            callback=lambda given: ",".join(_known(_names(given), TRAINABLE, "graph")),
        ),
    ] = "",
    minutes: Annotated[float, typer.Option(min=0.1, help="Most of one training of a row.")] = MINUTES,
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for CSV, PNG and REPORT.md.")] = Path(
        "runs/reproduce"
    ),
    jobs: Annotated[
        int, typer.Option(min=1, help="Runs at the same time; those that measure run alone.")
    ] = 1,
    collector: Annotated[
        str,
        typer.Option(
            help=f"Workers of the distributed runs: {', '.join(_SEVERAL)}.",
            callback=lambda given: _known([given], _SEVERAL, "collector")[0],
        ),
    ] = "processes",
    ray: Annotated[str, typer.Option(help="Address of a cluster, for the collector ray.")] = "",
) -> None:
    """Reproduce tables and figures of the papers."""
    if ray and collector != "ray":
        raise typer.BadParameter("--ray is the address for --collector ray")
    if collector == "ray" and importlib.util.find_spec("ray") is None:
        raise typer.BadParameter("Ray is not installed: pip install 'torchrlopt[ray]'")
    wanted = tuple(_names(graphs))
    names = list(EXPERIMENTS) if "all" in experiments else list(dict.fromkeys(experiments))
    if (wanted or minutes != MINUTES) and not any(name in EXPERIMENTS_OF_ROWS for name in names):
        raise typer.BadParameter(f"--graphs and --minutes are only for {', '.join(EXPERIMENTS_OF_ROWS)}")
    of_bert = [name for name in names if EXPERIMENTS[name].is_of_bert]
    if wanted and of_bert and not {BERT, TINY} & set(wanted):
        raise typer.BadParameter(f"{', '.join(of_bert)} are of the toy BERT: add {BERT} to --graphs")
    scale = Scale(share or (1.0 if full else 0.01), seeds or (3 if full else 1), wanted, minutes)
    try:
        (out / RUNS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"there can be no folder {out}: {error.strerror}") from error
    try:
        typer.echo(reproduce(names, scale, Workplace(out, jobs, collector, ray)))
    except RlOptError as error:
        raise typer.BadParameter(str(error)) from error


def _names(given: str) -> list[str]:
    """Those between commas, each once."""
    if given and not given.strip(" ,"):
        raise typer.BadParameter(f"no graph given; there are: {', '.join(TRAINABLE)}")
    return list(dict.fromkeys(filter(None, (name.strip() for name in given.split(",")))))


def _known(given: list[str], known: Sequence[str], kind: str) -> list[str]:
    """What was given, refused where there is none of that name."""
    if unknown := [name for name in given if name not in known]:
        raise typer.BadParameter(f"there is no {kind} {', '.join(unknown)}; there are: {', '.join(known)}")
    return given
