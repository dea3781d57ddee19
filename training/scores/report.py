"""The report of a run: learning curves, and the agent's cost on every test graph, as plots and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

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
    _plot_scores(folder, plans)
    lines = ["# Training report", ""]
    if has_curves:
        lines += ["![training](training.png)", ""]
    lines += ["![scores](scores.png)", "", "Cost after / cost before, by graph:", ""]
    searchers = list(plans)
    lines += ["| graph | " + " | ".join(searchers) + " |", "|---" * (len(searchers) + 1) + "|"]
    for i, name in enumerate(names):
        ratios = [plans[each][i].cost_after_ms / plans[each][i].cost_before_ms for each in searchers]
        lines.append(f"| {name} | " + " | ".join(f"{ratio:.4f}" for ratio in ratios) + " |")
    means = " | ".join(f"{scores[each].ratio:.4f}" for each in searchers)
    lines += [f"| geometric mean | {means} |", ""]
    path = folder / "REPORT.md"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def _plot_training(folder: Path) -> bool:
    """One panel per curve; returns False if nothing was logged."""
    from matplotlib.figure import Figure

    series = {name: line for name, line in read_log(folder).items() if name in CURVES}
    if not series:
        return False
    rows = (len(series) + 2) // 3
    figure = Figure(figsize=(12, 2.6 * rows), layout="constrained")
    panels = figure.subplots(rows, 3, squeeze=False).flatten()
    for panel in panels[len(series) :]:
        panel.axis("off")
    for panel, (name, line) in zip(panels, series.items(), strict=False):
        updates, values = zip(*line, strict=True)
        panel.plot(updates, values, linewidth=0.5, alpha=0.5)
        smooth = [
            sum(values[max(0, i - SMOOTHING) : i + 1]) / len(values[max(0, i - SMOOTHING) : i + 1])
            for i in range(len(values))
        ]
        panel.plot(updates, smooth, linewidth=1.2)
        panel.set_title(name, fontsize=9)
        panel.set_xlabel("update", fontsize=8)
    figure.savefig(folder / "training.png", dpi=110)
    return True


def _plot_scores(folder: Path, plans: Mapping[str, Sequence[Plan]]) -> None:
    """Cost of every searcher relative to greedy's, graph by graph, sorted."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    panel = figure.subplots()
    for name, mine in plans.items():
        pairs = zip(mine, plans["greedy"], strict=True)
        ratios = sorted(100 * (plan.cost_after_ms / other.cost_after_ms - 1) for plan, other in pairs)
        panel.plot(range(1, len(ratios) + 1), ratios, marker=".", linewidth=1, label=name)
    panel.set_xlabel("test graphs, sorted")
    panel.set_ylabel("cost against greedy's, %")
    panel.legend(fontsize=8)
    figure.savefig(folder / "scores.png", dpi=110)
