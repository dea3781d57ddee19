"""Detecting tensors that share memory."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

import torchrlopt
from torchrlopt.capture.sharing import any_overlap, overlaps


def views(draw: random.Random) -> list[torch.Tensor]:
    """Random views of one matrix."""
    base, found = torch.zeros(6, 8), []
    for _ in range(6):
        start, step = draw.randrange(4), draw.choice([1, 2, 3])
        view = draw.choice([base, base.t()])[start::step, draw.randrange(3) : 5 : draw.choice([1, 2])]
        found.append(draw.choice([view, view.select(0, 0), view[None].expand(3, *view.shape)]))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_overlap_is_what_writing_shows(seed: int) -> None:
    for a, b in itertools.combinations(views(random.Random(seed)), 2):
        storage = torch.zeros(48)
        for index in itertools.product(*map(range, a.shape)):
            storage[a.storage_offset() + sum(i * s for i, s in zip(index, a.stride(), strict=True))] = 1
        seen = storage.as_strided(b.shape, b.stride(), b.storage_offset()).any()
        assert overlaps([a, b], []) == [None, "output 0" if seen else None]
        assert overlaps([b], [a]) == ["input 0" if seen else None]


def test_other_types_of_one_storage() -> None:
    x = torch.zeros(4, dtype=torch.complex64)
    assert overlaps([torch.view_as_real(x)[2:], x[3]], [x[:2]]) == [None, "output 0"]


@pytest.mark.parametrize("executor", ["eager", "onnxruntime"])
def test_rows_of_one_result(executor: str) -> None:
    """The original's are views of one tensor; ours need not be, as they have no element in common."""

    def rows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(x @ x.mT) + 1
        return y[0], y[1], torch.cat([y[0], y[1]])

    fast = torch.compile(
        rows, backend="rlopt", options={"on_error": "raise", "measure": False, "executor": executor}
    )
    x = torch.randn(2, 3, 3)
    for found, expected in zip(fast(x), rows(x), strict=True):
        torch.testing.assert_close(found, expected)
    assert torchrlopt.reports()[-1].kept == "rewritten"


@pytest.mark.parametrize("seed", range(30))
def test_many_at_once_are_what_pairs_are(seed: int) -> None:
    found = [view for view in views(random.Random(seed)) if view.numel() > 0]
    pairs = [(a, b) for (i, a), (j, b) in itertools.combinations(enumerate(found), 2)]
    assert any_overlap(found) == any(map(any_overlap, pairs))
    meta = [torch.empty(48, device="meta").as_strided(x.shape, x.stride(), x.storage_offset()) for x in found]
    assert any_overlap(meta) == any_overlap(found)
