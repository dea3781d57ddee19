"""Our kernels for the CPU beside ATen's and oneDNN's: `python -m baselines.cpu_kernels --help`."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from rich.table import Table

from baselines.shared import csv_files, terminal
from baselines.shared.arguments import CsvFile
from torchrlopt import _C
from torchrlopt.executors.eager.kernels import attention, indirect, linear, packing
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

PRODUCTS_IN_TURNS: dict[str, tuple[int, int, int]] = {
    "8 x 768 x 768, weights in turns": (8, 768, 768),
    "32 x 512 x 512, weights in turns": (32, 512, 512),
    "32 x 768 x 3072, weights in turns": (32, 768, 3072),
    "128 x 768 x 768, weights in turns": (128, 768, 768),
    "128 x 768 x 3072, weights in turns": (128, 768, 3072),
    "197 x 384 x 1536, weights in turns": (197, 384, 1536),
}
"""The same with so many weights that each comes from memory, as in a network."""

BYTES_IN_TURNS = 60_000_000

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

METHOD_CONVOLUTIONS: dict[str, tuple[int, int, int, int, int]] = {
    "32 to 32, 3 x 3, 112 x 112": (1, 32, 32, 112, 3),
    "16 to 64, 3 x 3, 55 x 55": (1, 16, 64, 55, 3),
    "64 to 64, 3 x 3, 56 x 56": (1, 64, 64, 56, 3),
    "64 to 96, 3 x 3, 35 x 35": (1, 64, 96, 35, 3),
    "128 to 128, 3 x 3, 28 x 28": (1, 128, 128, 28, 3),
    "128 to 32, 3 x 3, 14 x 14": (1, 128, 32, 14, 3),
    "256 to 256, 3 x 3, 14 x 14": (1, 256, 256, 14, 3),
    "512 to 512, 3 x 3, 7 x 7": (1, 512, 512, 7, 3),
    "16 images, 64 to 64, 3 x 3, 56 x 56": (16, 64, 64, 56, 3),
    "16 images, 512 to 512, 3 x 3, 7 x 7": (16, 512, 512, 7, 3),
    "64 to 256, 1 x 1, 56 x 56": (1, 64, 256, 56, 1),
    "256 to 1024, 1 x 1, 14 x 14": (1, 256, 1024, 14, 1),
}
"""Images, channels in and out, height and width, kernel."""

METHOD_PRODUCTS: dict[str, tuple[int, int, int]] = {
    "16 x 768 x 768": (16, 768, 768),
    "64 x 512 x 1536": (64, 512, 1536),
    "128 x 768 x 768": (128, 768, 768),
    "128 x 768 x 3072": (128, 768, 3072),
    "128 x 3072 x 768": (128, 3072, 768),
    "784 x 256 x 256": (784, 256, 256),
}
"""Rows, features in and out."""

METHODS = ("sums", "bf16x3", "tiles_of_2", "tiles_of_4")
METHOD_NUMBERS = (indirect.SUMS, indirect.BF16X3, *indirect.TILES)

POOLS: dict[str, tuple[int, int]] = {"64, 111 x 111": (64, 111), "256, 27 x 27": (256, 27)}
"""Channels, height and width."""

ATTENTIONS: dict[str, tuple[int, int, int, bool]] = {
    "attention, 12 heads, 128 x 64": (12, 128, 64, False),
    "attention, 6 heads, 197 x 64": (6, 197, 64, False),
    "attention, 12 heads, 512 x 64, causal": (12, 512, 64, True),
}
"""Heads, queries and as many keys, size of a head, whether a query sees the keys up to its own only."""

CSV_COLUMNS = ("what", "threads", "aten_us", "onednn_us", "ours_us")

METHOD_COLUMNS = ("what", "threads", "onednn_us", *(f"{each}_us" for each in METHODS), "chosen")

Call = Callable[[], torch.Tensor]


def main(
    threads: Annotated[int, typer.Option(min=1, help="Of PyTorch.")] = 2,
    calls: Annotated[int, typer.Option(min=1, help="Of each; the least counts.")] = 100,
    methods: Annotated[
        bool,
        typer.Option(
            "--methods", help="By sums, in a matrix unit, and by tiles, and which of them is chosen."
        ),
    ] = False,
    dtype: Annotated[str, typer.Option(help="Of images and weights: float32, bfloat16.")] = "float32",
    csv: CsvFile = None,
) -> None:
    """Time convolutions with bias and relu, products with bias, max pools and attention, one image.

    Microseconds for a call, the least of all, in turns. Images are in channels_last, weights packed before.

    Example: python -m baselines.cpu_kernels --threads 1 --csv kernels.csv
    """
    if dtype not in DTYPES:
        raise typer.BadParameter(f"{dtype} is none of {', '.join(DTYPES)}", param_hint="--dtype")
    if indirect.kernels(DTYPES[dtype]) is None:
        raise typer.BadParameter(f"there are no kernels for {dtype} on this processor")
    torch.set_num_threads(threads)
    columns = METHOD_COLUMNS if methods else CSV_COLUMNS
    rows = []
    with torch.no_grad(), default_dtype(DTYPES[dtype]):
        for what, ways in method_cases() if methods else cases():
            times = ["" if us is None else f"{us:.1f}" for us in least(ways, calls)]
            rows.append([what, str(threads), *times, *([chosen(what)] if methods else [])])
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    console = terminal.console()
    console.print(f"{terminal.machine()}; {_C.kernel_instructions()}, {dtype}", highlight=False)
    console.print(table)
    if csv is not None:
        csv_files.write(csv, columns, rows)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """All operands that are made are of this type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def cases() -> Iterator[tuple[str, list[Call | None]]]:
    """Each call by ATen, by oneDNN's packed form, and by our kernel."""
    for what, shape in CONVOLUTIONS.items():
        yield what, convolution(*shape)
    for what, (rows, inside, outside) in PRODUCTS.items():
        yield what, product(rows, inside, outside)
    for what, (rows, inside, outside) in PRODUCTS_IN_TURNS.items():
        yield what, product(rows, inside, outside, is_in_turns=True)
    for what, (channels, size) in POOLS.items():
        yield f"max pool, {what}", max_pool(channels, size)
    for what, given in ATTENTIONS.items():
        if _C.kernel_takes_attention(given[1], given[1], given[2], given[2], is_bfloat16()):
            yield what, attend(*given)


def method_cases() -> Iterator[tuple[str, list[Call | None]]]:
    """Each by oneDNN's packed form, and by each of our methods that there is."""
    for what, (images, inside, outside, size, kernel) in METHOD_CONVOLUTIONS.items():
        yield what, convolution(inside, outside, size, kernel, 1, 1, images, METHOD_NUMBERS)[1:]
    for what, (rows, inside, outside) in METHOD_PRODUCTS.items():
        yield what, product(rows, inside, outside, METHOD_NUMBERS)[1:]


def is_bfloat16() -> bool:
    """Whether operands are."""
    return torch.get_default_dtype() is torch.bfloat16


def chosen(what: str) -> str:
    """What the executor takes."""
    if what in METHOD_PRODUCTS:
        method = linear.quickest(*METHOD_PRODUCTS[what], dtype=torch.get_default_dtype())
        return "onednn" if method is None else METHODS[METHOD_NUMBERS.index(method)]
    images, inside, outside, size, kernel = METHOD_CONVOLUTIONS[what]
    numbers = window(outside, kernel, 1).of_convolution(1, NONE)
    sizes = (images, inside, size, size)
    method = _C.kernel_method(*sizes, numbers, torch.get_num_threads(), is_bfloat16())
    return METHODS[METHOD_NUMBERS.index(method)]


def has_method(method: int, kernel: int) -> bool:
    """Whether there is such a method for a window of this size."""
    if method == indirect.BF16X3:
        return _C.kernel_has_matrix_unit() and not is_bfloat16()
    return method == indirect.SUMS or kernel == 3


def window(outside: int, kernel: int, stride: int) -> indirect.Window:
    """One that leaves the size of an image as it is, but for the stride."""
    pad = kernel // 2
    return indirect.Window(outside, (kernel, kernel), (stride, stride), (pad, pad), (1, 1))


def convolution(
    inside: int,
    outside: int,
    size: int,
    kernel: int,
    stride: int,
    groups: int,
    images: int = 1,
    methods: Sequence[int] = (indirect.SUMS,),
) -> list[Call | None]:
    """With bias and relu; by our kernels with each of the methods."""
    x = torch.randn(images, inside, size, size).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(outside, inside // groups, kernel, kernel) / math.sqrt(inside // groups * kernel**2)
    bias, pad = torch.randn(outside), kernel // 2
    numbers = ([pad, pad], [stride, stride], [1, 1], groups)
    theirs = packing.PACK_CONVOLUTION(weight, *numbers, list(x.shape)) if packing.can_pack(x) else None

    def onednn() -> torch.Tensor:
        result: torch.Tensor = packing.CONVOLUTION(x, theirs, bias, *numbers, "relu", [], "")
        return result

    def ours(method: int) -> Call:
        packed = indirect.pack(weight, bias, groups, method)
        given = window(outside, kernel, stride).of_convolution(groups, Epilogue("relu"), method)
        return lambda: indirect.convolve(x, packed, None, given)

    is_taken = _C.kernel_takes_groups(outside, inside, groups, is_bfloat16())
    return [
        lambda: F.conv2d(x, weight, bias, stride, pad, 1, groups).relu_(),
        None if theirs is None else onednn,
        *(ours(method) if is_taken and has_method(method, kernel) else None for method in methods),
    ]


def product(
    rows: int,
    inside: int,
    outside: int,
    methods: Sequence[int] = (indirect.SUMS,),
    is_in_turns: bool = False,
) -> list[Call | None]:
    """With bias; by our kernels with each of the methods; with one weight, or a number of them in turns."""
    x, bias = torch.randn(rows, inside), torch.randn(outside)
    count = math.ceil(BYTES_IN_TURNS / (x.itemsize * inside * outside)) if is_in_turns else 1
    weights = [torch.randn(outside, inside) / math.sqrt(inside) for _ in range(count)]

    def in_turns(call: Callable[[torch.Tensor], torch.Tensor], given: Iterable[torch.Tensor]) -> Call:
        each = itertools.cycle(list(given))
        return lambda: call(next(each))

    def onednn(packed: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = packing.LINEAR(x, packed, bias, "none", [], "")
        return result

    def ours(method: int) -> Call:
        numbers = indirect.numbers_of_product(outside, NONE, method)
        packed = (indirect.pack(weight, bias, 1, method) for weight in weights)
        return in_turns(lambda each: indirect.linear(x, each, numbers), packed)

    return [
        in_turns(lambda weight: F.linear(x, weight, bias), weights),
        in_turns(onednn, (packing.PACK_LINEAR(each) for each in weights)) if packing.can_pack(x) else None,
        *(ours(method) if has_method(method, 1) else None for method in methods),
    ]


def max_pool(channels: int, size: int) -> list[Call | None]:
    """3 x 3, stride 2."""
    x = torch.randn(1, channels, size, size).contiguous(memory_format=torch.channels_last)
    numbers = indirect.Window(channels, (3, 3), (2, 2), (0, 0), (1, 1)).of_pool("max")
    return [lambda: F.max_pool2d(x, 3, 2), None, lambda: indirect.pool(x, numbers)]


def attend(heads: int, length: int, size: int, is_causal: bool) -> list[Call | None]:
    """Of one batch, whose heads lie as a linear gives them."""
    q, k, v = torch.randn(1, length, 3, heads, size).permute(2, 0, 3, 1, 4).unbind(0)
    scale = 1 / math.sqrt(size)
    return [
        lambda: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal),
        None,
        lambda: attention.attend(q, k, v, None, is_causal, scale, is_by_heads=False),
    ]


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
