"""What runs in parts: what a custom operator costs a model, and whether several executors beat one.

`python -m baselines.regions --help`.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import torch
import typer
from rich.table import Table
from torch import nn

import torchrlopt
from baselines.models import NAMES, build
from baselines.shared import csv_files, terminal
from baselines.shared.arguments import CsvFile, choose, one
from torchrlopt import executor_table
from torchrlopt.compile.memory import MEMORY

CSV_COLUMNS = ("model", "executor", "eager_ms", "ours_ms", "eager_with_ms", "ours_with_ms", "kept", "parts")
SPLIT_COLUMNS = ("model", "single", "single_ms", "split", "split_ms", "gain")
_OPTIONS: Mapping[str, Any] = {
    "measure": False, "min_gain": -10.0, "cache": False, "on_error": "raise", "searcher": "greedy",
}  # fmt: skip
_MOST_BLOCKS = 4
"""Into so many groups the blocks of a model are put: every cut between them is tried."""

Call = Callable[[], Any]


@torch.library.custom_op("torchrlopt_baselines::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    """An operator that nobody knows, and that costs little."""
    return x * 0.5


@halved.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def main(
    what: Annotated[str, typer.Argument(help="'kept' or 'split'.")],
    models: Annotated[str, typer.Option(help="Models, separated by commas.")] = "resnet18,vit_s16",
    executors: Annotated[str, typer.Option(help="Executors, separated by commas.")] = "onnxruntime,openvino",
    calls: Annotated[int, typer.Option(min=1, help="Calls of each, in turns; the least counts.")] = 60,
    csv: CsvFile = None,
) -> None:
    """Time calls in one thread, as CPU time.

    kept: each model in each executor and in eager, without and with an unknown operator in the middle. split:
    the fastest split of the model's blocks over the executors, against the best single one; every sequence of
    blocks is built and timed in every executor, as a graph of its own.

    Example: python -m baselines.regions kept --models resnet18 --csv regions.csv
    """
    one(what, ("kept", "split"), "question")
    names = choose(models, NAMES, "models")
    chosen = choose(executors, executor_table.names(), "executors")
    torch.set_num_threads(1)
    console = terminal.console()
    if what == "kept":
        found = [measure_kept(name, executor, calls) for name in names for executor in chosen]
        console.print(render(found))
        rows: list[tuple[object, ...]] = [each.cells() for each in found]
    else:
        rows = [measure_split(name, chosen, calls) for name in names]
        console.print(render_splits(rows))
    if csv is not None:
        csv_files.write(csv, CSV_COLUMNS if what == "kept" else SPLIT_COLUMNS, rows)


@dataclasses.dataclass(frozen=True)
class Kept:
    """One model in one executor; times are the least of all calls, in milliseconds of CPU time.

    Attributes:
        model: its name.
        executor: its name.
        eager_ms: the model in eager PyTorch; `ours_ms` in the executor.
        ours_ms: see above.
        eager_with_ms: with the operator, in eager; `ours_with_ms` in the executor.
        ours_with_ms: see above.
        parts: of the graph with the operator.
    """

    model: str
    executor: str
    eager_ms: float
    ours_ms: float
    eager_with_ms: float
    ours_with_ms: float
    parts: int

    @property
    def share(self) -> float:
        """What is kept of the time that is saved without the operator."""
        return (self.eager_with_ms - self.ours_with_ms) / (self.eager_ms - self.ours_ms)

    def cells(self) -> tuple[object, ...]:
        """In the order of `CSV_COLUMNS`."""
        times = (self.eager_ms, self.ours_ms, self.eager_with_ms, self.ours_with_ms)
        return (
            self.model,
            self.executor,
            *(f"{each:.3f}" for each in times),
            f"{self.share:.3f}",
            self.parts,
        )


def measure_kept(name: str, executor: str, calls: int) -> Kept:
    """Time one model in one executor."""
    model, inputs = build(name)
    with_operator = copy.deepcopy(model)
    blocks = blocks_of(with_operator)
    blocks[len(blocks) // 2].register_forward_hook(lambda module, args, result: _through(result))
    with torch.no_grad():
        plain = torchrlopt.optimise(model, inputs, executor=executor, **_OPTIONS)
        parted = torchrlopt.optimise(with_operator, inputs, executor=executor, **_OPTIONS)
        ways = [lambda each=each: each(*inputs) for each in (model, plain, with_operator, parted)]
        times = least_ms(ways, calls)
    return Kept(name, executor, *times, len(parted.report.parts))


def _through(result: Any) -> Any:
    if isinstance(result, tuple):
        return (halved(result[0]), *result[1:])
    return halved(result)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks that the model has most of, in order."""
    lists = [each for each in model.modules() if isinstance(each, nn.ModuleList | nn.Sequential)]
    return list(max(lists, key=lambda each: (len(each), -sum(1 for _ in each.modules()))))


def least_ms(ways: Sequence[Call], calls: int) -> list[float]:
    """The least CPU time of each, in milliseconds: other programs disturb it less than the time by the clock.

    They take turns, and threads go to sleep in between.
    """
    for way in ways:
        way()
    least = [math.inf] * len(ways)
    for _ in range(calls):
        for index, way in enumerate(ways):
            time.sleep(0.005)
            start = time.process_time_ns()
            way()
            least[index] = min(least[index], (time.process_time_ns() - start) / 1e6)
    return least


def render(found: Sequence[Kept]) -> Table:
    """A row for each model and executor."""
    figures = ("eager", "ours", "eager with", "ours with", "kept")
    made = terminal.table(
        "CPU time of a call in one thread, in ms, without and with the operator",
        ["model", "executor"],
        figures,
    )
    for each in found:
        model, executor, *times, _, _ = each.cells()
        made.add_row(str(model), str(executor), *map(str, times), f"{each.share:.0%}")
    return made


# ---- splits


def render_splits(rows: Sequence[Sequence[object]]) -> Table:
    """A row for each model."""
    made = terminal.table(
        "CPU time of a call in one thread, in ms", ["model", "single", "split"], ("ms", "ms", "gain")
    )
    for model, single, single_ms, parts, split_ms, gain in rows:
        made.add_row(*map(str, (model, single, parts, single_ms, split_ms, gain)))
    return made


Segment = tuple[int, int, str]
"""From the first block up to another one, and the executor."""


def measure_split(name: str, executors: Sequence[str], calls: int) -> tuple[str, str, str, str, str, str]:
    """One row, in the order of `SPLIT_COLUMNS`."""
    chain, x = chain_of(name)
    values = [x]
    with torch.no_grad():
        for block in chain:
            values.append(block(values[-1]))
        built: dict[Segment, Callable[[torch.Tensor], torch.Tensor]] = {}
        for start, end in itertools.combinations(range(len(chain) + 1), 2):
            for executor in executors:
                built[start, end, executor] = _built(
                    nn.Sequential(*chain[start:end]).eval(), values[start], executor
                )
        ways = [lambda run=run, at=segment[0]: run(values[at]) for segment, run in built.items()]
        times = dict(zip(built, least_ms(ways, calls), strict=True))
        single = min((each for each in times if each[:2] == (0, len(chain))), key=times.__getitem__)
        best = fastest(times, len(chain))

        def run_split() -> Any:
            value = x
            for segment in best:
                value = built[segment](value)
            return value

        single_ms, split_ms = least_ms([lambda: built[single](x), run_split], 2 * calls)
    parts = " ".join(f"{start}-{end}:{executor}" for start, end, executor in best)
    gain = 1 - split_ms / single_ms
    return name, single[2], f"{single_ms:.3f}", parts, f"{split_ms:.3f}", f"{gain:.3f}"


def fastest(times: Mapping[Segment, float], length: int) -> list[Segment]:
    """The segments that cover all blocks in the least time together; neighbours differ in their executor."""
    best: list[tuple[float, list[Segment]]] = [(0.0, [])]
    for end in range(1, length + 1):
        found = [
            (best[segment[0]][0] + ms, [*best[segment[0]][1], segment])
            for segment, ms in times.items()
            if segment[1] == end
        ]
        best.append(min(found, key=lambda each: each[0]))
    return best[-1][1]


def chain_of(name: str) -> tuple[list[nn.Module], torch.Tensor]:
    """The blocks of a model as a chain of at most `_MOST_BLOCKS`, and what the first of them reads."""
    model, inputs = build(name)
    blocks = blocks_of(model)
    seen: list[torch.Tensor] = []
    handle = blocks[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        model(*inputs)
    handle.remove()
    size = -(-len(blocks) // _MOST_BLOCKS)
    groups = [blocks[at : at + size] for at in range(0, len(blocks), size)]
    return [nn.Sequential(*map(_First, group)) for group in groups], seen[0]


class _First(nn.Module):
    """Gives the first result of a block that may have several."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.block(x)
        return result[0] if isinstance(result, tuple) else result


def _built(model: nn.Module, x: torch.Tensor, executor: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The executor's own call of a graph, without the guards around it."""
    fast = torchrlopt.optimise(model, (x,), executor=executor, **_OPTIONS)
    given: list[tuple[Any, tuple[Any, ...]]] = []

    def noted(lowered: Any) -> Any:
        def run(*args: Any) -> Any:
            given.append((lowered, args))
            return lowered(*args)

        return run

    # Graphs that are equal share one.
    compiled = {each: each.lowered for each in MEMORY.compiled.values()}
    for each, lowered in compiled.items():
        each.lowered = noted(lowered)
    try:
        fast(x)
    finally:
        for each, lowered in compiled.items():
            each.lowered = lowered
    ((lowered, args),) = given
    place = next(index for index, each in enumerate(args) if each.data_ptr() == x.data_ptr())

    def run(value: torch.Tensor) -> torch.Tensor:
        outputs: tuple[torch.Tensor, ...] = lowered(*args[:place], value, *args[place + 1 :])
        return outputs[0]

    run.__dict__["fast"] = fast
    return run


if __name__ == "__main__":
    typer.run(main)
