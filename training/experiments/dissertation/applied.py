"""Figure 4.11, which substitutions are applied to each graph, and what a step takes, real and imagined."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from training.experiments.dissertation import trainings
from training.experiments.dissertation.evaluation import DRAWN
from training.experiments.dissertation.row_run import ROW_TITLES, SETTINGS, RowOutcome
from training.experiments.dissertation.subjects import subjects, title_of
from training.experiments.experiment import Cell, Experiment, Results, table, write_csv
from training.experiments.runs import Run, Scale, Workplace

#: Milliseconds on ResNet-50 (section 4.3.3): a real step, an imagined one.
THEIR_STEP_MS = (850.0, 10.0)
RIVALS = {"greedy": "greedy", "taso": "TASO's search"}


def runs(scale: Scale, place: Workplace) -> list[Run[Any]]:
    """See `Experiment`."""
    of_rows = [run for row in ROW_TITLES for run in trainings.rows(row, scale, place).values()]
    return [*of_rows, *trainings.rivals(scale).values()]


def _outcomes(results: Results, graph: str, row: str) -> list[RowOutcome]:
    of_row = trainings.rows(row, results.scale, results.place)
    return [results.finished.outcome(run) for (name, _), run in of_row.items() if name == graph]


def report(results: Results, folder: Path) -> list[str]:
    """See `Experiment`."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for graph in subjects(results.scale):
        others = results.finished.outcome(trainings.rivals(results.scale)[graph])
        for row, title in ROW_TITLES.items():
            best = max(_outcomes(results, graph, row), key=lambda each: each.played.best)
            counts[graph, title] = Counter(name for name, _ in best.played.steps)
        for name, title in RIVALS.items():
            counts[graph, title] = Counter(step for step, _ in others.plans[name])
    names = sorted({name for each in counts.values() for name in each})
    rows = [(*key, name, each[name]) for key, each in counts.items() for name in names if each[name]]
    write_csv(folder / "fig4.11.csv", ("graph", "plan", "substitution", "times"), rows)
    numbers = np.array([[each[name] for name in names] for each in counts.values()])
    figure = Figure(figsize=(2.5 + 0.3 * len(names), 2.5 + 0.3 * len(counts)), layout="constrained")
    panel = figure.subplots()
    panel.imshow(numbers, cmap="Blues", aspect="auto")
    panel.set_xticks(range(len(names)), names, rotation=90, fontsize=6)
    panel.set_yticks(range(len(counts)), [f"{title_of(graph)}, {who}" for graph, who in counts], fontsize=7)
    for (i, j), number in np.ndenumerate(numbers):
        if number:
            panel.text(j, i, str(number), ha="center", va="center", fontsize=6)
    figure.savefig(folder / "fig4.11.png", dpi=80)
    cells = [
        (title_of(graph), who, len(each), each.total(), _most(each)) for (graph, who), each in counts.items()
    ]
    return [
        "![substitutions](fig4.11.png)",
        "",
        "The best plan of each, of the best seed.",
        "",
        *table(("graph", "plan of", "distinct substitutions", "steps", "most often"), cells),
        "",
        "- Theirs applies few distinct substitutions to BERT, two where TASO applies four, and like ones "
        "to both ResNets. Ours come from another library, so that only these numbers compare.",
    ]


def _most(counts: Counter[str]) -> str:
    return ", ".join(f"{name} ({number})" for name, number in counts.most_common(2)) or "none"


def report_steps(results: Results, folder: Path) -> list[str]:
    """See `Experiment`."""
    rows: list[tuple[Cell, ...]] = []
    cells: list[tuple[Cell, ...]] = []
    words: list[str] = []
    for graph in subjects(results.scale):
        mf, wm = (_outcomes(results, graph, row) for row in ROW_TITLES)
        named = {
            "environment_mf": [each.env_step_ms for each in mf],
            "environment_wm": [each.env_step_ms for each in wm],
            "real_mf": [each.played.step_ms for each in mf],
            "real_wm": [each.played.step_ms for each in wm],
            "imagined": [each.imagined_alike_ms for each in wm],
            "imagined_batch": [each.imagined_step_ms for each in wm],
        }
        rows += [(graph, kind, seed, ms) for kind, each in named.items() for seed, ms in enumerate(each)]
        means = [_mean(each) for each in named.values()]
        cells.append((title_of(graph), *means, f"{means[3] / means[4]:.0f}x"))
        words.append(_of_steps(title_of(graph), dict(zip(named, means, strict=True))))
    write_csv(folder / "step_times.csv", ("graph", "step", "seed", "milliseconds"), rows)
    figure = Figure(figsize=(6, 3), layout="constrained")
    panel = figure.subplots()
    batch = SETTINGS["wm"]["dream_batch"]
    alone = tuple(f"the environment alone, {row}" for row in ROW_TITLES.values())
    labels = (*alone, "real, MF", "real, WM", "imagined", f"imagined, {batch} together")
    for number, label in enumerate(labels):
        places = [i + 0.13 * number for i in range(len(cells))]
        panel.bar(places, [float(cell[1 + number]) for cell in cells], 0.13, label=label)
    panel.set_xticks(range(len(cells)), [str(cell[0]) for cell in cells], fontsize=7)
    panel.set_yscale("log")
    panel.set_ylabel("ms")
    panel.legend(fontsize=7)
    figure.savefig(folder / "step_times.png", dpi=90)
    header = ("graph", *(f"{label}, ms" for label in labels), "real of WM by imagined")
    return [
        "![times](step_times.png)",
        "",
        "Processor time of a step of one episode: the environment's rewriting and pricing alone, on the plan "
        "of each row; with "
        f"observing it and asking the networks, {DRAWN} episodes side by side; imagined, as many side by "
        f"side; and imagined as in the training, {batch} side by side.",
        "",
        *table(header, cells),
        "",
        f"- Theirs, on ResNet-50: {THEIR_STEP_MS[0]:g} ms and {THEIR_STEP_MS[1]:g} ms, "
        f"{THEIR_STEP_MS[0] / THEIR_STEP_MS[1]:.0f}x. Their real steps go through TASO, and measure "
        "operators; ours are priced by a table.",
        *words,
    ]


def _mean(values: Sequence[float]) -> float:
    """Of those that are numbers: a plan without steps has no time of a step."""
    return float(np.nanmean(values)) if np.isfinite(values).any() else math.nan


def _of_steps(title: str, ms: Mapping[str, float]) -> str:
    """What a real step of WM is made of, beside an imagined one."""
    alone = ms["environment_wm"]
    if math.isnan(alone):
        return f"- {title}: WM's plan has no steps."
    return (
        f"- {title}: {100 * (1 - alone / ms['real_wm']):.0f} % of a real step of WM is observing and the "
        "networks, of which imagination skips the encoder. The environment alone takes "
        f"{alone / ms['imagined']:.1f} times an imagined step."
    )


FIGURE_4_11 = Experiment(
    "Substitutions that are applied to each graph",
    "Parker 2021, figure 4.11",
    runs,
    report,
    trainings.PROCESSOR_NOTE,
)
STEP_TIMES = Experiment(
    "What a step takes, real and imagined",
    "Parker 2021, section 4.3.3",
    runs,
    report_steps,
    trainings.PROCESSOR_NOTE,
)
