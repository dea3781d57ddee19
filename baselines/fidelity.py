"""How true the cost model is: graphs after random substitutions, estimated and measured end to end.

For each model the profile is filled first, from graphs of walks of its own. Then come other walks, every
second one from somewhere along greedy's plan: the price of the graph each ends in is looked up, and only then
is it run. Each variant takes turns with the original graph, and what the machine drifted meanwhile is divided
out. A model runs in a process of its own; one that is complete in the CSV file is not measured again.
`python -m baselines.fidelity --help`.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from matplotlib.figure import Figure
from rich.table import Table
from scipy import stats

from baselines.models import NAMES, build
from baselines.shared import csv_files, terminal
from baselines.shared.arguments import CsvFile, Models, PlotFile, PricesOf, choose, one
from torchrlopt import _C, executor_table
from torchrlopt.machine.cost import ProfileStore, machine_profile
from torchrlopt.machine.profiling import profile, run_times, trace, variant
from torchrlopt.substitutions import load_library

CSV_COLUMNS = ("model", "variant", "executor", "estimated_ms", "measured_ms", "steps", "measured_share")

_MEASURE_S = 1.0  # for each variant and the original in turn
_MIN_ROUNDS = 7
_FIRST_SEED = 1_000_000  # of the walks that are measured; those of the profile begin at 0
_MAX_STEPS = 64


def main(
    models: Models = "all",
    executor: PricesOf = "eager",
    variants: Annotated[int, typer.Option(min=1, help="Variants of each model.")] = 20,
    profile_s: Annotated[float, typer.Option(min=1, help="Seconds for the profile of each model.")] = 40.0,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the kernels.")] = 2,
    csv: CsvFile = None,
    plot: PlotFile = None,
) -> None:
    """Compare estimated with measured time after random substitutions.

    Example: python -m baselines.fidelity --models resnet18 --executor eager --csv fidelity.csv
    """
    settings = Settings(one(executor, executor_table.names(), "executor"), variants, profile_s, threads)
    run(choose(models, NAMES, "model"), settings, csv, plot)


@dataclass(frozen=True)
class Point:
    """One variant of a model.

    Attributes:
        model: name in the suite.
        variant: number of its random walk; 0 is the original graph.
        executor: what ran it.
        estimated_ms: price of its graph.
        measured_ms: median time of a run.
        steps: substitutions applied.
        measured_share: part of the price that comes from measured nodes.
    """

    model: str
    variant: int
    executor: str
    estimated_ms: float
    measured_ms: float
    steps: int
    measured_share: float

    @property
    def error(self) -> float:
        """The estimate's distance from the measured time, relative to that."""
        return abs(self.estimated_ms - self.measured_ms) / self.measured_ms


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        executor: what runs the graphs.
        variants: random walks for each model, besides the original.
        profile_s: seconds for filling the profile of each model.
        threads: of the kernels.
    """

    executor: str = "eager"
    variants: int = 20
    profile_s: float = 40.0
    threads: int = 2


def measure(model: str, settings: Settings) -> list[Point]:
    """Profile one model, then estimate and measure its variants.

    Args:
        model: name in the suite.
        settings: what to measure.
    """
    torch.set_num_threads(settings.threads)
    library = load_library()
    source = trace(*build(model))[0]
    original = source.program.graph
    with tempfile.TemporaryDirectory() as folder:
        store = ProfileStore(Path(folder))
        profile(source, settings.executor, library, store, settings.profile_s)
        known = machine_profile(settings.executor, source.device, store)
    cost = known.cost_model(source.sizes)
    base = source.lower(original, settings.executor)
    most = min(_MAX_STEPS, max(8, original.num_operators // 2))
    plan = _C.search(original, library, cost, searcher="greedy", budget_ms=5000)["steps"]
    graph, steps = original, 0
    variants: list[tuple[int, dict[str, float]]] = []
    times_us: list[list[float]] = []
    for number in range(settings.variants + 1):
        if number > 0:
            graph, steps = variant(original, library, plan, _FIRST_SEED + number, most)
        variants.append((steps, cost.metrics(graph)))
        runs = [base] if number == 0 else [base, source.lower(graph, settings.executor)]
        times_us.append(run_times(runs, source.inputs, source.device, _MEASURE_S, _MIN_ROUNDS))
    base_us = float(np.median([each[0] for each in times_us]))
    return [
        Point(
            model=model,
            variant=number,
            executor=settings.executor,
            estimated_ms=priced["time_us"] / 1e3,
            measured_ms=times[-1] / times[0] * base_us / 1e3,
            steps=steps,
            measured_share=priced["measured_us"] / priced["time_us"],
        )
        for number, ((steps, priced), times) in enumerate(zip(variants, times_us, strict=True))
    ]


def measure_apart(model: str, settings: Settings) -> list[Point]:
    """`measure` in a process of its own, so that one model's packed weights are gone before the next."""
    context = multiprocessing.get_context("spawn")
    os.environ["OMP_NUM_THREADS"] = str(settings.threads)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(measure, model, settings).result()


def read_csv(path: Path) -> list[Point]:
    """The points of a file that `write_csv` wrote; none where there is no file.

    Raises:
        typer.BadParameter: the file is another table.
    """
    if not path.exists():
        return []
    return [
        Point(
            row["model"],
            int(row["variant"]),
            row["executor"],
            float(row["estimated_ms"]),
            float(row["measured_ms"]),
            int(row["steps"]),
            float(row["measured_share"]),
        )
        for row in csv_files.read(path, CSV_COLUMNS)
    ]


def write_csv(points: Sequence[Point], path: Path) -> None:
    """All points, with `CSV_COLUMNS`."""
    rows = [
        (
            point.model,
            point.variant,
            point.executor,
            f"{point.estimated_ms:.4f}",
            f"{point.measured_ms:.4f}",
            point.steps,
            f"{point.measured_share:.4f}",
        )
        for point in points
    ]
    csv_files.write(path, CSV_COLUMNS, rows)


@dataclass(frozen=True)
class Fidelity:
    """How good the estimates of one executor are.

    Attributes:
        median_error: median of the relative errors; `p90_error` is their 90th percentile.
        spearman: rank correlation over all variants of all models.
        kendall: median over the models of the rank correlation within each.
    """

    median_error: float
    p90_error: float
    spearman: float
    kendall: float


def kendall(points: Sequence[Point]) -> float:
    """Rank correlation (tau-b) of estimated and measured times; nan where all of either are equal."""
    estimated, measured = zip(*((p.estimated_ms, p.measured_ms) for p in points), strict=True)
    return float(stats.kendalltau(estimated, measured).statistic)


def fidelity(points: Sequence[Point]) -> Fidelity:
    """Error and rank correlation of the points of one executor."""
    errors = [point.error for point in points]
    estimated, measured = zip(*((p.estimated_ms, p.measured_ms) for p in points), strict=True)
    within = [kendall(each) for each in by_model(points).values()]
    return Fidelity(
        float(np.median(errors)),
        float(np.percentile(errors, 90)),
        float(stats.spearmanr(estimated, measured).statistic),
        float(np.nanmedian(within)),
    )


def by_model(points: Sequence[Point]) -> dict[str, list[Point]]:
    """The points by model, in order of appearance."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.model, []).append(point)
    return groups


def render(points: Sequence[Point]) -> Table:
    """Error and rank correlation by model and, in the last rows, by executor."""
    columns = ("variants", "ms", "median error", "p90 error", "rank correlation", "measured share")
    title = "Estimated against measured, after random substitutions"
    table = terminal.table(title, ("model", "executor"), columns)
    executors = list(dict.fromkeys(point.executor for point in points))
    for executor in executors:
        for model, own in by_model([p for p in points if p.executor == executor]).items():
            errors = [point.error for point in own]
            times = [point.measured_ms for point in own]
            share = np.mean([point.measured_share for point in own])
            table.add_row(
                model, executor, str(len(own)), f"{min(times):.2f} to {max(times):.2f}",
                f"{np.median(errors):.1%}", f"{np.percentile(errors, 90):.1%}",
                f"Kendall {kendall(own):.2f}", f"{share:.0%}",
            )  # fmt: skip
    for executor in executors:
        own = [point for point in points if point.executor == executor]
        found = fidelity(own)
        table.add_section()
        table.add_row(
            "all", executor, str(len(own)), "", f"{found.median_error:.1%}", f"{found.p90_error:.1%}",
            f"Spearman {found.spearman:.3f}, Kendall {found.kendall:.2f}",
            f"{np.mean([point.measured_share for point in own]):.0%}",
        )  # fmt: skip
    return table


def write_plot(points: Sequence[Point], path: Path) -> None:
    """Estimated over measured times, one colour for each model; the ending of the path chooses the format."""
    figure = Figure(figsize=(7, 6.5), layout="constrained")
    axes = figure.add_subplot()
    for index, (model, own) in enumerate(by_model(points).items()):
        marker = "os^Dv"[index // 10 % 5]
        x, y = [p.measured_ms for p in own], [p.estimated_ms for p in own]
        axes.scatter(x, y, s=12, marker=marker, label=model, alpha=0.7)
    times = [time for p in points for time in (p.measured_ms, p.estimated_ms)]
    ends = [min(times) * 0.9, max(times) * 1.1]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("measured, ms")
    axes.set_ylabel("estimated, ms")
    found = fidelity(points)
    axes.set_title(
        f"{points[0].executor}: median error {found.median_error:.1%}, "
        f"90th percentile {found.p90_error:.1%}, Spearman {found.spearman:.3f}\n{terminal.machine()}",
        fontsize=8,
    )
    axes.legend(fontsize=7, ncols=2)
    figure.savefig(path, dpi=150)


def run(models: Sequence[str], settings: Settings, csv_path: Path | None, plot: Path | None) -> None:
    """Measure models one after the other, keeping what is complete, and print the table.

    Args:
        models: names in the suite.
        settings: what to measure.
        csv_path: points so far are read from it, and all are written to it, after each model.
        plot: scatter plot to draw.
    """
    console = terminal.console()
    points = read_csv(csv_path) if csv_path is not None else []
    known = by_model([point for point in points if point.executor == settings.executor])
    with terminal.progress(console) as progress:
        task = progress.add_task("", total=len(models))
        for model in models:
            progress.update(task, description=model)
            if len(known.get(model, ())) <= settings.variants:
                others = [p for p in points if (p.model, p.executor) != (model, settings.executor)]
                points = others + measure_apart(model, settings)
                if csv_path is not None:
                    write_csv(points, csv_path)
            progress.advance(task)
    chosen = [point for point in points if point.model in models]
    console.print(render(chosen))
    if plot is not None:
        write_plot([point for point in chosen if point.executor == settings.executor], plot)


if __name__ == "__main__":
    typer.run(main)
