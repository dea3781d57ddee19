"""Packed convolutions and linears: chosen where they should be, correct everywhere, refused elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import check, compare, prepare
from torchrlopt.executors.eager.kernels import packing

CONVOLUTION = "_convolution_pointwise.default"
RESIDUAL = "_convolution_pointwise.binary"
LINEAR = "_linear_pointwise"

IMAGE = (2, 16, 14, 14)


pytestmark = pytest.mark.usefixtures("without_own_kernels")  # test_indirect.py is about these


def conv_args(
    out: int = 24, kernel: int = 3, image: tuple[int, ...] = IMAGE, groups: int = 1
) -> list[Tensor]:
    return [rand(*image), weight(out, image[1] // groups, kernel, kernel), rand(out)]


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize(
    "window",
    [
        {"padding": 1},
        {"stride": 2, "padding": 1},
        {"dilation": 2, "padding": 2},
        {"padding": (0, 1), "stride": (1, 2)},
        {"groups": 4, "padding": 1},
        {"groups": 16, "padding": 1},
    ],
)
def test_convolution_is_packed(window: dict[str, Any], batch: int) -> None:
    groups = window.get("groups", 1)
    args = conv_args(out=32, image=(batch, 16, 60, 27), groups=groups)
    prepared = check(lambda x, w, b: F.conv2d(x, w, b, **window), args, static=[1, 2])
    assert prepared.count(CONVOLUTION) == 1


def test_convolution_without_bias() -> None:
    prepared = check(lambda x, w: F.conv2d(x, w), [weight(8, 16, 2, 1), weight(32, 16, 1, 1)], static=[1])
    assert prepared.count(CONVOLUTION) == 1


def test_three_dimensional_convolution() -> None:
    args = [rand(2, 8, 6, 7, 8), weight(12, 8, 3, 3, 3), rand(12)]
    prepared = check(lambda x, w, b: F.conv3d(x, w, b, padding=1), args, static=[1, 2])
    assert prepared.count(CONVOLUTION) == 1


@pytest.mark.parametrize(("groups", "stride", "extra"), [(1, 1, 0), (1, 2, 0), (1, 2, 1), (2, 2, 1)])
def test_transposed_convolution(groups: int, stride: int, extra: int) -> None:
    args = [rand(2, 8, 5, 6), weight(8, 6, 3, 3), rand(6 * groups)]
    prepared = check(
        lambda x, w, b: F.relu(F.conv_transpose2d(x, w, b, stride, 1, extra, groups)), args, static=[1, 2]
    )
    # The packed kernel is slow if the stride does not divide the size of the result.
    assert prepared.count("_convolution_transpose_pointwise") == ((stride, extra) != (2, 0))


def test_transposed_convolution_of_a_large_stride() -> None:
    args = [rand(1, 32, 2, 20), weight(32, 8, 2, 2)]
    check(lambda x, w: F.conv_transpose2d(x, w, None, (2, 4096)), args, static=[1])


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 here")
def test_bfloat16_is_packed() -> None:
    args = [arg.bfloat16() for arg in conv_args()]
    prepared = check(lambda x, w, b: F.silu(F.conv2d(x, w, b)), args, static=[1, 2])
    assert prepared.count(CONVOLUTION) == 1
    assert prepared.count("silu") == 0


@pytest.mark.parametrize("layout", ["channels_last", "strided", "expanded"])
def test_input_layouts(layout: str) -> None:
    x, w, b = conv_args()
    if layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    elif layout == "strided":
        x = rand(2, 16, 14, 28)[..., ::2]
    else:
        x = rand(1, 16, 14, 14).expand(2, -1, -1, -1)
    check(lambda x, w, b: F.relu(F.conv2d(x, w, b)), [x, w, b], static=[1, 2])


FUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "silu_written_out": lambda x: x * torch.sigmoid(x),
    "silu_turned": lambda x: torch.sigmoid(x) * x,
    "hardswish": F.hardswish,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
SEPARATE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardsigmoid": F.hardsigmoid,
    "gelu": F.gelu,
    "clamp": lambda x: x.clamp(-0.5, 2),
    "elu": F.elu,
    "mish": F.mish,
}


@pytest.mark.parametrize("name", FUSED)
def test_activation_is_fused(name: str) -> None:
    act = FUSED[name]
    prepared = check(lambda x, w, b: act(F.conv2d(x, w, b)), conv_args(), static=[1, 2])
    assert len(prepared.targets) == 3  # to channels_last, the convolution, back
    args = [rand(64, 512), weight(512, 512), rand(512)]
    prepared = check(lambda x, w, b: act(F.linear(x, w, b)), args, static=[1, 2])
    assert len(prepared.targets) == 1


@pytest.mark.parametrize("name", [*FUSED, *SEPARATE])
def test_activation_keeps_nan_and_infinity(name: str) -> None:
    act = (FUSED | SEPARATE)[name]
    special = torch.tensor([float("nan"), float("inf"), float("-inf"), -0.0, 1e-41, -100.0, 100.0, 3.0])
    # A single input channel of ones: the convolution hands its input on, and no inf meets a zero.
    image = special.repeat(2, 1, 64, 2)
    args = [image, torch.ones(24, 1, 1, 1)]
    prepared = prepare(lambda x, w: act(F.conv2d(x, w)), args, static=[1])
    assert prepared.count(CONVOLUTION) == 1
    (got,) = prepared.run(*args)
    torch.testing.assert_close(got, act(image.expand(-1, 24, -1, -1)), equal_nan=True, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("turned", [False, True])
def test_residual_is_fused(turned: bool) -> None:
    def block(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = F.conv2d(x, w, b, padding=1)
        return F.relu(x + y if turned else y + x)

    prepared = check(block, conv_args(out=16), static=[1, 2])
    assert prepared.count(RESIDUAL) == 1
    assert prepared.count("aten.add") == 0


@pytest.mark.parametrize(
    "join",
    [
        lambda y, z: y + z[:1, :, :1, :1],
        lambda y, z: torch.add(y, z, alpha=2),
        lambda y, z: y + y,
        lambda y, z: y + 1.5,
        lambda y, z: y + z.double(),
        lambda y, z: (y + z) * y,
        lambda y, z: y[:1] + z,
    ],
    ids=["broadcast", "scaled", "itself", "number", "other_dtype", "second_reader", "through_a_view"],
)
def test_residual_is_refused(join: Callable[[Tensor, Tensor], Tensor]) -> None:
    args = [*conv_args(out=16), rand(*IMAGE)]
    prepared = check(lambda x, w, b, z: join(F.conv2d(x, w, b, padding=1), z), args, static=[1, 2])
    assert (prepared.count(RESIDUAL), prepared.count(CONVOLUTION)) == (0, 1)


def test_one_weight_is_packed_once() -> None:
    prepared = check(
        lambda x, w, b: F.conv2d(F.conv2d(x, w, b, padding=1), w, b, padding=1),
        conv_args(out=16),
        static=[1, 2],
    )
    prologue = prepared.split.prologue.graph
    assert len(prologue.find_nodes(op="call_function", target=packing.PACK_CONVOLUTION)) == 1


@pytest.mark.parametrize("rows", [(), (1,), (0,), (64,), (2, 32), (2, 0, 3)])
@pytest.mark.parametrize("form", ["linear", "linear_bias", "matmul", "matmul_bias", "matmul_of_transpose"])
def test_linear(form: str, rows: tuple[int, ...]) -> None:
    forms: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        "linear": lambda x, w, b: F.linear(x, w),
        "linear_bias": lambda x, w, b: F.linear(x, w, b),
        "matmul": lambda x, w, b: x @ w,
        "matmul_bias": lambda x, w, b: torch.tanh(x @ w + b),
        "matmul_of_transpose": lambda x, w, b: b + x @ w.t(),
    }
    check(forms[form], [rand(*rows, 768), weight(768, 768), rand(768)], static=[1, 2])


@pytest.mark.parametrize("along", [1, -1, 0])
def test_joined_transposes_are_joined_as_they_lie(along: int) -> None:
    """No element of a merged projection is moved more often than the join and the packing need."""
    args = [rand(64, 512), weight(512, 512), weight(512, 512)]
    columns = args if along else [rand(64, 1024), *args[1:]]
    prepared = check(lambda x, q, k: x @ torch.cat([q.t(), k.t()], along), columns, static=[1, 2])
    assert prepared.count(LINEAR) == 1
    prologue = prepared.split.prologue
    assert [node.target for node in prologue.graph.nodes if node.op == "call_function"] == [
        torch.ops.aten.cat.default,
        packing.PACK_LINEAR,
    ]
    if along:  # one of the two is no transpose
        other = check(lambda x, q, k: x @ torch.cat([q.t(), k], along), columns, static=[1, 2])
        assert other.count(LINEAR) == 1


def test_linear_takes_its_reshapes_along() -> None:
    args = [rand(2, 32, 512), weight(768, 512), rand(768)]
    prepared = check(lambda x, w, b: F.linear(x, w, b), args, static=[1, 2])
    assert prepared.targets == [f"mkldnn.{LINEAR}.default"]
    prepared = check(lambda x, w, b: F.linear(x, w, b), args, static=[1, 2], dynamic=True)
    assert prepared.count("view") == 0


@pytest.mark.parametrize("dynamic", [False, True])
def test_product_that_is_written_with_an_expanded_weight(dynamic: bool) -> None:
    args = [rand(2, 512, 7, 9), weight(512, 512)]
    prepared = check(lambda x, w: x.flatten(2).transpose(1, 2) @ w, args, static=[1], dynamic=dynamic)
    assert (prepared.count(LINEAR), prepared.count("bmm")) == (1, 0)


@pytest.mark.parametrize("shape", [(32, 512), (64, 1), (1,)])
def test_sum_that_is_no_bias_is_not_taken_for_one(shape: tuple[int, ...]) -> None:
    args = (
        [rand(64, 512), weight(512, 512), rand(*shape)]
        if shape != (32, 512)
        else [rand(32, 512), weight(512, 512), rand(*shape)]
    )
    prepared = check(lambda x, w, b: x @ w + b, args, static=[1])
    assert (prepared.count(LINEAR), prepared.count("aten.add")) == (1, 1)


@pytest.mark.parametrize("scale", [{"alpha": 2}, {"beta": 0.5}])
def test_scaled_product_stays(scale: dict[str, float]) -> None:
    args = [rand(64, 512), weight(512, 512), rand(512)]
    prepared = check(lambda x, w, b: torch.addmm(b, x, w, **scale), args, static=[1, 2])
    assert prepared.count(LINEAR) == 0


def test_empty_weights_stay() -> None:
    check(lambda x, w: x @ w, [weight(512, 0), weight(0, 512)], static=[1])
    check(lambda x, w: x @ w, [rand(64, 512), weight(512, 0)], static=[1])


def test_symbolic_sizes() -> None:
    def network(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
        y = F.hardswish(F.conv2d(x, w, b, padding=1))
        y = F.max_pool2d(y + y.mean((2, 3), keepdim=True), 2)
        return (y.flatten(2).transpose(1, 2) @ v).softmax(-1)

    weights = [weight(24, 16, 3, 3), rand(24), weight(24, 8192)]
    prepared = check(network, [rand(2, 16, 12, 10), *weights], static=[1, 2, 3], dynamic=True)
    assert (prepared.count(CONVOLUTION), prepared.count(LINEAR)) == (1, 1)
    assert prepared.count("aten.contiguous") == 1  # to channels_last; the output's strides are unique


def test_symbolic_sizes_run_at_other_sizes() -> None:
    """Sizes of a graph without sizes in it may change from call to call."""

    def network(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        y = F.relu(F.conv2d(x, w, b, padding=1))
        return y, F.relu(y.transpose(2, 3))

    weights = [weight(24, 16, 3, 3), rand(24)]
    prepared = prepare(network, [rand(2, 16, 12, 10), *weights], static=[1, 2], dynamic=True)
    for shape in [(2, 16, 12, 10), (3, 16, 9, 20), (5, 16, 40, 4)]:
        compare(network, [rand(*shape), *weights], prepared)
