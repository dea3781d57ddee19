"""Our bfloat16 image kernels: sums in float32, each result rounded once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels import guarded_memory
from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import threads
from tests.kernels.test_indirect import ACTIVATIONS
from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.epilogues import NONE, Epilogue

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    "bfloat16" not in _C.kernel_dtypes(), reason="needs AVX-512 with products of bfloat16"
)

HALF = torch.bfloat16


def half(*given: Tensor) -> list[Tensor]:
    return [each.to(HALF) for each in given]


def is_rounded_once(got: Tensor, exact: Tensor, terms: Tensor | float = 0.0) -> bool:
    """Whether results are the exact ones, rounded to the nearest but for what float32 rounds of terms."""
    error = (got.double() - exact).abs()
    return bool((error <= exact.abs() * (2**-8 + 2**-16) + 2**-20 * terms + 1e-37).all())


@pytest.mark.parametrize("seed", range(90))
def test_any_window(seed: int) -> None:
    draw = random.Random(seed)
    depthwise = draw.choice([8, 11, 15, 16, 17, 31, 32, 33, 40, 72, 96])
    groups = draw.choice([1, 1, 1, depthwise, depthwise, draw.randint(2, 5), 0])
    if groups == 1:
        channels, outputs = (
            draw.choice([1, 2, 3, 4, 7, 8, 13, 40]),
            draw.choice([8, 11, 16, 17, 24, 33, 64, 72, 130]),
        )
    elif groups > 5:
        channels = outputs = groups
    elif groups == 0:
        groups = draw.choice([4, 8, 9, 20])
        channels = outputs = groups * draw.choice([2, 4])  # as many outputs as inputs
    else:
        channels, outputs = groups * draw.choice([1, 3, 4, 8, 12]), groups * draw.choice([17, 32, 40])
    kernel, stride, dilation = ([draw.randint(1, most), draw.randint(1, most)] for most in (5, 3, 2))
    if groups == 1 and channels < 8:
        kernel[0] = max(kernel[0], 2)
    padding = [draw.randint(0, 2), draw.randint(0, 2)]
    size = [
        d * (k - 1) + 1 + draw.randint(0, 40 if channels < 8 else 12)
        for k, d in zip(kernel, dilation, strict=True)
    ]
    name = draw.choice(["none", "relu", "relu6", "hardswish", "leaky_relu"])
    has_summand, is_planar = draw.random() < 0.4, draw.random() < 0.5
    x, w, b = half(
        rand(draw.randint(1, 3), channels, *size), weight(outputs, channels // groups, *kernel), rand(outputs)
    )
    if not is_planar:
        x = x.contiguous(memory_format=torch.channels_last)
    sums = F.conv2d(x.double(), w.double(), b.double(), stride, padding, dilation, groups)
    terms = F.conv2d(x.double().abs(), w.double().abs(), b.double().abs(), stride, padding, dilation, groups)
    other = half(rand(*sums.shape, seed=1))[0].contiguous(memory_format=torch.channels_last)
    window = indirect.Window(outputs, kernel, stride, padding, dilation)
    epilogue = Epilogue(
        *{"relu6": ("hardtanh", (0.0, 6.0)), "leaky_relu": ("leaky_relu", (0.2,))}.get(name, (name,))
    )
    numbers = window.of_convolution(groups, epilogue)
    with threads(draw.randint(1, 3)):
        got = indirect.convolve(x, indirect.pack(w, b, groups), other if has_summand else None, numbers)
    assert got.dtype is HALF
    assert is_rounded_once(
        got, ACTIVATIONS[name](sums + other.double() if has_summand else sums), terms + other.abs()
    )


@pytest.mark.parametrize("tile", indirect.TILES)
@pytest.mark.parametrize("channels", [8, 17, 64])
def test_tiles_are_computed_in_float32(channels: int, tile: int) -> None:
    x, w, b = half(rand(2, channels, 13, 18), weight(40, channels, 3, 3), rand(40))
    window = indirect.Window(40, (3, 3), (1, 1), (1, 1), (1, 1))
    packed = indirect.pack(w, b, 1, tile)
    got = indirect.convolve(x, packed, None, window.of_convolution(1, NONE, tile))
    terms = F.conv2d(x.double().abs(), w.double().abs(), padding=1).amax()  # a tile rounds by its largest
    assert is_rounded_once(got, F.conv2d(x.double(), w.double(), b.double(), padding=1), 4 * terms)


@pytest.mark.parametrize("outputs", [17, 18, 20, 23, 24, 31, 33, 40, 47, 72])
@pytest.mark.parametrize("kind", ["dense", "depthwise", "pool"])
def test_nothing_is_written_beside_a_part(kind: str, outputs: int) -> None:
    room = torch.full((2, outputs + 9, 6, 7), 7.0, dtype=HALF).contiguous(memory_format=torch.channels_last)
    channels = 24 if kind == "dense" else outputs
    x = half(rand(2, channels, 6, 7))[0].contiguous(memory_format=torch.channels_last)
    groups = 1 if kind == "dense" else outputs
    w = half(weight(outputs, channels // groups, 3, 3))[0]
    window = indirect.Window(outputs, (3, 3), (1, 1), (1, 1), (1, 1))
    if kind == "pool":
        indirect.pool(x, window.of_pool("max"), room, 4)
        exact = F.max_pool2d(x, 3, 1, 1).double()
    else:
        indirect.convolve(
            x, indirect.pack(w, None, groups), None, window.of_convolution(groups, NONE), room, 4
        )
        exact = F.conv2d(x.double(), w.double(), padding=1, groups=groups)
    assert is_rounded_once(room[:, 4 : 4 + outputs], exact, 10.0)
    assert (room[:, :4] == 7).all()
    assert (room[:, 4 + outputs :] == 7).all()


@pytest.mark.parametrize("rows", [1, 2, 5, 33])
@pytest.mark.parametrize("inputs", [1, 8, 31, 64])
def test_products(rows: int, inputs: int) -> None:
    x, w, b = half(rand(rows, inputs), rand(48, inputs), rand(48))
    numbers = indirect.numbers_of_product(48, NONE)
    got = indirect.linear(x, indirect.pack(w, b, 1), numbers)
    terms = x.double().abs() @ w.double().abs().t()
    assert is_rounded_once(got, x.double() @ w.double().t() + b.double(), terms)


@pytest.mark.parametrize("seed", range(30))
def test_attention(seed: int) -> None:
    draw = random.Random(seed)
    batch, key_heads, groups = draw.randint(1, 2), draw.randint(1, 2), draw.choice([1, 1, 2])
    queries, keys = draw.randint(8, 150), draw.randint(1, 200)
    queries = max(queries, (keys + 1) // 2)
    size, value_size, is_causal = 2 * draw.randint(1, 70), draw.randint(1, 70), draw.random() < 0.3
    q, k, v = half(
        rand(batch, key_heads * groups, queries, size),
        rand(batch, key_heads, keys, size),
        rand(batch, key_heads, keys, value_size),
    )
    shape = [draw.choice([1, each]) for each in (batch, key_heads * groups, queries, keys)]
    mask = None if is_causal or draw.random() < 0.4 else half(rand(*shape))[0]
    k, v = (each.repeat_interleave(groups, 1) if groups > 1 else each for each in (k, v))
    with threads(draw.randint(1, 3)):
        got = indirect.attend(q, k, v, mask, is_causal, size**-0.5, draw.random() < 0.5)
    assert got is not None
    exact = F.scaled_dot_product_attention(
        *(each.double() for each in (q, k, v)),
        None if mask is None else mask.double().expand(*shape[:2], queries, keys),
        is_causal=is_causal,
    )
    weights = F.scaled_dot_product_attention(
        *(each.double() for each in (q, k, v.abs())),
        None if mask is None else mask.double().expand(*shape[:2], queries, keys),
        is_causal=is_causal,
    )
    # A weight is rounded before it is multiplied, and so is the result.
    assert ((got.double() - exact).abs() <= 2**-8 * (weights + exact.abs()) + 1e-5).all()


def test_queries_that_see_no_key_or_one() -> None:
    q, k, v = half(rand(1, 1, 16, 8), rand(1, 1, 5, 8), rand(1, 1, 5, 9))
    mask = torch.zeros(16, 5, dtype=HALF)
    mask[3], mask[4, :4] = -torch.inf, -torch.inf
    got = indirect.attend(q * 100, k * 100, v, mask, False, 1.0, True)
    assert got is not None
    assert (got[0, 0, 3] == 0).all()
    assert torch.equal(got[0, 0, 4], v[0, 0, 4])
    assert got.isfinite().all()


@pytest.mark.parametrize("is_inside", [True, False])
def test_means(is_inside: bool) -> None:
    x = half(rand(2, 40, 9, 11))[0].contiguous(memory_format=torch.channels_last)
    window = indirect.Window(40, (3, 2), (2, 2), (1, 1), (1, 1))
    got = indirect.pool(x, window.of_pool("mean of inside" if is_inside else "mean"))
    exact = F.avg_pool2d(x.double(), (3, 2), 2, 1, count_include_pad=not is_inside)
    assert is_rounded_once(got, exact, 10.0)


def test_numbers_below_the_smallest_normal_one_are_zero() -> None:
    x = torch.full((1, 32, 3, 3), 1e-39, dtype=HALF).contiguous(memory_format=torch.channels_last)
    assert x.amax() > 0
    window = indirect.Window(32, (3, 3), (1, 1), (0, 0), (1, 1))
    assert (indirect.pool(x, window.of_pool("max")) == x.amax()).all()  # it compares bits
    assert (indirect.pool(x, window.of_pool("mean")) == 0).all()
    ones = torch.ones(32, 32, 3, 3, dtype=HALF)
    assert (
        indirect.convolve(x, indirect.pack(ones, None, 1), None, window.of_convolution(1, NONE)) == 0
    ).all()


def test_operands_of_another_type_are_refused() -> None:
    image = half(rand(1, 16, 4, 4))[0].contiguous(memory_format=torch.channels_last)
    packed = indirect.pack(half(weight(16, 16, 1, 1))[0], None, 1)
    numbers = indirect.Window(16, (1, 1), (1, 1), (0, 0), (1, 1)).of_convolution(1, NONE)
    ours = indirect.kernels(HALF)
    assert ours is not None
    assert ours.convolve(image, packed, image, numbers) is not None
    assert ours.convolve(image.double(), packed, None, numbers) is None
    assert ours.convolve(image, packed, image.float(), numbers) is None
    for call in (
        lambda: ours.convolve(image, packed.to(HALF), None, numbers),
        lambda: ours.convolve(image.float(), packed, None, numbers),
        lambda: ours.convolve(image, packed, None, numbers, indirect.room_for((1, 16, 4, 4)), 0),
    ):
        with pytest.raises((TypeError, ValueError), match=r"is expected|does not fit"):
            call()


def test_copies_and_the_greatest_keep_every_bit() -> None:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(HALF)
    bits = bits[bits.isfinite() & ((bits == 0) | (bits.abs() >= 2.0**-126))]
    x = bits[: 64 * 31 * 31].reshape(1, 64, 31, 31).contiguous(memory_format=torch.channels_last)
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(HALF).reshape(1, 64, 32, 32)
    image = every.contiguous(memory_format=torch.channels_last)
    assert torch.equal(
        indirect.shuffle(image, 2).view(torch.int16), F.channel_shuffle(image, 2).view(torch.int16)
    )
    window = indirect.Window(64, (3, 3), (2, 2), (1, 1), (1, 1))
    assert torch.equal(indirect.pool(x, window.of_pool("max")), F.max_pool2d(x, 3, 2, 1))


_READS = """
def half(*sizes):
    return torch.randn(*sizes).bfloat16()

for channels in (1, 2, 3, 5, 8, 11, 17, 32, 40):
    for width in (1, 3, 14, 29):
        for stride in (1, 2, 3):
            for padding in (0, 1):
                for layout in (torch.contiguous_format, torch.channels_last):
                    if layout is torch.contiguous_format and channels >= 8:
                        continue
                    x = at_the_end(half(1, channels, 5, width + 2).contiguous(memory_format=layout))
                    window = indirect.Window(24, *((n, n) for n in (3, stride, padding, 1)))
                    packed = at_the_end(indirect.pack(half(24, channels, 3, 3), None, 1))
                    indirect.convolve(x, packed, None, window.of_convolution(1, Epilogue()))
                    if channels >= 8:
                        own = indirect.Window(channels, *((n, n) for n in (3, stride, padding, 1)))
                        taps = at_the_end(indirect.pack(half(channels, 1, 3, 3), None, channels))
                        y = indirect.convolve(x, taps, None, own.of_convolution(channels, Epilogue()))
                        indirect.convolve(x, taps, at_the_end(y), own.of_convolution(channels, Epilogue()))
                        indirect.pool(x, own.of_pool("max"))
for rows in (8, 29, 64):
    for size in (2, 6, 64):
        q, v = (at_the_end(half(1, 2, rows, size + more)) for more in (0, 3))
        mask = at_the_end(half(1, 1, rows, rows))
        assert indirect.attend(q, q, v, mask, False, 1.0, True) is not None
        packed = at_the_end(indirect.pack(half(33, size), None, 1))
        indirect.linear(q, packed, indirect.numbers_of_product(33, Epilogue()))
"""


@pytest.mark.parametrize("side", ["before", "behind"])
def test_nothing_beside_an_operand_is_read(side: str) -> None:
    guarded_memory.check(_READS, side)
