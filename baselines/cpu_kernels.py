"""Our kernels for the CPU beside ATen's and oneDNN's: `python -m baselines.cpu_kernels --help`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from rich.table import Table

from baselines.shared import csv_files, terminal
from baselines.shared.arguments import CsvFile
from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect, packing
from torchrlopt.executors.eager.kernels.epilogues import NONE, Epilogue

CONVOLUTIONS: dict[str, tuple[int, int, int, int, int, int]] = {
    "3 to 16, 3 x 3 / 2, 224 x 224": (3, 16, 224, 3, 2, 1),
    "3 to 64, 7 x 7 / 2, 224 x 224": (3, 64, 224, 7, 2, 1),
    "64 to 64, 3 x 3, 56 x 56": (64, 64, 56, 3, 1, 1),
    "512 to 512, 3 x 3, 7 x 7": (512, 512, 7, 3, 1, 1),
    "16 to 64, 3 x 3, 55 x 55": (16, 64, 55, 3, 1, 1),
    "16 to 64, 1 x 1, 112 x 112": (16, 64, 112, 1, 1, 1),
    "24 to 72, 1 x 1, 56 x 56": (24, 72, 56, 1, 1, 1),
    "120 to 40, 1 x 1, 28 x 28": (120, 40, 28, 1, 1, 1),
    "80 to 200, 1 x 1, 14 x 14": (80, 200, 14, 1, 1, 1),
    "960 to 160, 1 x 1, 7 x 7": (960, 160, 7, 1, 1, 1),
    "256 to 1024, 1 x 1, 14 x 14": (256, 1024, 14, 1, 1, 1),
    "72, 5 x 5 / 2, 56 x 56, depthwise": (72, 72, 56, 5, 2, 72),
    "240, 3 x 3 / 2, 14 x 14, depthwise": (240, 240, 14, 3, 2, 240),
    "672, 5 x 5, 14 x 14, depthwise": (672, 672, 14, 5, 1, 672),
    "128, 3 x 3, 56 x 56, groups of 4": (128, 128, 56, 3, 1, 32),
    "256, 3 x 3, 28 x 28, groups of 8": (256, 256, 28, 3, 1, 32),
    "512, 3 x 3, 14 x 14, groups of 16": (512, 512, 14, 3, 1, 32),
    "1024, 3 x 3, 7 x 7, groups of 32": (1024, 1024, 7, 3, 1, 32),
    "432, 3 x 3, 14 x 14, groups of 24": (432, 432, 14, 3, 1, 18),
    "240, 1 x 1, 28 x 28, groups of 80": (240, 240, 28, 1, 1, 3),
}
"""Channels in and out, height and width, kernel, stride, groups."""

PRODUCTS: dict[str, tuple[int, int, int]] = {
    "1 x 240 x 64": (1, 240, 64),
    "1 x 960 x 1280": (1, 960, 1280),
    "8 x 128 x 512": (8, 128, 512),
    "32 x 256 x 256": (32, 256, 256),
    "32 x 384 x 1536": (32, 384, 1536),
    "128 x 768 x 768": (128, 768, 768),
}
"""Rows, features in and out."""

WINOGRAD: dict[str, tuple[int, int, int, int]] = {
    "32 to 32, 112 x 112": (1, 32, 32, 112),
    "16 to 64, 55 x 55": (1, 16, 64, 55),
    "64 to 64, 56 x 56": (1, 64, 64, 56),
    "64 to 96, 35 x 35": (1, 64, 96, 35),
    "128 to 128, 28 x 28": (1, 128, 128, 28),
    "128 to 32, 14 x 14": (1, 128, 32, 14),
    "256 to 256, 14 x 14": (1, 256, 256, 14),
    "512 to 512, 7 x 7": (1, 512, 512, 7),
    "16 images, 64 to 64, 56 x 56": (16, 64, 64, 56),
    "16 images, 512 to 512, 7 x 7": (16, 512, 512, 7),
}
"""Images, channels in and out, height and width of convolutions of 3 x 3."""

POOLS: dict[str, tuple[int, int]] = {"64, 111 x 111": (64, 111), "256, 27 x 27": (256, 27)}
"""Channels, height and width."""

CSV_COLUMNS = ("what", "threads", "aten_us", "onednn_us", "ours_us")

WINOGRAD_COLUMNS = (
    "what",
    "threads",
    "onednn_us",
    "sums_us",
    "tiles_of_2_us",
    "tiles_of_4_us",
    "chosen_tile",
)

Call = Callable[[], torch.Tensor]


def main(
    threads: Annotated[int, typer.Option(min=1, help="Of PyTorch.")] = 2,
    calls: Annotated[int, typer.Option(min=1, help="Of each; the least counts.")] = 100,
    winograd: Annotated[
        bool, typer.Option("--winograd", help="Convolutions of 3 x 3, by sums and by tiles of both sizes.")
    ] = False,
    csv: CsvFile = None,
) -> None:
    """Time float32 convolutions with bias and relu, products with bias, and 3 x 3 / 2 max pools, one image.

    Microseconds for a call, the least of all, in turns. Images are in channels_last, weights packed before.

    Example: python -m baselines.cpu_kernels --threads 1 --csv kernels.csv
    """
    if indirect.kernels() is None:
        raise typer.BadParameter("there are no kernels for this processor")
    torch.set_num_threads(threads)
    columns = WINOGRAD_COLUMNS if winograd else CSV_COLUMNS
    rows = []
    with torch.no_grad():
        for what, ways in winograd_cases() if winograd else cases():
            times = ["" if us is None else f"{us:.1f}" for us in least(ways, calls)]
            rows.append([what, str(threads), *times, *([str(chosen_tile(what))] if winograd else [])])
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    console = terminal.console()
    console.print(f"{terminal.machine()}; {_C.kernel_instructions()}", highlight=False)
    console.print(table)
    if csv is not None:
        csv_files.write(csv, columns, rows)


def cases() -> Iterator[tuple[str, list[Call | None]]]:
    """Each call by ATen, by oneDNN's packed form, and by our kernel."""
    for what, shape in CONVOLUTIONS.items():
        yield what, convolution(*shape)
    for what, (rows, inside, outside) in PRODUCTS.items():
        yield what, product(rows, inside, outside)
    for what, (channels, size) in POOLS.items():
        yield f"max pool, {what}", max_pool(channels, size)


def winograd_cases() -> Iterator[tuple[str, list[Call | None]]]:
    """Each by oneDNN's packed form, as sums, and by Winograd's tiles of 2 x 2 and 4 x 4."""
    for what, (images, inside, outside, size) in WINOGRAD.items():
        yield what, convolution(inside, outside, size, 3, 1, 1, images, tiles=(0, 2, 4))[1:]


def chosen_tile(what: str) -> int:
    """The tile that the executor takes; 0: sums."""
    images, inside, outside, size = WINOGRAD[what]
    numbers = indirect.Window(outside, (3, 3), (1, 1), (1, 1), (1, 1)).of_convolution(1, NONE)
    return _C.kernel_method(images, inside, size, size, numbers)


def convolution(
    inside: int,
    outside: int,
    size: int,
    kernel: int,
    stride: int,
    groups: int,
    images: int = 1,
    tiles: Sequence[int] = (0,),
) -> list[Call | None]:
    """With bias and relu; by our kernel with each of the tiles."""
    x = torch.randn(images, inside, size, size).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(outside, inside // groups, kernel, kernel) / math.sqrt(inside // groups * kernel**2)
    bias, pad = torch.randn(outside), kernel // 2
    window = ([pad, pad], [stride, stride], [1, 1], groups)
    theirs = packing.PACK_CONVOLUTION(weight, *window, list(x.shape)) if packing.can_pack(x) else None
    shape = indirect.Window(outside, (kernel, kernel), (stride, stride), (pad, pad), (1, 1))

    def onednn() -> torch.Tensor:
        result: torch.Tensor = packing.CONVOLUTION(x, theirs, bias, *window, "relu", [], "")
        return result

    def ours(tile: int) -> Call:
        packed = indirect.pack(weight, bias, groups, tile)
        numbers = shape.of_convolution(groups, Epilogue("relu"), tile)
        return lambda: indirect.convolve(x, packed, None, numbers)

    is_taken = _C.kernel_takes_groups(outside, inside, groups)
    return [
        lambda: F.conv2d(x, weight, bias, stride, pad, 1, groups).relu_(),
        None if theirs is None else onednn,
        *(ours(tile) if is_taken else None for tile in tiles),
    ]


def product(rows: int, inside: int, outside: int) -> list[Call | None]:
    """With bias."""
    x, weight, bias = (
        torch.randn(rows, inside),
        torch.randn(outside, inside) / math.sqrt(inside),
        torch.randn(outside),
    )
    theirs = packing.PACK_LINEAR(weight, rows) if packing.can_pack(x) else None
    ours = indirect.pack(weight, bias, 1)

    def onednn() -> torch.Tensor:
        result: torch.Tensor = packing.LINEAR(x, theirs, bias, "none", [], "")
        return result

    return [
        lambda: F.linear(x, weight, bias),
        None if theirs is None else onednn,
        lambda: indirect.linear(x, ours, indirect.numbers_of_product(outside, NONE)),
    ]


def max_pool(channels: int, size: int) -> list[Call | None]:
    """3 x 3, stride 2."""
    x = torch.randn(1, channels, size, size).contiguous(memory_format=torch.channels_last)
    numbers = indirect.Window(channels, (3, 3), (2, 2), (0, 0), (1, 1)).of_pool("max")
    return [lambda: F.max_pool2d(x, 3, 2), None, lambda: indirect.pool(x, numbers)]


def least(ways: list[Call | None], calls: int) -> list[float | None]:
    """Microseconds of the quickest call of each."""
    found: list[float | None] = [None if way is None else math.inf for way in ways]
    for _ in range(calls):
        for at, way in enumerate(ways):
            if way is not None:
                start = time.perf_counter()
                way()
                found[at] = min(found[at] or math.inf, (time.perf_counter() - start) * 1e6)
    return found


if __name__ == "__main__":
    typer.run(main)
