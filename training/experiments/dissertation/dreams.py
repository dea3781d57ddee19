"""Figures 4.8 and 4.9 and table 4.3: the world model's loss, its promises, and its temperature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from training.experiments.dissertation import trainings
from training.experiments.dissertation.learning import columns_of, common, line
from training.experiments.dissertation.subjects import bert, subjects, title_of
from training.experiments.experiment import Cell, Experiment, Results, table, write_csv
from training.experiments.intervals import half_width
from training.experiments.runs import Run, Scale, Workplace

LOSSES = ("mixture", "reward", "done", "mask", "count", "saving")
PROMISES = ("promised_return", "mean_return", "predicted_gain", "real_gain", "dream_return")
#: Table 4.3: world model and real, percent, with their deviations.
THEIRS = {
    0.1: (6.67, 0.6, 43.92, 5.1), 0.5: (7.75, 0.3, 55.33, 6.7), 0.75: (9.10, 0.4, 55.80, 5.2),
    1.0: (8.85, 1.2, 55.78, 4.0), 1.2: (9.91, 0.8, 57.01, 3.9), 1.5: (8.37, 0.6, 58.23, 3.6),
    1.75: (9.92, 1.0, 52.07, 5.8), 2.0: (9.65, 0.8, 46.12, 5.4), 2.5: (10.04, 2.0, 41.14, 10.2),
    3.0: (10.38, 1.9, 51.32, 7.2),
}  # fmt: skip


def runs_of_wm(scale: Scale, place: Workplace) -> list[Run[Any]]:
    """See `Experiment`."""
    return [*trainings.rows("wm", scale, place).values(), *trainings.rivals(scale).values()]


def report_4_8(results: Results, folder: Path) -> list[str]:
    """See `Experiment`."""
    scale = results.scale
    found = {
        key: results.finished.outcome(run) for key, run in trainings.rows("wm", scale, results.place).items()
    }
    names = [f"{part}_{loss}" for loss in LOSSES for part in ("model", "fresh")]
    others = ("fresh_gaussian", "mask_f1", "unchanged_f1", "reward_pearson")
    rows = [
        (graph, seed, *values)
        for (graph, seed), outcome in found.items()
        for values in zip(*columns_of(outcome, ("update", *names, *others)), strict=True)
    ]
    write_csv(folder / "fig4.8.csv", ("graph", "seed", "epoch", *names, *others), rows)
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    panels = figure.subplots(1, 2)
    cells: list[tuple[Cell, ...]] = []
    for number, graph in enumerate(subjects(scale)):
        mine = [found[graph, seed] for seed in range(scale.seeds)]
        epochs = common(mine, "update")[0]
        color = f"C{number}"
        line(panels[0], epochs, common(mine, "model_mixture"), f"{title_of(graph)}, fitted", color)
        line(panels[0], epochs, common(mine, "fresh_mixture"), "fresh episodes", f"C{number + 6}")
        panels[0].plot(epochs, common(mine, "fresh_gaussian").mean(0), ":", color=color, label="one Gaussian")
        line(panels[1], epochs, common(mine, "mask_f1"), title_of(graph), color)
        panels[1].plot(
            epochs, common(mine, "unchanged_f1").mean(0), ":", color=color, label="nothing changes"
        )
        ends = [
            float(common(mine, name)[:, -1].mean())
            for name in ("model_mixture", "fresh_mixture", *others[:3])
        ]
        cells.append((title_of(graph), float(common(mine, "fresh_mixture")[:, 0].mean()), *ends))
    panels[0].set_ylabel("negative log-likelihood")
    panels[1].set_ylabel("F1 of what is legal after a step")
    for panel in panels:
        panel.set_xlabel("epochs")
        panel.legend(fontsize=6)
    figure.savefig(folder / "fig4.8.png", dpi=80)
    header = (
        "graph", "first epoch, fresh", "last, fitted", "last, fresh", "one Gaussian",
        "legal after a step, F1", "the same if nothing changed",
    )  # fmt: skip
    said = [
        f"- {cell[0]}: the loss on fresh episodes is "
        f"{'below' if float(cell[3]) < float(cell[4]) else 'NOT BELOW'} that of one Gaussian fitted to the "
        "same data; what is legal is foretold "
        f"{'better' if float(cell[5]) > float(cell[6]) else 'NO BETTER'} than by the guess that nothing "
        "changes."
        for cell in cells
    ]
    return [
        "![losses](fig4.8.png)",
        "",
        "Negative log-likelihood of the change of the latent, mean over features and over real steps: "
        'padding is left out. "Fitted" is of all episodes recorded so far, "fresh" of those that the policy '
        "has just played and the model has not learnt from. Theirs averages 256 padded steps, about five "
        "of which are real.",
        "",
        *table(header, cells),
        "",
        "- Their curves fall and level off within 2,000 epochs of random play. Their values are not told "
        "as numbers.",
        *said,
    ]


def report_4_9(results: Results, folder: Path) -> list[str]:
    """See `Experiment`."""
    scale = results.scale
    found = {
        key: results.finished.outcome(run) for key, run in trainings.rows("wm", scale, results.place).items()
    }
    rows = [
        (graph, seed, *values)
        for (graph, seed), outcome in found.items()
        for values in zip(*columns_of(outcome, ("update", *PROMISES)), strict=True)
    ]
    write_csv(folder / "fig4.9.csv", ("graph", "seed", "epoch", *PROMISES), rows)
    graphs = subjects(scale)
    figure = Figure(figsize=(4.5 * min(3, len(graphs)), 3 * ((len(graphs) + 2) // 3)), layout="constrained")
    panels = figure.subplots((len(graphs) + 2) // 3, min(3, len(graphs)), squeeze=False).flatten()
    cells: list[tuple[Cell, ...]] = []
    for panel, graph in zip(panels, graphs, strict=False):
        mine = [found[graph, seed] for seed in range(scale.seeds)]
        epochs = common(mine, "update")[0]
        promised, real, same = (
            common(mine, name) for name in ("promised_return", "mean_return", "predicted_gain")
        )
        line(panel, epochs, promised, "promised in the dream", "C1")
        line(panel, epochs, same, "foretold of the real episodes", "C4")
        line(panel, epochs, real, "real", "C0")
        random = float(np.mean(results.finished.outcome(trainings.rivals(scale)[graph]).random["wm"].gains))
        panel.axhline(random, color="C7", linestyle=":", label="random play, real")
        panel.set_title(title_of(graph), fontsize=9)
        panel.set_xlabel("epochs")
        last = slice(-max(1, real.shape[1] // 5), None)
        told, of_same, came = (float(each[:, last].mean()) for each in (promised, same, real))
        span = f"{promised[:, last].min():.3g} to {promised[:, last].max():.3g}"
        cells.append((title_of(graph), told, span, of_same, came, _gap(told, came), _gap(of_same, came)))
    for panel in panels[len(graphs) :]:
        panel.set_axis_off()
    panels[0].legend(fontsize=6)
    panels[0].set_ylabel("return of an episode")
    figure.savefig(folder / "fig4.9.png", dpi=80)
    header = (
        "graph",
        "promised",
        "least to most",
        "foretold of the same episodes",
        "real",
        "gap of the dream",
        "gap, same episodes",
    )
    return [
        "![returns](fig4.9.png)",
        "",
        "In each epoch one policy is scored thrice: what it earns in imagination from the graph's "
        "beginning; what the model foretells of its real episodes, from their beginning and actions alone; "
        "and what these earned. None of the three has the model learnt from. Means of the last fifth:",
        "",
        *table(header, cells),
        "",
        "- Theirs shows only the first, normalised, and at the end it foretold 8.4 % where 58.2 % came "
        "(table 4.3).",
        "- The reward of a step that is really taken is known by arithmetic: what the model has to "
        "foretell is which steps there will be, and what they will save.",
    ]


def runs_4_3(scale: Scale, place: Workplace) -> list[Run[Any]]:
    """See `Experiment`."""
    return [*trainings.temperatures(scale, place).values(), trainings.rivals(scale)[bert(scale)]]


def report_4_3(results: Results, folder: Path) -> list[str]:
    """See `Experiment`."""
    scale = results.scale
    found = {
        key: results.finished.outcome(run)
        for key, run in trainings.temperatures(scale, results.place).items()
    }
    rows = [
        (temperature, seed, number, *pair)
        for (temperature, seed), outcome in found.items()
        for number, pair in enumerate(zip(outcome.foretold, outcome.real, strict=True))
    ]
    write_csv(folder / "table4.3.csv", ("temperature", "seed", "episode", "foretold", "real"), rows)
    scores = {
        temperature: np.array(
            [
                [100 * float(np.mean(each)) for each in (outcome.foretold, outcome.real)]
                for (at, _), outcome in found.items()
                if at == temperature
            ]
        )
        for temperature in trainings.TEMPERATURES
    }
    cells = [
        (
            f"{temperature:g}",
            *(f"{both[:, i].mean():.2f} %{_spread(both[:, i])}" for i in range(2)),
            _gap(both[:, 0].mean(), both[:, 1].mean()),
            *(f"{THEIRS[temperature][i]:.2f} % ± {THEIRS[temperature][i + 1]:g}" for i in (0, 2)),
        )
        for temperature, both in scores.items()
    ]
    means = np.array([both.mean(0) for both in scores.values()])
    pairs = np.array([(np.mean(each.foretold), np.mean(each.real)) for each in found.values()])
    of_means, of_runs = (float(stats.kendalltau(*each.T).statistic) for each in (means, pairs))
    theirs = np.array([(row[0], row[2]) for row in THEIRS.values()])
    random = 100 * float(
        np.mean(results.finished.outcome(trainings.rivals(scale)[bert(scale)]).random["wm"].gains)
    )
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    panel = figure.subplots()
    for i, title in enumerate(("foretold", "real")):
        values = np.array([both[:, i] for both in scores.values()]).T
        line(panel, trainings.TEMPERATURES, values, title, ("C1", "C0")[i])
    panel.axhline(random, color="C7", linestyle=":", label="random play, real")
    panel.set_xlabel("temperature")
    panel.set_ylabel("time saved, %")
    panel.legend(fontsize=7)
    figure.savefig(folder / "table4.3.png", dpi=90)
    header = ("temperature", "foretold", "real", "gap", "theirs: foretold", "theirs: real")
    return [
        "![scores](table4.3.png)",
        "",
        f"{title_of(bert(scale))}. In the world model of each of {scale.seeds} seed(s), a new policy is "
        f"trained at each temperature, {trainings.least(scale, trainings.DREAM_UPDATES)} updates in "
        "imagination. Both scores are means of the same episodes of the policy that came out, in percent "
        "of the first predicted time; the model foretells from their beginning and actions alone, at the "
        "temperature of the training.",
        "",
        *table(header, cells),
        "",
        f"- Rank correlation (Kendall) of foretold and real: {of_means:.2f} over the temperatures, "
        f"{of_runs:.2f} over all runs; theirs {float(stats.kendalltau(*theirs.T).statistic):.2f} over the "
        "temperatures.",
        f"- Gap, of the means over all: {_gap(*pairs.mean(0))} of the real score; theirs "
        f"{_gap(*theirs.mean(0))}, where both scores are separate minima over the training and not of the "
        "same episodes.",
        f"- Random play in the real environment saves {random:.2f} % on average.",
    ]


def _gap(foretold: float, real: float) -> str:
    """By how much of the real mean what was foretold lies above it, or below."""
    return f"{100 * (foretold - real) / max(1e-9, abs(real)):+.0f} %"


def _spread(values: np.ndarray) -> str:
    return f" ± {half_width(values):.2g}" if len(values) > 1 else ""


FIGURE_4_8, FIGURE_4_9 = (
    Experiment(title, f"Parker 2021, {source}", runs_of_wm, report, trainings.NOTE)
    for title, source, report in (
        ("Loss of the world model over its training", "figure 4.8", report_4_8),
        ("What the world model promises, and what comes", "figure 4.9", report_4_9),
    )
)
TABLE_4_3 = Experiment(
    "Temperature of the world model",
    "Parker 2021, table 4.3",
    runs_4_3,
    report_4_3,
    trainings.NOTE,
    is_of_bert=True,
)
