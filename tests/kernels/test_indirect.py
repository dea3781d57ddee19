"""Our image kernels against float64, for all windows, layouts and instruction sets."""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import ACTIVATIONS, check, prepare, threads
from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.epilogues import Epilogue

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")


@pytest.mark.parametrize("seed", range(40))
def test_any_window(seed: int) -> None:
    draw = random.Random(seed)
    groups = draw.choice([1, 1, 1, *([draw.choice([8, 9, 15, 16, 17, 31, 40, 72])] * 2), draw.randint(2, 9)])
    if groups == 1:
        channels, outputs = draw.choice([1, 3, 8, 13, 40]), draw.choice([8, 15, 16, 24, 33, 64, 72, 130])
    elif groups > 7:
        channels = outputs = groups
    else:
        channels, outputs = groups * draw.choice([1, 2, 3, 4, 8, 12]), groups * draw.choice([4, 8, 8, 11, 32])
    kernel, stride, dilation = ([draw.randint(1, most), draw.randint(1, most)] for most in (5, 3, 2))
    padding = [draw.randint(0, 2), draw.randint(0, 2)]
    size = [d * (k - 1) + 1 + draw.randint(0, 12) for k, d in zip(kernel, dilation, strict=True)]
    has_bias, has_summand = draw.random() < 0.7, draw.random() < 0.4
    activation = ACTIVATIONS[draw.choice(list(ACTIVATIONS))]

    def function(x: Tensor, w: Tensor, b: Tensor, other: Tensor) -> Tensor:
        y = F.conv2d(x, w, b if has_bias else None, stride, padding, dilation, groups)
        return activation(y + other if has_summand else y)

    x, w = rand(draw.randint(1, 3), channels, *size), weight(outputs, channels // groups, *kernel)
    other = rand(*F.conv2d(x, w, None, stride, padding, dilation, groups).shape, seed=1)
    prepared = check(function, [x, w, rand(outputs), other], static=[1, 2])
    is_ours = groups > 1 or max(kernel) > 1 or channels >= 8
    if groups > 1:
        is_ours = _C.kernel_takes_groups(outputs, channels, groups)
    assert prepared.count("torchrlopt.conv") == int(is_ours)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("groups", [1, 16])
def test_an_activation_is_fused_and_right_for_every_operand(name: str, groups: int) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return ACTIVATIONS[name](F.conv2d(x, w, groups=groups))

    unit = torch.eye(16)[:, :, None, None] if groups == 1 else torch.ones(16, 1, 1, 1)
    x = torch.cat([torch.linspace(-110, 110, 16 * 900), rand(16 * 900)]).reshape(2, 16, 30, 30)
    prepared = check(function, [x, unit], static=[1])
    assert [name for name in prepared.targets if "torchrlopt" in name] == ["torchrlopt.conv.default"]
    assert prepared.count("aten") == prepared.count("contiguous")
    if groups == 16:  # others see a NaN through every product with zero
        x[0, :, 0, 0] = torch.nan
        if name != "gelu":  # where ATen has two answers for each, by the layout
            x[0, :, 0, 1], x[0, :, 0, 2] = torch.inf, -torch.inf
        got, expected = prepared.run(x, unit)[0], function(x, unit)
        assert torch.equal(got.isnan(), expected.isnan())
        torch.testing.assert_close(got, expected, rtol=2e-6, atol=1e-6, equal_nan=True)


def test_the_exponential_is_right_to_the_last_digits() -> None:
    x = torch.linspace(-100, 88, 16 * 40_000).reshape(1, 16, 400, 100)
    packed = indirect.pack(torch.ones(16, 1, 1, 1), None, 16)
    window = indirect.Window(16, (1, 1), (1, 1), (0, 0), (1, 1))
    numbers = window.of_convolution(16, Epilogue("sigmoid"))
    image = x.contiguous(memory_format=torch.channels_last)
    got, reference = indirect.convolve(image, packed, None, numbers), torch.sigmoid(x.double())
    assert ((got - reference).abs() <= 4e-7 * reference + 1e-37).all()


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("shape", [(1, 8, 1, 1), (5, 24, 1, 1), (2, 200, 7, 7), (1, 16, 1, 9), (3, 3, 40, 9)])
def test_any_number_of_threads(count: int, shape: tuple[int, ...]) -> None:
    with threads(count):
        kernel = 3 if shape[1] == 3 else 1
        x, w = rand(*shape), weight(1000, shape[1], kernel, kernel)
        check(lambda x, w: F.relu(F.conv2d(x, w, padding=kernel // 2)), [x, w], static=[1])


def convolution_of(
    prepare_image: Callable[[Tensor], Tensor], stride: int = 1, padding: int = 0, groups: int = 1
) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, w: F.conv2d(prepare_image(x), w, None, stride, padding, 1, groups)


def padded_twice(x: Tensor, pads: list[int], more: list[int]) -> Tensor:
    return F.pad(F.pad(x, pads), more)


@pytest.mark.parametrize(("channels", "groups"), [(3, 1), (16, 1), (16, 16)])
def test_zeros_around_an_image_are_not_written_down(channels: int, groups: int) -> None:
    draw = random.Random(channels + groups)
    w = weight(16, channels // groups, 3, 3)
    for _ in range(20):
        pads, more = ([draw.randint(0, 3) for _ in range(draw.choice([2, 4]))] for _ in range(2))
        padding, stride = draw.choice([0, 0, 1]), draw.randint(1, 3)
        of = functools.partial(padded_twice, pads=pads, more=more)
        function = convolution_of(of, stride, padding, groups)
        prepared = check(function, [rand(2, channels, 9, 11), w], static=[1])
        assert prepared.count("torchrlopt.conv") == 1
        assert prepared.count("pad") == 0, prepared.targets


def test_zeros_behind_an_image_and_steps_between_windows() -> None:
    for sizes, pads, stride in (
        ((2, 2), [0, 1, 0, 1], 2),
        ((5, 5), [0, 5, 0, 5], 2),
        ((1, 3), [0, 3], 2),
        ((4, 1), [0, 0, 0, 4], 2),
        ((1, 1), [0, 1, 0, 1], 2),
    ):
        of = functools.partial(F.pad, pad=pads)
        check(convolution_of(of, stride), [rand(1, 8, *sizes), weight(16, 8, 1, 1)], static=[1])


def test_other_paddings_stay() -> None:
    for of in (
        lambda x: F.pad(x, [1, 1, 1, 1], value=1.0),
        lambda x: F.pad(x, [0, 0, 0, 0, 1, 0])[:, 1:],
        lambda x: F.pad(x, [1, -1]),
        lambda x: F.pad(x, [1, 1, 0, 2], mode="reflect"),
        lambda x: x[:, :, ::2],
        lambda x: F.pad(x, [2, 0, 1, 1])[:, :, 1:, :-2],
    ):
        check(convolution_of(of, padding=1), [rand(1, 8, 9, 9), weight(8, 8, 3, 3)], static=[1])


def test_some_channels_of_an_image_are_read_where_they_lie() -> None:
    def function(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        left, right = F.conv2d(x, a).split(24, dim=1)
        return F.conv2d(right, b, padding=1) * F.conv2d(left, c, padding=1, groups=24)

    shapes = ((48, 8, 1, 1), (24, 24, 3, 3), (24, 1, 3, 3))
    prepared = check(function, [rand(2, 8, 9, 7), *(weight(*shape) for shape in shapes)], static=[1, 2, 3])
    assert prepared.count("torchrlopt.conv") == 3
    assert prepared.count("contiguous") == 1  # the input


def test_an_input_may_be_a_parameter_or_lie_anyhow() -> None:
    w = weight(16, 16, 3, 3)
    prepared = prepare(lambda x, w: F.conv2d(x, w), [rand(1, 16, 8, 8), w], static=[1])
    x = torch.nn.Parameter(rand(1, 8, 8, 16).permute(0, 3, 1, 2))
    for given in (x, x.detach().flip(3), x.detach().transpose(2, 3), rand(1, 16, 16, 16)[:, :, ::2, ::2]):
        torch.testing.assert_close(prepared.run(given, w)[0], F.conv2d(given, w), rtol=1e-4, atol=1e-5)


def test_a_bias_that_is_computed_behind_the_product() -> None:
    def function(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        one, two = torch.mm(x, w), torch.mm(y, w)
        twice = b * 2
        return torch.relu(two + twice), torch.relu(one + twice)

    args = [rand(4, 16), rand(2, 16), rand(16, 16) / 4, rand(16)]
    prepared = check(function, args, static=[2, 3])
    assert prepared.targets.count(prepared.targets[0]) == len(prepared.targets) == 2


@pytest.mark.parametrize("bound", [torch.nan, torch.inf])
def test_bounds_that_are_no_finite_numbers(bound: float) -> None:
    args = [rand(1, 8, 6, 6), weight(8, 8, 1, 1)]
    check(lambda x, w: F.conv2d(x, w).clamp(bound, 1.0), args, static=[1])
    check(lambda x, w: F.leaky_relu(F.conv2d(x, w), bound), args, static=[1])


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(1, 40), (2, 40), (7, 40), (2, 3, 40), (0, 40), (3, 0, 40), (40,)])
def test_products_of_few_rows(name: str, shape: tuple[int, ...]) -> None:
    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return ACTIVATIONS[name](F.linear(x, w, b))

    prepared = check(function, [rand(*shape), rand(72, 40) / 6, rand(72)], static=[1, 2])
    assert prepared.count("torchrlopt.linear.default") == 1
    assert len(prepared.targets) == 1


def test_rows_are_read_where_they_lie() -> None:
    w, whole = rand(24, 16) / 4, rand(3, 5, 48)
    prepared = prepare(F.linear, [whole[..., :16], w], static=[1])
    ours, packed = indirect.kernels(), indirect.pack(w, None, 1)
    assert ours is not None
    numbers = indirect.numbers_of_product(24, Epilogue())
    for rows in (
        whole[..., 16:32],
        whole[1:, :1, 3:19],
        whole[::2, 2:3, :16],
        whole[:, 1, :16],
        whole[0, 0, 8:24],
    ):
        expected = F.linear(rows, w)
        torch.testing.assert_close(ours.linear(rows, packed, numbers), expected, rtol=1e-4, atol=1e-5)
        assert indirect.linear(rows, packed, numbers).stride() == expected.stride()
    for rows in (
        whole[:, 1:3, :16],
        whole[..., ::3],
        whole[:, :1, :16].expand(3, 4, 16),
        whole[:1].mT[:, :16],
    ):
        if rows.shape[-1] == 16:
            torch.testing.assert_close(prepared.run(rows, w)[0], F.linear(rows, w), rtol=1e-4, atol=1e-5)


def test_a_product_of_many_axes() -> None:
    shape = (1, 2, 1, 1, 2, 1, 1, 1, 3, 16)
    assert (
        check(F.linear, [rand(*shape), rand(8, 16) / 4], static=[1]).count("torchrlopt.linear.default") == 1
    )


@pytest.mark.parametrize("channels", [3, 8])
def test_a_view_that_negates(channels: int) -> None:
    args = [rand(2, channels, 8, 8), weight(8, channels, 3, 3)]
    prepared = prepare(F.conv2d, args, static=[1])
    x = torch.complex(args[0], args[0]).conj().imag
    assert x.is_neg()
    torch.testing.assert_close(prepared.run(x, args[1])[0], -F.conv2d(*args), rtol=1e-4, atol=1e-5)
    row, matrix = torch._neg_view(rand(2, 40)), rand(72, 40) / 6
    product = prepare(F.linear, [rand(2, 40), matrix], static=[1])
    torch.testing.assert_close(product.run(row, matrix)[0], F.linear(row, matrix), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_numbers_are_left_to_others(dtype: torch.dtype) -> None:
    args = [rand(1, 8, 8, 8).to(dtype), weight(8, 8, 3, 3).to(dtype)]
    assert check(lambda x, w: F.max_pool2d(F.conv2d(x, w), 2), args, static=[1]).count("torchrlopt.") == 0


def test_what_does_not_fit_is_refused() -> None:
    ours = indirect.kernels()
    assert ours is not None
    x, w = rand(1, 8, 6, 6).contiguous(memory_format=torch.channels_last), weight(8, 8, 3, 3)
    window = indirect.Window(8, (3, 3), (1, 1), (0, 0), (1, 1))
    packed, numbers = indirect.pack(w, None, 1), window.of_convolution(1, Epilogue())
    with pytest.raises(ValueError, match="elements is expected"):
        ours.convolve(x, packed[:-1], None, numbers)
    with pytest.raises(ValueError, match="18 numbers are expected, not 17"):
        ours.convolve(x, packed, None, numbers[:-1])
    with pytest.raises(ValueError, match="no such activation"):
        ours.convolve(x, packed, None, (*numbers[:13], 99, 0.0, 0.0, -1, -1))
    with pytest.raises(ValueError, match="no such type of numbers"):
        ours.convolve(x, packed, None, (*numbers[:-1], 2))
    with pytest.raises(ValueError, match="no such window"):
        ours.convolve(x, packed, None, (8, 3, 3, 0, *numbers[4:]))
    with pytest.raises(ValueError, match="does not fit"):
        ours.convolve(x, packed, None, numbers, indirect.room_for((1, 8, 4, 5)), 0)
    with pytest.raises(ValueError, match="does not fit"):
        ours.convolve(x, packed, None, numbers, indirect.room_for((1, 12, 4, 4)), 5)
    assert ours.convolve(x.contiguous(), packed, None, numbers) is None


def test_the_names_are_as_many_as_the_kernels_have() -> None:
    ours = indirect.kernels()
    assert ours is not None
    x = torch.ones(1, 8)
    packed = indirect.pack(torch.eye(8), None, 1)
    for number, name in enumerate(indirect.EPILOGUES):
        kind, _, algorithm = name.partition(" ")
        epilogue = Epilogue(kind, (0.5, 0.75) if kind == "hardtanh" else (), algorithm)
        assert indirect.numbers_of(epilogue)[0] == number
        assert ours.linear(x, packed, indirect.numbers_of_product(8, epilogue)) is not None
    with pytest.raises(ValueError, match="no such activation"):
        ours.linear(x, packed, (8, 0, len(indirect.EPILOGUES), 0.0, 0.0, -1, -1))


@pytest.mark.parametrize("instructions", ["avx2", "none"])
def test_with_other_instructions(instructions: str) -> None:
    if _C.kernel_instructions() == instructions:
        pytest.skip("these are what all other tests use")
    environment = os.environ | {"TORCHRLOPT_INSTRUCTIONS": instructions}
    program = (
        "import torch\n"
        "from torchrlopt import _C\n"
        "from tests.kernels import test_few_channels, test_images, test_sequences, test_shares\n"
        "from tests.kernels import test_depthwise, test_indirect as t, test_shuffles, test_winograd\n"
        f"assert _C.kernel_instructions() == {instructions.replace('none', '')!r}\n"
        "if _C.kernel_instructions():\n"
        "    for seed in range(15): t.test_any_window(seed); test_images.test_any_pool(seed)\n"
        "    for name in t.ACTIVATIONS: t.test_an_activation_is_fused_and_right_for_every_operand(name, 16)\n"
        "    t.test_the_exponential_is_right_to_the_last_digits()\n"
        "    for seed in range(20): test_sequences.test_random_networks(seed)\n"
        "    for seed in range(8): test_shuffles.test_any_groups(seed)\n"
        "    for stride in (1, 2):\n"
        "        for window in test_depthwise.WINDOWS:\n"
        "            test_depthwise.check_rows(window, stride, torch.float32)\n"
        "        for inputs in (2, 4, 8): test_depthwise.check_rows((3, 3), stride, torch.float32, inputs)\n"
        "    test_few_channels.test_an_image_may_lie_anyhow(3, 'contiguous')\n"
        "    for tile in (2, 4):\n"
        "        for seed in range(8): test_winograd.test_any_image(seed, tile)\n"
        "        for name in test_winograd.SHARED:\n"
        "            test_winograd.test_threads_share_what_they_compute(name, tile)\n"
        "        for value in (3e38, torch.inf, torch.nan):\n"
        "            test_winograd.test_what_is_not_finite_stays_where_it_is(value, tile)\n"
        "        test_winograd.test_windows_that_see_zeros_only_give_the_bias(0.1, tile)\n"
        "        test_winograd.test_rounding_is_that_of_a_sum(64, 2.5, tile)\n"
        "    for name in test_shares.CONVOLUTIONS:\n"
        "        test_shares.test_threads_share_what_they_compute(name, torch.float32)\n"
        "else:\n"
        "    args = [t.rand(1, 16, 9, 9), t.weight(16, 16, 3, 3)]\n"
        "    prepared = t.check(lambda x, w: torch.nn.functional.conv2d(x, w).relu(), args, [1])\n"
        "    assert prepared.count('torchrlopt.conv') == 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
