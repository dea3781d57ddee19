"""Errors that are added up piece by piece: torchrlopt/compile/differences.py."""

from __future__ import annotations

import math

import pytest
import torch

from torchrlopt.compile import check, differences
from torchrlopt.compile.differences import Errors, pieces


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences, "_PIECE", 7)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("is_transposed", [False, True])
def test_pieces_of_tensors_belong_together(is_transposed: bool) -> None:
    """Whatever their strides."""
    first = torch.arange(30.0).reshape(5, 6)
    second = first.t().contiguous().t() if is_transposed else first.clone()
    found = list(pieces(first, second))
    assert [len(one) for one, _ in found] == [7, 7, 7, 7, 2]
    assert all(torch.equal(one, other) for one, other in found)
    assert found[0][0].dtype is torch.float64
    assert list(pieces(torch.empty(0, 3))) == []
    assert [len(one) for (one,) in pieces(torch.tensor(3.0))] == [1]


@pytest.mark.usefixtures("small_pieces")
def test_errors_are_those_of_the_whole() -> None:
    error = torch.randn(50, dtype=torch.float64).abs()
    found = Errors()
    for (piece,) in pieces(error):
        found.add(piece)
    assert found.count == 50
    assert found.rmse == pytest.approx(float(error.square().mean().sqrt()))
    assert found.largest == float(error.max())
    assert Errors().rmse == 0.0


def test_nan_stays() -> None:
    found = Errors()
    for each in (math.nan, 1.0):
        found.add(torch.tensor([each]))
    assert math.isnan(found.rmse)


@pytest.mark.usefixtures("small_pieces")
def test_the_check_sees_what_is_wrong_in_one_piece() -> None:
    x = torch.randn(50)
    reference = (x.double() * 3,)
    check.compare(reference, (x * 3,), (x + x + x,))
    for at in (0, 23, 49):
        wrong = x * 3
        wrong[at] += 0.1
        with pytest.raises(check.VerificationError, match="other numbers"):
            check.compare(reference, (x * 3,), (wrong,))
        wrong[at] = math.inf
        with pytest.raises(check.VerificationError, match="infinite"):
            check.compare(reference, (x * 3,), (wrong,))
