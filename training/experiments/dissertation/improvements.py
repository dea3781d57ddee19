"""Figures 4.3 and 4.7: predicted and measured latencies of what the rows make of each graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from training.experiments.dissertation import trainings
from training.experiments.dissertation.evaluation import DRAWN
from training.experiments.dissertation.latency_run import AGAIN, LatencyOutcome
from training.experiments.dissertation.rivals import random_of
from training.experiments.dissertation.row_run import ROW_TITLES
from training.experiments.dissertation.subjects import subjects, title_of
from training.experiments.experiment import Cell, Experiment, Results, table, write_csv
from training.experiments.intervals import half_width, median_interval
from training.experiments.runs import EXECUTORS, Run, Scale, Workplace

#: Table 4.2, which figure 4.7 draws: percent that the model-based agent saves of TensorFlow's time.
THEIR_WM = {
    "resnet18": 3.0, "resnet50": 1.0, "inception_v3": 12.5, "squeezenet1_1": 18.9, "toy_bert": 54.1,
}  # fmt: skip
CLOSE = 0.0005  # of the predicted time: what is shown as the same number
TITLES = {
    "greedy": "greedy",
    "taso": "TASO's search",
    **{random_of(row): f"random, {title}'s steps" for row, title in ROW_TITLES.items()},
    "agent": "our agent",
    AGAIN: AGAIN,
}
SOURCES = {"mf": "figure 4.3", "wm": "figure 4.7 and table 4.2"}


def runs(scale: Scale, place: Workplace) -> list[Run[Any]]:
    """Measurements, which need all trainings."""
    return list(trainings.latencies(scale, place).values())


def rivals_of(row: str) -> tuple[str, ...]:
    """Of a row; random play has its steps."""
    return ("greedy", "taso", random_of(row), "agent")


def gains_of(results: Results, graph: str, row: str) -> dict[str, list[float]]:
    """Predicted share that is saved, by rival and for the row: one value for each seed."""
    others = results.finished.outcome(trainings.rivals(results.scale)[graph])
    gains = {**others.gains, random_of(row): others.random[row].best}
    found = {name: [gains[name]] for name in rivals_of(row)}
    of_row = trainings.rows(row, results.scale, results.place)
    mine = [results.finished.outcome(run) for (name, _), run in of_row.items() if name == graph]
    return {**found, row: [each.played.best for each in mine]}


def ratios_of(measured: LatencyOutcome, executor: str, row: str, seeds: int) -> dict[str, list[float]]:
    """Original time by own time of every round, by rival and for the row, there the median of the seeds.

    Rounds of several seeds are no more rounds: their plans were measured at the same time.
    """
    found = {name: measured.ratios(executor, name) for name in (AGAIN, *rivals_of(row))}
    of_seeds = [measured.ratios(executor, f"{row} {seed}") for seed in range(seeds)]
    return {**found, row: np.median(of_seeds, axis=0).tolist()}


def report_of(row: str, name: str) -> Callable[[Results, Path], list[str]]:
    """See `Experiment.report`."""

    def report(results: Results, folder: Path) -> list[str]:
        scale = results.scale
        of_graph = trainings.latencies(scale, results.place)
        cells: list[tuple[Cell, ...]] = []
        rows: list[tuple[Cell, ...]] = []
        bars: dict[tuple[str, str], dict[str, float]] = {}
        words = []
        for graph in subjects(scale):
            measured = results.finished.outcome(of_graph[graph])
            gains = gains_of(results, graph, row)
            ratios = {each: ratios_of(measured, each, row, scale.seeds) for each in EXECUTORS}
            for who in (*rivals_of(row), row, AGAIN):
                told = [f"{100 * np.mean(gains[who]):.1f} %{_spread(gains[who])}" if who in gains else "0 %"]
                told += [_ratio(ratios[each][who]) for each in EXECUTORS]
                cells.append((title_of(graph), TITLES.get(who, ROW_TITLES.get(who, who)), *told))
                plan = "random" if who == random_of(row) else who
                for each in EXECUTORS:
                    bars.setdefault((graph, each), {})[who] = float(np.median(ratios[each][who])) - 1
                    rows += [
                        (graph, plan, each, number, ratio, float(np.mean(gains.get(who, [0.0]))))
                        for number, ratio in enumerate(ratios[each][who])
                    ]
            words += _words(graph, row, gains, ratios)
        columns = ("graph", "plan", "executor", "round", "ratio", "predicted_gain")
        write_csv(folder / f"{name}.csv", columns, rows)
        _plot(bars, row, folder / f"{name}.png")
        header = ("graph", "plan of", "predicted time saved", *(f"measured, {each}" for each in EXECUTORS))
        seeds = f"{scale.seeds} seed" + ("s" if scale.seeds > 1 else "")
        of_row = trainings.rows(row, scale, results.place).values()
        updates = trainings.updates_made([results.finished.outcome(run) for run in of_row])
        return [
            f"![latencies]({name}.png)",
            "",
            f"{ROW_TITLES[row]} was trained for {updates} updates on each graph (theirs: "
            f"{trainings.THEIR_EPOCHS[row]} epochs), {seeds}. A plan is the best prefix of {DRAWN} drawn "
            "episodes and the likeliest one; random play has as many. Measured is the time of the original "
            "graph by that of the plan's, run in turns: median of the rounds and its interval of 95 %; "
            f'"{AGAIN}" is how much two measurements of one graph differ.',
            "",
            *table(header, cells),
            "",
            *words,
        ]

    return report


def _spread(values: Sequence[float]) -> str:
    return f" ± {100 * half_width(values):.1f}" if len(values) > 1 else ""


def _ratio(values: Sequence[float]) -> str:
    median, low, high = median_interval(values)
    return f"{median:.3f}x ({low:.3f} to {high:.3f})"


def _words(
    graph: str, row: str, gains: dict[str, list[float]], ratios: dict[str, dict[str, list[float]]]
) -> list[str]:
    # Of equals the first one.
    mine, best = float(np.mean(gains[row])), max(rivals_of(row), key=lambda who: round(gains[who][0], 4))
    said = [
        f"- {title_of(graph)}: {ROW_TITLES[row]} saves {100 * mine:.1f} % of the predicted time, the best "
        f"of the rivals ({TITLES[best]}) {100 * gains[best][0]:.1f} %, random play "
        f"{100 * gains[random_of(row)][0]:.1f} %."
    ]
    if gains[random_of(row)][0] > mine + CLOSE:
        said.append(
            "  The best of as many episodes of random play is better, so this training is not worth its "
            "time yet."
        )
    against = {
        each: float(np.median(ratios[each][row]) / np.median(ratios[each]["taso"])) for each in EXECUTORS
    }
    told = ", ".join(f"{100 * (ratio - 1):+.1f} % in {each}" for each, ratio in against.items())
    theirs = {
        "mf": "theirs is 9 % slower than TASO's at the worst",
        "wm": "theirs is 7.3 % faster than TASO's on BERT, and slower on SqueezeNet and Inception",
    }[row]
    said.append(f"  Measured speed against the plan of TASO's search: {told}; {theirs}.")
    if row == "wm" and graph in THEIR_WM:
        saved = ", ".join(
            f"{100 * (1 - 1 / float(np.median(ratios[each][row]))):.1f} % in {each}" for each in EXECUTORS
        )
        said.append(f"  Time saved: theirs {THEIR_WM[graph]} % of TensorFlow's on a GPU; ours {saved}.")
    return said + _against_itself(ratios)


def _against_itself(ratios: dict[str, dict[str, list[float]]]) -> list[str]:
    """Said of executors in which the original differs from itself by more than its interval."""
    said = []
    for executor in EXECUTORS:
        median, low, high = median_interval(ratios[executor][AGAIN])
        if not low <= 1 <= high:
            said.append(
                f"  In {executor} the original differs from itself by {100 * abs(median - 1):.1f} %, beyond "
                "its interval: no smaller difference there is the plans'."
            )
    return said


def _plot(bars: dict[tuple[str, str], dict[str, float]], row: str, path: Path) -> None:
    graphs = list(dict.fromkeys(graph for graph, _ in bars))
    figure = Figure(figsize=(9, 1.2 + 1.5 * len(graphs)), layout="constrained")
    panels = figure.subplots(1, len(EXECUTORS), sharey=True)
    who = [*rivals_of(row), row, AGAIN]
    for panel, executor in zip(panels, EXECUTORS, strict=True):
        for number, name in enumerate(who):
            places = [i + 0.13 * (number - len(who) / 2) for i in range(len(graphs))]
            values = [100 * bars[graph, executor][name] for graph in graphs]
            panel.barh(places, values, 0.12, label=TITLES.get(name, ROW_TITLES.get(name, name)))
        panel.set_yticks(range(len(graphs)), [title_of(graph) for graph in graphs])
        panel.axvline(0, color="black", linewidth=0.6)
        panel.set_title(f"measured in {executor}", fontsize=9)
        panel.set_xlabel("faster than the original, %")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(who), fontsize=7
    )
    figure.savefig(path, dpi=90)


FIGURE_4_3, FIGURE_4_7 = (
    Experiment(
        f"Latencies of what {title} makes of each graph",
        f"Parker 2021, {SOURCES[row]}",
        runs,
        report_of(row, name),
        trainings.WALL_NOTE,
    )
    for row, name, title in (
        ("mf", "fig4.3", "the model-free agent"),
        ("wm", "fig4.7", "the agent trained in a world model"),
    )
)
