"""Figure 4.6: the model-free agent with each reward, and the grid of alpha and beta."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from training.experiments.dissertation import trainings
from training.experiments.dissertation.learning import common
from training.experiments.dissertation.subjects import bert, title_of
from training.experiments.experiment import Cell, Experiment, Results, table, write_csv
from training.experiments.intervals import half_width
from training.experiments.runs import Run, Scale, Workplace

SAYS = {
    "R1": "0.8 time, 0.2 traffic",
    "R2": "new run time",
    "R3": "0.1 time, 0.9 traffic",
    "R4": "0.5 time, 0.5 traffic",
    "R5": "time",
    trainings.OURS: "best so far (ours)",
}
THEIRS = {"R1": "48.7 % ± 3.2", "R4": "43.2 % ± 2.3"}
THEIR_ALPHA = 0.8
NOTHING = 0.01  # percent


def runs(scale: Scale, place: Workplace) -> list[Run[Any]]:
    """See `Experiment`."""
    return [*trainings.rewards(scale, place).values(), trainings.rivals(scale)[bert(scale)]]


def report(results: Results, folder: Path) -> list[str]:
    """See `Experiment`."""
    scale = results.scale
    found = {
        key: results.finished.outcome(run) for key, run in trainings.rewards(scale, results.place).items()
    }
    seeds = range(scale.seeds)
    names = list(dict.fromkeys(name for name, _ in found))
    curves, gains = {}, {}
    rows: list[tuple[Cell, ...]] = []
    for name in names:
        mine = [found[name, seed] for seed in seeds]
        returns = common(mine, "mean_return")
        span = max(1e-12, float(returns.max() - returns.min()))
        curves[name] = (returns - returns.min()) / span
        gains[name] = [100 * float(np.mean(each.played.gains)) for each in mine]
        rows += [
            (
                name,
                seed,
                epoch + 1,
                float(returns[seed, epoch]),
                float(curves[name][seed, epoch]),
                gains[name][seed],
            )
            for seed in seeds
            for epoch in range(returns.shape[1])
        ]
    columns = ("reward", "seed", "epoch", "mean_reward", "normalised", "time_saved_at_the_end")
    write_csv(folder / "fig4.6.csv", columns, rows)
    others = results.finished.outcome(trainings.rivals(scale)[bert(scale)])
    random, greedy = 100 * float(np.mean(others.random["mf"].gains)), 100 * others.gains["greedy"]
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    panels = figure.subplots(1, 2)
    for name in trainings.REWARDS:
        panels[0].plot(
            range(1, curves[name].shape[1] + 1), curves[name].mean(0), label=f"{name}: {SAYS[name]}"
        )
    grid = [gains[trainings.reward_at(alpha)] for alpha in trainings.ALPHAS]
    panels[1].errorbar(
        trainings.ALPHAS,
        [float(np.mean(each)) for each in grid],
        [half_width(each) for each in grid],
        marker="o",
    )
    panels[1].axhline(random, color="C7", linestyle=":", label="random play")
    panels[1].axhline(greedy, color="C2", linestyle="--", label="greedy")
    panels[0].set_xlabel("epochs")
    panels[0].set_ylabel("mean reward, normalised")
    panels[1].set_xlabel("alpha (beta = 1 - alpha)")
    panels[1].set_ylabel("time saved, %")
    for panel in panels:
        panel.legend(fontsize=6)
    figure.savefig(folder / "fig4.6.png", dpi=80)
    cells = [
        (name, SAYS[name], _shown(gains[name]), THEIRS.get(name, "not told")) for name in trainings.REWARDS
    ]
    best = max(trainings.ALPHAS, key=lambda alpha: float(np.mean(gains[trainings.reward_at(alpha)])))
    spread = max(float(np.mean(each)) for each in grid) - min(float(np.mean(each)) for each in grid)
    widest = max(half_width(each) for each in grid)
    told = "no" if len(seeds) == 1 else "more than their" if spread > 2 * widest else "no more than their"
    return [
        "![rewards](fig4.6.png)",
        "",
        f"{title_of(bert(scale))}, {trainings.updates_made(list(found.values()))} updates for each reward "
        f"(theirs: 500 epochs), {scale.seeds} seed(s). All are divided by the first cost. Time saved is the "
        "mean over the drawn episodes of the policy that came out, by the best graph that each met, whatever "
        "the reward was.",
        "",
        *table(("reward", "made of", "time saved", "theirs"), cells),
        "",
        f"- Random play saves {random:.1f} %, greedy {greedy:.1f} %.",
        *_learnt(gains, random, greedy),
        _of_grid(best, spread, told),
        "- The dissertation calls R4 the simplest reward in its text, and lists it with alpha 0.5 under "
        "its figure; the simplest one, the fall of the run time alone, is R5 there.",
    ]


def _learnt(gains: Mapping[str, list[float]], random: float, greedy: float) -> list[str]:
    """Said where no reward has taught anything that greedy search or random play does not have."""
    means = [float(np.mean(each)) for each in gains.values()]
    said = []
    if all(abs(mean - greedy) < NOTHING for mean in means):
        said.append(
            "- With every reward the policy saves what greedy search does: nothing was learnt beyond."
        )
    if max(means) < random:
        said.append("- Random play is better than every one of these policies.")
    return said


def _of_grid(best: float, spread: float, told: str) -> str:
    """What is said of the alphas.

    Args:
        best: of them.
        spread: of their means, in percent.
        told: how that compares with intervals, which a single seed does not have.
    """
    if spread < NOTHING:
        return f"- All alphas save the same here; theirs is best at {THEIR_ALPHA:g}."
    apart = f"The grid's means lie {spread:.2g} % apart"
    if told == "no":
        rest = f"{apart}, and one seed has no intervals: the best of so many may be luck."
    elif told.startswith("no more"):
        rest = f"{apart}, {told} intervals: which alpha is best cannot be told from chance."
    else:
        rest = f"{apart}, {told} intervals."
    return f"- The best alpha here is {best:g}, theirs {THEIR_ALPHA:g}. {rest}"


def _shown(values: list[float]) -> str:
    spread = f" ± {half_width(values):.2g}" if len(values) > 1 else ""
    return f"{np.mean(values):.1f} %{spread}"


FIGURE_4_6 = Experiment(
    "Rewards of the model-free agent",
    "Parker 2021, figure 4.6",
    runs,
    report,
    trainings.NOTE,
    is_of_bert=True,
)
