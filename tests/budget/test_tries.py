"""Choices tried again, where predictions are off by a known factor."""

from __future__ import annotations

import pytest

from torchrlopt.precision.assignment import Choice
from torchrlopt.precision.tries import tried


class Off:
    """The more error, the faster; the measured error is a multiple of the predicted one."""

    def __init__(self, factor: float) -> None:
        self._factor, self.count = factor, 0

    def within(self, target: float) -> Choice:
        error = min(target, 1.0)
        return Choice(
            frozenset({"a"}) if error > 1e-6 else frozenset(), frozenset(), error, 1.0 / (1.0 + 1e3 * error)
        )

    def error_of(self, choice: Choice) -> float:
        self.count += 1
        return choice.error * self._factor


@pytest.mark.parametrize(("factor", "most"), [(0.1, 2), (0.5, 2), (0.9, 1), (1.05, 1), (1.3, 2), (5.0, 2)])
def test_the_budget_is_used_in_few_tries(factor: float, most: int) -> None:
    off = Off(factor)
    found = tried(off.within, off.error_of, 1e-2, 0.9e-2)
    assert 0.7e-2 < found.error <= 1e-2
    assert off.count <= most


def test_a_try_that_misses_does_not_lose_the_one_that_did_not() -> None:
    errors = iter((1e-3, 0.5, 0.4))
    found = tried(Off(1.0).within, lambda choice: next(errors), 1e-2, 0.9e-2)
    assert found.error == 1e-3
    assert found.choice is not None


def test_what_never_fits_is_refused_with_its_error() -> None:
    found = tried(Off(1.0).within, lambda choice: 0.5, 1e-2, 0.9e-2)
    assert found.choice is None
    assert "the error was 0.5 where" in found.reason
