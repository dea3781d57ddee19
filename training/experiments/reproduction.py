"""The table of everything that can be reproduced, and the report of what was."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from torchrlopt.storage.files import write_whole
from training.experiments.composition import COMPONENTS
from training.experiments.curves import FIGURE_6_3
from training.experiments.dissertation.latencies import FIGURE_4_1, TABLE_4_2
from training.experiments.dissertation.metric_pairs import FIGURE_4_5
from training.experiments.dissertation.of_rows import EXPERIMENTS_OF_ROWS
from training.experiments.dissertation.properties import TABLE_4_1
from training.experiments.dissertation.search_curve import FIGURE_4_2
from training.experiments.efficiency.experiment import EFFICIENCY
from training.experiments.experiment import Experiment, Results
from training.experiments.graph_samplers import SAMPLERS_ON_GRAPHS
from training.experiments.graph_scaling import SCALING
from training.experiments.measurements.experiment import MEASUREMENTS
from training.experiments.runs import MINUTES, AllFinished, Scale, Workplace, lock, make_all
from training.experiments.runtime import TABLE_6_1
from training.experiments.sampling import TABLE_6_2, TABLE_6_3
from training.experiments.throughput import THROUGHPUT

#: By the name of the table or figure; another experiment is another row.
EXPERIMENTS: Mapping[str, Experiment] = {
    "table4.1": TABLE_4_1,
    "fig4.1": FIGURE_4_1,
    "fig4.2": FIGURE_4_2,
    "fig4.5": FIGURE_4_5,
    "table4.2": TABLE_4_2,
    **EXPERIMENTS_OF_ROWS,
    "table6.1": TABLE_6_1,
    "table6.2": TABLE_6_2,
    "table6.3": TABLE_6_3,
    "fig6.3": FIGURE_6_3,
    "scaling": SCALING,
    "samplers": SAMPLERS_ON_GRAPHS,
    "components": COMPONENTS,
    "throughput": THROUGHPUT,
    "measurements": MEASUREMENTS,
    "efficiency": EFFICIENCY,
}
_TITLE = "# The papers' experiments\n"


def reproduce(names: Sequence[str], scale: Scale, place: Workplace) -> Path:
    """Make the runs of some experiments, and put their sections into the folder's report.

    The other sections of a report that is there stay. Each says which command made it, so that experiments
    may differ in scale.

    Args:
        names: in `EXPERIMENTS`.
        scale: of the runs.
        place: where and by whom they are made.

    Returns:
        The report.
    """
    path = place.out / "REPORT.md"
    found = make_all([run for name in names for run in EXPERIMENTS[name].runs(scale, place)], place)
    with lock(place.out, "report"):
        _report(path, names, found, scale, place)
    return path


def _report(path: Path, names: Sequence[str], found: AllFinished, scale: Scale, place: Workplace) -> None:
    sections = _sections(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name in names:
        experiment = EXPERIMENTS[name]
        head = [f"## {name}: {experiment.title}", "", f"{experiment.source}.", ""]
        runs = experiment.runs(scale, place)
        has_seeds = runs != experiment.runs(dataclasses.replace(scale, seeds=scale.seeds + 1), place)
        made_by = _made_by(name, scale, place, found.machines(runs), found.minutes(runs), has_seeds)
        made_by += [*experiment.note.splitlines(), ""]
        lines = [*head, *made_by, *experiment.report(Results(found, scale, place), place.out)]
        sections[name] = "\n".join(lines) + "\n"
        order = [*EXPERIMENTS, *(name for name in sections if name not in EXPERIMENTS)]
        text = "\n".join([_TITLE, *(sections[name] for name in order if name in sections)])
        write_whole(path, text.encode())


def _sections(report: str) -> dict[str, str]:
    """The sections of a report by the names of their experiments."""
    parts = re.split(r"^## ([^:\n]+):", report, flags=re.MULTILINE)[1:]
    return {name: f"## {name}:{text.rstrip()}\n" for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _made_by(
    name: str,
    scale: Scale,
    place: Workplace,
    machines: Sequence[str],
    minutes: float | None,
    has_seeds: bool = True,
) -> list[str]:
    """The command that makes a section again, and where and in which time its runs were made.

    Args:
        name: in `EXPERIMENTS`.
        scale: of the runs.
        place: where they were made.
        machines: that made them.
        minutes: that they took; None where that is not known.
        has_seeds: whether more seeds would be more runs.
    """
    command = f"python training/reproduce.py {name} --share {scale.share:g}"
    command += f" --seeds {scale.seeds}" * has_seeds
    graphs = f" --graphs {','.join(scale.graphs)}" if scale.graphs and name in EXPERIMENTS_OF_ROWS else ""
    if scale.minutes != MINUTES and name in EXPERIMENTS_OF_ROWS:
        graphs += f" --minutes {scale.minutes:g}"
    if place.collector != Workplace.collector:
        command += f" --collector {place.collector}" + f" --ray {place.ray}" * bool(place.ray)
    lines = [f"Made by `{command}{graphs}` on {'; and on '.join(machines)}."]
    if minutes is not None:
        lines.append(
            f"Its runs took {math.ceil(minutes)} min at least: of one that was killed, the last part counts."
        )
    return lines
