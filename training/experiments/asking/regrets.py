"""By how much what rows chose is slower than the best: means over graphs, and how they are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from training.experiments.asking.learners import LEARNERS
from training.experiments.intervals import half_width

Key = tuple[str, str, str, int]  # row, subject, executor, seed


def of_executor(regrets: Mapping[Key, np.ndarray], executor: str) -> dict[Key, np.ndarray]:
    """Those of one executor."""
    return {key: each for key, each in regrets.items() if key[2] == executor}


def executors_of(regrets: Mapping[Key, Any]) -> list[str]:
    """In the order in which they come."""
    return list(dict.fromkeys(executor for _, _, executor, _ in regrets))


def by_subject(regrets: Mapping[Key, np.ndarray], row: str) -> np.ndarray:
    """[subjects, budgets], a row's means over seeds; subjects in the order of their names.

    Args:
        regrets: of one executor, [budgets] each.
        row: which.
    """
    own: dict[str, list[np.ndarray]] = {}
    for (name, subject, _, _), regret in regrets.items():
        if name == row:
            own.setdefault(subject, []).append(regret)
    return np.array([np.mean(own[subject], axis=0) for subject in sorted(own)])


def interval(values: np.ndarray) -> str:
    """A mean over graphs in percent and its interval of 95 %, by Student's distribution."""
    mean, half = float(values.mean()), half_width(values)
    shown = f" ({100 * (mean - half):.1f} to {100 * (mean + half):.1f})" if len(values) > 1 else ""
    return f"{100 * mean:.1f} %{shown}"


def plot(
    regrets: Mapping[Key, np.ndarray],
    titles: Mapping[str, str],
    at: Sequence[int] | np.ndarray,
    than: str,
    path: Path,
) -> None:
    """A panel for each executor, a line for each row; those that are trained are drawn through.

    Args:
        regrets: [len(at)] each.
        titles: of the rows, in order.
        at: numbers of measurements.
        than: what a choice is slower than.
        path: of the picture.
    """
    executors = executors_of(regrets)
    figure = Figure(figsize=(4.5 * len(executors), 3.6), layout="constrained")
    panels = figure.subplots(1, len(executors), sharey=True, squeeze=False)[0]
    for panel, executor in zip(panels, executors, strict=True):
        own = of_executor(regrets, executor)
        for color, (row, title) in enumerate(titles.items()):
            style = "-" if row in LEARNERS else "--"
            mark = "o" if len(at) < 10 else ""
            mean = 100 * by_subject(own, row).mean(0)
            panel.plot(at, mean, mark + style, color=f"C{color}", label=title, linewidth=1.2)
        panel.set_xscale("log")
        panel.set_yscale("symlog", linthresh=1)
        panel.set_title(f"{executor}, one thread", fontsize=9)
        panel.set_xlabel("measured graphs")
    panels[0].set_ylabel(f"% slower than the {than}")
    panels[-1].legend(fontsize=7)
    figure.savefig(path, dpi=90)
