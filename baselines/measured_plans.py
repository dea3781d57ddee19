"""What measuring plans is worth: the plan that was searched against the fastest of several that were timed.

Both run in one process, in turns, and are timed once more after the choice: the times by which a plan was
chosen flatter it. Each model in each executor has a process of its own. `python -m baselines.measured_plans
--help`.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.table import Table
from scipy import stats

import torchrlopt
from baselines.models import NAMES, build
from baselines.shared import csv_files, terminal
from baselines.shared.arguments import CsvFile, Models, choose
from torchrlopt import executor_table
from torchrlopt.executors import registry
from torchrlopt.judge.timing import measure

CSV_COLUMNS = (
    "model", "executor", "searched_ms", "chosen_ms", "gain", "spread", "is_calm", "plans", "chosen", "took_s",
)  # fmt: skip
_OPTIONS = {"min_gain": -10.0, "cache": False, "on_error": "raise", "weights": "frozen"}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One model in one executor.

    Attributes:
        model: its name.
        executor: its name.
        searched_ms: time of a call with the searched plan, in milliseconds.
        chosen_ms: the same with the plan that was chosen by measurement.
        gain: of the one over the other; 0 where they are the same plan, which is not timed.
        spread: of the gain.
        is_calm: whether other processes left both alone.
        plans: that were timed beside the searched one.
        chosen: what was believed when the chosen plan was made; empty for the searched one.
        seconds: what the measuring took.
    """

    model: str
    executor: str
    searched_ms: float
    chosen_ms: float
    gain: float
    spread: float
    is_calm: bool
    plans: int
    chosen: str
    seconds: float

    def cells(self) -> tuple[object, ...]:
        """In the order of `CSV_COLUMNS`."""
        numbers = (f"{each:.4f}" for each in (self.searched_ms, self.chosen_ms, self.gain, self.spread))
        rest = (self.is_calm, self.plans, self.chosen, f"{self.seconds:.1f}")
        return (self.model, self.executor, *numbers, *rest)


def main(
    models: Models = "all",
    executors: Annotated[str, typer.Option(help="Executors, separated by commas.")] = "eager,onnxruntime",
    plans: Annotated[int, typer.Option(min=2, help="Plans that are measured, with the searched one.")] = 6,
    seconds: Annotated[float, typer.Option(min=0.1, help="Of the timing after the choice.")] = 8.0,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the kernels.")] = 2,
    csv: CsvFile = None,
) -> None:
    """Optimise each model with the searched plan, and with the fastest of some; time both.

    Example: python -m baselines.measured_plans --models nasrnn,resnet18 --executors eager
    """
    names = choose(models, NAMES, "model")
    chosen = choose(executors, executor_table.names(), "executors")
    console, found = terminal.console(), list[Outcome]()
    context = multiprocessing.get_context("spawn")
    for executor in chosen:
        for name in names:
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                found.append(pool.submit(compare, name, executor, plans, seconds, threads).result())
            if csv is not None:
                csv_files.write(csv, CSV_COLUMNS, [each.cells() for each in found])
    console.print(render(found))


def compare(name: str, executor: str, plans: int, seconds: float, threads: int) -> Outcome:
    """One model in one executor, in this process."""
    torch.set_num_threads(threads)
    model, inputs = build(name)
    options: dict[str, Any] = {**_OPTIONS, "executor": executor}
    with torch.no_grad():
        searched = torchrlopt.optimise(model, inputs, measure=False, **options)
        torch._dynamo.reset()
        begin = time.perf_counter()
        chosen = torchrlopt.optimise(model, inputs, measure_plans=plans, **options)
        took = time.perf_counter() - begin
        tried = chosen.report.measured_plans
        kept = [each.belief for each in tried if each.is_kept]
        if not kept:
            return Outcome(name, executor, 0.0, 0.0, 0.0, 0.0, True, len(tried), "", took)
        settle = registry.row(executor).needs_settling
        timed = measure(searched, chosen, lambda: inputs, seconds * 1e3, 0.0, settle=settle)
    times = (timed.before_ms, timed.after_ms, timed.gain, timed.spread)
    return Outcome(name, executor, *times, timed.is_calm, len(tried), kept[-1], took)


def render(found: list[Outcome]) -> Table:
    """A row for each, and the geometric mean of each executor with its interval."""
    table = Table(title="Plans chosen by measurement, against the searched ones", title_justify="left")
    for column in ("model", "executor", "searched", "chosen", "time saved", "spread", "of", "which"):
        table.add_column(column, justify="left" if column in ("model", "executor", "which") else "right")
    for each in found:
        same = not each.chosen
        times = ["", ""] if same else [f"{each.searched_ms:.3f} ms", f"{each.chosen_ms:.3f} ms"]
        busy = "" if each.is_calm else ", busy"
        saved = ["0", ""] if same else [f"{each.gain:.1%}", f"{each.spread:.1%}{busy}"]
        table.add_row(
            each.model, each.executor, *times, *saved, str(each.plans + 1), each.chosen or "the searched one"
        )
    for executor in dict.fromkeys(each.executor for each in found):
        logs = np.log1p([-each.gain for each in found if each.executor == executor])
        if len(logs) > 1:
            table.add_row("mean", executor, "", "", _mean_with_interval(logs))
    return table


def _mean_with_interval(logs: np.ndarray) -> str:
    """The time saved in geometric mean, with 95 % over the models."""
    if np.ptp(logs) == 0:
        return f"{-np.expm1(logs.mean()):.1%}"
    interval = stats.bootstrap((logs,), np.mean, rng=0, method="percentile").confidence_interval
    low, high = (-np.expm1(each) for each in (interval.high, interval.low))
    return f"{-np.expm1(logs.mean()):.1%} ({low:.1%} to {high:.1%})"


if __name__ == "__main__":
    typer.run(main)
