"""What a call costs beyond the executor: guards, wrappers, and the look at weights and inputs.

The model is a chain of linears of width 4: there is next to nothing to compute, so what is around the graph
shows. With `--models` they are models of the suite. `python -m baselines.overhead --help`.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any
from unittest import mock

import torch
import typer
from rich.table import Table

import torchrlopt
from baselines.models import NAMES, build
from baselines.shared import csv_files, terminal
from baselines.shared.arguments import CsvFile, choose, numbers
from torchrlopt.capture.trace import isolated
from torchrlopt.compile.compiled import Compiled
from torchrlopt.executors.eager.executor import EagerCallable
from torchrlopt.executors.onnx_runtimes.session_call import SessionCallable

CSV_COLUMNS = (
    "executor",
    "model",
    "weights",
    "way",
    "call_min_us",
    "call_median_us",
    "beyond_min_us",
    "beyond_median_us",
)
#: How the model is called.
WAYS = ("check", "frozen", "compile_check", "compile_frozen", "aot_eager", "eager")
EXECUTORS = ("eager", "onnxruntime", "openvino")
#: Of the models of the suite, whose calls are long.
MODEL_WAYS = ("check", "frozen")
CHAIN = "linears"
_OPTIONS: Mapping[str, Any] = {
    "searcher": "none", "measure": False, "min_gain": -10.0, "cache": False,
    "on_error": "raise",
}  # fmt: skip
_WIDTH, _BATCH = 4, 2
_BLOCK = 20
_WARM_UP = 6
_OF = (min, statistics.median)

Call = Callable[[], Any]


def main(
    weights: Annotated[
        str, typer.Option(help="Numbers of weights, separated by commas; each even.")
    ] = "10,100,1000",
    models: Annotated[
        str, typer.Option(help="Models of the suite instead, separated by commas; in check and frozen only.")
    ] = "",
    executors: Annotated[
        str, typer.Option(help="Executors, separated by commas, or 'all'; a runtime has to be installed.")
    ] = "eager",
    calls: Annotated[int, typer.Option(min=_BLOCK, help="Calls of each way.")] = 300,
    csv: CsvFile = None,
) -> None:
    """Time whole calls of tiny models, and the executor's own call in them, in one thread.

    check and frozen are `optimise` with these weights, compile_check and compile_frozen torch.compile with
    our backend; aot_eager is torch.compile's backend of that name, eager the model as it is. All of them take
    turns. The least of the calls says what they cost on a machine that does nothing else.

    Example: python -m baselines.overhead --weights 10,100 --csv overhead.csv
    Example: python -m baselines.overhead --models squeezenet1_1,moe_loop --calls 40
    """
    named = choose(models, NAMES, "model") if models else []
    chosen = choose(executors, EXECUTORS, "executor")
    sizes = numbers(weights, int, "numbers of weights", 2, 100_000)
    if any(size % 2 for size in sizes):
        raise typer.BadParameter("a linear has two weights: numbers of weights are even")
    console = terminal.console()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found: list[Overhead] = []
        for executor in chosen:
            for name in named:
                found += measure(executor, name, *build(name), MODEL_WAYS, calls, 1)
            for size in sizes if not named else ():
                found += measure(executor, CHAIN, *_chain(size), WAYS, calls, _BLOCK)
    finally:
        torch.set_num_threads(threads)
    console.print(render(found))
    if csv is not None:
        csv_files.write(csv, CSV_COLUMNS, [each.cells() for each in found])


@dataclasses.dataclass(frozen=True)
class Overhead:
    """Times of one way of calling one model, in microseconds.

    Attributes:
        executor: its name.
        model: its name.
        weights: how many it has.
        way: one of `WAYS`.
        call: of each call.
        beyond: of each call without the executor in it; empty where none of ours is called.
    """

    executor: str
    model: str
    weights: int
    way: str
    call: list[float]
    beyond: list[float]

    def cells(self) -> tuple[object, ...]:
        """In the order of `CSV_COLUMNS`."""
        times = (self.call, self.beyond)
        figures = (f"{of(each):.1f}" if each else "" for each in times for of in _OF)
        return (self.executor, self.model, self.weights, self.way, *figures)


def _chain(num_weights: int) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    """A model with an even number of weights, and its arguments."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(num_weights // 2)]
    return torch.nn.Sequential(*layers).eval(), (torch.randn(_BATCH, _WIDTH),)


def measure(
    executor: str,
    name: str,
    model: torch.nn.Module,
    args: tuple[Any, ...],
    ways: Sequence[str],
    num_calls: int,
    block: int,
) -> list[Overhead]:
    """Time some ways of calling one model, in turns.

    Args:
        executor: of ours.
        name: of the model.
        model: in eval mode.
        args: of its calls.
        ways: of `WAYS`.
        num_calls: of each way.
        block: calls of one way after each other.
    """
    num_weights = len([*model.parameters(), *model.buffers()])
    with torch.no_grad():
        made = {way: _made(executor, way, model, args) for way in ways}
        found = {way: Overhead(executor, name, num_weights, way, [], []) for way in ways}
        for _ in range(-(-num_calls // block)):
            for way, (call, clock) in made.items():
                for _ in range(block):
                    start = time.perf_counter_ns()
                    call()
                    end = time.perf_counter_ns()
                    found[way].call.append((end - start) / 1e3)
                    if clock is not None:
                        found[way].beyond.append((end - start - clock.spent_ns) / 1e3)
    return list(found.values())


def _made(
    executor: str, way: str, model: torch.nn.Module, args: tuple[Any, ...]
) -> tuple[Call, _Clock | None]:
    """A call of the model in one way, and what knows how long the executor took in it."""
    if way == "eager":
        return lambda: model(*args), None
    if way == "aot_eager":
        fast: Callable[..., Any] = torch.compile(isolated(model), backend=way)
    elif way in ("check", "frozen"):
        fast = torchrlopt.optimise(model, executor=executor, weights=way, **_OPTIONS)
    else:
        options = {**_OPTIONS, "executor": executor, "weights": way.removeprefix("compile_")}
        fast = torch.compile(isolated(model), backend="rlopt", options=options)
    fast(*args)  # compiles
    clock = None if way == "aot_eager" else _Clock(lambda: fast(*args))
    for _ in range(_WARM_UP):
        fast(*args)
    return lambda: fast(*args), clock


class _Clock:
    """Times the executor inside of a call.

    Args:
        call: of one compiled graph.

    Attributes:
        spent_ns: in the last call.
    """

    def __init__(self, call: Call) -> None:
        self.spent_ns = 0
        ran: list[Compiled] = []
        run = Compiled.run
        with mock.patch.object(Compiled, "run", lambda graph, args: ran.append(graph) or run(graph, args)):
            call()
        (compiled,) = ran
        lowered = compiled.lowered
        if isinstance(lowered, EagerCallable):
            lowered._run = self._timed(lowered._run)
            return
        assert isinstance(lowered, SessionCallable)
        open_session = lowered._runtime.open
        lowered._runtime = dataclasses.replace(
            lowered._runtime, open=lambda *args: self._timed(open_session(*args))
        )
        lowered.leave_sessions()

    def _timed(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*operands: Any) -> Any:
            start = time.perf_counter_ns()
            outputs = run(*operands)
            self.spent_ns = time.perf_counter_ns() - start
            return outputs

        return timed


def render(found: Sequence[Overhead]) -> Table:
    """A row for each way and model."""
    columns = ("call", "median", "beyond the executor", "median")
    made = terminal.table(
        "Calls in one thread, least and median, in microseconds",
        ["executor", "model", "weights", "way"],
        columns,
    )
    for each in found:
        figures = [of(times) for times in (each.call, each.beyond) if times for of in _OF]
        made.add_row(
            each.executor, each.model, str(each.weights), each.way, *(f"{figure:.0f}" for figure in figures)
        )
    return made


if __name__ == "__main__":
    typer.run(main)
