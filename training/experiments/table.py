"""The table of everything that can be reproduced, and the report of what was."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from torchrlopt.machine.device import cpu_name
from training.experiments.curves import FIGURE_6_3
from training.experiments.experiment import Experiment, Results
from training.experiments.runs import Scale, Workplace, finished, make_all
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
    """Make the runs of some experiments and report of all whose runs the folder then holds.

    Args:
        names: in `EXPERIMENTS`.
        scale: of the runs.
        place: where and by whom they are made.

    Returns:
        The report.
    """
    make_all([run for name in names for run in EXPERIMENTS[name].runs(scale, place)], place)
    lines = ["# The papers' experiments", "", *_made_by(scale), ""]
    for name, experiment in EXPERIMENTS.items():
        runs = experiment.runs(scale, place)
        found = finished(runs, place.out)
        if len(found) == len(set(runs)):
            lines += [f"## {name}: {experiment.title}", "", f"{experiment.source}.", ""]
            lines += [*experiment.report(Results(found, scale, place), place.out), ""]
    path = place.out / "REPORT.md"
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return path


def _made_by(scale: Scale) -> list[str]:
    command = shlex.join(["python", "training/reproduce.py", *sys.argv[1:]])
    return [
        f"Made by `{command}`: {scale.share:.3g} of the training steps, seeds 0 to {scale.seeds - 1}.",
        f"Machine: {os.cpu_count()} cores of an {cpu_name()}, PyTorch {torch.__version__}.",
        "What the papers do not say (networks, learning rate, discount) is chosen in",
        "`training/learn_to_optimise/`.",
    ]
