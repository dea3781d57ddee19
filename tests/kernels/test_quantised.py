"""Products and convolutions of a quantised model's integers, compared with float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines the operators
from torch import Tensor

from tests.kernels.kernel_cases import Prepared, prepare
from torchrlopt.errors import WeightsError
from torchrlopt.executors.eager.inventory import inventory
from torchrlopt.executors.eager.kernels import indirect

pytestmark = pytest.mark.skipif(
    not indirect.has_int8(torch.float32), reason="no products of 8-bit integers in this processor"
)

ops = torch.ops.quantized_decomposed
S_IN, Z_IN, S_OUT, Z_OUT = 0.03, 120, 0.05, 7


def dequantised(q: Tensor, scale: float = S_IN, zero: int = Z_IN) -> Tensor:
    return ops.dequantize_per_tensor(q, scale, zero, 0, 255, torch.uint8)


def quantised(x: Tensor) -> Tensor:
    return ops.quantize_per_tensor(x, S_OUT, Z_OUT, 0, 255, torch.uint8)


def rows(q: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    return ops.dequantize_per_channel(q, scales, zeros, 0, -128, 127, torch.int8)


def linear(q: Tensor, w: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor) -> Tensor:
    return torch.nn.functional.linear(dequantised(q), rows(w, scales, zeros), bias)


def convolution(q: Tensor, w: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor) -> Tensor:
    return torch.conv2d(dequantised(q), rows(w, scales, zeros), bias, 2, 1)


def operands(function: Callable[..., Any], zero: int = 0) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    of_images = function is convolution
    q = torch.randint(0, 256, (2, 16, 9, 9) if of_images else (2, 5, 40)).to(torch.uint8)
    w = torch.randint(-128, 128, (24, 16, 3, 3) if of_images else (24, 40)).to(torch.int8)
    return q, w, torch.rand(24) / 100, torch.full((24,), zero), torch.randn(24)


def exact(function: Callable[..., Any], *args: Tensor) -> Tensor:
    """The sums of products in float64."""
    q, w, scales, _, bias = args
    x, scales = (q.double() - Z_IN) * S_IN, scales.double().reshape(-1, *[1] * (w.dim() - 1))
    if function is convolution:
        return torch.conv2d(x, w.double() * scales, bias.double(), 2, 1)
    return torch.nn.functional.linear(x, w.double() * scales, bias.double())


def prepared(function: Callable[..., Any], args: tuple[Tensor, ...], dynamic: bool = False) -> Prepared:
    return prepare(function, args, [1, 2, 3, 4], dynamic, is_real=True)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("base", [linear, convolution])
def test_products_of_integers_are_more_exact_than_those_of_floats(
    base: Callable[..., Any], dynamic: bool
) -> None:
    args = operands(base)
    found = prepared(base, args, dynamic)
    (kernel,) = inventory(found.split.main.graph).packed
    assert kernel == f"{base.__name__} of integers"
    (got,), old, reference = found.run(*args), base(*args), exact(base, *args)
    assert got.stride() == old.stride()
    errors = [(each - reference).square().mean().sqrt() for each in (got, old)]
    assert errors[0] < errors[1]


@pytest.mark.parametrize("base", [linear, convolution])
def test_relu_and_quantisation_are_fused(base: Callable[..., Any]) -> None:
    args = operands(base)
    found = prepared(lambda *args: quantised(base(*args).relu()), args)
    assert inventory(found.split.main.graph).packed == {f"{base.__name__} of integers + relu": 1}
    assert found.count("quantize") == 0
    (got,) = found.run(*args)
    expected = (exact(base, *args).relu() / S_OUT).round().add(Z_OUT).clamp(0, 255)
    assert len(expected.unique()) > 50  # not all are the least, or the largest
    # A number just between two integers may be rounded to either.
    wrong = (got - expected).abs()
    assert wrong.max() <= 1
    assert (wrong > 0).double().mean() < 1e-3


def test_a_result_that_others_read_is_not_quantised_in_place() -> None:
    args = operands(linear)

    def both(*args: Tensor) -> tuple[Tensor, Tensor]:
        y = linear(*args)
        return y, quantised(y)

    found = prepared(both, args)
    y, q = found.run(*args)
    torch.testing.assert_close(y, exact(linear, *args).float(), rtol=1e-6, atol=1e-5)
    assert torch.equal(q, quantised(y))


def test_weights_with_zero_points_are_refused() -> None:
    """The kernel takes them to be symmetric, which only the numbers of each new set of weights tell."""
    args = operands(linear)
    found = prepared(linear, args)
    found.run(*args)
    with pytest.raises(WeightsError, match="does not compute with such weights"):
        found.run(*args[:3], torch.full((24,), 3), args[4])


def test_sums_that_may_overflow_stay_floats() -> None:
    """Of 65,000 products and more in 32 bits."""
    q, w = torch.zeros(1, 66_000, dtype=torch.uint8), torch.ones(24, 66_000, dtype=torch.int8)
    found = prepared(linear, (q, w, *operands(linear)[2:]))
    assert "of integers" not in str(inventory(found.split.main.graph))


@pytest.mark.parametrize(
    "x", [torch.linspace(-9, 9, 500), torch.tensor([torch.inf, -torch.inf, 1e30, 0.125])]
)
def test_quantisation_that_is_left_is_taken_apart(x: Tensor) -> None:
    """And gives the same bits."""

    def there_and_back(x: Tensor) -> tuple[Tensor, Tensor]:
        q = quantised(x)
        return q, dequantised(q)

    found = prepare(there_and_back, (x,), [])
    assert found.count("quantized_decomposed") == 0
    for got, expected in zip(found.run(x), there_and_back(x), strict=True):
        assert torch.equal(got, expected)


def of_signed(q: Tensor, *weights: Tensor) -> Tensor:
    x = ops.dequantize_per_tensor(q.view(torch.int8), S_IN, 0, -128, 127, torch.int8)
    return torch.nn.functional.linear(x, rows(*weights[:3]), weights[3])


def by_columns(q: Tensor, w: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor) -> Tensor:
    of_columns = [torch.cat((each, each))[:40] for each in (scales, zeros)]
    w = ops.dequantize_per_channel(w, *of_columns, 1, -128, 127, torch.int8)
    return torch.nn.functional.linear(dequantised(q), w, bias)


@pytest.mark.parametrize("function", [of_signed, by_columns])
def test_other_operands_stay_floats(function: Callable[..., Any]) -> None:
    args = operands(linear)
    found = prepared(function, args)
    assert "of integers" not in str(inventory(found.split.main.graph))
    torch.testing.assert_close(found.run(*args)[0], function(*args), rtol=1e-4, atol=1e-4)
