"""How fast the environment is: first match and step, on models and on long chains.

A step is: apply the substitution, match what is around it anew, price the graph, and find for every candidate
whether it is legal and what it would cost exactly. `python -m baselines.env_speed --help`.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.progress import track
from rich.table import Table

from baselines.graphs import chain, graph_of
from baselines.models import NAMES
from baselines.shared import csv_files, terminal
from baselines.shared.arguments import CsvFile, Models, PricesOf, choose, one
from torchrlopt import _C, _tools, executor_table
from torchrlopt.machine.cost import cost_model
from torchrlopt.substitutions import load_library

CSV_COLUMNS = ("model", "metric", "us")
#: Operators of the chains: a step must not take longer on the longer one.
CHAINS = (10_000, 20_000)
_STEPS = 400
_SEEDS = 3
_FIRST_MATCHES = 5


def main(models: Models = "all", executor: PricesOf = "eager", csv: CsvFile = None) -> None:
    """Time steps and the first match of the environment on models and on long chains.

    Example: python -m baselines.env_speed --models resnet18 --csv env.csv
    """
    executor = one(executor, executor_table.names(), "executor")
    chosen = choose(models, NAMES, "model")
    console = terminal.console()
    speeds = []
    for model in track(chosen, description="stepping", console=console, transient=True):
        speeds.append(measure(model, graph_of(model), executor))
    speeds += [measure(f"chain_{length}", chain(length), executor) for length in CHAINS]
    console.print(render(speeds))
    short, long = speeds[-2:]
    console.print(
        f"step on a chain of {CHAINS[1]} over {CHAINS[0]}: {long.step / short.step:.2f}", highlight=False
    )
    graph = graph_of(chosen[0])
    alone, together = (max(throughput(graph, threads) for _ in range(3)) for threads in (1, 2))
    console.print(
        f"{chosen[0]}: {alone:.0f} steps/s with one thread, {together:.0f} with two: {together / alone:.2f}x",
        highlight=False,
    )
    if csv is not None:
        write_csv(speeds, csv)


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
    columns = ("operators", "first match", "first prices", "step", "90 %", "evaluated per step")
    table = terminal.table("The environment on one core, in microseconds", ["graph"], columns)
    for each in speeds:
        table.add_row(
            each.model, str(each.num_operators), f"{each.first_match:.0f}", f"{each.first_evaluation:.0f}",
            f"{each.step:.0f}", f"{each.step_90:.0f}", f"{each.evaluations:.1f}",
        )  # fmt: skip
    return table


def write_csv(speeds: Sequence[Speed], path: Path) -> None:
    """Two rows for each graph, with `CSV_COLUMNS`."""
    rows = [
        (each.model, metric, us)
        for each in speeds
        for metric, us in (("first_match", each.first_match), ("step", each.step))
    ]
    csv_files.write(path, CSV_COLUMNS, rows)


if __name__ == "__main__":
    typer.run(main)
