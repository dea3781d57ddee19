"""Schedules of a pair of convolutions: training/schedules.py."""

from __future__ import annotations

import pytest
import torch

from torchrlopt.executors.eager.kernels import indirect
from training.schedules import AGAIN, SHIPPED, ways

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")


def test_all_schedules_compute_the_same() -> None:
    with torch.no_grad():
        (first, *others) = (call() for call in ways((14, 16, 48, 3, 2)).values())
    assert len(others) >= 1 + 1 + 7
    for each in others:
        torch.testing.assert_close(each[0], first[0], rtol=1e-4, atol=1e-4)


def test_the_shipped_schedule_is_timed_twice() -> None:
    assert list(ways((7, 16, 48, 3, 1)))[:2] == [SHIPPED, AGAIN]
