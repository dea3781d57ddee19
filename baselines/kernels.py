"""Time our kernels against alternatives, call by call: `python -m baselines.kernels --help`.

On CUDA a call is recorded many times in one CUDA graph, so that launches from Python do not count.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import pandas as pd
import torch
import torch.nn.functional as F
import typer
from torch import nn

from baselines.peers.case import DTYPES
from baselines.shared import terminal
from baselines.shared.arguments import CsvFile, one
from baselines.shared.rounds import alternated_us
from baselines.shared.tables import Results, in_order, of, rich
from torchrlopt import _C
from torchrlopt.executors.eager.kernels import cudnn, indirect, linear, packing, pixels
from torchrlopt.executors.eager.kernels.cublas import linear_activation
from torchrlopt.executors.eager.kernels.dtypes import KERNEL_DTYPES
from torchrlopt.executors.eager.kernels.epilogues import NONE, Epilogue
from torchrlopt.ops.recurrent import CELLS

#: Channels in and out, height and width, kernel, stride, groups.
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
#: Rows, features in and out.
PRODUCTS: dict[str, tuple[int, int, int]] = {
    f"{rows} x {inside} x {outside}": (rows, inside, outside)
    for rows, inside, outside in (
        (1, 240, 64), (1, 960, 1280), (8, 128, 512), (32, 256, 256), (32, 384, 1536), (128, 768, 768),
    )
}  # fmt: skip
#: The same, with enough different weights that each is read from memory, as in a network.
PRODUCTS_ALTERNATING: dict[str, tuple[int, int, int]] = {
    f"{rows} x {inside} x {outside}, alternating weights": (rows, inside, outside)
    for rows, inside, outside in (
        (8, 768, 768), (32, 512, 512), (32, 768, 3072), (128, 768, 768), (128, 768, 3072), (197, 384, 1536),
    )
}  # fmt: skip
_BYTES_OF_WEIGHTS = 60_000_000  # larger than the caches of a core and its neighbours
#: Images, channels in and out, height and width, kernel.
METHOD_CONVOLUTIONS: dict[str, tuple[int, int, int, int, int]] = {
    f"{inside} to {outside}, {kernel} x {kernel}, {size} x {size}"
    + (f", {images} images" if images > 1 else ""): (images, inside, outside, size, kernel)
    for images, inside, outside, size, kernel in (
        (1, 32, 32, 112, 3), (1, 16, 64, 55, 3), (1, 64, 64, 56, 3), (1, 64, 96, 35, 3), (1, 128, 128, 28, 3),
        (1, 128, 32, 14, 3), (1, 256, 256, 14, 3), (1, 512, 512, 7, 3), (16, 64, 64, 56, 3),
        (16, 512, 512, 7, 3), (1, 64, 256, 56, 1), (1, 256, 1024, 14, 1),
    )
}  # fmt: skip
#: Rows, features in and out.
METHOD_PRODUCTS: dict[str, tuple[int, int, int]] = {
    f"{rows} x {inside} x {outside}": (rows, inside, outside)
    for rows, inside, outside in (
        (16, 768, 768), (64, 512, 1536), (128, 768, 768), (128, 768, 3072), (128, 3072, 768), (784, 256, 256),
    )
}  # fmt: skip
METHODS = {
    "sums": indirect.SUMS,
    "bf16x3": indirect.BF16X3,
    "bf16x2": indirect.BF16X2,
    "bf16": indirect.BF16,
    **dict(zip(("tiles_of_2", "tiles_of_4"), indirect.TILES, strict=True)),
    "int8": indirect.INT8,
}
#: Channels, height and width.
POOLS: dict[str, tuple[int, int]] = {"64, 111 x 111": (64, 111), "256, 27 x 27": (256, 27)}
#: Heads, queries (and as many keys), head size, causal mask.
ATTENTIONS: dict[str, tuple[int, int, int, bool]] = {
    "attention, 12 heads, 128 x 64": (12, 128, 64, False),
    "attention, 6 heads, 197 x 64": (6, 197, 64, False),
    "attention, 12 heads, 512 x 64, causal": (12, 512, 64, True),
}
#: Steps, batch and width of recurrent layers.
RECURRENT = [(100, batch, width) for batch in (1, 16) for width in (64, 256, 512)]
#: On CUDA; rows, features in and out that are not multiples of 8.
HEADS: dict[str, tuple[int, int, int]] = {
    f"{rows} x {inside} x {words}": (rows, inside, words)
    for rows, inside, words in (
        (1, 768, 30_522), (1, 768, 50_257), (64, 768, 30_522), (64, 768, 50_257), (2048, 768, 50_257),
        (8, 512, 1001), (64, 512, 1001),
    )
}  # fmt: skip
#: Images, channels, height and width.
IMAGES: dict[str, tuple[int, int, int]] = {
    f"{images} x {channels} x {size} x {size}": (images, channels, size)
    for images, channels, size in (
        (1, 64, 111), (1, 128, 55), (1, 256, 27), (1, 120, 28), (1, 480, 14), (1, 960, 7),
        (16, 64, 112), (16, 256, 27), (16, 480, 14), (16, 2048, 7),
    )
}  # fmt: skip
#: Channels in and out of convolutions on a single pixel.
SINGLE_PIXELS = ((120, 32), (480, 120), (960, 240), (2048, 1000))
_CALLS_OF_A_GRAPH, _REPLAYS = 20, 9

Call = Callable[[], torch.Tensor]
Cases = Iterator[tuple[str, dict[str, Call]]]
"""Cases: what is computed, and the calls by name of the implementation."""


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    what: Annotated[
        str, typer.Option(help="On the CPU: 'kernels', 'methods' of ours, or the 'calls' of CUDA.")
    ] = "kernels",
    dtype: Annotated[str, typer.Option(help=f"Of images and weights: {', '.join(DTYPES)}.")] = "float32",
    threads: Annotated[int, typer.Option(min=1, help="Of PyTorch.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Calls of each; the least counts.")] = 100,
    csv: CsvFile = None,
) -> None:
    """Time convolutions with bias and relu, products with bias, pools and attention, for one image.

    Microseconds per call: the minimum on the CPU, the median of replays on CUDA; all implementations
    alternate.
    kernels: ATen, oneDNN's packed form, and our kernel, with images in channels_last and packed weights.
    methods: oneDNN and our kernels by sums, in a matrix unit, by tiles, and in int8; the table notes which
        one is chosen.
    calls: the ways in which the eager executor may call PyTorch's own kernels, of which CUDA has the most.

    Example: python -m baselines.kernels --threads 1 --csv kernels.csv
    """
    device, what = one(device, ("cpu", "cuda"), "device"), one(what, ("kernels", "methods", "calls"), "kind")
    kind: torch.dtype = getattr(torch, one(dtype, DTYPES, "dtype"))
    is_on_cuda = device == "cuda"
    if is_on_cuda and not torch.cuda.is_available():
        raise typer.BadParameter("there is no CUDA device here")
    if what != "calls" and not is_on_cuda and indirect.kernels(kind) is None:
        raise typer.BadParameter(f"there are no kernels for {dtype} on this processor")
    torch.set_num_threads(threads)
    console = terminal.console()
    where = torch.cuda.get_device_name() if is_on_cuda else _C.kernel_instructions()
    terminal.announce(console, where, dtype, f"{threads} threads")
    results = Results("kernels", csv, batch=1, dtype=dtype, threads=threads, setting=where)
    with torch.no_grad(), defaults(kind, device):
        made = {"kernels": cases, "methods": method_cases, "calls": call_cases}[
            "calls" if is_on_cuda else what
        ]
        for name, ways in made():
            times = _on_cuda(ways) if is_on_cuda else alternated_us(ways, rounds)
            for way, us in times.items():
                of_all = statistics.median if is_on_cuda else min
                results.add(name, way, "call", of_all(us), "us")
            if made is method_cases:
                results.add(name, "ours", "chosen", None, note=chosen(name))
    results.save()
    console.print(rich("Microseconds of a call", table(results.frame)))


@contextlib.contextmanager
def defaults(dtype: torch.dtype, device: str = "cpu") -> Iterator[None]:
    """Create operands with this dtype, on this device."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per call, one column per implementation and number of threads."""
    own = of(frame, metric="call")
    counts = in_order(own.threads)
    wide = own.pivot_table(index="model", columns=["threads", "peer"], values="value", sort=False)
    wide = wide[[(count, peer) for count in counts for peer in in_order(own.peer)]]
    shown = wide.map(lambda us: "-" if pd.isna(us) else f"{us:.1f}")
    titles = {1: "one thread", 2: "two threads"}
    shown.columns = pd.Index(
        [peer if len(counts) == 1 else f"{titles.get(count, count)}: {peer}" for count, peer in wide.columns]
    )
    notes = of(frame, metric="chosen").drop_duplicates("model").set_index("model").note
    if len(notes):
        shown["chosen"] = notes
    return shown.rename_axis("call").reset_index()


# ---- kernels for the CPU


def cases() -> Cases:
    """Each call with ATen, with oneDNN's packed form, and with our kernel."""
    for what, shape in CONVOLUTIONS.items():
        yield what, _renamed(convolution(*shape))
    for what, shape in PRODUCTS.items():
        yield what, _renamed(product(*shape))
    for what, shape in PRODUCTS_ALTERNATING.items():
        yield what, _renamed(product(*shape, is_alternating=True))
    for what, (channels, size) in POOLS.items():
        yield f"max pool, {what}", max_pool(channels, size)
    for what, given in ATTENTIONS.items():
        if _C.kernel_takes_attention(given[1], given[1], given[2], given[2], dtype_name()):
            yield what, attend(*given)
    for cell, (steps, batch, hidden) in itertools.product(
        CELLS, RECURRENT if dtype_name() == "float32" else ()
    ):
        yield f"{cell}, {steps} steps, {batch} x {hidden}", recurrent(cell, steps, batch, hidden)


def method_cases() -> Cases:
    """Each call with oneDNN's packed form, and with each of our available methods."""
    for what, (images, inside, outside, size, kernel) in METHOD_CONVOLUTIONS.items():
        ways = convolution(inside, outside, size, kernel, 1, 1, images, METHODS)
        yield what, {name: call for name, call in ways.items() if name != "ATen"}
    for what, shape in METHOD_PRODUCTS.items():
        yield what, {name: call for name, call in product(*shape, METHODS).items() if name != "ATen"}


def _renamed(ways: dict[str, Call]) -> dict[str, Call]:
    """Rename the only method of ours to our name."""
    return {"ours" if name == "sums" else name: call for name, call in ways.items()}


def dtype_name() -> str:
    """Dtype of the operands."""
    return KERNEL_DTYPES[torch.get_default_dtype()].name


def chosen(what: str) -> str:
    """The method that the executor chooses."""
    names = {number: name for name, number in METHODS.items()}
    if what in METHOD_PRODUCTS:
        method = linear.quickest(*METHOD_PRODUCTS[what], dtype=torch.get_default_dtype())
        return "oneDNN" if method is None else names[method]
    images, inside, outside, size, kernel = METHOD_CONVOLUTIONS[what]
    numbers = window(outside, kernel, 1).of_convolution(1, NONE)
    sizes = (images, inside, size, size)
    return names[_C.kernel_method(*sizes, numbers, torch.get_num_threads(), dtype_name())]


def has_method(method: int, kernel: int) -> bool:
    """Whether the method supports a window of this size."""
    if method in indirect.IN_UNIT:
        is_for = dtype_name() == ("bfloat16" if method == indirect.BF16 else "float32")
        return _C.kernel_has_matrix_unit() and is_for
    if method == indirect.INT8:
        return indirect.has_int8(torch.get_default_dtype())
    return method == indirect.SUMS or kernel == 3


def window(outside: int, kernel: int, stride: int) -> indirect.Window:
    """A window that preserves the size of an image, except for its stride."""
    pad = kernel // 2
    return indirect.Window(outside, (kernel, kernel), (stride, stride), (pad, pad), (1, 1))


_SUMS = {"sums": indirect.SUMS}


def convolution(
    inside: int,
    outside: int,
    size: int,
    kernel: int,
    stride: int,
    groups: int,
    images: int = 1,
    methods: Mapping[str, int] = _SUMS,
) -> dict[str, Call]:
    """A convolution with bias and relu; our kernels with each of the methods."""
    x = torch.randn(images, inside, size, size).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(outside, inside // groups, kernel, kernel) / math.sqrt(inside // groups * kernel**2)
    bias, pad = torch.randn(outside), kernel // 2
    numbers = ([pad, pad], [stride, stride], [1, 1], groups)
    ways: dict[str, Call] = {"ATen": lambda: F.conv2d(x, weight, bias, stride, pad, 1, groups).relu_()}
    if packing.can_pack(x):
        theirs = packing.PACK_CONVOLUTION(weight, *numbers, list(x.shape))
        ways["oneDNN"] = lambda: packing.CONVOLUTION(x, theirs, bias, *numbers, "relu", [], "")
    if _C.kernel_takes_groups(outside, inside, groups, dtype_name()):
        for name, method in methods.items():
            if has_method(method, kernel):
                packed = indirect.pack(weight, bias, groups, method)
                given = window(outside, kernel, stride).of_convolution(groups, Epilogue("relu"), method)
                ways[name] = _bind(indirect.convolve, x, packed, None, given)
    return ways


def product(
    rows: int,
    inside: int,
    outside: int,
    methods: Mapping[str, int] = _SUMS,
    is_alternating: bool = False,
) -> dict[str, Call]:
    """A product with bias; our kernels with each of the methods; with one weight or alternating weights."""
    x, bias = torch.randn(rows, inside), torch.randn(outside)
    count = math.ceil(_BYTES_OF_WEIGHTS / (x.itemsize * inside * outside)) if is_alternating else 1
    weights = [torch.randn(outside, inside) / math.sqrt(inside) for _ in range(count)]

    def alternating(call: Callable[[torch.Tensor], torch.Tensor], given: Iterable[torch.Tensor]) -> Call:
        each = itertools.cycle(list(given))
        return lambda: call(next(each))

    def ours(method: int) -> Call:
        numbers = indirect.numbers_of_product(outside, NONE, method)
        packed = (indirect.pack(weight, bias, 1, method) for weight in weights)
        return alternating(lambda each: indirect.linear(x, each, numbers), packed)

    ways = {"ATen": alternating(lambda weight: F.linear(x, weight, bias), weights)}
    if packing.can_pack(x):
        packed = (packing.PACK_LINEAR(each) for each in weights)
        ways["oneDNN"] = alternating(lambda each: packing.LINEAR(x, each, bias, "none", [], ""), packed)
    return ways | {name: ours(method) for name, method in methods.items() if has_method(method, 1)}


def max_pool(channels: int, size: int) -> dict[str, Call]:
    """3 x 3, stride 2."""
    x = torch.randn(1, channels, size, size).contiguous(memory_format=torch.channels_last)
    numbers = indirect.Window(channels, (3, 3), (2, 2), (0, 0), (1, 1)).of_pool("max")
    return {"ATen": _bind(F.max_pool2d, x, 3, 2), "ours": _bind(indirect.pool, x, numbers)}


def attend(heads: int, length: int, size: int, is_causal: bool) -> dict[str, Call]:
    """One batch, with the heads laid out as a linear layer produces them."""
    q, k, v = torch.randn(1, length, 3, heads, size).permute(2, 0, 3, 1, 4).unbind(0)
    scale = 1 / math.sqrt(size)
    return {
        "ATen": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal),
        "ours": lambda: indirect.attention(q, k, v, None, is_causal, scale, is_by_heads=False),
    }


def recurrent(cell: str, steps: int, batch: int, hidden: int) -> dict[str, Call]:
    """One layer in one direction, with as many inputs as states."""
    kind = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN}.get(cell)
    layer = kind(hidden, hidden) if kind is not None else nn.RNN(hidden, hidden, nonlinearity="relu")
    x, number = torch.randn(steps, batch, hidden), list(CELLS).index(cell)
    packed = indirect.pack_recurrent([weight.detach() for weight in layer._flat_weights], number, 1)
    return {
        "ATen": _bind(layer.eval(), x),
        "ours": _bind(indirect.recurrent, x, packed, None, None, number, hidden, 1),
    }


# ---- calls of PyTorch's own kernels, mainly on CUDA


def call_cases() -> Cases:
    """Each call in all ways in which the eager executor may make it."""
    is_on_cuda = torch.get_default_device().type == "cuda"
    for what, shape in CONVOLUTIONS.items():
        yield from _convolution_calls(what, shape, is_on_cuda)
    for inside, outside in SINGLE_PIXELS:
        x, weight, bias = (
            torch.randn(1, inside, 1, 1),
            torch.randn(outside, inside, 1, 1),
            torch.randn(outside),
        )
        flat = (x.view(1, -1), weight.view(outside, -1), bias)
        ways = {"ATen": _bind(F.conv2d, x, weight, bias), "product": _bind(F.linear, *flat)}
        yield f"one pixel, {inside} to {outside}", ways
    for what, (rows, inside, outside) in PRODUCTS.items():
        operands = torch.randn(rows, inside), torch.randn(outside, inside), torch.randn(outside)
        for name, is_gelu in (("relu", False), ("gelu (tanh)", True)):
            yield (
                f"{what}, {name}",
                {
                    "ATen": _bind(_activated, *operands, is_gelu),
                    "one call": _bind(linear_activation, *operands, is_gelu),
                },
            )
    for what, (rows, inside, outside) in HEADS.items():
        x, weight = torch.randn(rows, inside), torch.randn(outside, inside)
        longer = F.pad(weight, (0, 0, 0, -outside % 8))
        yield what, {"ATen": _bind(F.linear, x, weight), "longer, cut": _bind(_cut, x, longer, outside)}
    for what, shape in IMAGES.items():
        yield from _image_calls(what, *shape, is_on_cuda)


def _convolution_calls(what: str, shape: Sequence[int], is_on_cuda: bool) -> Cases:
    """Convolution, bias, relu; the same with an addition before the relu."""
    inside, outside, size, kernel, stride, groups = shape
    numbers = ([stride] * 2, [kernel // 2] * 2, [1, 1], groups)
    bias = torch.randn(outside)
    relu: dict[str, Call] = {}
    summed: dict[str, Call] = {}
    for layout, name in ((torch.contiguous_format, "ATen"), (torch.channels_last, "channels_last")):
        x = torch.randn(1, inside, size, size).contiguous(memory_format=layout)
        weight = torch.randn(outside, inside // groups, kernel, kernel).contiguous(memory_format=layout)
        other = torch.randn_like(F.conv2d(x, weight, bias, *numbers))
        relu[name] = _bind(_with_relu, x, weight, bias, numbers)
        summed[name] = _bind(_with_sum, other, x, weight, bias, numbers)
    if is_on_cuda:
        relu["one call"] = _bind(cudnn.RELU, x, weight, bias, *numbers)
        summed["one call"] = _bind(cudnn.ADD_RELU, x, weight, other, 1.0, bias, *numbers)
    yield f"{what}, relu", relu
    yield f"{what}, sum, relu", summed
    if kernel == 1 and groups == 1:
        yield (
            f"{what}, bias",
            {
                "channels_last": _bind(F.conv2d, x, weight, bias, *numbers),
                "product": _bind(cudnn.pixel_product, x, weight, bias),
            },
        )


def _image_calls(what: str, images: int, channels: int, size: int, is_on_cuda: bool) -> Cases:
    """Max pools, means over the pixels, and concatenations, channels_last."""
    x = torch.randn(images, channels, size, size).contiguous(memory_format=torch.channels_last)
    pools = {"ATen": _bind(F.max_pool2d, x, 3, 2)}
    if is_on_cuda:
        pools["volume"] = _bind(pixels.max_pool, x, [3, 3], [2, 2], [0, 0], [1, 1], False)
    yield f"{what}, max pool", pools
    ones = torch.ones(1, 1, size * size)
    means = {"ATen": _bind(torch.mean, x, (2, 3)), "product": _bind(pixels.pixel_mean, x, ones, False)}
    yield f"{what}, mean", means
    parts = [x[:, channels // 2 :], x[:, : channels // 2], x]
    yield f"{what}, join", {"ATen": _bind(torch.cat, parts, 1), "volume": _bind(pixels.join, parts, 1)}


def _cut(x: torch.Tensor, weight: torch.Tensor, outputs: int) -> torch.Tensor:
    return F.linear(x, weight)[:, :outputs].contiguous()


def _bind(function: Callable[..., Any], *args: Any) -> Call:
    return lambda: function(*args)


def _with_relu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, numbers: Any) -> torch.Tensor:
    return F.conv2d(x, weight, bias, *numbers).relu_()


def _with_sum(
    other: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, numbers: Any
) -> torch.Tensor:
    return F.conv2d(x, weight, bias, *numbers).add_(other).relu_()


def _activated(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, is_gelu: bool) -> torch.Tensor:
    y = F.linear(x, weight, bias)
    return F.gelu(y, approximate="tanh") if is_gelu else y.relu_()


def _on_cuda(ways: Mapping[str, Call]) -> dict[str, list[float]]:
    """Microseconds per call in each replay of a recorded graph of many calls."""
    return {name: _replayed_us(call) for name, call in ways.items()}


def _replayed_us(call: Call) -> list[float]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):  # warm-up: kernels choose their algorithms
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS_OF_A_GRAPH):
            call()
    found = []
    for _ in range(_REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(float(start.elapsed_time(end)) * 1e3 / _CALLS_OF_A_GRAPH)
    return found


if __name__ == "__main__":
    typer.run(main)
