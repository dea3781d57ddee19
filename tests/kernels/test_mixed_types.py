"""Kernels whose operands and results are of other types than their products, and graphs of such calls."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import ACTIVATIONS, Prepared, epilogue, gathered_calls, prepare, threads
from tests.kernels.network_cases import random_net
from tests.kernels.test_bfloat16_kernels import HALF, half, is_rounded_once
from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.epilogues import NONE, Epilogue
from torchrlopt.executors.eager.kernels.operators import ROOM

pytestmark = pytest.mark.skipif(
    "bfloat16" not in _C.kernel_dtypes(), reason="needs AVX-512 with products of bfloat16"
)

FLOAT = torch.float32
TYPES = [
    (FLOAT, HALF, FLOAT), (FLOAT, HALF, HALF), (HALF, HALF, FLOAT), (HALF, HALF, HALF), (FLOAT, FLOAT, HALF),
]  # fmt: skip
"""Of operands, products and results."""


def is_right(got: Tensor, exact: Tensor, terms: Tensor) -> bool:
    """Whether sums were rounded at most once: to float32, and to bfloat16 if that is the result's type."""
    if got.dtype is HALF:
        return is_rounded_once(got, exact, terms)
    return bool(((got.double() - exact).abs() <= 2**-20 * terms + 1e-37).all())


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("rows", [1, 2, 13, 60, 400])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 8), (31, 48), (64, 33), (520, 200)])
def test_products(
    rows: int, inputs: int, outputs: int, types: tuple[torch.dtype, torch.dtype, torch.dtype]
) -> None:
    of_x, dtype, out_dtype = types
    x, w, b = rand(3, rows, inputs + 3).to(of_x)[..., 1:-2], rand(outputs, inputs).to(dtype), rand(outputs)
    numbers = indirect.numbers_of_product(outputs, Epilogue("relu"), dtype=dtype, out_dtype=out_dtype)
    packed = indirect.pack(w, b, 1)
    for count in (1, 3):
        with threads(count):
            got = indirect.linear(x, packed, numbers)
        assert got.dtype is out_dtype
        seen = x.to(dtype).double()
        exact, terms = (
            seen @ w.double().t() + b.double(),
            seen.abs() @ w.double().abs().t() + b.abs().double(),
        )
        assert is_right(got, exact.relu(), terms)


@pytest.mark.parametrize("seed", range(150))
def test_convolutions(seed: int) -> None:
    draw = random.Random(seed)
    of_x, dtype, out_dtype = draw.choice(TYPES)
    kind = draw.choice(["dense", "few", "depthwise", "small groups", "large groups", "tiles"])
    kernel, stride, dilation = ([draw.randint(1, most), draw.randint(1, most)] for most in (5, 3, 2))
    groups, outputs = 1, draw.choice([8, 11, 16, 17, 24, 33, 64, 72, 130])
    channels = draw.choice([8, 13, 17, 40, 72])
    if kind == "few":
        channels, kernel[0] = draw.choice([1, 2, 3, 4, 7]), max(kernel[0], 2)
    elif kind == "depthwise":
        channels = outputs = groups = draw.choice([8, 11, 15, 16, 17, 31, 32, 33, 40, 72, 96])
    elif kind == "small groups":  # as many outputs as inputs
        groups = draw.choice([4, 8, 9, 20])
        channels = outputs = groups * draw.choice([2, 4])
    elif kind == "large groups":
        groups = draw.randint(2, 5)
        channels, outputs = groups * draw.choice([1, 3, 4, 8, 12]), groups * draw.choice([17, 32, 40])
    elif kind == "tiles":
        kernel, stride, dilation = [3, 3], [1, 1], [1, 1]
    padding = [draw.randint(0, 2), draw.randint(0, 2)]
    size = [
        d * (k - 1) + 1 + draw.randint(0, 40 if kind == "few" else 12)
        for k, d in zip(kernel, dilation, strict=True)
    ]
    x = rand(draw.randint(1, 3), channels, *size).to(of_x)
    if draw.random() < 0.5:
        x = x.contiguous(memory_format=torch.channels_last)
    w, b = weight(outputs, channels // groups, *kernel).to(dtype), rand(outputs)
    method = draw.choice(indirect.TILES) if kind == "tiles" else indirect.SUMS
    seen = x.to(dtype).double()
    exact = F.conv2d(seen, w.double(), b.double(), stride, padding, dilation, groups)
    terms = F.conv2d(seen.abs(), w.double().abs(), b.double().abs(), stride, padding, dilation, groups)
    other = None
    if draw.random() < 0.4:
        other = rand(*exact.shape, seed=1).to(out_dtype).contiguous(memory_format=torch.channels_last)
        exact, terms = exact + other.double(), terms + other.double().abs()
    name = draw.choice(["none", "relu", "relu6", "hardswish", "leaky_relu"])
    window = indirect.Window(outputs, kernel, stride, padding, dilation)
    numbers = window.of_convolution(groups, epilogue(name), method, dtype, out_dtype)
    packed = indirect.pack(w, b, groups, method)
    with threads(draw.randint(1, 3)):
        got = indirect.convolve(x, packed, other, numbers)
    assert got.dtype is out_dtype
    # A tile rounds by its largest term.
    assert is_right(got, ACTIVATIONS[name](exact), 8 * terms.amax() if kind == "tiles" else 2 * terms)


@pytest.mark.parametrize("kind", indirect.POOLS)
@pytest.mark.parametrize("channels", [9, 16, 40])
@pytest.mark.parametrize(("dtype", "out_dtype"), [(FLOAT, HALF), (HALF, FLOAT), (HALF, HALF)])
def test_pools(dtype: torch.dtype, out_dtype: torch.dtype, channels: int, kind: str) -> None:
    x = rand(2, channels, 9, 11).to(dtype).contiguous(memory_format=torch.channels_last)
    window = indirect.Window(channels, (3, 2), (2, 2), (1, 1), (1, 1))
    got = indirect.pool(x, window.of_pool(kind, out_dtype=out_dtype))
    wide = x.double()
    inside = kind == "mean of inside"
    exact = (
        F.max_pool2d(wide, (3, 2), 2, 1)
        if kind == "max"
        else F.avg_pool2d(wide, (3, 2), 2, 1, count_include_pad=not inside)
    )
    assert got.dtype is out_dtype
    assert is_right(got, exact, 0 * exact if kind == "max" else exact.abs() + 1)


def test_rounding_is_that_of_aten() -> None:
    bits = torch.cat([torch.arange(-(2**31), 2**31, 65_521), torch.arange(2**16) + 0x7F7F0000])
    x = bits.to(torch.int32).view(FLOAT)[: 64 * 1000].reshape(1, 64, 10, 100)
    x = x.contiguous(memory_format=torch.channels_last)
    window = indirect.Window(64, (1, 1), (1, 1), (0, 0), (1, 1))
    got = indirect.pool(x, window.of_pool("max", out_dtype=HALF))
    assert torch.equal(got.isnan(), x.isnan())
    assert torch.equal(got.nan_to_num(7.0), x.to(HALF).nan_to_num(7.0))


# ---- graphs


def is_close(prepared: Prepared, function: Callable[..., Tensor], args: list[Tensor], bound: float) -> None:
    with torch.no_grad():
        exact, theirs = function(*[each.double() for each in args]), function(*args)
    (got,) = prepared.run(*args)
    assert got.dtype is theirs.dtype
    assert got.stride() == theirs.stride()
    assert (got.double() - exact).abs().max() <= bound * exact.abs().max()


def cast_conv(x: Tensor, w: Tensor, **window: int) -> Tensor:
    """A product of bfloat16 between neighbours of float32; float64 stays float64."""
    if x.dtype is torch.float64:
        return F.conv2d(x, w, **window)
    return F.conv2d(x.to(HALF), w.to(HALF), **window).to(x.dtype)


def test_a_chain_of_convolutions_converts_nothing() -> None:
    def function(x: Tensor, w: Tensor, v: Tensor, u: Tensor) -> Tensor:
        y = F.relu(cast_conv(x, w, padding=1))  # few channels
        z = F.relu(cast_conv(y, v, stride=2))
        z = F.max_pool2d(z, 2)
        return cast_conv(z, u) + cast_conv(F.hardswish(cast_conv(z, u)), u[:, :, :1, :1])

    args = [rand(2, 3, 20, 20), weight(32, 3, 3, 3), weight(48, 32, 3, 3), weight(48, 48, 1, 1)]
    prepared = prepare(function, args, static=[1, 2, 3], is_real=True)
    assert prepared.count("_to_copy") == 0
    assert prepared.count("torchrlopt.conv") == 5
    assert gathered_calls(prepared) == ["sequence_default", "getitem", "restride"]
    is_close(prepared, function, args, 2e-2)


def test_what_is_concatenated_is_rounded_where_it_is_written() -> None:
    def function(x: Tensor, w: Tensor, v: Tensor, t: Tensor, u: Tensor) -> Tensor:
        y = F.conv2d(x, w)
        parts = [F.relu(cast_conv(y, v, padding=1)), F.relu(cast_conv(y, t))]
        return cast_conv(F.max_pool2d(torch.cat(parts, 1), 3, 2), u)

    args = [rand(1, 16, 14, 14), weight(24, 16, 1, 1), weight(32, 24, 3, 3), weight(32, 24, 1, 1)]
    args.append(weight(16, 64, 1, 1))
    prepared = prepare(function, args, static=[1, 2, 3, 4], is_real=True)
    (room,) = prepared.split.main.graph.find_nodes(op="call_function", target=ROOM)
    assert room.args[1] is HALF
    assert prepared.count("_to_copy") == 0
    is_close(prepared, function, args, 2e-2)


def test_a_gate_of_channels() -> None:
    def function(x: Tensor, w: Tensor, v: Tensor, u: Tensor) -> Tensor:
        y = F.relu(F.conv2d(x, w))
        gate = F.relu(cast_conv(y.mean((2, 3), keepdim=True), v))
        return y * F.hardsigmoid(cast_conv(gate, u))

    args = [rand(1, 16, 9, 9), weight(32, 16, 1, 1), weight(8, 32, 1, 1), weight(32, 8, 1, 1)]
    prepared = prepare(function, args, static=[1, 2, 3], is_real=True)
    assert prepared.count("torchrlopt.linear") == 2
    assert prepared.count("_to_copy") == 0
    is_close(prepared, function, args, 2e-2)


def test_a_residual_stays_float32() -> None:
    def function(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        y = F.conv2d(x, w)
        return F.relu(cast_conv(F.relu(cast_conv(y, v)), v) + y)

    args = [rand(1, 16, 9, 9), weight(64, 16, 1, 1), weight(64, 64, 1, 1)]
    prepared = prepare(function, args, static=[1, 2], is_real=True)
    assert prepared.count("_to_copy") == 0
    assert prepared.count("add") == 0
    is_close(prepared, function, args, 2e-2)


def test_products_of_a_transformer() -> None:
    def cast_linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        if x.dtype is torch.float64:
            return F.linear(x, w, b)
        return F.linear(x.to(HALF), w.to(HALF), b.to(HALF)).to(x.dtype)

    def function(x: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor) -> Tensor:
        y = F.layer_norm(x, (64,))
        return x + cast_linear(F.gelu(cast_linear(y, w, b)), v, c)

    args = [rand(2, 17, 64), rand(96, 64), rand(96), rand(64, 96), rand(64)]
    prepared = prepare(function, args, static=[1, 2, 3, 4], is_real=True)
    assert prepared.count("_to_copy") == 0
    assert prepared.count("gelu") == 0
    is_close(prepared, function, args, 2e-2)


def test_rounding_stays_where_it_must_not_differ() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return cast_conv(F.relu(cast_conv(x, w)), w)

    args = [rand(1, 32, 9, 9), weight(32, 32, 1, 1)]
    prepared = prepare(function, args, static=[1])
    assert prepared.count("_to_copy") == 2  # of both results
    assert gathered_calls(prepared).count("sequence_default") == 1
    is_close(prepared, function, args, 2e-2)


def test_a_conversion_with_other_readers_stays() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = F.conv2d(x, w)
        z = y.to(HALF)
        return F.conv2d(z, w.to(HALF)).to(FLOAT), z, y

    args = [rand(1, 32, 9, 9), weight(32, 32, 1, 1)]
    prepared = prepare(function, args, static=[1], is_real=True)
    assert prepared.count("_to_copy") == 1
    got, rounded, exact = prepared.run(*args)
    assert torch.equal(rounded, exact.to(HALF))
    torch.testing.assert_close(got, F.conv2d(F.conv2d(*args), args[1]), rtol=0, atol=5e-2)


def test_results_of_the_caller_share_no_memory() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        there = x.to(HALF)
        return x.to(HALF), x.view(-1).to(HALF), there.to(FLOAT).to(HALF), there

    results = prepare(function, [rand(4, 8)], static=[], is_real=True).run(rand(4, 8))
    assert len({each.data_ptr() for each in results}) == 4


class _Mixed(torch.overrides.TorchFunctionMode):
    """Computes some convolutions and products in bfloat16, and their neighbours in float32."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if function not in (F.conv2d, F.linear) or self._draw.random() < 0.3:
            return function(*args, **kwargs)
        lower = [each.to(HALF) if isinstance(each, Tensor) else each for each in args]
        return function(*lower, **kwargs).to(FLOAT)


@pytest.mark.parametrize("seed", range(40))
def test_random_networks(seed: int) -> None:
    function, args = random_net(random.Random(seed))

    def mixed(*given: Tensor) -> Tensor | tuple[Tensor, ...]:
        with _Mixed(seed):
            return function(*given)

    prepared = prepare(mixed, args, static=range(1, len(args)), is_real=seed % 4 != 0)
    with torch.no_grad():
        exact, theirs = function(*[each.double() for each in args]), mixed(*args)
    as_tuple = (each if isinstance(each, tuple) else (each,) for each in (theirs, exact))
    for got, other, reference in zip(prepared.run(*args), *as_tuple, strict=True):
        assert got.dtype is other.dtype
        assert got.stride() == other.stride()
        error, known = ((each.double() - reference).abs().mean() for each in (got, other))
        assert error <= 1.5 * known + 1e-4


def test_operands_that_no_kernel_reads_are_converted() -> None:
    image = rand(1, 16, 4, 4).contiguous(memory_format=torch.channels_last)
    packed = indirect.pack(half(weight(16, 16, 3, 3))[0], None, 1)
    window = indirect.Window(16, (3, 3), (1, 1), (1, 1), (1, 1))
    numbers = window.of_convolution(1, NONE, dtype=HALF)
    ours = indirect.kernels()
    assert ours is not None
    assert ours.convolve(image, packed, None, numbers) is None
    got = indirect.convolve(image, packed, image, numbers)
    assert torch.equal(got, indirect.convolve(image.to(HALF), packed, image.to(HALF), numbers))
