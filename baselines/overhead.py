"""What a call costs beyond the executor: guards, wrappers, and the look at the weights.

The model is a chain of linears of width 4: there is next to nothing to compute, so what is around the graph
shows. `python -m baselines.overhead --help`.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

import torchrlopt
from baselines.shared import csv_files, terminal
from baselines.shared.arguments import CsvFile, numbers
from torchrlopt.capture.trace import isolated
from torchrlopt.compile.memory import MEMORY
from torchrlopt.executors.eager.executor import EagerCallable

CSV_COLUMNS = ("weights", "way", "call_min_us", "call_median_us", "executor_min_us", "executor_median_us")
#: How the model is called.
WAYS = ("check", "frozen", "compile_check", "compile_frozen", "aot_eager", "eager")
_OPTIONS: Mapping[str, Any] = {
    "executor": "eager", "searcher": "none", "measure": False, "min_gain": -10.0, "cache": False,
    "on_error": "raise",
}  # fmt: skip
_WIDTH, _BATCH = 4, 2
_BLOCK = 20
_OF = (min, statistics.median)

Call = Callable[[], Any]


def main(
    weights: Annotated[
        str, typer.Option(help="Numbers of weights, separated by commas; each even.")
    ] = "10,100,1000",
    calls: Annotated[int, typer.Option(min=_BLOCK, help="Calls of each way.")] = 300,
    csv: CsvFile = None,
) -> None:
    """Time whole calls of tiny models, and the executor's own call in them, in one thread.

    check and frozen are `optimise` with these weights, compile_check and compile_frozen torch.compile with
    our backend; aot_eager is torch.compile's backend of that name, eager the model as it is. All of them take
    turns. The least of the calls says what they cost on a machine that does nothing else.

    Example: python -m baselines.overhead --weights 10,100 --csv overhead.csv
    """
    sizes = numbers(weights, int, "numbers of weights", 2, 100_000)
    if any(size % 2 for size in sizes):
        raise typer.BadParameter("a linear has two weights: numbers of weights are even")
    console = terminal.console()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = [each for size in sizes for each in measure(size, calls)]
    finally:
        torch.set_num_threads(threads)
    console.print(render(found))
    if csv is not None:
        csv_files.write(csv, CSV_COLUMNS, [each.cells() for each in found])


@dataclasses.dataclass(frozen=True)
class Overhead:
    """Times of one way of calling one model, in microseconds.

    Attributes:
        weights: of the model.
        way: one of `WAYS`.
        call: of each call.
        executor: of the executor alone, with the arguments that it is given in such a call; empty where none
            of ours is called.
    """

    weights: int
    way: str
    call: list[float]
    executor: list[float]

    def beyond(self, of: Callable[[list[float]], float]) -> float:
        """What is around the executor's call."""
        return of(self.call) - of(self.executor)

    def cells(self) -> tuple[object, ...]:
        """In the order of `CSV_COLUMNS`."""
        times = (self.call, self.executor)
        return (
            self.weights,
            self.way,
            *(f"{of(each):.1f}" if each else "" for each in times for of in _OF),
        )


def measure(num_weights: int, num_calls: int) -> list[Overhead]:
    """Time all ways of calling one model, in turns.

    Args:
        num_weights: of the model, an even number.
        num_calls: of each way.
    """
    torch.manual_seed(0)
    layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(num_weights // 2)]
    model, x = torch.nn.Sequential(*layers).eval(), torch.randn(_BATCH, _WIDTH)
    with torch.no_grad():
        made = {way: _made(way, model, x) for way in WAYS}
        found = {way: Overhead(num_weights, way, [], []) for way in WAYS}
        for _ in range(-(-num_calls // _BLOCK)):
            for way, (call, executor) in made.items():
                found[way].call.extend(_times(call))
                if executor is not None:
                    found[way].executor.extend(_times(executor))
    return list(found.values())


def _made(way: str, model: torch.nn.Module, x: torch.Tensor) -> tuple[Call, Call | None]:
    """A call of the model in one way, and the call of the executor in it."""
    if way == "eager":
        return lambda: model(x), None
    if way == "aot_eager":
        fast: Callable[..., Any] = torch.compile(isolated(model), backend=way)
    elif way in ("check", "frozen"):
        fast = torchrlopt.optimise(model, weights=way, **_OPTIONS)
    else:
        options = {**_OPTIONS, "weights": way.removeprefix("compile_")}
        fast = torch.compile(isolated(model), backend="rlopt", options=options)
    for _ in range(_BLOCK):
        fast(x)
    return lambda: fast(x), None if way == "aot_eager" else _executor_of(lambda: fast(x))


def _executor_of(call: Call) -> Call:
    """What the executor does in a call, with the arguments that it is given there."""
    given: list[tuple[EagerCallable, tuple[Any, ...]]] = []

    def recording(lowered: EagerCallable) -> Any:
        def run(*args: Any) -> Any:
            given.append((lowered, args))
            return lowered(*args)

        return run

    compiled = {each: each.lowered for each in MEMORY.compiled.values()}
    for each, lowered in compiled.items():
        assert isinstance(lowered, EagerCallable)
        each.lowered = recording(lowered)
    try:
        call()
    finally:
        for each, lowered in compiled.items():
            each.lowered = lowered
    ((lowered, args),) = given
    values = lowered.arguments(args)
    return lambda: lowered.main.forward(*values)


def _times(call: Call) -> list[float]:
    """Some calls after each other, in microseconds."""
    times = []
    for _ in range(_BLOCK):
        start = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - start) / 1e3)
    return times


def render(found: Sequence[Overhead]) -> Table:
    """A row for each way and model."""
    columns = ("call", "median", "executor", "median", "beyond it", "median")
    made = terminal.table(
        "Calls in one thread, least and median, in microseconds", ["weights", "way"], columns
    )
    for each in found:
        figures = [of(each.call) for of in _OF]
        if each.executor:
            figures += [of(each.executor) for of in _OF] + [each.beyond(of) for of in _OF]
        made.add_row(str(each.weights), each.way, *(f"{figure:.0f}" for figure in figures))
    return made


if __name__ == "__main__":
    typer.run(main)
