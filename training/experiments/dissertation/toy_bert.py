"""How much of the toy BERT is saved: predicted and measured here, and predicted for a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from torchrlopt import _C
from torchrlopt.substitutions import load_library
from training.device.prices import cost_of
from training.experiments.dissertation import improvements, trainings
from training.experiments.dissertation.evaluation import Steps
from training.experiments.dissertation.improvements import THEIR_WM, TITLES
from training.experiments.dissertation.latency_run import plan_of
from training.experiments.dissertation.rivals import RivalsRun, random_of
from training.experiments.dissertation.row_run import CPU, GPU, ROW_TITLES, RowRun, prices_on
from training.experiments.dissertation.subjects import BERT, bert, graph_of, title_of
from training.experiments.experiment import Cell, Experiment, Results, table, write_csv
from training.experiments.runs import EXECUTORS, Run, Scale, Workplace

THEIR_PREDICTED = 58.23  # percent of the toy BERT's estimated time, table 4.3
_METRICS = ("time_us", "launches", "bytes", "flops")
_COLUMNS = ("estimated time", "launches", "memory traffic", "FLOPs")
Cells = list[tuple[Cell, ...]]


def runs(scale: Scale, place: Workplace) -> list[Run[Any]]:
    """See `Experiment`."""
    on_gpu = trainings.rows_on_gpu(scale, place).values()
    return [*improvements.runs(scale, place), *on_gpu, trainings.rivals_on_gpu(scale)]


def report(results: Results, folder: Path) -> list[str]:
    """See `Experiment`."""
    scale, name = results.scale, bert(results.scale)
    rows_here = [run for row in ROW_TITLES for run in trainings.on_bert(row, scale, results.place)]
    here = _here(results, rows_here)
    on_gpu = trainings.rows_on_gpu(scale, results.place)
    gpu = _saved(results, list(on_gpu.values()), trainings.rivals_on_gpu(scale))
    rates = prices_on(GPU).rates
    columns = ("device", "plan", "predicted_time", "launches", "memory_traffic", "flops", *EXECUTORS)
    rows = [(CPU, *cells) for cells in here] + [(GPU, *cells, *([""] * len(EXECUTORS))) for cells in gpu]
    write_csv(folder / "toy_bert.csv", columns, rows)
    _plot(here, gpu, folder / "toy_bert.png")
    return [
        "![time saved](toy_bert.png)",
        "",
        f"Percent of {title_of(name)} that is saved. Theirs: {THEIR_PREDICTED} % of the estimated time "
        f"(table 4.3, temperature 1.5) and {THEIR_WM['toy_bert']} % of TensorFlow's measured time (table "
        "4.2), on a GPU. The paper's own measure is the first column: estimated time, before and after.",
        "",
        *table(("plan of", *_COLUMNS, *EXECUTORS), here),
        "",
        "The same where searches and rows are told the typical prices of eager PyTorch on a GPU, a launch "
        f"of a product {rates['contraction_launch_us']:g} microseconds and of anything else "
        f"{rates['launch_us']:g}. These are constants, nothing was measured on a GPU; the dissertation's are "
        "TASO's measurements of each operator, summed up.",
        "",
        *table(("plan of", *_COLUMNS), gpu),
        "",
        _verdict("here", here, name == BERT),
        _left(results, rows_here, trainings.rivals(scale)[name]),
        _verdict("by the prices of a GPU", gpu, name == BERT),
        _left(results, list(on_gpu.values()), trainings.rivals_on_gpu(scale)),
        "- Each attention is an output here, so that it has to be computed; nothing reads it in TASO's "
        "example, which computes it all the same.",
    ]


def _here(results: Results, rows: Sequence[RowRun]) -> Cells:
    """By the prices of this device, and measured."""
    scale, place = results.scale, results.place
    name = bert(scale)
    measured = results.finished.outcome(trainings.latencies(scale, place)[name])
    saved = _saved(results, rows, trainings.rivals(scale)[name])
    own = [
        [100 * (1 - 1 / float(np.median(measured.ratios(each, plan)))) for each in EXECUTORS]
        for plan in _plans(results, rows, trainings.rivals(scale)[name])
    ]
    return [(*cells, *times) for cells, times in zip(saved, own, strict=True)]


def _plans(results: Results, rows: Sequence[RowRun], rivals: RivalsRun) -> dict[str, Steps]:
    """Of the rivals, and of the best seed of each row."""
    others = results.finished.outcome(rivals)
    plans = others.plans | {random_of(row): each.steps for row, each in others.random.items()}
    for row in ROW_TITLES:
        mine = [run for run in rows if run.row == row]
        best = max(mine, key=lambda run: results.finished.outcome(run).played.best)
        plans[plan_of(best)] = results.finished.outcome(best).played.steps
    return plans


def _saved(results: Results, rows: Sequence[RowRun], rivals: RivalsRun) -> Cells:
    """Each plan with the percent of every metric that it saves, by the prices that it was made for."""
    cost = cost_of(prices_on(rivals.device))
    library, graph = load_library(), graph_of(rivals.graph)
    found: Cells = []
    for plan, steps in _plans(results, rows, rivals).items():
        before, after = (
            dict(_C.RewriteState(_C.replay(graph, library, list(given)), library, cost).metrics)
            for given in ([], steps)
        )
        title = TITLES.get(plan) or f"{ROW_TITLES[plan.split()[0]]}, the best seed"
        found.append((title, *(100 * (1 - after[metric] / before[metric]) for metric in _METRICS)))
    return found


def _left(results: Results, rows: Sequence[RowRun], rivals: RivalsRun) -> str:
    """Where the time of the plan that saves most goes, so that one sees what another plan could save yet."""
    cost, library, first = cost_of(prices_on(rivals.device)), load_library(), graph_of(rivals.graph)
    plans = _plans(results, rows, rivals)
    last = min(
        (_C.replay(first, library, list(steps)) for steps in plans.values()),
        key=lambda graph: cost.total(graph)["time_us"],
    )
    before = cost.total(first)["time_us"]
    spent, launched = Counter[str](), Counter[str]()
    for node in last.topological_order():
        price, operator = cost.node(last, node), str(last.node(node)["op"])
        spent[operator] += price["time_us"]
        launched[operator] += int(price["launches"])
    parts = [
        f"{operator} {100 * time / before:.1f} ({launched[operator]} launches)"
        for operator, time in spent.most_common()
        if time > 0
    ]
    return f"  What is left of it, in percent of the time before: {', '.join(parts)}."


def _verdict(where: str, cells: Cells, is_theirs: bool = True) -> str:
    best = max(cells, key=lambda cell: float(cell[1]))
    agrees = "Agrees" if float(best[1]) >= THEIR_PREDICTED else "Does not agree"
    return (
        f"- {agrees if is_theirs else 'Not their graph'} {where}: the most that any plan saves of the "
        f"estimated time is {best[1]:.1f} % ({best[0]}, with {best[2]:.1f} % of the launches and "
        f"{best[4]:.1f} % of the FLOPs); theirs saves {THEIR_PREDICTED} %."
    )


def _plot(here: Cells, gpu: Cells, path: Path) -> None:
    figure = Figure(figsize=(7, 3), layout="constrained")
    panel = figure.subplots()
    bars = {
        "predicted": [float(cell[1]) for cell in here],
        **{name: [float(cell[5 + number]) for cell in here] for number, name in enumerate(EXECUTORS)},
        "predicted for a GPU": [float(cell[1]) for cell in gpu],
    }
    for number, (label, values) in enumerate(bars.items()):
        panel.bar([i + 0.2 * number for i in range(len(values))], values, 0.2, label=label)
    panel.set_xticks(range(len(here)), [str(cell[0]) for cell in here], rotation=15, fontsize=7)
    panel.axhline(THEIR_PREDICTED, color="black", linewidth=0.6, linestyle="--", label="theirs, predicted")
    panel.set_ylabel("time saved, %")
    panel.legend(fontsize=7)
    figure.savefig(path, dpi=90)


TOY_BERT = Experiment(
    "How much of the toy BERT's time is saved",
    "Parker 2021, tables 4.2 and 4.3",
    runs,
    report,
    "All episodes begin at the graph itself. Greedy, TASO's search, the agent of the package and random play "
    "in the\nsame environment are the trivial rivals. Measured are wall times, without those in which the "
    "one thread waited\nfor a processor.",
    is_of_bert=True,
)
