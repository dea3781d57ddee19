"""Errors accumulated block by block: torchrlopt/judge/differences.py."""

from __future__ import annotations

import math

import pytest
import torch

from torchrlopt.judge import differences, right
from torchrlopt.judge.differences import blocks


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences, "_BLOCK", 7)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("shape", [(30,), (5, 6), (3, 2, 5), (2, 1, 3, 5), (1, 30), (30, 1)])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_blocks_of_tensors_belong_together(shape: tuple[int, ...], is_transposed: bool) -> None:
    """Whatever their strides: each element is in one block, and no block is large."""
    first = torch.arange(30.0).reshape(shape)
    second = first.clone()
    if is_transposed:
        first = first.movedim(0, -1).contiguous().movedim(-1, 0)
    seen = torch.full(shape, -1.0)
    for place, (one, other) in blocks(first, second):
        assert torch.equal(one, other)
        assert one.dtype is torch.float64
        assert one.numel() <= 7
        assert bool((seen[place] == -1).all())
        seen[place] = one.float()
    assert torch.equal(seen, second)


@pytest.mark.usefixtures("small_blocks")
def test_the_check_sees_what_is_wrong_in_one_block() -> None:
    x = torch.randn(50)
    reference = (x.double() * 3,)
    right.compare(reference, (x * 3,), (x + x + x,))
    for at in (0, 23, 49):
        wrong = x * 3
        wrong[at] += 0.1
        with pytest.raises(right.VerificationError, match="other numbers"):
            right.compare(reference, (x * 3,), (wrong,))
        wrong[at] = math.inf
        with pytest.raises(right.VerificationError, match="infinite"):
            right.compare(reference, (x * 3,), (wrong,))
