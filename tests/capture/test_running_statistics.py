"""Secondary results of operators (running statistics), and constants cut out of larger ones."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.e2e.models import compiled

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def test_running_statistics_are_the_new_ones() -> None:
    def normalised(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return F.instance_norm(x, mean, var, momentum=0.5)

    torch.manual_seed(0)
    x = torch.randn(3, 4, 5)
    mine, theirs = ([torch.zeros(4), torch.ones(4)] for _ in range(2))
    with torch.no_grad():
        torch.testing.assert_close(compiled(normalised, verify=False)(x, *mine), normalised(x, *theirs))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)
    assert mine[0].abs().max() > 0


def test_a_median_of_one_number_is_captured() -> None:
    """It is made of a constant that is one element of an expanded tensor."""

    def median(x: Tensor) -> Tensor:
        return torch.quantile(x, 0.5, dim=0, keepdim=True, interpolation="midpoint")

    x = torch.tensor(3.0)
    with torch.no_grad():
        torch.testing.assert_close(compiled(median)(x), median(x))
