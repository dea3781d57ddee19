"""The split into a weights-only part and the rest; cached memory is never returned to the caller."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.image_cases import rand, weight
from tests.kernels.kernel_cases import check, prepare
from tests.kernels.test_kernels import conv_args
from torchrlopt.executors.eager.kernels import indirect


def test_expressions_over_weights_leave_the_main_part() -> None:
    def network(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return x @ torch.cat([w.t() * 2, v.t()], 1).relu()

    prepared = check(network, [rand(4, 8), weight(8, 8), weight(8, 8)], static=[1, 2])
    assert len(prepared.targets) == 1  # of ours or of ATen
    assert prepared.split.weights == (1, 2)
    assert prepared.split.inputs == (0,)


@pytest.mark.usefixtures("without_own_kernels")
def test_raw_weights_that_are_packed_are_no_arguments_of_the_main_part() -> None:
    prepared = check(lambda x, w, b: F.conv2d(x, w, b), conv_args(), static=[1, 2])
    assert prepared.split.inputs == (0, 2)


@pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")
def test_a_bias_that_is_packed_too_is_none() -> None:
    prepared = check(lambda x, w, b: F.conv2d(x, w, b), conv_args(), static=[1, 2])
    assert prepared.split.inputs == (0,)


def test_projections_cross_the_border_one_by_one() -> None:
    def network(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        first, second = w.split([3, 5])
        values, _ = torch.max(second, 0)
        return x @ first.t(), x * values

    check(network, [rand(4, 8), weight(8, 8)], static=[1])


def test_random_numbers_are_drawn_at_every_call() -> None:
    prepared = prepare(
        lambda x, w: x + torch.bernoulli(w), [rand(64, 64), torch.full((64, 64), 0.5)], static=[1]
    )
    args = [rand(64, 64), torch.full((64, 64), 0.5)]
    assert prepared.split.weights == ()
    assert not torch.equal(prepared.run(*args)[0], prepared.run(*args)[0])


@pytest.mark.parametrize("form", ["whole", "view", "expanded"])
def test_outputs_over_weights_are_made_at_every_call(form: str) -> None:
    """The caller may write to an output; a kept value would be spoilt for the next call."""

    def network(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        folded = w * 2
        return x @ folded, {"whole": folded, "view": folded.t()[1:], "expanded": folded.expand(3, 8, 8)}[form]

    args = [rand(4, 8), weight(8, 8)]
    prepared = check(network, args, static=[1])
    kept = prepared.split.prologue(*[args[n] for n in prepared.split.weights])
    product, out = prepared.split.main(*[args[n] for n in prepared.split.inputs], *kept)
    out.zero_()
    again, _ = prepared.split.main(*[args[n] for n in prepared.split.inputs], *kept)
    assert torch.equal(product, again)


def test_weight_as_an_output_is_the_weight() -> None:
    args = [rand(4, 8), weight(8, 8)]
    prepared = prepare(lambda x, w: (x @ w, w), args, static=[1])
    assert prepared.run(*args)[1] is args[1]
