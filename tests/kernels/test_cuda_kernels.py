"""The eager executor's treatment of CUDA graphs: checked on fake tensors, run on the CPU with stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.executors.cuda_cases import ADD_RELU, IMAGE, RELU, check, lowered, targets
from torchrlopt.executors.eager.inventory import inventory
from torchrlopt.executors.eager.kernels import cudnn
from torchrlopt.executors.eager.kernels.cublas import linear_activation

aten = torch.ops.aten
Asked = list[tuple[Any, ...]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """CuDNN's kernels hand NaN on; returns what was asked."""
    found: Asked = []
    monkeypatch.setattr(cudnn, "hands_nan_on", lambda *args: found.append(args) or True)
    return found


def block(x: torch.Tensor, a: torch.Tensor, bias: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = torch.relu(F.conv2d(x, a, bias, stride=2, padding=3, dilation=1, groups=2))
    return torch.relu(F.conv2d(y, b, bias, padding=1) + 2 * y)


BLOCK = (IMAGE, (8, 4, 3, 3), (8,), (8, 8, 3, 3))


def test_convolutions_take_bias_sum_and_relu_along(asked: Asked) -> None:
    split = check(block, *BLOCK, dtype=torch.float32)
    found = targets(split)
    assert [found.count(target) for target in (RELU, ADD_RELU)] == [1, 1]
    assert torch.relu not in found
    assert asked[0][:3] == (IMAGE, (8, 4, 3, 3), ((2, 2), (3, 3), (1, 1), 2))
    assert [has_residual for *_, has_residual in asked] == [False, True]
    packed = inventory(split.main.graph).packed
    assert packed == {"convolution + relu": 1, "convolution + sum + relu": 1}


def test_a_weight_that_is_read_twice_is_laid_out_once(asked: Asked) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv2d(torch.relu(F.conv2d(x, weight, padding=1)), weight, padding=1)

    split = check(function, IMAGE, (8, 8, 3, 3), dtype=torch.float32)
    layouts = [node for node in split.prologue.graph.nodes if "memory_format" in node.kwargs]
    assert len(layouts) == 1


def test_a_kernel_that_makes_zero_of_nan_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn, "hands_nan_on", lambda *args: False)
    found = targets(check(block, *BLOCK, dtype=torch.float32))
    assert not {RELU, ADD_RELU} & set(found)
    assert torch.convolution in found or aten.convolution.default in found


def test_without_a_device_nothing_is_known_of_nan() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    window = ((1, 1), (0, 0), (1, 1), 1)
    device = torch.device("cuda")
    assert not cudnn.hands_nan_on((1, 8, 4, 4), (8, 8, 1, 1), window, torch.float32, device, False)


@pytest.mark.parametrize(
    ("dtype", "settings", "shape", "is_product"),
    [
        (torch.bfloat16, {}, (12, 8, 1, 1), True),
        (torch.float32, {}, (12, 8, 1, 1), False),  # cuDNN is quicker there
        (torch.bfloat16, {"stride": 2}, (12, 8, 1, 1), False),
        (torch.bfloat16, {"padding": 1}, (12, 8, 1, 1), False),
        (torch.bfloat16, {"groups": 2}, (12, 4, 1, 1), False),
        (torch.bfloat16, {"padding": (0, 1)}, (12, 8, 1, 3), False),
    ],
)
def test_single_pixels_with_a_bias_are_a_product(
    dtype: torch.dtype, settings: dict[str, Any], shape: tuple[int, ...], is_product: bool, asked: Asked
) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.hardswish(F.conv2d(x, weight, bias, **settings))

    split = check(function, IMAGE, shape, (12,), dtype=dtype)
    assert (cudnn.pixel_product in targets(split)) == is_product
    assert ("convolution" in inventory(split.main.graph).packed) == is_product
    assert any("hardswish_" in str(target) for target in targets(split)), "in place"


@pytest.mark.parametrize(
    ("function", "image", "weight"),
    [
        (lambda x, w, b: torch.relu(F.conv2d(x, w, b, groups=8, padding=1)), IMAGE, (8, 1, 3, 3)),
        (lambda x, w, b: torch.relu(F.conv2d(x, w, b, padding=1) + b), (1, 8, 6, 8), (8, 8, 3, 3)),
        (lambda x, w, b: F.conv2d(x, w, b, padding=1).sigmoid(), IMAGE, (8, 8, 3, 3)),
        (lambda x, w, b: torch.relu(F.conv_transpose2d(x, w, b, stride=2)), IMAGE, (8, 8, 3, 3)),
        (lambda x, w, b: torch.relu(F.conv3d(x, w, b)), (1, 8, 5, 6, 7), (8, 8, 3, 3, 3)),
        (lambda x, w, b: torch.relu(F.conv1d(x, w, b)), (1, 8, 9), (8, 8, 3)),
        (lambda x, w, b: (lambda y: torch.relu(y) + y)(F.conv2d(x, w, b)), IMAGE, (8, 8, 3, 3)),
    ],
    ids=["depthwise", "broadcast sum", "sigmoid", "transposed", "3-D", "1-D", "read twice"],
)
def test_what_is_left_to_aten(
    function: Callable[..., Any], image: tuple[int, ...], weight: tuple[int, ...], asked: Asked
) -> None:
    split = check(function, image, weight, (8,), dtype=torch.float32)
    assert not {RELU, ADD_RELU} & set(targets(split))
    assert not asked


def tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


@pytest.mark.parametrize("activation", [torch.relu, tanh_gelu, F.gelu, torch.Tensor.contiguous])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_products_take_bias_and_activation_along(dtype: torch.dtype, activation: Any) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return activation(torch.addmm(bias, x.reshape(-1, 16), weight.t()).reshape(2, 5, 24))

    split = check(function, (2, 5, 16), (24, 16), (24,), dtype=dtype)
    is_fused = dtype is torch.bfloat16 and activation in (torch.relu, tanh_gelu)
    assert targets(split)[0] is (linear_activation if is_fused else torch._C._nn.linear)
    kernel = "linear + relu" if activation is torch.relu else "linear + gelu"
    assert inventory(split.main.graph).packed == ({kernel: 1} if is_fused else {})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_expressions_over_weights_are_no_part_of_a_call(dtype: torch.dtype, asked: Asked) -> None:
    """Also where nothing but views comes between a kernel and the output."""

    def function(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x, a * 2, bias * 3)
        return F.linear(y.mean((2, 3)), torch.cat([b, 2 * b]))

    split = check(function, IMAGE, (8, 8, 1, 1), (5, 8), (8,), dtype=dtype)
    names = [getattr(target, "__name__", str(target)) for target in targets(split)]
    assert not {"cat", "mul", "mul.Tensor", "to", "_to_copy.default"} & set(names)
    out = lowered(lambda x, w, b: F.conv2d(x, w * 2, b), IMAGE, (8, 8, 1, 1), (8,), dtype=torch.bfloat16)
    assert len(targets(out)) <= 3  # a layout, the product, and the strides of the original
    assert cudnn.pixel_product in targets(out)


def test_deterministic_algorithms_are_not_given_up(asked: Asked) -> None:
    with torch.backends.cudnn.flags(enabled=True, deterministic=True):
        check(block, *BLOCK, dtype=torch.float32)
    assert not asked


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("is_nan", [False, True])
def test_the_block_on_a_gpu(dtype: torch.dtype, is_nan: bool) -> None:
    import torchrlopt

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (torch.nn.Conv2d(64, 64, size, padding=size // 2) for size in (3, 1))
            self.c, self.d = torch.nn.Conv2d(64, 64, 1), torch.nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.b(torch.relu(self.a(x))) + x)
            return torch.relu(self.d(F.hardswish(self.c(y)).mean((2, 3))))

    torch.manual_seed(0)
    model = Block().eval().to("cuda", dtype)
    x = torch.randn(2, 64, 14, 14, device="cuda", dtype=dtype)
    torch._dynamo.reset()
    ours = torchrlopt.optimise(model, x, executor="eager", min_gain=-10.0, on_error="raise", cache=False)
    assert ours.report.kept == "rewritten"
    if is_nan:
        x[0, 3, 5, 5] = torch.nan
    with torch.no_grad():
        torch.testing.assert_close(ours(x), model(x), rtol=3e-2, atol=3e-2, equal_nan=True)
        assert bool(torch.isnan(ours(x)[0]).all()) == is_nan
        assert not torch.isnan(ours(x)[1]).any()


@pytest.mark.gpu
@pytest.mark.parametrize("has_residual", [False, True])
def test_some_kernel_of_cudnn_hands_nan_on(has_residual: bool) -> None:
    """In half precision; else nothing would be fused at all."""
    window, device = ((1, 1), (1, 1), (1, 1), 1), torch.device("cuda")
    shapes = ((1, 64, 56, 56), (64, 64, 3, 3))
    assert cudnn.hands_nan_on(*shapes, window, torch.bfloat16, device, has_residual)


@pytest.mark.gpu
@pytest.mark.parametrize("is_gelu", [False, True])
def test_products_with_an_activation_are_atens(is_gelu: bool) -> None:
    torch.manual_seed(0)
    x = 4 * torch.randn(6, 64, device="cuda", dtype=torch.float16)
    weight, bias = (torch.randn(shape, device="cuda", dtype=torch.float16) for shape in ((96, 64), (96,)))
    x[0, 0], x[1, 0], x[2, 0] = torch.nan, torch.inf, -torch.inf
    product = torch.addmm(bias.float(), x.float(), weight.float().t())
    expected = tanh_gelu(product) if is_gelu else torch.relu(product)
    got = linear_activation(x, weight, bias, is_gelu).float()
    torch.testing.assert_close(got, expected, rtol=2e-3, atol=2e-3, equal_nan=True)
