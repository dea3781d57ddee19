"""Figure 4.5 of the dissertation: what is predicted of variants of a graph, and how long they take."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from training.experiments.dissertation.libraries import OURS
from training.experiments.dissertation.measured_run import UNOPTIMISED, Form, MeasuredRun, Times
from training.experiments.experiment import Experiment, Results, table, write_csv
from training.experiments.graphs_of_paper import GRAPHS, SMALL, graphs_at
from training.experiments.runs import Scale, Workplace

EXECUTOR = "eager"
_VARIANTS, _LEAST_VARIANTS = 120, 12
_CALLS, _LEAST_CALLS = 40, 4
_RESAMPLES = 1_000  # for an interval
_WALK = 40  # most random steps
_FIRST_SEED = 7_000_000  # no other use has them
METRICS = {
    "predicted ms": lambda each: each.metrics["time_us"] / 1e3,
    "GFLOP": lambda each: each.metrics["flops"] / 1e9,
    "memory MB": lambda each: each.metrics["bytes"] / 1e6,
    "launches": lambda each: each.metrics["launches"],
    "measured ms": lambda each: float(np.median(each.cpu_ms)),
}
MEASURED = "measured ms"
_PAPER = "toy_bert"


def runs_of(scale: Scale, place: Workplace) -> list[MeasuredRun]:
    """The paper's graph, and at a larger scale a convolutional network."""
    count = max(_LEAST_VARIANTS, round(_VARIANTS * scale.share))
    walks = [Form(f"walk {i}", "walk", OURS, _WALK, _FIRST_SEED + i) for i in range(count)]
    forms = (Form(UNOPTIMISED), Form("greedy", "greedy", OURS, 5_000), *walks)
    calls = max(_LEAST_CALLS, round(_CALLS * min(1.0, scale.share)))
    wanted = [name for name in (_PAPER, "squeezenet1_1") if name in graphs_at(scale.share)]
    chosen = wanted if scale.share >= SMALL else wanted[:1]
    return [MeasuredRun(name, EXECUTOR, forms, calls) for name in chosen]


def distinct(forms: Sequence[Times]) -> list[Times]:
    """Those that were measured, each graph once."""
    return list({each.graph_hash: each for each in forms if each.cpu_ms}.values())


def report(results: Results, folder: Path) -> list[str]:
    """See `Experiment`."""
    runs = runs_of(results.scale, results.place)
    rows, said = [], []
    lines = [f"![pairs]({_picture(run)})" for run in runs]
    for run in runs:
        forms = distinct(results.finished.outcome(run).forms)
        columns = {name: np.array([of(each) for each in forms]) for name, of in METRICS.items()}
        rows += [
            (run.graph, each.title, each.num_steps, *(of(each) for of in METRICS.values())) for each in forms
        ]
        _plot(columns, GRAPHS[run.graph].title, folder / _picture(run))
        correlations = [
            (one, *("" if one == other else _tau(columns[one], columns[other]) for other in METRICS))
            for one in METRICS
        ]
        lines += [
            "",
            f"{GRAPHS[run.graph].title}: {len(forms)} graphs, Kendall's tau:",
            "",
            *table(("", *METRICS), correlations),
        ]
        said += _words(run.graph, columns)
    write_csv(folder / "fig4.5.csv", ("graph", "form", "steps", *METRICS), rows)
    return [
        *lines,
        "",
        f"Graphs that are up to {_WALK} random steps away from the graph, or from a part of greedy's plan. "
        f"Measured is the median of the processor time of {runs[0].calls} calls in turns, {EXECUTOR} "
        "PyTorch, one thread.",
        "",
        *said,
    ]


def _picture(run: MeasuredRun) -> str:
    """The paper's graph has the name of the figure."""
    return "fig4.5.png" if run.graph == _PAPER else f"fig4.5-{run.graph}.png"


def _tau(one: np.ndarray, other: np.ndarray) -> float | str:
    """Rank correlation; empty where one of both never differs."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return ""
    return float(stats.kendalltau(one, other).statistic)


def _interval(one: np.ndarray, other: np.ndarray) -> str:
    """Of the rank correlation, by resampling the graphs with a fixed seed."""
    drawn = np.random.default_rng(0).integers(0, len(one), (_RESAMPLES, len(one)))
    taus = [tau for each in drawn if isinstance(tau := _tau(one[each], other[each]), float)]
    low, high = np.percentile(taus, [2.5, 97.5])
    return f"{low:.2f} to {high:.2f}"


def _span(values: np.ndarray) -> str:
    """How much larger the largest is than the least."""
    return f"{100 * (values.max() / values.min() - 1):.0f} %"


def _words(name: str, columns: dict[str, np.ndarray]) -> list[str]:
    title = GRAPHS[name].title
    measured = columns[MEASURED]
    taus = {each: _tau(columns[each], measured) for each in METRICS if each != MEASURED}
    told = {each: tau for each, tau in taus.items() if isinstance(tau, float)}
    memory = _tau(columns["predicted ms"], columns["memory MB"])
    order = sorted(told, key=lambda each: -told[each])
    told_memory = ""
    if isinstance(memory, float):
        told_memory = f" ({memory:.2f}, {_interval(columns['predicted ms'], columns['memory MB'])})"
    paper = "agrees" if isinstance(memory, float) and memory > 0.5 else "does not agree"
    return [
        f"- {title}: the paper finds a strong correlation of predicted time and memory accesses; that "
        f"{paper}{told_memory}. Much of it is by construction: operators that are no products, convolutions "
        "or pooling are priced by the memory that they read and write.",
        f"- {title}: predicted times lie {_span(columns['predicted ms'])} apart, measured ones "
        f"{_span(measured)}; what is measured goes with "
        + ", ".join(f"{each} ({told[each]:.2f}, {_interval(columns[each], measured)})" for each in order)
        + ". The paper has no measured time: its run time is the sum of TASO's prices. Intervals of 95 % are "
        "bootstrapped over the graphs.",
    ]


def _plot(columns: dict[str, np.ndarray], title: str, path: Path) -> None:
    names = list(columns)
    figure = Figure(figsize=(8, 7.5), layout="constrained")
    panels = figure.subplots(len(names), len(names))
    for (row, one), (column, other) in itertools.product(enumerate(names), repeat=2):
        panel = panels[row][column]
        if row == column:
            panel.hist(columns[one], bins=20, color="C1")
        else:
            panel.scatter(columns[other], columns[one], s=4, alpha=0.6)
        panel.tick_params(labelsize=5)
        if column == 0:
            panel.set_ylabel(one, fontsize=7)
        if row == len(names) - 1:
            panel.set_xlabel(other, fontsize=7)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=70)


FIGURE_4_5 = Experiment(
    "Predicted time, FLOPs, memory accesses, launches and measured time",
    "Parker 2021, figure 4.5",
    runs_of,
    report,
    "All forms take turns in one process. The machine may have had other work.",
)
