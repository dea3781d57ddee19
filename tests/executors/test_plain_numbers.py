"""NaN, infinities and booleans in the runtimes that run ONNX models."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.e2e.models import RUNTIMES, compiled, last_report
from torchrlopt.executors.onnx_runtimes.plain_numbers import are_plain

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, -2.0], True),
        ([], True),
        ([1.0, NAN], False),
        ([1.0, INF], False),
        ([INF, -INF, 2.0], False),
        ([0.0, -INF, 0.0], True),  # a mask
        ([-INF, -INF], False),
        ([0.0, INF], False),
        ([0.0, -INF, NAN], False),
        ([6e4, 6e4, 6e4], True),  # in float16 the sum overflows, and they are finite
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_what_is_plain(values: list[float], expected: bool, dtype: torch.dtype) -> None:
    assert are_plain([torch.ones(2), torch.tensor(values, dtype=dtype)]) is expected


@pytest.mark.parametrize("count", [1, 7, 8, 33, 64, 65, 200, 1000])
def test_every_element_is_seen(count: int) -> None:
    x = torch.full((count,), 3e38)
    x[::2] = -1e-45
    assert are_plain([x])
    assert are_plain([x.view(-1, 1).expand(-1, 3)])
    for at in {0, 1, count // 2, count - 2, count - 1} & set(range(count)):
        for value in (NAN, INF, -INF):
            kept = x[at].item()
            x[at] = value
            # What is minus infinity and zero else is a mask, also where it has one element.
            assert not are_plain([x, torch.ones(1)])
            assert not are_plain([torch.nn.Parameter(x)])
            assert not are_plain([x.flip(0).flip(0)[None].expand(2, -1)])
            x[at] = kept


def test_integers_are_plain() -> None:
    assert are_plain([torch.arange(3), torch.tensor([True])])


class Clipped(nn.Module):
    """A product and what loses NaN in one runtime or another."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.linear(x)
        return F.relu(y), y.clamp(min=-1.0), y.clamp(max=1.0), F.gelu(y), F.max_pool1d(x[None], 2)


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("executor", RUNTIMES)
def test_nan_and_infinities_stay_where_pytorch_has_them(executor: str) -> None:
    torch.manual_seed(0)
    model = Clipped().eval()
    run = compiled(model, executor=executor)
    x = torch.randn(3, 6)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x))
        assert last_report().kept == "rewritten"
        for value in (NAN, INF, -INF):
            spoilt = x.clone()
            spoilt[1, 2] = value
            torch.testing.assert_close(run(spoilt), model(spoilt), equal_nan=True)
            weight = model.linear.bias[3].item()
            model.linear.bias[3] = value
            torch.testing.assert_close(run(x), model(x), equal_nan=True)
            model.linear.bias[3] = weight
        torch.testing.assert_close(run(x), model(x))


class Negated(nn.Module):
    """A weight that is a view of negated numbers.

    Args:
        outputs: of each row.
    """

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.complex(torch.ones(8), torch.arange(8.0)).conj().imag)
        self.linear = nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x * self.scale)
        return out


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("outputs", [8, 40_000])
@pytest.mark.parametrize("executor", RUNTIMES)
def test_views_of_negated_numbers(executor: str, outputs: int) -> None:
    model = Negated(outputs).eval()
    assert model.scale.is_neg()
    run = compiled(model, executor=executor)
    x = torch.randn(4, 8)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x))
        assert last_report().kept == "rewritten"
        negated = torch._neg_view(x)
        torch.testing.assert_close(run(negated), model(negated))


class Chosen(nn.Module):
    """Booleans as input, weight and output."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([True, False, True, True]))

    def forward(self, x: Tensor, keep: Tensor) -> tuple[Any, ...]:
        return torch.where(self.mask & keep, x, -x), (x > 0) & keep


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("executor", RUNTIMES)
@pytest.mark.parametrize("rows", [3, 1 << 14])  # small outputs are copied, large ones shared
def test_booleans_go_in_and_come_out(rows: int, executor: str) -> None:
    model = Chosen().eval()
    run = compiled(model, executor=executor)
    torch.manual_seed(0)
    with torch.no_grad():
        for _ in range(2):
            x, keep = torch.randn(rows, 4), torch.rand(rows, 4) > 0.5
            torch.testing.assert_close(run(x, keep), model(x, keep))
    assert last_report().kept == "rewritten"
