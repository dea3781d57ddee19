"""Kernels that are correct only for finite operands, and their guards."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from tests.kernels.kernel_cases import compare, prepare
from torchrlopt.executors.eager.executor import EagerCallable, assemble
from torchrlopt.executors.eager.guard import are_finite
from torchrlopt.executors.eager.kernels import packing
from torchrlopt.executors.eager.kernels.epilogues import fused_if_finite
from torchrlopt.options import LoweringOptions

pytestmark = [
    pytest.mark.skipif(
        not packing.can_pack(torch.ones(1)), reason="this build of PyTorch has no oneDNN kernels"
    ),
    pytest.mark.usefixtures("without_own_kernels"),  # which are right for every operand
]

NAN, INF = float("nan"), float("inf")


def assembled(function: Callable[..., Any], args: Sequence[Tensor], static: Sequence[int]) -> EagerCallable:
    fakes = FakeTensorMode()
    with torch.no_grad(), fakes:
        module = make_fx(lambda *given: (function(*given),))(*[fakes.from_tensor(arg) for arg in args])
    names = [node.name for node in module.graph.find_nodes(op="placeholder")]
    return assemble(module, {names[position] for position in static}, LoweringOptions())


def num_fused(call: EagerCallable) -> int:
    return len(fused_if_finite(call.main.graph))


def image(seed: int = 0) -> Tensor:
    return torch.randn(1, 16, 32, 32, generator=torch.Generator().manual_seed(seed))


def weights(out: int = 24, into: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(out, into, 3, 3, generator=generator), torch.randn(out, generator=generator)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "clamp": lambda x: x.clamp(-0.5, 2.0),
    "hardsigmoid": F.hardsigmoid,
    "gelu": F.gelu,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("place", ["input", "weight", "bias"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_values_that_are_not_finite_come_out_as_in_eager(name: str, place: str, value: float) -> None:
    if name == "gelu" and math.isinf(value):
        pytest.skip("what ATen's gelu makes of an infinity depends on the layout")
    w, b = weights()
    function = lambda x, w, b: ACTIVATIONS[name](F.conv2d(x, w, b))  # noqa: E731
    args = [image(), w, b]
    call = assembled(function, args, [1, 2])
    assert num_fused(call) == 1
    torch.testing.assert_close(call(*args)[0], function(*args), atol=2e-5, rtol=2e-5)
    spoilt = {"input": args[0], "weight": args[1], "bias": args[2]}[place]
    kept = spoilt.clone()
    spoilt.view(-1)[5] = value
    torch.testing.assert_close(call(*args)[0], function(*args), atol=2e-5, rtol=2e-5, equal_nan=True)
    spoilt.copy_(kept)
    torch.testing.assert_close(call(*args)[0], function(*args), atol=2e-5, rtol=2e-5)


def test_a_residual_sum_and_its_relu_become_one_call() -> None:
    w, b = weights(16)
    function = lambda x, w, b: F.relu(x + F.conv2d(x, w, b, padding=1))  # noqa: E731
    args = [image(), w, b]
    call = assembled(function, args, [1, 2])
    assert num_fused(call) == 1
    args[0][0, 3, 4, 5] = NAN
    got, expected = call(*args)[0], function(*args)
    assert expected.isnan().any()
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-5, equal_nan=True)


def test_a_folded_weight_that_is_not_finite_counts() -> None:
    w, b = weights()
    variance = torch.ones(24)
    function = lambda x, w, b, v: F.relu(F.conv2d(x, w / v.sqrt()[:, None, None, None], b))  # noqa: E731
    args = [image(), w, b, variance]
    call = assembled(function, args, [1, 2, 3])
    assert num_fused(call) == 1
    variance[3] = -1.0  # finite itself; its root is not
    got, expected = call(*args)[0], function(*args)
    assert expected.isnan().any()
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-5, equal_nan=True)


@pytest.mark.parametrize(
    "before",
    [
        lambda x: x / x.abs().amax(),
        lambda x: x.log(),
        lambda x: x.masked_fill(x > 1, -INF),
        lambda x: x + torch.full((32,), INF),
        lambda x: x**0.5,
    ],
    ids=["quotient", "logarithm", "masked", "constant", "power"],
)
def test_nothing_is_fused_behind_what_may_leave_the_reals(before: Callable[[Tensor], Tensor]) -> None:
    w, b = weights()
    function = lambda x, w, b: F.relu(F.conv2d(before(x), w, b))  # noqa: E731
    assert num_fused(assembled(function, [image(), w, b], [1, 2])) == 0


def test_strict_numerics_and_live_weights_fuse_nothing() -> None:
    w, b = weights()
    prepared = prepare(lambda x, w, b: F.relu(F.conv2d(x, w, b)), [image(), w, b], [1, 2])
    assert prepared.count("relu") == 1
    compare(lambda x, w, b: F.relu(F.conv2d(x, w, b)), [image(), w, b], prepared)


def test_finite_sums() -> None:
    assert are_finite([torch.ones(3), torch.arange(3), 7])
    assert not are_finite([torch.ones(3), torch.tensor([1.0, NAN])])
    assert not are_finite([torch.tensor([1.0, INF], dtype=torch.bfloat16)])
    assert are_finite([torch.full((70000,), 60000.0, dtype=torch.float16)])
