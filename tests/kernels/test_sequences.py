"""Calls of our kernels combined into sequences."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.crosses import nightly_but
from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import check, gathered_calls, prepare, threads
from tests.kernels.network_cases import random_net
from torchrlopt import _C
from torchrlopt.capture.footprint import cpu_bytes_of_calls
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.epilogues import NONE
from torchrlopt.executors.eager.kernels.sequence import Instruction

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")


def block(x: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor) -> Tensor:
    """Depthwise between pointwise, squeeze and excite, and a residual that an activation keeps apart."""
    y = F.hardswish(F.conv2d(F.relu(F.conv2d(x, a)), b, padding=1, groups=b.shape[0]))
    gate = y.mean((2, 3), keepdim=True)
    gate = F.hardsigmoid(F.conv2d(F.relu(F.conv2d(gate, c)), d))
    return F.conv2d(y * gate, e) + x


BLOCK = [
    weight(24, 8, 1, 1),
    weight(24, 1, 3, 3),
    weight(8, 24, 1, 1),
    weight(24, 8, 1, 1),
    weight(8, 24, 1, 1),
]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_block_is_one_call(count: int, batch: int) -> None:
    with threads(count):
        prepared = check(block, [rand(batch, 8, 30, 30), *BLOCK], static=[1, 2, 3, 4, 5])
    assert [name for name in gathered_calls(prepared) if "sequence" in name] == ["sequence_default"]


@pytest.mark.parametrize("seed", nightly_but(range(30), range(80)))
def test_random_networks(seed: int) -> None:
    function, args = random_net(random.Random(seed))
    check(function, args, static=range(1, len(args)), is_real=seed % 2 == 1)


def test_sizes_that_change_are_planned_anew() -> None:
    prepared = prepare(block, [rand(2, 8, 12, 14), *BLOCK], static=[1, 2, 3, 4, 5], dynamic=True)
    assert "sequence_default" in gathered_calls(prepared)
    for shape in ((2, 8, 12, 14), (5, 8, 9, 20), (1, 8, 3, 3), (0, 8, 6, 6), (2, 8, 12, 14)):
        x = rand(*shape)
        torch.testing.assert_close(prepared.run(x, *BLOCK)[0], block(x, *BLOCK), rtol=1e-4, atol=1e-5)


def test_images_may_lie_anyhow() -> None:
    prepared = prepare(block, [rand(2, 8, 12, 14), *BLOCK], static=[1, 2, 3, 4, 5])
    images = (
        rand(2, 12, 14, 8).permute(0, 3, 1, 2),
        rand(2, 16, 24, 14)[:, ::2, ::2],
        torch.nn.Parameter(rand(2, 8, 12, 14)),
        torch._neg_view(rand(2, 8, 12, 14)),
        rand(1, 8, 12, 14).expand(2, 8, 12, 14),
    )
    for x in images:
        torch.testing.assert_close(
            prepared.run(x, *BLOCK)[0], block(x.detach(), *BLOCK), rtol=1e-4, atol=1e-5
        )


def test_a_result_is_not_changed_by_the_next_call() -> None:
    prepared = prepare(block, [rand(1, 8, 12, 14), *BLOCK], static=[1, 2, 3, 4, 5])
    first = prepared.run(rand(1, 8, 12, 14), *BLOCK)[0]
    kept = first.clone()
    prepared.run(rand(1, 8, 12, 14, seed=5), *BLOCK)
    assert torch.equal(first, kept)


def test_parts_of_channels_are_read_where_they_lie() -> None:
    def function(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        left, right = F.conv2d(x, a).split([8, 16], dim=1)
        return F.conv2d(F.relu(right), b) + left * F.max_pool2d(F.conv2d(left, c), 3, 1, 1)

    weights = [weight(24, 8, 1, 1), weight(8, 16, 1, 1), weight(8, 8, 1, 1)]
    prepared = check(function, [rand(2, 8, 12, 14), *weights], static=[1, 2, 3])
    assert "split_with_sizes" not in gathered_calls(prepared)


def test_images_that_grow_are_made_where_they_end() -> None:
    """As in DenseNet: each step joins what it makes to all that was there, which others read as well."""

    def function(x: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
        whole, kept = F.conv2d(x, weights[0]), []
        for each in weights[1:]:
            new = F.conv2d(F.relu(whole), each, padding=1)
            kept.append(F.max_pool2d(whole, 3, 1, 1)[:, :8])
            whole = torch.cat([whole, new, new.sigmoid()], 1)
        return whole, torch.cat(kept, 1)

    weights = [weight(8, 8, 1, 1), *(weight(8, 8 + 16 * step, 3, 3) for step in range(4))]
    prepared = check(function, [rand(2, 8, 10, 12), *weights], static=range(1, 6))
    assert "sequence_default" in gathered_calls(prepared)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_part_behind_others_is_read_where_it_was_made(dtype: torch.dtype) -> None:
    def function(x: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        y, z = F.conv2d(x, a).relu(), F.conv2d(x, b).relu()
        return F.conv2d(torch.cat([y, z, F.conv2d(z, c).relu()], 1), d) + F.conv2d(z, c)

    sizes = [(24, 16, 1, 1), (32, 16, 1, 1), (16, 32, 1, 1), (16, 72, 1, 1)]
    args = [rand(2, 16, 9, 9), *(weight(*each) for each in sizes)]
    prepared = check(function, [each.to(dtype) for each in args], static=range(1, 5))
    if indirect.kernels(dtype) is not None:
        assert [name for name in gathered_calls(prepared) if "sequence" in name] == ["sequence_default"]


@pytest.mark.parametrize("eps", [1e-5, 0.1])
@pytest.mark.parametrize("is_affine", [True, False])
def test_a_norm_that_no_convolution_takes_in(is_affine: bool, eps: float) -> None:
    def function(x: Tensor, a: Tensor, b: Tensor, w: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        facts = (w, mean - 1) if is_affine else (None, None)
        y = F.max_pool2d(F.conv2d(x, a), 3, 1, 1)
        norm = torch.ops.aten._native_batch_norm_legit_no_training.default
        return F.conv2d(F.relu(norm(y, *facts, mean, var, 0.1, eps)[0]), b)

    args = [rand(2, 8, 9, 9), weight(24, 8, 1, 1), weight(8, 24, 1, 1), rand(24), rand(24), rand(24).abs()]
    prepared = check(function, args, static=range(1, 6))
    assert prepared.count("batch_norm") == 0


def test_a_sum_of_another_type_is_none_of_ours() -> None:
    def function(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return F.conv2d(F.conv2d(x.bfloat16(), a, padding=1) + F.conv2d(x, b), c)

    args = [rand(1, 32, 16, 16), weight(32, 32, 3, 3).bfloat16(), weight(32, 32, 1, 1), weight(8, 32, 1, 1)]
    got, expected = prepare(function, args, static=[1, 2, 3]).run(*args)[0], function(*args)
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


def test_more_channels_than_a_convolution_takes() -> None:
    def function(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return torch.cat([torch.cat([F.conv2d(x, a), F.conv2d(x, b)], 1).relu(), F.conv2d(x, c)], 1)

    shapes = ((9000, 8, 1, 1), (9000, 8, 1, 1), (8, 8, 1, 1))
    check(function, [rand(1, 8, 2, 2), *(weight(*shape) for shape in shapes)], static=[1, 2, 3])


def test_a_view_of_an_image_with_its_axes_in_another_order_cuts_a_sequence() -> None:
    def function(x: Tensor, *w: Tensor) -> Tensor:
        y = F.conv2d(F.relu(F.conv2d(x, w[0])), w[1]).flatten(2)
        return F.linear(F.gelu(F.linear(y, w[2])), w[3])

    weights = [weight(8, 8, 1, 1), weight(8, 8, 1, 1), rand(16, 12) / 3, rand(12, 16) / 4]
    prepared = check(function, [rand(1, 8, 3, 4), *weights], static=[1, 2, 3, 4])
    assert len([name for name in gathered_calls(prepared) if "sequence" in name]) == 2


def test_rows_that_negate() -> None:
    def rows(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return F.linear(F.relu(F.linear(x, a)), b)

    args = [rand(4, 16), rand(16, 16) / 4, rand(16, 16) / 4]
    prepared = prepare(rows, args, static=[1, 2])
    assert "sequence_default" in gathered_calls(prepared)
    x = torch._neg_view(args[0])
    torch.testing.assert_close(prepared.run(x, *args[1:])[0], rows(x, *args[1:]), rtol=1e-4, atol=1e-5)


def test_two_sequences_write_into_one_image() -> None:
    def function(x: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        first = F.conv2d(F.relu(F.conv2d(x, a)), b)
        second = F.conv2d(F.relu(F.conv2d(first.sort(1).values, c)), d)
        return F.relu(torch.cat([first, second], 1))

    shapes = ((8, 8, 1, 1), (24, 8, 3, 3), (16, 24, 1, 1), (8, 16, 1, 1))
    prepared = check(
        function, [rand(2, 8, 9, 7), *map(weight, *zip(*shapes, strict=True))], static=[1, 2, 3, 4]
    )
    calls = gathered_calls(prepared)
    assert len([name for name in calls if "sequence" in name]) == 2
    assert "concat_buffer_default" in calls


def test_a_sequence_does_not_gather_all_that_is_large_before_it() -> None:
    def function(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        total = torch.zeros(())
        for factor in range(8):
            large = (x * (factor + 1.0)).sort(1).values
            total = total + F.conv2d(F.conv2d(large, a), b).sum((1, 2, 3))
        return total

    args = [rand(1, 8, 256, 256), weight(8, 8, 1, 1), weight(8, 8, 1, 1)]
    prepared = check(function, args, static=[1, 2])
    assert prepared.gathered is not None
    before = cpu_bytes_of_calls(prepared.split.main.graph)
    assert cpu_bytes_of_calls(prepared.gathered.graph) <= 1.1 * before


def test_a_view_that_others_read_is_theirs() -> None:
    def function(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        row = F.linear(F.relu(F.linear(x, a)), b)
        image = row.view(2, 6, 2, 2)
        return row, image.add_(1), F.linear(row, c)

    args = [rand(2, 16), rand(8, 16) / 4, rand(24, 8) / 4, rand(5, 24) / 4]
    got = prepare(function, args, static=[1, 2, 3]).run(*args)
    for ours, theirs in zip(got, function(*args), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_view_that_is_an_output_shares_the_memory_of_another() -> None:
    def function(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        row = F.linear(F.relu(F.linear(x, a)), b)
        return row, row.view(2, 6, 4), F.linear(row, c)

    args = [rand(2, 16), rand(8, 16) / 4, rand(24, 8) / 4, rand(5, 24) / 4]
    prepared = check(function, args, static=[1, 2, 3])
    assert "sequence_default" in gathered_calls(prepared)
    row, view, _ = prepared.run(*args)
    assert row.data_ptr() == view.data_ptr()


def test_not_a_number_goes_through() -> None:
    def function(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return F.relu(F.conv2d(x, a)) * torch.sigmoid(F.conv2d(x, b))

    x = rand(1, 8, 6, 6)
    x[0, :, 0, 0], x[0, :, 0, 1] = torch.nan, torch.inf
    args = [x, weight(8, 8, 1, 1), rand(8, 8, 1, 1)]
    got, expected = prepare(function, args, static=[1, 2]).run(*args)[0], function(*args)
    assert torch.equal(got.isnan(), expected.isnan())
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_what_is_no_sequence_is_refused() -> None:
    ours = indirect.kernels()
    assert ours is not None
    numbers = indirect.numbers_of_product(8, NONE)
    linear = (2, 0, 1, -1, -1, 0, numbers)
    with pytest.raises(ValueError, match="a value that is not there"):
        _C.KernelSequence(ours, 1, [linear], [1])
    with pytest.raises(ValueError, match="a value that is not there"):
        _C.KernelSequence(ours, 2, [linear], [3])
    with pytest.raises(ValueError, match="no such operation"):
        _C.KernelSequence(ours, 2, [(9, *linear[1:])], [2])
    image = rand(1, 8, 4, 4).contiguous(memory_format=torch.channels_last)
    for operation, numbers_of_it, message in (
        ("room", (0, 1, 8, 4), "a room is an image"),
        ("slice", (9,), "no such channels"),
        ("view", (1, 127), "as many elements"),
        ("shuffle", (3,), "no such groups"),
        ("shuffle", (0,), "no such groups"),
    ):
        instruction = Instruction(_C.KERNEL_OPERATIONS.index(operation), 0, numbers=numbers_of_it)
        with pytest.raises(ValueError, match=message):
            _C.KernelSequence(ours, 1, [instruction], [])(image)
    with pytest.raises(ValueError, match="seven fields"):
        _C.KernelSequence(ours, 2, [linear[1:]], [2])
    with pytest.raises(ValueError, match="7 numbers are expected, not 6"):
        _C.KernelSequence(ours, 2, [(*linear[:-1], numbers[1:])], [2])
    x, packed = rand(2, 16), indirect.pack(rand(8, 16), None, 1)
    with pytest.raises(ValueError, match="memory of their own"):
        _C.KernelSequence(ours, 2, [linear], [2, 2])(x, packed)
    with pytest.raises(ValueError, match="another size"):
        _C.KernelSequence(ours, 2, [linear], [2])(x, packed[:-1])
    with pytest.raises(ValueError, match="another number of inputs"):
        _C.KernelSequence(ours, 2, [linear], [2])(x)
    assert _C.KernelSequence(ours, 2, [linear], [2])(rand(16, 2).mT.expand(2, 16)[:, ::2], packed) is None
