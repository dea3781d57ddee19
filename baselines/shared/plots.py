"""Plots of the benchmarks; the extension of the path selects the format."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from baselines.shared import terminal


def lines(curves: pd.DataFrame, label: str, path: Path) -> None:
    """A line per column over the index, on a logarithmic axis."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    curves.plot(ax=axes, marker="o", markersize=3, logx=True)
    axes.set_ylabel(label)
    axes.legend(fontsize=7)
    _save(figure, path)


def scatter(points: pd.DataFrame, path: Path) -> None:
    """The column `predicted` over `measured`, both in ms, a colour per `model`, and the diagonal."""
    figure = Figure(figsize=(7, 6.5), layout="constrained")
    axes = figure.add_subplot()
    for index, (model, own) in enumerate(points.groupby("model", sort=False)):
        axes.scatter(
            own.measured, own.predicted, s=12, marker="os^Dv"[index // 10 % 5], label=model, alpha=0.7
        )
    ends = [
        points[["measured", "predicted"]].min().min() * 0.9,
        points[["measured", "predicted"]].max().max() * 1.1,
    ]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("measured, ms")
    axes.set_ylabel("predicted, ms")
    axes.legend(fontsize=7, ncols=2)
    _save(figure, path)


def frontiers(points: pd.DataFrame, path: Path) -> None:
    """For each `model` the `ms` of each `peer` over its `error`; those that are `joined` have a line."""
    models = list(points.groupby("model", sort=False))
    columns = min(len(models), 3)
    rows = -(-len(models) // columns)
    figure = Figure(figsize=(5.5 * columns, 4.2 * rows), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in grid[len(models) :]:
        unused.set_axis_off()
    for axes, (model, own) in zip(grid, models, strict=False):
        for is_joined, some in own.sort_values("error").groupby("joined"):
            axes.plot(some.error, some.ms, "o-" if is_joined else "s", markersize=4)
        for each in own.itertuples():
            place = {"xytext": (3, 3), "textcoords": "offset points"}
            axes.annotate(each.peer, (each.error, each.ms), fontsize=6, **place)
        axes.set(
            title=model, xlabel="error (rms, of the output's)", ylabel="ms", xscale="log", ylim=(0, None)
        )
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    figure.suptitle(terminal.machine(), fontsize=7)
    figure.savefig(path, dpi=150)
