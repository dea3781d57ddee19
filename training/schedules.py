"""How much do schedules leave: our rule against the best of many? `python -m training.schedules --help`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import pandas as pd
import torch
import typer

from baselines.kernels import has_method, window
from baselines.shared import terminal
from baselines.shared.arguments import CsvFile
from baselines.shared.paired import Paired, compared
from baselines.shared.rounds import alternated_us
from baselines.shared.tables import Results
from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.epilogues import Epilogue
from torchrlopt.executors.eager.kernels.sequence import Instruction, Program, RunSequence
from training.progress import progress_bar

#: Height and width, and channels of the input, as in MobileNets and EfficientNets.
_IMAGES = (
    (112, 16), (112, 32), (56, 24), (56, 32), (28, 40), (28, 64), (14, 80), (14, 112), (14, 160), (7, 160),
)  # fmt: skip
_EXPANSIONS, _WINDOWS = (3, 6), ((3, 1), (3, 2), (5, 1))  # kernel and stride
SHIPPED, AGAIN, SEPARATE = "shipped", "shipped again", "separate"
_LEAST_ROUNDS = 6
_SPLIT = 2  # halves of the rounds: the best is chosen in one and timed in the other

Shape = tuple[int, int, int, int, int]
"""Height and width, channels in, channels between, kernel and stride of the depthwise convolution."""


def main(
    shapes: Annotated[int, typer.Option(min=1, help="How many of the 60 shapes.")] = 60,
    seconds: Annotated[float, typer.Option(min=0.0, help="For each shape.")] = 8.0,
    csv: CsvFile = None,
) -> None:
    """Time a 1 x 1 convolution and the depthwise one behind it by every schedule that can be chosen.

    Both are computed one after the other, the first by each of its methods, or by row tiles, of every number.
    What the compiled kernels fix is no choice here: tiles of pixels and channels, strips, and the order in a
    tile. One thread, float32, one image; schedules alternate, and the least time counts. The best schedule
    is chosen by one half of the rounds and timed in the other, so that it is not the luckiest.

    Example: python -m training.schedules --csv schedules.csv
    """
    torch.set_num_threads(1)
    console = terminal.console()
    terminal.announce(console, _C.kernel_instructions(), "float32", "1 thread")
    results = Results("schedules", csv, batch=1, dtype="float32", threads=1, setting=_C.kernel_instructions())
    with progress_bar() as bar, torch.no_grad():
        for shape in bar.track(list(_shapes())[:shapes], description="shapes"):
            name = "{0} x {0}, {1} to {2}, {3} x {3} / {4}".format(*shape)
            for schedule, times in _timed(ways(shape), seconds).items():
                for half in range(_SPLIT):
                    results.add(name, schedule, "call", min(times[half::_SPLIT]), "us", round=half)
            results.save()
    for what in ("best", AGAIN):
        found = _against_shipped(results.frame, what)
        interval = f"{found.ratio:.4f} ({found.low:.4f} to {found.high:.4f})"
        console.print(f"{what} / shipped: {interval}, {found.structures} shapes")


def _against_shipped(frame: pd.DataFrame, what: str) -> Paired:
    """The best schedule, or the shipped one again, against the shipped one."""
    halves = [
        frame[frame["round"] == half].pivot_table(index="model", columns="peer", values="value")
        for half in range(_SPLIT)
    ]
    mine: dict[str, float] = {}
    for chosen, timed in (halves, halves[::-1]):
        named = chosen[[AGAIN]] if what == AGAIN else chosen.drop(columns=AGAIN)
        for shape, schedule in named.idxmin(axis=1).items():
            mine[shape] = mine.get(shape, 1.0) * (timed[schedule][shape] / timed[SHIPPED][shape]) ** (
                1 / _SPLIT
            )
    return compared(mine, dict.fromkeys(mine, 1.0), {shape: shape for shape in mine})


def _shapes() -> Iterator[Shape]:
    for (size, inside), expansion, (kernel, stride) in itertools.product(_IMAGES, _EXPANSIONS, _WINDOWS):
        yield size, inside, inside * expansion, kernel, stride


def ways(shape: Shape) -> dict[str, Callable[[], Any]]:
    """The pair of convolutions by each schedule, by name."""
    size, inside, channels, kernel, stride = shape
    x = torch.randn(1, inside, size, size).contiguous(memory_format=torch.channels_last)
    wide, deep = (
        torch.randn(channels, inside, 1, 1) / inside**0.5,
        torch.randn(channels, 1, kernel, kernel) / kernel,
    )
    bias, relu = torch.randn(channels), Epilogue("relu")
    packed = indirect.pack(deep, bias, channels, indirect.SUMS)
    behind = window(channels, kernel, stride).of_convolution(channels, relu)

    def way(method: int, count: int | None) -> Callable[[], Any]:
        numbers = window(channels, 1, 1).of_convolution(1, relu, method)
        convolve = _C.KERNEL_OPERATIONS.index("convolve")
        both = (
            Instruction(convolve, 0, 1, -1, -1, 0, numbers),
            Instruction(convolve, 3, 2, -1, -1, 0, behind),
        )
        run, first = RunSequence(Program(3, both, (4,))), indirect.pack(wide, bias, 1, method)
        if count is not None:
            run.sequence.take_bands(count)
        return lambda: run(x, first, packed)

    numbers = window(channels, 1, 1).of_convolution(1, relu)
    method = _C.kernel_method(1, inside, size, size, numbers, 1, "float32")
    found = {SHIPPED: way(method, None), AGAIN: way(method, None)}
    for name, each in (("sums", indirect.SUMS), ("bf16x3", indirect.BF16X3)):
        if has_method(each, 1):
            found[f"{SEPARATE}, {name}"] = way(each, 0)
    height = (size - 1) // stride + 1
    return found | {f"{count} row tiles": way(indirect.SUMS, count) for count in range(1, height + 1)}


def _timed(ways: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    """Microseconds of the calls of each, an equal number for both halves of the rounds."""
    alternated_us(ways, 1)  # schedules are made in the first call
    began = time.perf_counter()
    alternated_us(ways, 1)
    rounds = int(seconds / (time.perf_counter() - began))
    return alternated_us(ways, max(_LEAST_ROUNDS, rounds // _SPLIT * _SPLIT))


if __name__ == "__main__":
    typer.run(main)
