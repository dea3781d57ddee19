"""The table of everything that can be reproduced, and the report of what was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from torchrlopt.machine.device import cpu_name, num_usable_cores
from training.experiments.curves import FIGURE_6_3
from training.experiments.experiment import Experiment, Results
from training.experiments.runs import RUNS, Scale, Workplace, make_all
from training.experiments.runtime import TABLE_6_1
from training.experiments.sampling import TABLE_6_2, TABLE_6_3

#: By the name of the table or figure; another experiment is another row.
EXPERIMENTS: Mapping[str, Experiment] = {
    "table6.1": TABLE_6_1,
    "table6.2": TABLE_6_2,
    "table6.3": TABLE_6_3,
    "fig6.3": FIGURE_6_3,
}


def reproduce(names: Sequence[str], scale: Scale, place: Workplace) -> Path:
    """Make the runs of some experiments, and report of these and of all that the folder holds already.

    Each section of the report says which command made it, so that experiments may differ in scale.

    Args:
        names: in `EXPERIMENTS`.
        scale: of the runs.
        place: where and by whom they are made.

    Returns:
        The report.
    """
    found = make_all([run for name in names for run in EXPERIMENTS[name].runs(scale, place)], place)
    for name in names:
        experiment = EXPERIMENTS[name]
        head = [f"## {name}: {experiment.title}", "", f"{experiment.source}.", "", *_made_by(name, scale), ""]
        section = [*head, *experiment.report(Results(found, scale, place), place.out)]
        _section(name, place.out).write_text("\n".join(section) + "\n", encoding="utf-8")
    sections = [_section(name, place.out) for name in EXPERIMENTS]
    texts = [path.read_text(encoding="utf-8") for path in sections if path.exists()]
    path = place.out / "REPORT.md"
    path.write_text("\n".join(["# The papers' experiments\n", *texts]), encoding="utf-8")
    return path


def _section(name: str, out: Path) -> Path:
    return out / RUNS / f"{name}.md"


def _made_by(name: str, scale: Scale) -> list[str]:
    command = f"python training/reproduce.py {name} --share {scale.share:g} --seeds {scale.seeds}"
    return [
        f"Made by `{command}` on {num_usable_cores()} cores of an {cpu_name()}, PyTorch {torch.__version__}.",
        "What the thesis does not say (networks, learning rate, discount) is chosen in",
        "`training/learn_to_optimise/`.",
    ]
