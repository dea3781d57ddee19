"""The report of a run: learning curves, and the agent's cost on every test graph, as plots and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from baselines.shared.tables import markdown
from torchrlopt.plan.search import Plan
from training.scores.evaluate import Score
from training.trainer import read_log

#: Curves to plot; those that a row does not have are left out.
CURVES = (
    "mean_return", "best_return", "imitation_loss", "policy_loss", "value_loss", "entropy", "mean_length",
    "dream_return", "model_mask", "reward_pearson", "mask_f1", "dream_gap",
)  # fmt: skip
SMOOTHING = 20  # updates in the moving mean


def write(
    folder: Path, names: Sequence[str], plans: Mapping[str, Sequence[Plan]], scores: Mapping[str, Score]
) -> Path:
    """Write `REPORT.md`, `training.png` and `scores.png`.

    Args:
        folder: of the run, which holds its log.
        names: of the test graphs.
        plans: by searcher, one for each graph.
        scores: by searcher.

    Returns:
        The report's path.
    """
    has_curves = _plot_training(folder)
    costs = pd.DataFrame({each: [plan.cost_after_ms for plan in mine] for each, mine in plans.items()})
    _plot_scores(folder, 100 * (costs.div(costs["greedy"], axis="index") - 1))
    before = [plan.cost_before_ms for plan in plans["greedy"]]
    ratios = costs.div(before, axis="index").set_axis(list(names))
    ratios.loc["geometric mean"] = [scores[each].ratio for each in plans]
    lines = ["# Training report", ""]
    if has_curves:
        lines += ["![training](training.png)", ""]
    lines += ["![scores](scores.png)", "", "Cost after / cost before, by graph:", ""]
    lines += [markdown(ratios.map("{:.4f}".format).rename_axis("graph").reset_index()), ""]
    path = folder / "REPORT.md"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def _plot_training(folder: Path) -> bool:
    """One panel per curve; returns False if nothing was logged."""
    log = pd.DataFrame({name: dict(line) for name, line in read_log(folder).items() if name in CURVES})
    if log.empty:
        return False
    smooth = log.sort_index().rolling(SMOOTHING, min_periods=1).mean()
    figure = Figure(figsize=(12, 2.6 * -(-log.shape[1] // 3)), layout="constrained")
    for place, name in enumerate(log, 1):
        panel = figure.add_subplot(-(-log.shape[1] // 3), 3, place)
        log[name].dropna().plot(ax=panel, linewidth=0.5, alpha=0.5)
        smooth[name].dropna().plot(ax=panel, linewidth=1.2, title=name, xlabel="update")
    figure.savefig(folder / "training.png", dpi=110)
    return True


def _plot_scores(folder: Path, against: pd.DataFrame) -> None:
    """Cost of every searcher relative to greedy's, graph by graph, sorted."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    against.apply(lambda column: column.sort_values(ignore_index=True)).plot(
        ax=figure.subplots(), marker=".", xlabel="test graphs, sorted", ylabel="cost against greedy's, %"
    )
    figure.savefig(folder / "scores.png", dpi=110)
