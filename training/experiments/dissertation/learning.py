"""Figures 4.4 and 4.10: rewards per epoch, and both agents by epochs, real steps and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from training.experiments.dissertation import trainings
from training.experiments.dissertation.row_run import ROW_TITLES, RowOutcome, config_of
from training.experiments.dissertation.subjects import BERT, bert, subjects, title_of
from training.experiments.experiment import Cell, Experiment, Results, table, write_csv
from training.experiments.intervals import half_width
from training.experiments.runs import Run, Scale, Workplace

ENOUGH = 0.95  # of what MF earns in the end
CLOSE = 0.002  # of the predicted time
SMOOTHING = 3  # updates of a moving mean, where a level is looked for
LOGGED = (
    "mean_return",
    "best_return",
    "real_steps",
    "imagined_steps",
    "cpu_seconds",
    "policy_loss",
    "value_loss",
)
AXES = {"update": "epochs", "real_steps": "real steps", "cpu_seconds": "processor seconds"}


def columns_of(outcome: RowOutcome, names: Sequence[str]) -> list[list[float]]:
    """Columns of a log; not a number where a row does not log them."""
    log = outcome.log
    return [log.get(name, [float("nan")] * len(log["update"])) for name in names]


def smooth(values: Sequence[float]) -> np.ndarray:
    """Mean of each value and those just before it."""
    parts = (values[max(0, i - SMOOTHING + 1) : i + 1] for i in range(len(values)))
    return np.array([np.mean(part) for part in parts])


def line(panel: Axes, x: Sequence[float], values: np.ndarray, label: str, color: str) -> None:
    """Mean over seeds [seeds, T] and its interval."""
    panel.plot(x, values.mean(0), color=color, label=label, linewidth=1)
    half = np.array([half_width(column) for column in values.T])
    panel.fill_between(x, values.mean(0) - half, values.mean(0) + half, color=color, alpha=0.2, linewidth=0)


def common(outcomes: Sequence[RowOutcome], name: str) -> np.ndarray:
    """A column of several seeds, [seeds, T], as long as the shortest."""
    length = min(len(each.log["update"]) for each in outcomes)
    return np.array([each.log[name][:length] for each in outcomes])


def runs_4_4(scale: Scale, place: Workplace) -> list[Run[Any]]:
    """See `Experiment`."""
    return [*trainings.rows("mf", scale, place).values(), *trainings.rivals(scale).values()]


def report_4_4(results: Results, folder: Path) -> list[str]:
    """See `Experiment`."""
    scale = results.scale
    found = {
        key: results.finished.outcome(run) for key, run in trainings.rows("mf", scale, results.place).items()
    }
    rows: list[tuple[Cell, ...]] = []
    told: list[tuple[Cell, ...]] = []
    graphs = subjects(scale)
    figure = Figure(figsize=(4 * min(3, len(graphs)), 3 * ((len(graphs) + 2) // 3)), layout="constrained")
    panels = figure.subplots((len(graphs) + 2) // 3, min(3, len(graphs)), squeeze=False).flatten()
    for panel, graph in zip(panels, graphs, strict=False):
        mine = [found[graph, seed] for seed in range(scale.seeds)]
        returns = common(mine, "mean_return")
        others = results.finished.outcome(trainings.rivals(scale)[graph])
        random, greedy = float(np.mean(others.random["mf"].gains)), others.gains["greedy"]
        low, high = returns.min(), returns.max()
        for seed, values in enumerate(returns):
            scaled = (values - low) / max(1e-12, high - low)
            rows += [(graph, seed, i + 1, *pair) for i, pair in enumerate(zip(values, scaled, strict=True))]
        line(panel, range(1, returns.shape[1] + 1), returns, "MF", "C0")
        panel.axhline(random, color="C7", linestyle=":", label="random play")
        panel.axhline(greedy, color="C2", linestyle="--", label="greedy")
        panel.set_title(title_of(graph), fontsize=9)
        panel.set_xlabel("epochs")
        late = returns[:, -max(1, returns.shape[1] // 5) :]
        told.append(
            (
                title_of(graph),
                float(returns[:, 0].mean()),
                float(late.mean()),
                float(late.std()),
                random,
                greedy,
            )
        )
    panels[0].set_ylabel("mean reward of an episode")
    panels[0].legend(fontsize=7)
    for panel in panels[len(graphs) :]:
        panel.axis("off")
    figure.savefig(folder / "fig4.4.png", dpi=80)
    write_csv(folder / "fig4.4.csv", ("graph", "seed", "epoch", "mean_reward", "normalised"), rows)
    header = (
        "graph",
        "first epoch",
        "last fifth",
        "its deviation",
        "random play",
        "greedy",
    )
    return [
        "![rewards](fig4.4.png)",
        "",
        "Mean reward of the episodes of an epoch, which is the share of the predicted time that is saved; "
        "the CSV has it normalised between least and largest, too, as theirs is. No value is repeated "
        "where nothing was measured.",
        "",
        *table(header, told),
        "",
        f"- Theirs converges after about 1,000 of {trainings.THEIR_EPOCHS['mf']:,} epochs, with little "
        f"variation after that. Ours is made of {trainings.updates_made(list(found.values()))} epochs of "
        f"{_episodes('mf')} episodes.",
        *(f"- {cell[0]}: {_against(float(cell[2]), float(cell[4]), float(cell[5]))}" for cell in told),
    ]


def _episodes(row: str) -> int:
    """Real episodes of an update of training on one graph."""
    config = config_of(row, BERT)
    return config.groups * config.rollouts


def _against(mine: float, random: float, greedy: float) -> str:
    said = "more" if mine > random else "no more"
    compared = "about" if abs(mine - greedy) < CLOSE else "above" if mine > greedy else "below"
    return (
        f"at the end an episode earns {mine:.3f}, {said} than at random ({random:.3f}), and {compared} what "
        f"greedy saves ({greedy:.3f})."
    )


def runs_4_10(scale: Scale, place: Workplace) -> list[Run[Any]]:
    """See `Experiment`."""
    both = [run for row in ROW_TITLES for run in trainings.on_bert(row, scale, place)]
    return [*both, trainings.rivals(scale)[bert(scale)]]


def report_4_10(results: Results, folder: Path) -> list[str]:
    """See `Experiment`."""
    scale = results.scale
    found = {
        row: [results.finished.outcome(run) for run in trainings.on_bert(row, scale, results.place)]
        for row in ROW_TITLES
    }
    rows = [
        (row, seed, *values)
        for row, outcomes in found.items()
        for seed, outcome in enumerate(outcomes)
        for values in zip(*columns_of(outcome, ("update", *LOGGED)), strict=True)
    ]
    write_csv(folder / "fig4.10.csv", ("row", "seed", "epoch", *LOGGED), rows)
    others = results.finished.outcome(trainings.rivals(scale)[bert(scale)])
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    panels = figure.subplots(1, 4)
    for color, (row, outcomes) in zip(("C0", "C1"), found.items(), strict=True):
        for panel, axis in zip(panels, AXES, strict=False):
            line(
                panel, common(outcomes, axis).mean(0), common(outcomes, "mean_return"), ROW_TITLES[row], color
            )
        line(panels[3], common(outcomes, "update")[0], common(outcomes, "value_loss"), ROW_TITLES[row], color)
    for panel, title in zip(panels, [*AXES.values(), "epochs"], strict=True):
        panel.set_xlabel(title)
    for panel in panels[:3]:
        for row, color in (("mf", "C0"), ("wm", "C1")):
            level = float(np.mean(others.random[row].gains))
            panel.axhline(level, color=color, linestyle=":", label=f"random play, {ROW_TITLES[row]}'s steps")
        panel.axhline(others.gains["greedy"], color="C2", linestyle="--", label="greedy")
    panels[0].set_ylabel("mean reward of a real episode")
    panels[3].set_ylabel("loss of the value")
    panels[0].legend(fontsize=7)
    figure.savefig(folder / "fig4.10.png", dpi=80)
    level = ENOUGH * float(np.mean([smooth(each.log["mean_return"])[-1] for each in found["mf"]]))
    cells = []
    for row, outcomes in found.items():
        reached = [_reached(each, level) for each in outcomes]
        ends = [float(smooth(each.log["mean_return"])[-1]) for each in outcomes]
        best = [each.played.best for each in outcomes]
        cells.append(
            (
                ROW_TITLES[row],
                _mean(ends),
                _mean(best),
                *(_list([each[axis] for each in reached]) for axis in AXES),
            )
        )
    header = ("row", "reward at the end", "best plan", *(f"{each} to the level" for each in AXES.values()))
    totals = {row: float(np.mean([each.real_steps for each in outcomes])) for row, outcomes in found.items()}
    return [
        "![both](fig4.10.png)",
        "",
        f"{title_of(bert(scale))}, {scale.seeds} seed(s); shaded are intervals of 95 %. The level is "
        f"{ENOUGH:.0%} of what MF earns at the end, {level:.4f}. An epoch plays {_episodes('mf')} real "
        f"episodes of MF and {_episodes('wm')} of WM; one of WM also fits the model and trains the policy in "
        "imagination. WM's steps and seconds count its random play and the training of its encoder.",
        "",
        *table(header, cells),
        "",
        f"- Real steps altogether: MF {totals['mf']:,.0f}, WM {totals['wm']:,.0f}. Theirs: 4,000,000 and "
        "1,000,000.",
        *["- MF may choose whole classes of alike locations, here WM single ones only."]
        * (not config_of("wm", BERT).macros),
        *(
            f"- {ROW_TITLES[row]} begins with a reward of "
            f"{np.mean([each.log['mean_return'][0] for each in outcomes]):.3f}; random play with its "
            f"steps earns {np.mean(others.random[row].gains):.3f}, greedy search "
            f"{others.gains['greedy']:.3f}."
            for row, outcomes in found.items()
        ),
    ]


def _reached(outcome: RowOutcome, level: float) -> dict[str, float]:
    """Where the smoothed reward comes to a level first; not a number where it does not."""
    over = np.nonzero(smooth(outcome.log["mean_return"]) >= level)[0]
    return {axis: outcome.log[axis][over[0]] if len(over) else float("nan") for axis in AXES}


def _mean(values: Sequence[float]) -> str:
    spread = f" ± {half_width(values):.2g}" if len(values) > 1 else ""
    return f"{np.mean(values):.4f}{spread}"


def _list(values: Sequence[float]) -> str:
    return ", ".join("never" if np.isnan(value) else f"{value:,.0f}" for value in values)


FIGURE_4_4 = Experiment(
    "Reward of the model-free agent per epoch",
    "Parker 2021, figure 4.4",
    runs_4_4,
    report_4_4,
    trainings.PROCESSOR_NOTE,
)
FIGURE_4_10 = Experiment(
    "Both agents by epochs, real steps and seconds",
    "Parker 2021, figure 4.10",
    runs_4_10,
    report_4_10,
    trainings.PROCESSOR_NOTE,
    is_of_bert=True,
)
