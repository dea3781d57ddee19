"""How fast the environment is: first match and step, on models and on long chains.

A step is: apply the substitution, match what is around it anew, price the graph, and find for every candidate
whether it is legal and what it would cost exactly. `python baselines/compare.py --env`.
"""

from __future__ import annotations

import csv as csv_files
import dataclasses
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from baselines.graphs import chain, graph_of
from torchrlopt import _C, _tools
from torchrlopt.machine.cost import cost_model
from torchrlopt.substitutions import load_library

CSV_COLUMNS = ("model", "metric", "us")
#: Operators of the chains: a step must not take longer on the longer one.
CHAINS = (10_000, 20_000)
_STEPS = 400
_SEEDS = 3
_FIRST_MATCHES = 5


@dataclasses.dataclass(frozen=True)
class Speed:
    """Times of one graph, in microseconds.

    Attributes:
        model: name of the suite, or chain_<operators>.
        num_operators: of the graph.
        first_match: listing all matches of the library, the least of several times.
        first_evaluation: evaluating all candidates once.
        step: median of random steps.
        step_90: their 90th percentile.
        evaluations: candidates evaluated anew in a step, on average.
    """

    model: str
    num_operators: int
    first_match: float
    first_evaluation: float
    step: float
    step_90: float
    evaluations: float


def measure(model: str, graph: _C.Graph, executor: str = "eager") -> Speed:
    """Times one graph, in one thread."""
    library, cost = load_library(), cost_model(executor)
    runs = [_tools.time_steps(graph, library, cost, _STEPS, seed) for seed in range(_SEEDS)]
    runs += [_tools.time_steps(graph, library, cost, 0) for _ in range(_FIRST_MATCHES - _SEEDS)]
    steps = sorted(us for each in runs for us in each["steps_us"]) or [float("nan")]
    return Speed(
        model,
        graph.num_operators,
        min(each["first_match_us"] for each in runs),
        min(each["first_evaluation_us"] for each in runs),
        statistics.median(steps),
        steps[int(0.9 * len(steps))],
        sum(each["num_evaluations"] for each in runs) / len(steps),
    )


def throughput(graph: _C.Graph, num_threads: int, num_envs: int = 32, num_steps: int = 40) -> float:
    """Steps of all episodes together in a second, first candidates taken; finished episodes begin anew."""
    env = _C.VecRewriteEnv(
        [graph], load_library(), cost_model("eager"), num_envs=num_envs, num_threads=num_threads
    )
    every = list(range(num_envs))
    seconds = 0.0
    taken = 0
    while taken < num_envs * num_steps:
        env.reset(every, [{"random_steps": i, "seed": i} for i in every])
        start = time.perf_counter()
        for _ in range(10):
            env.step([0] * num_envs)
        seconds += time.perf_counter() - start
        taken += 10 * num_envs
    return taken / seconds


def render(speeds: Sequence[Speed]) -> Table:
    """A row for each graph."""
    table = Table(title="The environment on one core, in microseconds", box=box.SIMPLE)
    table.add_column("graph", no_wrap=True)
    for heading in ("operators", "first match", "first prices", "step", "90 %", "evaluated per step"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in speeds:
        table.add_row(
            each.model, str(each.num_operators), f"{each.first_match:.0f}", f"{each.first_evaluation:.0f}",
            f"{each.step:.0f}", f"{each.step_90:.0f}", f"{each.evaluations:.1f}",
        )  # fmt: skip
    return table


def write_csv(speeds: Sequence[Speed], path: Path) -> None:
    """Two rows for each graph, with `CSV_COLUMNS`; the file is complete or absent at any moment."""
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, delete=False, newline="", encoding="utf-8"
    ) as file:
        writer = csv_files.writer(file)
        writer.writerow(CSV_COLUMNS)
        for each in speeds:
            writer.writerow((each.model, "first_match", each.first_match))
            writer.writerow((each.model, "step", each.step))
    os.replace(file.name, path)


def run(models: Sequence[str], executor: str, csv: Path | None) -> None:
    """Times all models and the chains; prints the table and writes the file."""
    console = Console() if sys.stdout.isatty() else Console(width=120)
    speeds = []
    for model in track(models, description="stepping", console=console, transient=True):
        speeds.append(measure(model, graph_of(model), executor))
    speeds += [measure(f"chain_{length}", chain(length), executor) for length in CHAINS]
    console.print(render(speeds))
    short, long = speeds[-2:]
    console.print(
        f"step on a chain of {CHAINS[1]} over {CHAINS[0]}: {long.step / short.step:.2f}", highlight=False
    )
    graph = graph_of(models[0])
    one, two = (max(throughput(graph, threads) for _ in range(3)) for threads in (1, 2))
    console.print(
        f"{models[0]}: {one:.0f} steps/s with one thread, {two:.0f} with two: {two / one:.2f}x",
        highlight=False,
    )
    if csv is not None:
        write_csv(speeds, csv)
