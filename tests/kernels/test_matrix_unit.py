"""Matrix-unit products and convolutions against float64 and sums, for all numbers and thread counts."""

from __future__ import annotations

import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import ACTIVATIONS, check, epilogue, multiplied, threads
from tests.kernels.test_winograd import expect_right
from torchrlopt import _C
from torchrlopt.executors.eager.inventory import inventory
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.epilogues import Epilogue

pytestmark = pytest.mark.skipif(
    indirect.kernels() is None or not _C.kernel_has_matrix_unit(), reason="no matrix unit in this processor"
)

LAST = torch.channels_last
EPSILON = torch.finfo(torch.float32).eps


def linear(x: Tensor, w: Tensor, bias: Tensor | None = None, method: int = indirect.BF16X3) -> Tensor:
    return multiplied(x, w, bias, method)


ROUNDINGS = {indirect.BF16X3: 4 * EPSILON, indirect.BF16X2: 2**-15, indirect.BF16: 8 * EPSILON}
"""Of each method, relative to what its terms add up to without their signs."""


def bound(x: Tensor, w: Tensor, method: int = indirect.BF16X3) -> Tensor:
    """What each product may be off by."""
    return ROUNDINGS[method] * (x.double().abs() @ w.double().abs().t())


@pytest.mark.parametrize("method", indirect.IN_UNIT)
@pytest.mark.parametrize("seed", range(30))
def test_any_product(seed: int, method: int) -> None:
    half = method == indirect.BF16
    if half and indirect.kernels(torch.bfloat16) is None:
        pytest.skip("no bfloat16 in this processor")
    draw = random.Random(seed)
    rows = draw.choice([1, 2, 15, 16, 17, 31, 32, 33, 49, 64, 130, 197, 300, 700])
    inside = draw.choice([8, 17, 31, 32, 33, 63, 100, 256, 1153, 2500])
    outside = draw.choice([8, 31, 32, 33, 64, 100, 1100])
    whole = rand(rows, inside + 5, seed=seed) * 10 ** draw.uniform(-4, 4)
    x, w = whole[:, 3 : 3 + inside], rand(outside, inside, seed=seed + 1) / math.sqrt(inside)
    bias = rand(outside) if draw.random() < 0.5 else None
    read = x
    if half:  # rounded here, or while it is read
        w, rounded = w.bfloat16(), x.bfloat16()
        read, x = draw.choice([x, rounded]), rounded

    def product(activation: str = "none") -> Tensor:
        numbers = indirect.numbers_of_product(outside, epilogue(activation), method, w.dtype, torch.float32)
        return indirect.linear(read, indirect.pack(w, bias, 1, method), numbers)

    expected = F.linear(x.double(), w.double(), None if bias is None else bias.double())
    with threads(1):
        alone = product()
    most = bound(x, w, method) + (0.0 if bias is None else 4 * EPSILON * bias.double().abs())
    assert bool(((alone - expected).abs() <= most).all())
    for count in (2, 3, 5):
        with threads(count):
            assert torch.equal(product(), alone)
    activation = draw.choice(list(ACTIVATIONS))
    got, share = product(activation), 2e-4 if method == indirect.BF16X2 else 2e-5
    assert (got - ACTIVATIONS[activation](expected)).abs().max() < share * max(1.0, expected.abs().max())


def test_two_parts_are_more_exact_than_one() -> None:
    x, w = rand(64, 300), rand(48, 300)
    expected = x.double() @ w.double().t()
    errors = [(linear(x, w, method=method) - expected).abs().mean() for method in indirect.IN_UNIT[:2]]
    assert errors[0] < errors[1] / 4
    assert errors[1] < (x.bfloat16().double() @ w.bfloat16().double().t() - expected).abs().mean() / 100


def test_a_row_does_not_depend_on_the_others() -> None:
    x, w = rand(150, 200), rand(90, 200)
    whole = linear(x, w)
    for first, last in ((0, 1), (3, 20), (31, 64), (100, 150)):
        assert torch.equal(linear(x[first:last], w), whole[first:last])
    strange = {4: math.inf, 5: math.nan, 33: 1e-30, 34: 0.0, 60: 3e38, 149: 1e-42}
    for row, value in strange.items():
        x[row] = value
    others = [row for row in range(150) if row not in strange]
    assert torch.equal(linear(x, w)[others], whole[others])


@pytest.mark.parametrize("method", indirect.IN_UNIT)
@pytest.mark.parametrize("seed", range(20))
def test_any_convolution(seed: int, method: int) -> None:
    if method == indirect.BF16 and indirect.kernels(torch.bfloat16) is None:
        pytest.skip("no bfloat16 in this processor")
    draw = random.Random(seed)
    images, channels, outputs = (
        draw.randint(1, 3),
        draw.choice([8, 13, 32, 40, 96, 300]),
        draw.choice([8, 15, 33, 64, 130]),
    )
    kernel, stride, dilation, before, behind = (
        (draw.randint(1, most), draw.randint(1, most)) for most in (3, 2, 2, 2, 2)
    )
    size = draw.randint(7, 21), draw.randint(7, 21)
    window = indirect.Window(outputs, kernel, stride, before, dilation, behind)
    expect_right(draw, (images, channels, *size), window, method, 1e-4 if method == indirect.BF16X2 else 4e-6)


@pytest.mark.parametrize("value", [math.inf, math.nan, 3e38, 1e-38, 1e-43])
def test_a_pixel_that_is_summed_up(value: float) -> None:
    """With its windows only: all others have the bits that they have without it."""
    x = rand(2, 40, 9, 11).contiguous(memory_format=LAST)
    w = weight(35, 40, 3, 2)
    given = indirect.Window(35, (3, 2), (2, 1), (1, 1), (1, 2), (2, 1))
    packed = indirect.pack(w, None, 1, indirect.BF16X3)
    numbers = given.of_convolution(1, Epilogue(), indirect.BF16X3)
    alone = indirect.convolve(x, packed, None, numbers)
    x[1, :, 4, 5] = value
    got = indirect.convolve(x, packed, None, numbers)
    sums = indirect.convolve(x, indirect.pack(w, None, 1), None, given.of_convolution(1, Epilogue()))
    torch.testing.assert_close(got, sums, equal_nan=True, rtol=1e-5, atol=2e-6)
    changed = torch.zeros_like(x)
    changed[1, :, 4, 5] = 1
    sees = F.conv2d(F.pad(changed, (1, 1, 1, 2)), torch.ones_like(w), None, (2, 1), 0, (1, 2))
    assert 0 < int((sees[:, 0] > 0).sum()) < sees[:, 0].numel() / 4
    assert torch.equal(got[sees == 0], alone[sees == 0])


def test_integers_stay_exact() -> None:
    for bits_of_x, bits_of_w in ((8, 8), (16, 1), (1, 16), (12, 5)):
        x = torch.randint(-(2**bits_of_x), 2**bits_of_x + 1, (70, 60)).float()
        w = torch.randint(-(2**bits_of_w), 2**bits_of_w + 1, (40, 60)).float()
        assert torch.equal(linear(x, w).double(), x.double() @ w.double().t())


@pytest.mark.parametrize(
    "scale", [1e-44, 1e-38, 1e-37, 1e-35, 1e-33, 1e-31, 1e-29, 1e-24, 1e-20, 1e-16, 1e15, 1e30, 1e37]
)
def test_sizes_of_rows_and_columns(scale: float) -> None:
    """The unit takes tiny parts for zero; what is large must not become infinite by being split."""
    x, w = rand(50, 40), rand(35, 40)
    rows, columns = x.clone(), w.clone()
    rows[7] *= scale
    columns[11] *= scale
    for left, right in ((rows, w), (x, columns), (x * scale, w), (x, w * scale)):
        expected = left.double() @ right.double().t()
        got = linear(left, right).double()
        is_finite = expected.abs() < 1e38
        # Denormal numbers have fewer digits.
        assert bool(((got - expected).abs() <= bound(left, right) + 1e-43)[is_finite].all())


def test_an_output_may_be_on_any_scale() -> None:
    """A channel that has decayed is as exact as the others, and not a case of its own."""
    x, w = rand(50, 300), rand(40, 300)
    expected = linear(x, w)
    for scale in (2.0**-100, 2.0**-60, 2.0**60, 2.0**100):
        columns = w.clone()
        columns[11] *= scale
        got = linear(x, columns)
        assert torch.equal(got[:, 11], expected[:, 11] * scale)
        assert torch.equal(got[:, :11], expected[:, :11])


@pytest.mark.parametrize("huge", [1e10, -1e30, 1e36, -1e38, torch.finfo(torch.float32).min])
def test_weights_beside_a_huge_one_are_not_lost(huge: float) -> None:
    x, w = rand(40, 64), rand(48, 64)
    w[5, 7] = huge
    x[:20, 7] = 0.0
    expected = x.double() @ w.double().t()
    is_finite = expected.abs() < 3e38
    assert bool(((linear(x, w) - expected).abs() <= bound(x, w))[is_finite].all())
    assert bool((linear(x, w)[:20] - expected[:20]).abs().max() < 1e-4)


def test_small_products_are_not_lost_where_neither_number_is_small() -> None:
    x, w = torch.zeros(32, 32), torch.zeros(32, 32)
    x[:, 0], x[:, 1] = 2.0**-80, 2.0**-110
    w[:, 1], w[:, 2] = 2.0**80, 2.0**100
    assert bool((linear(x, w) == 2.0**-30).all())


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 3.4e38, -3.4028234e38])
def test_what_is_not_finite_spoils_nothing_else(value: float) -> None:
    x, w, bias = rand(70, 40), rand(45, 40), rand(45)
    alone = linear(x, w, bias)
    left = x.clone()
    left[33, 5] = value
    expected = F.linear(left, w, bias)
    got = linear(left, w, bias)
    others = [row for row in range(70) if row != 33]
    assert (got[others] - alone[others]).abs().max() < 1e-5
    torch.testing.assert_close(got[33], expected[33], equal_nan=True)
    right = w.clone()
    right[40, 3] = value
    got = linear(x, right, bias)
    torch.testing.assert_close(got, F.linear(x, right, bias), equal_nan=True, rtol=1e-4, atol=1e-4)


def test_any_nan_is_seen() -> None:
    """Also one whose bits would become zero when they are rounded."""
    for bits in (0x7FFFFFFF, -1, 0x7F800001, 0x7FC00000):
        nan = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
        assert bool(nan.isnan())
        x, w = torch.zeros(40, 32), torch.zeros(32, 32)
        x[3, 7] = nan[0]
        assert bool(linear(x, torch.ones(32, 32))[3].isnan().all())
        assert not bool(linear(x, torch.ones(32, 32))[4:].isnan().any())
        w[5, 9] = nan[0]
        assert bool(linear(torch.ones(40, 32), w)[:, 5].isnan().all())


def test_a_sum_that_overflows_is_infinite() -> None:
    x, w = torch.full((40, 64), 1e20), torch.full((32, 64), 1e20)
    assert bool((linear(x, w) == math.inf).all())
    x[:, 32:] *= -1
    assert torch.equal(linear(x, w).isnan(), linear(x, w, method=indirect.SUMS).isnan())


def test_onednn_finds_the_unit_as_it_left_it() -> None:
    """Both set the unit's registers, for the same threads."""
    a, b = rand(61, 70).bfloat16(), rand(50, 70).bfloat16()
    x, w = rand(61, 70), rand(50, 70)
    expected, ours = F.linear(a, b), linear(x, w)
    for _ in range(10):
        assert torch.equal(linear(x, w), ours)
        assert torch.equal(F.linear(a, b), expected)


def block(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    y = F.relu(F.conv2d(x, a))
    return F.relu(F.conv2d(y, b, stride=2, padding=1)) + F.conv2d(F.max_pool2d(y, 3, 2, 1), c)


def test_a_sequence_in_turns_gives_the_same_bits() -> None:
    weights = [weight(256, 128, 1, 1), weight(256, 256, 3, 3), weight(256, 256, 1, 1)]
    x = rand(2, 128, 28, 28)
    prepared = check(block, [x, *weights], static=[1, 2, 3], is_real=True)
    assert sum("unit" in name for name in inventory(prepared.split.main.graph).packed) > 0
    assert prepared.gathered is not None
    results = []
    for count in (1, 2, 3, 7):
        with threads(count):
            results += [prepared.run(x, *weights)[0] for _ in range(5)]
    assert all(torch.equal(each, results[0]) for each in results)


def test_strict_numerics_split_nothing() -> None:
    args = [rand(128, 256), rand(512, 256) / 16]
    for is_real in (False, True):
        prepared = check(F.linear, args, static=[1], is_real=is_real)
        assert any("unit" in name for name in inventory(prepared.split.main.graph).packed) == is_real
