"""What fused kernels bring to convolutions and products, call by call: `python -m baselines.kernels --help`.

On CUDA a call is recorded many times in one CUDA graph, so that no launch from Python counts.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from rich.table import Table

from baselines.peers.case import DTYPES
from baselines.shared import csv_files, terminal
from baselines.shared.arguments import CsvFile, one
from torchrlopt.executors.eager.kernels import cudnn, pixels
from torchrlopt.executors.eager.kernels.cublas import linear_activation

#: Channels in and out, height and width, kernel, stride, groups.
CONVOLUTIONS: dict[str, tuple[int, int, int, int, int, int]] = {
    "3 x 3, 64 to 64, 56 x 56": (64, 64, 56, 3, 1, 1),
    "3 x 3, 512 to 512, 7 x 7": (512, 512, 7, 3, 1, 1),
    "3 x 3, 128 to 128, 56 x 56, stride 2": (128, 128, 56, 3, 2, 1),
    "3 x 3, 128 to 128, 56 x 56, 32 groups": (128, 128, 56, 3, 1, 32),
    "3 x 3, 96, 56 x 56, depthwise": (96, 96, 56, 3, 1, 96),
    "1 x 1, 256 to 64, 56 x 56": (256, 64, 56, 1, 1, 1),
    "1 x 1, 512 to 2048, 7 x 7": (512, 2048, 7, 1, 1, 1),
}
#: Rows, features in and out.
PRODUCTS: dict[str, tuple[int, int, int]] = {
    "128 x 768 x 3072": (128, 768, 3072),
    "128 x 3072 x 768": (128, 3072, 768),
    "2048 x 768 x 3072": (2048, 768, 3072),
}
#: Rows, features in and out that are no multiple of 8.
HEADS: dict[str, tuple[int, int, int]] = {
    f"{rows} x 768 x {words}": (rows, 768, words) for rows in (1, 64, 2048) for words in (30_522, 50_257)
} | {f"{rows} x 512 x 1001": (rows, 512, 1001) for rows in (8, 64)}
#: Images, channels, height and width.
IMAGES: dict[str, tuple[int, int, int]] = {
    "1 x 64 x 111 x 111": (1, 64, 111),
    "1 x 128 x 55 x 55": (1, 128, 55),
    "1 x 256 x 27 x 27": (1, 256, 27),
    "1 x 120 x 28 x 28": (1, 120, 28),
    "1 x 480 x 14 x 14": (1, 480, 14),
    "1 x 960 x 7 x 7": (1, 960, 7),
    "16 x 64 x 112 x 112": (16, 64, 112),
    "16 x 256 x 27 x 27": (16, 256, 27),
    "16 x 480 x 14 x 14": (16, 480, 14),
    "16 x 2048 x 7 x 7": (16, 2048, 7),
}
#: Channels in and out of convolutions of one pixel.
SINGLE_PIXELS: dict[str, tuple[int, int]] = {
    f"{inside} to {outside}": (inside, outside)
    for inside, outside in ((120, 32), (480, 120), (960, 240), (2048, 1000))
}
CSV_COLUMNS = ("what", "way", "us")
_CALLS, _REPEATS = 20, 9

Ways = Iterator[tuple[str, str, Callable[[], object]]]


def main(
    device: Annotated[str, typer.Option(help="cuda, or cpu, which has some of the ways only.")] = "cuda",
    dtype: Annotated[str, typer.Option(help=f"Of {', '.join(DTYPES)}.")] = "bfloat16",
    batch: Annotated[int, typer.Option(min=1, help="Images.")] = 1,
    csv: CsvFile = None,
) -> None:
    """Time convolutions, products and pools in the ways in which the eager executor may call them.

    Microseconds for a call.

    Example: python -m baselines.kernels --dtype bfloat16 --csv kernels.csv
    """
    device, kind = one(device, ("cuda", "cpu"), "device"), getattr(torch, one(dtype, DTYPES, "dtype"))
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("there is no CUDA device here")
    options = {"device": torch.device(device), "dtype": kind}
    rows = []
    with torch.no_grad():
        ways = itertools.chain(
            convolutions(batch, options),
            single_pixels(options),
            products(options),
            heads(options),
            images(options),
        )
        for what, way, call in ways:
            rows.append((what, way, f"{microseconds(call, device == 'cuda'):.2f}"))
    table = Table(*CSV_COLUMNS)
    for row in rows:
        table.add_row(*row)
    console = terminal.console()
    console.print(terminal.machine(), highlight=False)
    console.print(table)
    if csv is not None:
        csv_files.write(csv, CSV_COLUMNS, rows)


def convolutions(batch: int, options: dict[str, Any]) -> Ways:
    """Convolution, bias, relu; and with a sum before the relu."""
    for what, (inside, outside, size, kernel, stride, groups) in CONVOLUTIONS.items():
        window = ([stride] * 2, [kernel // 2] * 2, [1, 1], groups)
        bias = torch.randn(outside, **options)
        for layout, name in ((torch.contiguous_format, "ATen"), (torch.channels_last, "channels_last")):
            x = torch.randn(batch, inside, size, size, **options).contiguous(memory_format=layout)
            weight = torch.randn(outside, inside // groups, kernel, kernel, **options)
            weight = weight.contiguous(memory_format=layout)
            other = torch.randn_like(F.conv2d(x, weight, bias, *window))
            last = (x, weight, bias, window)
            yield f"{what}, relu", name, _bind(_with_relu, *last)
            yield f"{what}, sum, relu", name, _bind(_with_sum, other, *last)
        if options["device"].type == "cuda":
            yield f"{what}, relu", "one call", _bind(cudnn.RELU, x, weight, bias, *window)
            yield (
                f"{what}, sum, relu",
                "one call",
                _bind(cudnn.ADD_RELU, x, weight, other, 1.0, bias, *window),
            )
        if kernel == 1:
            yield f"{what}, bias", "channels_last", _bind(F.conv2d, x, weight, bias, *window)
            yield f"{what}, bias", "product", _bind(cudnn.pixel_product, x, weight, bias)


def products(options: dict[str, Any]) -> Ways:
    """Product, bias, activation."""
    for what, (rows, inside, outside) in PRODUCTS.items():
        x, weight = torch.randn(rows, inside, **options), torch.randn(outside, inside, **options)
        bias = torch.randn(outside, **options)
        for name, is_gelu in (("relu", False), ("gelu (tanh)", True)):
            yield f"{what}, {name}", "ATen", _bind(_activated, x, weight, bias, is_gelu)
            yield f"{what}, {name}", "one call", _bind(linear_activation, x, weight, bias, is_gelu)


def single_pixels(options: dict[str, Any]) -> Ways:
    """Convolutions of one pixel, and products."""
    for what, (inside, outside) in SINGLE_PIXELS.items():
        x, weight = torch.randn(1, inside, 1, 1, **options), torch.randn(outside, inside, 1, 1, **options)
        bias = torch.randn(outside, **options)
        yield f"one pixel, {what}", "ATen", _bind(F.conv2d, x, weight, bias)
        yield f"one pixel, {what}", "product", _bind(F.linear, x.view(1, -1), weight.view(outside, -1), bias)


def heads(options: dict[str, Any]) -> Ways:
    """Products with a number of results that is no multiple of 8."""
    for what, (rows, inside, outside) in HEADS.items():
        x, weight = torch.randn(rows, inside, **options), torch.randn(outside, inside, **options)
        longer = F.pad(weight, (0, 0, 0, -outside % 8))
        yield what, "ATen", _bind(F.linear, x, weight)
        yield what, "longer, cut", _bind(_cut, x, longer, outside)


def images(options: dict[str, Any]) -> Ways:
    """Max pools, means over the pixels, and joins of parts, channels_last."""
    for what, (batch, channels, size) in IMAGES.items():
        x = torch.randn(batch, channels, size, size, **options).contiguous(memory_format=torch.channels_last)
        ones = torch.ones(1, 1, size * size, **options)
        yield f"{what}, max pool", "ATen", _bind(F.max_pool2d, x, 3, 2)
        if options["device"].type == "cuda":
            window = ([3, 3], [2, 2], [0, 0], [1, 1], False)
            yield f"{what}, max pool", "volume", _bind(pixels.max_pool, x, *window)
        yield f"{what}, mean", "ATen", _bind(torch.mean, x, (2, 3))
        yield f"{what}, mean", "product", _bind(pixels.pixel_mean, x, ones, False)
        cut = channels // 2
        parts = [x[:, cut:], x[:, :cut], x]
        yield f"{what}, join", "ATen", _bind(torch.cat, parts, 1)
        yield f"{what}, join", "volume", _bind(pixels.join, parts, 1)


def _cut(x: torch.Tensor, weight: torch.Tensor, outputs: int) -> torch.Tensor:
    return F.linear(x, weight)[:, :outputs].contiguous()


def _bind(function: Callable[..., object], *args: Any) -> Callable[[], object]:
    return lambda: function(*args)


def _with_relu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, window: Any) -> torch.Tensor:
    return F.conv2d(x, weight, bias, *window).relu_()


def _with_sum(other: torch.Tensor, *last: Any) -> torch.Tensor:
    x, weight, bias, window = last
    return F.conv2d(x, weight, bias, *window).add_(other).relu_()


def _activated(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, is_gelu: bool) -> torch.Tensor:
    product = F.linear(x, weight, bias)
    return F.gelu(product, approximate="tanh") if is_gelu else product.relu_()


def microseconds(call: Callable[[], object], is_on_cuda: bool) -> float:
    """Of one call: the median of some repeats, each of many calls."""
    if not is_on_cuda:
        call()
        return statistics.median(_wall_us(call) for _ in range(_REPEATS))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):  # kernels choose their algorithms
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS):
            call()
    found = []
    for _ in range(_REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(float(start.elapsed_time(end)) * 1e3 / _CALLS)
    return statistics.median(found)


def _wall_us(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


if __name__ == "__main__":
    typer.run(main)
