"""Products and convolutions of 8-bit integers: the error of quantising is bounded number by number."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import (
    ACTIVATIONS,
    Prepared,
    convolved,
    epilogue,
    multiplied,
    prepare,
    threads,
    window_of,
)
from torchrlopt.executors.eager.inventory import inventory
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.int8 import supports
from torchrlopt.executors.eager.kernels.operators import CONV, LINEAR
from torchrlopt.executors.eager.kernels.sites import REQUESTED

pytestmark = pytest.mark.skipif(
    not indirect.has_int8(torch.float32), reason="no products of 8-bit integers in this processor"
)

ROOT = Path(__file__).parents[2]
LAST = torch.channels_last
DTYPES = [torch.float32, *([torch.bfloat16] if indirect.has_int8(torch.bfloat16) else [])]
aten = torch.ops.aten


def linear(x: Tensor, w: Tensor, bias: Tensor | None = None, activation: str = "none") -> Tensor:
    return multiplied(x, w, bias, indirect.INT8, epilogue(activation))


def convolve(x: Tensor, w: Tensor, bias: Tensor | None = None, *steps: int) -> Tensor:
    return convolved(x, w, bias, window_of(w, *steps), 1, indirect.INT8)


def step(x: Tensor, axis: int) -> Tensor:
    """The distance between quantised numbers: zero lies within their range."""
    return (x.amax(axis, keepdim=True).clamp(min=0) - x.amin(axis, keepdim=True).clamp(max=0)) / 255


def bound(
    product: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor, steps: Tensor, dtype: torch.dtype
) -> Tensor:
    """What results may be off by: half a step of each factor, and some roundings."""
    scales = w.abs().flatten(1).amax(1).view(-1, *(1,) * (w.dim() - 1)) / 127
    of_x = steps.expand_as(x) / 2
    lost = product(of_x, w.abs()) + product(x.abs() + of_x, (scales / 2).expand_as(w))
    sizes = product(x.abs() + of_x, w.abs() + scales / 2)
    return lost * (1 + 1e-5) + sizes * 1e-6 + (2**-8 * product(x, w).abs() if dtype is torch.bfloat16 else 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(40))
def test_any_product(seed: int, dtype: torch.dtype) -> None:
    draw = random.Random(seed)
    rows = draw.choice([1, 2, 3, 5, 6, 7, 23, 24, 25, 49, 100, 197, 700])
    inside = draw.choice([8, 9, 15, 16, 17, 63, 64, 100, 256, 1153, 2500])
    outside = draw.choice([1, 8, 15, 16, 17, 31, 33, 48, 64, 100, 1100])
    whole = rand(rows, inside + 5, seed=seed) * 10 ** draw.uniform(-4, 4) + draw.choice([0, 1, -30])
    whole = whole.relu() if draw.random() < 0.3 else whole
    x, w = whole.to(dtype)[:, 3 : 3 + inside], rand(outside, inside, seed=seed + 1) / math.sqrt(inside)
    bias = rand(outside) if draw.random() < 0.5 else None
    w = w.to(dtype)
    with threads(1):
        alone = linear(x, w, bias)
    wide, wide_w = x.double(), w.double()
    exact = wide @ wide_w.t()
    most = bound(lambda a, b: a @ b.t(), wide, wide_w, step(wide, 1), dtype)
    shift = 0 if bias is None else bias.double()
    rounding = 2**-8 * (exact + shift).abs() if dtype is torch.bfloat16 else 1e-6 * (exact + shift).abs()
    assert bool(((alone.double() - exact - shift).abs() <= most + rounding).all())
    for count in (2, 3, 5):
        with threads(count):
            assert torch.equal(linear(x, w, bias), alone)
    activation = draw.choice(list(ACTIVATIONS))
    got = linear(x, w, bias, activation)
    torch.testing.assert_close(
        got, ACTIVATIONS[activation](alone.float()).to(dtype), rtol=1e-2 if dtype is torch.bfloat16 else 1e-5,
        atol=1e-2 if dtype is torch.bfloat16 else 2e-5,
    )  # fmt: skip


def test_whole_numbers_have_no_error() -> None:
    """All 256 numbers of a row and all 255 of a weight are used: the grids are those of the operands."""
    x = torch.randint(-100, 156, (30, 300), generator=torch.Generator().manual_seed(0)).float()
    w = torch.randint(-127, 128, (70, 300), generator=torch.Generator().manual_seed(1)).float()
    x[:, 0], x[:, 1], w[:, 2] = -100, 155, 127
    torch.testing.assert_close(linear(x, w), x @ w.t(), rtol=1e-6, atol=1e-6 * 100 * 127 * 300)


def test_rows_that_are_strange_do_not_disturb_the_others() -> None:
    x, w, bias = rand(40, 200), rand(90, 200), rand(90)
    whole = linear(x, w, bias)
    strange = {4: math.inf, 5: math.nan, 6: -math.inf, 33: 1e-30, 34: 0.0, 35: 3e38, 39: 1e-42}
    for row, value in strange.items():
        x[row] = value
        x[row, ::2] *= -1
    x[7, 199], x[8, 3] = math.nan, math.inf
    got = linear(x, w, bias)
    for row in (4, 5, 6, 7, 8):
        assert not bool(got[row].isfinite().any())
    others = [row for row in range(40) if row not in {*strange, 7, 8}]
    assert torch.equal(got[others], whole[others])
    assert torch.equal(got[34], bias)
    assert torch.equal(got[39], bias)  # less than can be seen next to any bias
    torch.testing.assert_close(got[33], bias, rtol=0, atol=1e-27)
    no_bias = linear(x[35:36] * 1e-3, w)  # sums of it would be infinite before they are scaled
    wide = x[35:36].double() * 1e-3
    most = bound(lambda a, b: a @ b.t(), wide, w.double(), step(wide, 1), torch.float32)
    assert bool(((no_bias.double() - wide @ w.double().t()).abs() <= most).all())
    for first, last in ((0, 1), (9, 20), (10, 32)):
        assert torch.equal(linear(x[first:last], w, bias)[3:], got[first:last][3:])


def test_a_weight_that_is_not_finite_shows() -> None:
    x, w = rand(5, 64), rand(70, 64)
    w[3, 5], w[40, 6], w[50] = math.nan, math.inf, 0.0
    got = linear(x, w)
    assert not bool(got[:, [3, 40]].isfinite().any())
    assert bool((got[:, 50] == 0).all())
    rest = [row for row in range(70) if row not in (3, 40)]
    assert torch.equal(got[:, rest], linear(x, w[rest].contiguous()))


@pytest.mark.parametrize("shape", [(64,), (0, 64), (5, 64), (2, 3, 64), (2, 0, 64), (2, 3, 4, 64)])
def test_ranks_and_strides(shape: tuple[int, ...]) -> None:
    x, w = rand(*shape), rand(80, 64)
    expected = linear(x.reshape(-1, 64), w).view(*shape[:-1], 80)
    assert torch.equal(linear(x, w), expected)
    if len(shape) > 1:
        turned = x.transpose(0, -1).contiguous().transpose(0, -1)
        assert torch.equal(linear(turned, w), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(40))
def test_any_convolution(seed: int, dtype: torch.dtype) -> None:
    draw = random.Random(seed)
    kernel, stride = draw.choice([1, 1, 2, 3, 3, 5]), draw.choice([1, 1, 2, 3])
    padding, dilation = draw.choice([0, 1, 2, 4]), draw.choice([1, 1, 2])
    channels = draw.choice([8, 9, 16, 24, 33, 64, 130])
    outputs = draw.choice([8, 9, 16, 31, 48, 65, 100])
    size = (draw.choice([1, 2, 5, 9, 14, 30]), draw.choice([1, 3, 7, 12, 33]))
    reach = (kernel - 1) * dilation + 1
    if min(size) + 2 * padding < reach:
        padding = reach // 2
    x = rand(draw.choice([1, 1, 3]), channels, *size, seed=seed).to(dtype).contiguous(memory_format=LAST)
    x = x.relu() if draw.random() < 0.5 else x
    w, bias = weight(outputs, channels, kernel, kernel).to(dtype), rand(outputs)
    with threads(1):
        got = convolve(x, w, bias, stride, padding, dilation)
    wide, wide_w = x.double(), w.double()

    def product(a: Tensor, b: Tensor) -> Tensor:
        return F.conv2d(a, b, None, stride, padding, dilation)

    shift = bias.double().view(-1, 1, 1)
    exact = product(wide, wide_w) + shift
    most = bound(product, wide, wide_w, step(wide, 1), dtype)
    rounding = (2**-8 if dtype is torch.bfloat16 else 1e-6) * exact.abs()
    assert bool(((got.double() - exact).abs() <= most + rounding).all())
    assert got.is_contiguous(memory_format=LAST)
    for count in (2, 5):
        with threads(count):
            assert torch.equal(convolve(x, w, bias, stride, padding, dilation), got)


def results() -> list[Tensor]:
    """Of sizes around the tiles of a matrix unit: 16 pixels, 16 outputs, 64 channels."""
    found, draw = [], random.Random(0)
    for seed in range(40):
        rows, outside = draw.choice([1, 7, 16, 17, 32, 33, 100]), draw.choice([1, 16, 17, 33, 80, 130])
        x, w = rand(rows, draw.choice([8, 63, 64, 65, 130, 600]), seed=seed), rand(outside, 600, seed=seed)
        x = x.relu() if draw.random() < 0.5 else x
        found.append(linear(x, w[:, : x.shape[1]].contiguous(), rand(outside)))
        kernel, channels = draw.choice([1, 2, 3]), draw.choice([8, 17, 64, 130])
        image = rand(2, channels, draw.choice([3, 9]), draw.choice([3, 14, 33]), seed=seed)
        image = (image.relu() if draw.random() < 0.5 else image).contiguous(memory_format=LAST)
        steps = draw.choice([1, 2]), draw.choice([1, 3]), 1
        found.append(convolve(image, weight(outside, channels, kernel, kernel), rand(outside), *steps))
    return found


def test_all_units_have_the_same_results(tmp_path: Path) -> None:
    code = (
        "import sys, torch; from tests.kernels.test_int8 import results; torch.save(results(), sys.argv[1])"
    )
    expected = results()
    for limit in ("avx512", "amx-in-software"):
        environ = {**os.environ, "TORCHRLOPT_INSTRUCTIONS": limit}
        file = tmp_path / limit
        subprocess.run([sys.executable, "-c", code, str(file)], cwd=ROOT, env=environ, check=True)
        for got, other in zip(torch.load(file), expected, strict=True):
            assert torch.equal(got, other)


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (2, 9), (9, 2)])
def test_images_without_windows(size: tuple[int, int]) -> None:
    x = rand(2, 16, *size).contiguous(memory_format=LAST)
    assert convolve(x, weight(32, 16, 3, 3)).shape == (2, 32, *(max(each - 2, 0) for each in size))


def test_pixels_that_are_not_finite_show_where_they_are_seen() -> None:
    x, w = rand(1, 16, 12, 12).contiguous(memory_format=LAST), weight(32, 16, 3, 3)
    whole = convolve(x, w, None, 1, 1)
    x[0, 3, 5, 6] = math.nan
    got = convolve(x, w, None, 1, 1)
    assert bool(got[0, :, 4:7, 5:8].isnan().all())
    got[0, :, 4:7, 5:8] = whole[0, :, 4:7, 5:8]
    assert torch.equal(got, whole)


# ---- graphs


def all_that_are_supported(graph: fx.Graph, static: set[fx.Node]) -> None:
    for node in list(graph.nodes):
        if supports(node, static):
            node.meta[REQUESTED] = indirect.INT8


def methods(prepared: Prepared) -> list[int]:
    nodes = prepared.split.main.graph.nodes
    return [indirect.method_of(node) for node in nodes if node.target in (CONV, LINEAR)]


def closely(prepared: Prepared, function: Callable[..., Any], args: list[Tensor]) -> None:
    got, expected = prepared.run(*args)[0], function(*args)
    assert got.dtype == expected.dtype
    assert got.stride() == expected.stride()
    error = (got.double() - expected.double()).norm() / expected.double().norm()
    assert 1e-4 < error < 3e-2, error  # quantised, and not more than that


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_a_graph(dtype: torch.dtype) -> None:
    def block(x: Tensor, first: Tensor, bias: Tensor, second: Tensor) -> Tensor:
        inner = F.gelu(F.linear(x, first, bias))
        return x + aten.mm(inner.view(-1, 256), second).view(x.shape)

    args = [rand(2, 9, 128), rand(256, 128) / 11, rand(256), rand(256, 128) / 16]
    args = [arg.to(dtype) for arg in args]
    prepared = prepare(block, args, [1, 2, 3], is_real=True, change=all_that_are_supported)
    assert methods(prepared) == [indirect.INT8] * 2
    assert inventory(prepared.split.main.graph).packed == {"linear in int8 + gelu": 1, "linear in int8": 1}
    closely(prepared, block, args)
    args[1] = args[1] * 0.5 + 0.01  # weights that have changed are packed again
    closely(prepared, block, args)


def test_convolutions_of_a_graph() -> None:
    def block(x: Tensor, first: Tensor, bias: Tensor, second: Tensor) -> Tensor:
        inner = F.relu(F.conv2d(x, first, bias))
        return F.relu(x + F.conv2d(inner, second, None, 1, 1))

    args = [rand(2, 128, 10, 11), weight(128, 128, 1, 1), rand(128), weight(128, 128, 3, 3)]
    for dynamic in (False, True):
        prepared = prepare(block, args, [1, 2, 3], dynamic, is_real=True, change=all_that_are_supported)
        assert methods(prepared) == [indirect.INT8] * 2
        assert prepared.count("relu") == 0
        closely(prepared, block, args)


def test_a_convolution_of_one_pixel() -> None:
    args = [rand(2, 128, 1, 1), weight(160, 128, 1, 1)]
    prepared = prepare(F.conv2d, args, [1], is_real=True, change=all_that_are_supported)
    assert methods(prepared) == [indirect.INT8]
    closely(prepared, F.conv2d, args)


def test_nothing_is_quantised_unless_it_is_asked_for() -> None:
    args = [rand(5, 128), rand(96, 128)]
    prepared = prepare(F.linear, args, [1], is_real=True)
    assert indirect.INT8 not in methods(prepared)
    assert torch.allclose(prepared.run(*args)[0], F.linear(*args), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("function", "shapes", "static"),
    [
        (F.linear, [(5, 128), (96, 128)], []),  # no weight
        (F.linear, [(5, 128), (96, 128), (96,)], [1]),  # a bias that varies
        (F.linear, [(5, 128), (10, 128)], [1]),  # too few outputs
        (F.linear, [(5, 7), (100, 7)], [1]),  # too few terms
        (lambda x, w: F.conv2d(x, w, groups=2), [(1, 128, 9, 9), (64, 64, 1, 1)], [1]),
        (F.conv_transpose2d, [(1, 128, 9, 9), (128, 64, 2, 2)], [1]),
        (F.conv3d, [(1, 64, 3, 9, 9), (64, 64, 1, 1, 1)], [1]),
        (lambda x, w: x.double() @ w.double(), [(5, 128), (128, 96)], [1]),
        (lambda x, w: x * w, [(5, 128), (5, 128)], [1]),
    ],
)
def test_refusals(function: Callable[..., Any], shapes: list[tuple[int, ...]], static: list[int]) -> None:
    seen = []

    def look(graph: fx.Graph, fixed: set[fx.Node]) -> None:
        seen.extend(node for node in graph.nodes if supports(node, fixed))

    prepare(function, [rand(*shape) for shape in shapes], static, is_real=True, change=look)
    assert seen == []


def test_products_of_few_channels_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 8 channels"):
        indirect.pack(rand(16, 7), None, 1, indirect.INT8)
