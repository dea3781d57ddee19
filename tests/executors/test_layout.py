"""channels_last is kept between packed convolutions and never visible outside."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor

from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import Prepared, check, prepare
from tests.kernels.test_kernels import IMAGE, conv_args


@pytest.fixture(autouse=True, params=["ours", "oneDNN's"])
def _whose_kernels(request: pytest.FixtureRequest) -> None:
    if request.param != "ours":
        request.getfixturevalue("without_own_kernels")


def packed(prepared: Prepared) -> int:
    return prepared.count("_convolution_pointwise") + prepared.count("torchrlopt.conv")


def conversions(prepared_targets: list[str]) -> int:
    return sum("contiguous" in name or "restride" in name for name in prepared_targets)


def test_no_conversion_between_convolutions() -> None:
    def block(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = F.relu(F.conv2d(x, w, b, padding=1))
        y = torch.cat([F.max_pool2d(y, 3, 1, 1)[:, :8], F.avg_pool2d(y, 3, 1, 1)[:, 8:]], 1)
        y = F.conv2d(y * y.mean((2, 3), keepdim=True), w, b, padding=1)
        return F.relu(y) + F.interpolate(F.adaptive_avg_pool2d(y, 7), scale_factor=2)

    prepared = check(block, conv_args(out=16), static=[1, 2])
    assert packed(prepared) == 2
    assert conversions(prepared.targets) == 2  # the input's and the output's


def test_one_conversion_for_several_readers() -> None:
    x, w, b = conv_args()
    prepared = check(
        lambda x, w, b, v: (F.conv2d(x, w, b), F.conv2d(x, v)), [x, w, b, w + 1], static=[1, 2, 3]
    )
    assert prepared.count("contiguous") == 1


def test_odd_operand_is_converted() -> None:
    args = [*conv_args(out=16), rand(*IMAGE)]
    prepared = check(lambda x, w, b, z: torch.tanh(F.conv2d(x, w, b, padding=1)) * z, args, static=[1, 2])
    assert prepared.count("contiguous") == 2


OUTPUTS: dict[str, Callable[[Tensor], object]] = {
    "itself": lambda y: y,
    "transpose": lambda y: y.transpose(1, 3),
    "flatten": lambda y: y.flatten(1),
    "view_of_channels": lambda y: y.view(y.shape[0], 4, 6, 12, 12),
    "tokens": lambda y: y.flatten(2).transpose(1, 2),
    "slice": lambda y: y[:, 3:9:2, :, 1:],
    "expand": lambda y: y[:, :1].expand(-1, 5, -1, -1),
    "split": lambda y: y.split([4, 20], 1),
    "twice": lambda y: (y, y, y.view(-1)),
    "view_and_base": lambda y: (y.relu(), y.relu().permute(2, 3, 0, 1)),
    "reductions": lambda y: (y.sum(1), y.mean((2, 3)), y.amax(3, keepdim=True), y.argmax(1)),
    "softmax": lambda y: y.softmax(1),
    "cumsum": lambda y: y.cumsum(2),
    "tokens_with_class": lambda y: F.layer_norm(torch.cat([y.flatten(2).transpose(1, 2)] * 2, 1), [24]),
    "as_strided": lambda y: y.as_strided((5, 7), (3, 2), 1),
    "sort": lambda y: torch.sort(y, dim=1),
    "norm": lambda y: torch.linalg.vector_norm(y, dim=1),
    "group_norm": lambda y: F.group_norm(y, 4),
    "pixel_shuffle": lambda y: F.pixel_shuffle(y, 2),
    "pad": lambda y: F.pad(y, (1, 2, 0, 3)),
    "broadcast_with_larger": lambda y: y[:, :1, :1, :1] + torch.ones(2, 3, 5, 7),
    "where": lambda y: torch.where(y > 0, y, y.mean((2, 3), keepdim=True)),
    "other_dtype": lambda y: (y > 0, y.to(torch.float64), y.int()),
    "bits": lambda y: y.abs().ceil().view(torch.int16),
    "pool_with_places": lambda y: F.max_pool2d(y, 2, return_indices=True),
    "residual_with_an_expanded_view": lambda y: F.relu(y[:, :, :1, :1].expand_as(y)) + y,
    "unbind": lambda y: y.unbind(1)[3],
    "clone": lambda y: (y.clone(), y.clone(memory_format=torch.contiguous_format)),
    "copy_of_channels_last": lambda y: y.contiguous(memory_format=torch.channels_last) * 2,
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_keep_their_strides(name: str) -> None:
    read = OUTPUTS[name]
    prepared = check(lambda x, w, b: read(F.conv2d(x, w, b)), conv_args(), static=[1, 2])
    assert packed(prepared) == 1


@pytest.mark.parametrize("name", ["itself", "tokens", "reductions", "slice", "twice"])
def test_outputs_keep_their_strides_at_symbolic_sizes(name: str) -> None:
    read = OUTPUTS[name]
    prepared = check(lambda x, w, b: read(F.conv2d(x, w, b)), conv_args(), static=[1, 2], dynamic=True)
    assert packed(prepared) == 1


def test_a_norm_of_groups_is_given_memory_without_gaps() -> None:
    """It takes channels_last, but not some channels of an image in it: the pixels of these are apart."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        left, right = F.conv2d(x, w).split([8, 16], dim=1)
        norm = torch.ops.aten.native_group_norm.default
        return norm(left, None, None, 1, 8, 30, 2, 1e-5)[0] + right[:, :8]

    check(function, [rand(1, 8, 5, 6), rand(24, 8, 1, 1)], static=[1])


def test_outputs_of_one_memory_share_it() -> None:
    prepared = prepare(lambda x, w: (y := F.conv2d(x, w), y.view(-1)), conv_args()[:2], static=[1])
    whole, flat = prepared.run(*conv_args()[:2])
    assert whole.data_ptr() == flat.data_ptr()


def test_view_of_an_input_stays_one() -> None:
    args = conv_args(out=16)
    prepared = prepare(lambda x, w, b: (F.conv2d(x, w, b), x.view(-1)), args, static=[1, 2])
    assert prepared.run(*args)[1].data_ptr() == args[0].data_ptr()


STEPS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "conv": lambda y, x, w: F.conv2d(y, w, padding=1),
    "residual": lambda y, x, w: F.conv2d(y, w, padding=1) + x,
    "relu": lambda y, x, w: F.relu(y),
    "silu": lambda y, x, w: F.silu(y),
    "add_input": lambda y, x, w: y + x,
    "residual_of_expanded": lambda y, x, w: F.conv2d(y, w, padding=1) + y[:, :, :1, :].expand_as(y),
    "residual_of_turned": lambda y, x, w: F.conv2d(y, w, padding=1) + y.transpose(2, 3),
    "add_itself": lambda y, x, w: y + y,
    "gate": lambda y, x, w: y * torch.sigmoid(y.mean((2, 3), keepdim=True)),
    "pool": lambda y, x, w: F.max_pool2d(y, 3, 1, 1),
    "halves": lambda y, x, w: torch.cat([y[:, 8:], F.relu(y[:, :8])], 1),
    "turn": lambda y, x, w: y.transpose(2, 3),
    "tokens": lambda y, x, w: y.flatten(2).transpose(1, 2).softmax(-1).transpose(1, 2).reshape(y.shape),
    "linear": lambda y, x, w: (y.reshape(-1, 14) @ w.reshape(16, 144)[:14, :14]).view(y.shape),
    "shuffle": lambda y, x, w: y.view(y.shape[0], 2, 8, 14, 14).transpose(1, 2).reshape(y.shape),
}


@given(steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=7), keep=st.integers(0, 6))
@settings(max_examples=60)
def test_random_networks(steps: list[str], keep: int) -> None:
    """Numbers and strides of every network of these steps, an intermediate returned besides."""

    def network(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        values = [F.conv2d(x, w, padding=1)]
        for step in steps:
            values.append(STEPS[step](values[-1], x, w))
        return values[min(keep, len(steps))], values[-1]

    check(network, [rand(*IMAGE), weight(16, 16, 3, 3)], static=[1])


def test_prelu_keeps_the_layout() -> None:
    args = [weight(2, 16, 9, 9), weight(16, 16, 3, 3), rand(16)]
    prepared = check(lambda x, w, a: F.conv2d(F.prelu(F.conv2d(x, w), a), w), args, static=[1, 2])
    assert packed(prepared) == 2
    assert conversions(prepared.targets) == 2  # of the input and of the output
