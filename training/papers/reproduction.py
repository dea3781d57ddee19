"""The table of reproducible experiments, the command line, and the report.

A section of the report is made from the data in the folder alone, `NAME*.csv` and `NAME.json`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from baselines.shared.arguments import choose
from torchrlopt.errors import RlOptError
from torchrlopt.storage.files import write_whole
from training.papers import agents, collecting, latencies, searches, thesis
from training.papers.components import COMPONENTS
from training.papers.experiment import Experiment, load, section, write
from training.papers.graphs import BERT, TINY, TRAINABLE
from training.papers.measured import DEAR_PRECISION, EFFICIENCY, MEASUREMENTS
from training.papers.runner import (
    MINUTES,
    RUNS,
    Scale,
    lock,
    make_all,
    minutes_of,
    read,
    with_needs,
)

#: By the name of the table or figure. To add an experiment, add an entry.
EXPERIMENTS: Mapping[str, Experiment] = {
    "table4.1": searches.TABLE_4_1,
    "fig4.1": latencies.FIGURE_4_1,
    "fig4.2": searches.FIGURE_4_2,
    "fig4.5": latencies.FIGURE_4_5,
    "table4.2": latencies.TABLE_4_2,
    **agents.EXPERIMENTS,
    **thesis.EXPERIMENTS,
    "scaling": collecting.EXPERIMENTS["scaling"],
    "samplers": collecting.EXPERIMENTS["samplers"],
    "components": COMPONENTS,
    "throughput": collecting.EXPERIMENTS["throughput"],
    "measurements": MEASUREMENTS,
    "efficiency": EFFICIENCY,
    "dear_precision": DEAR_PRECISION,
}
OF_ROWS = tuple(name for name, each in EXPERIMENTS.items() if each.is_of_rows)
REPORT, MADE = "REPORT.md", "made.json"
RESULTS = Path(__file__).resolve().parents[1] / "results"  # the committed ones


def reproduce(names: Sequence[str], scale: Scale, out: Path, jobs: int) -> Path:
    """Run some experiments, store their data and draw them; returns the path of the report.

    Other sections of an existing report are kept. Each section states the command that made it, so
    experiments may differ in scale.
    """
    runs = {name: EXPERIMENTS[name].runs(scale) for name in names}
    make_all([run for each in runs.values() for run in each.values()], out, jobs)
    for name in names:
        if EXPERIMENTS[name].is_recorded:
            write(load(name, RESULTS), name, out)
            _keep_made(out, {name: _made(RESULTS)[name]})
            continue
        results = {key: read(run, out) for key, run in runs[name].items()}
        write(EXPERIMENTS[name].collect(results, scale), name, out)
        every = [read(run, out) for run in with_needs(list(runs[name].values()))]
        # Find out whether the number of seeds changes the runs.
        more = EXPERIMENTS[name].runs(dataclasses.replace(scale, seeds=scale.seeds + 1))
        told = {
            "command": _command(name, scale, has_seeds=more != runs[name]),
            "machines": list(dict.fromkeys(each["made"]["machine"] for each in every)),
            "minutes": math.ceil(minutes_of(every)),
        }
        with lock(out, "report"):
            _keep_made(out, {name: told})
    return draw(names, out, out)


def draw(names: Sequence[str], data: Path, out: Path) -> Path:
    """Draw experiments from the data in a folder, and put their sections into the report of `out`.

    Raises:
        FileNotFoundError: the data of an experiment are missing.
    """
    path = out / REPORT
    with lock(out, "report"):
        made = _made(data)
        for name in names:
            told = _told(made.get(name, {}))
            if EXPERIMENTS[name].is_recorded:
                told += "\n`reproduce.py` only draws the results."
            text = section(name, EXPERIMENTS[name], load(name, data), told, out)
            sections = _sections(path.read_text(encoding="utf-8")) if path.exists() else {}
            sections[name] = text
            order = [*EXPERIMENTS, *(name for name in sections if name not in EXPERIMENTS)]
            whole = "\n".join(
                ["# The papers' experiments\n", *(sections[each] for each in order if each in sections)]
            )
            write_whole(path, whole.encode())
    return path


def _made(folder: Path) -> dict[str, Any]:
    path = folder / MADE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _keep_made(folder: Path, told: Mapping[str, Any]) -> None:
    write_whole(folder / MADE, (json.dumps({**_made(folder), **told}, indent=1) + "\n").encode())


def _told(made: Mapping[str, Any]) -> str:
    """A description of how a section was made."""
    if not made:
        return "How it was made was not noted."
    where = "; and on ".join(made["machines"])
    return (
        f"Made by `{made['command']}` on {where}.\n"
        f"Its runs took {made['minutes']} min at least: of one that was killed, the last part counts."
    )


def _sections(report: str) -> dict[str, str]:
    """Split a report into sections by experiment name."""
    parts = re.split(r"^## ([^:\n]+):", report, flags=re.MULTILINE)[1:]
    return {name: f"## {name}:{text.rstrip()}\n" for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _command(name: str, scale: Scale, has_seeds: bool) -> str:
    """The command that reproduces a section."""
    told = f"python training/reproduce.py {name} --share {scale.share:g}"
    told += f" --seeds {scale.seeds}" * has_seeds
    if EXPERIMENTS[name].is_of_rows:
        told += f" --graphs {','.join(scale.graphs)}" if scale.graphs else ""
        told += f" --minutes {scale.minutes:g}" if scale.minutes != MINUTES else ""
    return told


def main(
    experiments: Annotated[
        list[str],
        typer.Argument(help=f"What to reproduce: all, or some of {', '.join(EXPERIMENTS)}."),
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
    data: Annotated[
        Path | None,
        typer.Option(file_okay=False, exists=True, help="Make no runs: draw the CSV files of this folder."),
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Runs at the same time; those that measure run alone.")
    ] = 1,
) -> None:
    """Reproduce tables and figures of the papers."""
    names = choose(",".join(experiments), ("all", *EXPERIMENTS), "experiment", tuple(EXPERIMENTS))
    names = list(EXPERIMENTS) if "all" in names else names
    wanted = tuple(choose(graphs, TRAINABLE, "graph")) if graphs else ()
    _refuse(names, wanted, minutes)
    scale = Scale(share or (1.0 if full else 0.01), seeds or (3 if full else 1), wanted, minutes)
    try:
        (out / RUNS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"there can be no folder {out}: {error.strerror}") from error
    try:
        if data is None:
            typer.echo(reproduce(names, scale, out, jobs))
        else:
            typer.echo(draw(names, data, out))
    except (RlOptError, FileNotFoundError) as error:
        raise typer.BadParameter(str(error)) from error


def _refuse(names: Sequence[str], graphs: Sequence[str], minutes: float) -> None:
    """Refuse arguments that would be ignored."""
    if (graphs or minutes != MINUTES) and not any(name in OF_ROWS for name in names):
        raise typer.BadParameter(f"--graphs and --minutes are only for {', '.join(OF_ROWS)}")
    of_bert = [name for name in names if EXPERIMENTS[name].is_of_bert]
    if graphs and of_bert and not {BERT, TINY} & set(graphs):
        raise typer.BadParameter(f"{', '.join(of_bert)} are of the toy BERT: add {BERT} to --graphs")
