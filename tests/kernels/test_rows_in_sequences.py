"""Row operations between products, in sequences of kernels."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.crosses import nightly_but
from tests.kernels.image_cases import rand
from tests.kernels.kernel_cases import check, gathered_calls, prepare, threads
from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.sequence import Instruction

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")

DTYPES = [dtype for dtype in (torch.float32, torch.bfloat16) if indirect.kernels(dtype) is not None]


def cell(x: Tensor, hidden: Tensor, state: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """An LSTM's, and a product behind it."""
    gates = F.linear(x, a) + F.linear(hidden, b)
    taken, kept, fresh, shown = gates.chunk(4, dim=-1)
    state = F.linear(state, c)
    state = kept.sigmoid() * state + taken.sigmoid() * fresh.tanh()
    return F.linear(shown.sigmoid() * state.tanh(), c)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (16,), (5, 7)])
def test_a_cell_is_one_call(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    inputs = [rand(*shape, 24, seed=seed) for seed in range(3)]
    weights = [rand(96, 24) / 5, rand(96, 24, seed=1) / 5, rand(24, 24, seed=2) / 5]
    args = [each.to(dtype) for each in (*inputs, *weights)]
    prepared = check(cell, args, static=[3, 4, 5])
    assert [name for name in gathered_calls(prepared) if "sequence" in name] == ["sequence_default"]
    assert not any("sigmoid" in name or "mul" in name for name in gathered_calls(prepared))


def random_rows(draw: random.Random) -> tuple[Callable[..., Any], list[Tensor]]:
    """A function of rows and weights, most of which are products and what is done to their results."""
    weights: list[Tensor] = []
    steps: list[Callable[[list[Tensor], list[Tensor]], Tensor]] = []
    widths = [draw.choice([16, 24])]
    for _ in range(draw.randint(5, 20)):
        at = max(draw.randrange(len(widths)) for _ in range(2))
        width = widths[at]
        kind = draw.choice(["linear", "linear", "linear", "split", "act", "pair", "view", "bias", "sort"])
        if kind == "linear" or at == 0 or width < 2:
            out, number = draw.choice([16, 24, 33, 48]), len(weights)
            weights.append(rand(out, width, seed=number) / width**0.5)
            steps.append(lambda v, w, at=at, n=number: F.linear(v[at], w[n]))
            width = out
        elif kind == "split":
            cut, which = draw.randint(1, width - 1), draw.randrange(2)
            sizes = (cut, width - cut)
            steps.append(lambda v, w, at=at, sizes=sizes, n=which: v[at].split(sizes, -1)[n])
            width = sizes[which]
        elif kind == "act":
            act = draw.choice([F.relu, torch.sigmoid, F.silu, F.gelu, torch.tanh, F.hardswish])
            steps.append(lambda v, w, at=at, act=act: act(v[at]))
        elif kind == "pair":
            other = draw.choice([n for n, each in enumerate(widths) if each == width])
            operation = draw.choice([torch.add, torch.mul])
            steps.append(lambda v, w, at=at, other=other, f=operation: f(v[at], v[other]))
        elif kind == "view":  # there and back, so that widths are known
            steps.append(lambda v, w, at=at: F.relu(v[at].reshape(-1, v[at].shape[-1])).view_as(v[at]))
        elif kind == "bias":
            steps.append(lambda v, w, at=at: v[at] + v[at][..., :1])
        else:
            steps.append(lambda v, w, at=at: v[at].sort(-1).values)
        widths.append(width)
    returned = draw.sample(range(1, len(widths)), k=min(len(widths) - 1, draw.randint(1, 3)))

    def function(x: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        values = [x]
        for step in steps:
            values.append(step(values, list(given)))
        return (*(values[at] for at in returned), values[-1])

    shape = draw.choice([(4,), (12,), (2, 6), (4, 3)])
    return function, [rand(*shape, widths[0]), *weights]


@pytest.mark.parametrize("seed", nightly_but(range(30), range(80)))
def test_random_rows(seed: int) -> None:
    draw = random.Random(seed)
    function, args = random_rows(draw)
    with threads(draw.randint(1, 3)):
        prepared = check(function, args, static=range(1, len(args)))
        nodes = [] if prepared.gathered is None else prepared.gathered.graph.nodes
        for node in nodes:
            if hasattr(node.target, "sequence"):
                node.target.sequence.take_images([draw.randint(0, 3) for _ in range(draw.randint(1, 5))])
        prepared.run(*args)  # compares with single calls


def test_rows_that_are_not_equally_far_apart() -> None:
    ours = indirect.kernels()
    assert ours is not None
    tanh = Instruction(
        _C.KERNEL_OPERATIONS.index("pointwise"),
        0,
        numbers=(_C.POINTWISE_OPERATIONS.index("activate"), indirect.EPILOGUES.index("tanh"), 0.0, 0.0, -1),
    )
    sequence = _C.KernelSequence(ours, 1, [tanh], [1])
    whole = rand(3, 24, 16)
    assert sequence(whole[:, :8]) is None
    for even in (whole, whole[..., :8], whole[:, :, 3:5], whole[:1, :8], whole[0, ::3]):
        got = sequence(even)
        torch.testing.assert_close(got, even.tanh())
        assert got.is_contiguous()
    kinds = _C.POINTWISE_OPERATIONS.index("add"), indirect.EPILOGUES.index("none")
    add = tanh._replace(other=1, numbers=(*kinds, 0.0, 0.0, -1))
    sums = _C.KernelSequence(ours, 2, [add], [2])
    torch.testing.assert_close(sums(whole[..., :8], whole[..., 8:]), whole[..., :8] + whole[..., 8:])
    for other in (rand(72, 16), rand(24, 3, 16), rand(3, 24, 1)):
        with pytest.raises(ValueError, match="no such operands"):
            sums(whole, other)


def test_not_a_number_goes_through() -> None:
    def function(x: Tensor, special: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        other = special * 1.5  # made by others
        left, right = F.linear(x, a), F.linear(x, b)
        return (
            torch.tanh(left + other),
            torch.sigmoid(right * other),
            F.silu(other * left),
            F.relu(other + right),
        )

    special = rand(4, 24, seed=1)
    special[0, 0], special[1, 1], special[2, 2] = torch.nan, torch.inf, -torch.inf
    args = [rand(4, 24), special, rand(24, 24) / 5, rand(24, 24, seed=1) / 5]
    prepared = prepare(function, args, static=[2, 3])
    assert [name for name in gathered_calls(prepared) if "sequence" in name] == ["sequence_default"]
    for got, expected in zip(prepared.run(*args), function(*args), strict=True):
        assert 0 < expected.isnan().sum() < 4
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_parameters_and_sizes_that_change() -> None:
    def function(x: Tensor, position: Tensor, a: Tensor, b: Tensor) -> Tensor:
        rows = F.linear(F.relu(F.linear(x, a)), b) + position
        return F.linear(rows * torch.cumsum(x, 0), b)

    weights = [torch.nn.Parameter(each) for each in (rand(6, 24), rand(24, 24) / 5, rand(24, 24, seed=1) / 5)]
    prepared = check(function, [rand(6, 24), *weights], static=[1, 2, 3])
    assert prepared.gathered is not None
    targets = [node.target for node in prepared.gathered.graph.nodes]
    ran = [each.sequence.images_at_a_time() != [] for each in targets if hasattr(each, "sequence")]
    assert ran
    assert all(ran)
    prepared = prepare(
        lambda x, a, b: function(x, x, a, b), [rand(6, 24), *weights[1:]], [1, 2], dynamic=True
    )
    for count in (6, 1, 9):
        x = rand(count, 24)
        expected = function(x, x, *weights[1:])
        torch.testing.assert_close(prepared.run(x, *weights[1:])[0], expected, rtol=1e-4, atol=1e-5)


def test_parts_that_are_not_there_are_refused() -> None:
    ours = indirect.kernels()
    assert ours is not None
    part = Instruction(_C.KERNEL_OPERATIONS.index("slice"), 0, first_channel=9, numbers=(8,))
    with pytest.raises(ValueError, match="no such channels"):
        _C.KernelSequence(ours, 1, [part], [])(rand(4, 16))
    with pytest.raises(ValueError, match="no such channels"):
        _C.KernelSequence(ours, 1, [part], [])(rand(16))
