"""Intervals and what differs by more than chance: training/experiments/intervals.py."""

from __future__ import annotations

import numpy as np
import pytest

from training.experiments.intervals import differing, half_width, median_interval, p_of


@pytest.mark.parametrize(("count", "rank"), [(6, 0), (7, 0), (9, 1), (12, 2), (20, 5)])
def test_the_median_lies_between_values_of_fixed_ranks(count: int, rank: int) -> None:
    values = np.random.default_rng(count).permutation(count).astype(float)
    assert median_interval(values.tolist()) == (np.median(values), rank, count - 1 - rank)


@pytest.mark.parametrize("count", [6, 7, 9, 12, 20])
def test_the_interval_of_a_median_covers_it_as_often_as_it_says(count: int) -> None:
    drawn = np.random.default_rng(1).exponential(size=(4_000, count))
    bounds = np.array([median_interval(each.tolist())[1:] for each in drawn])
    covered = np.mean((bounds[:, 0] <= np.log(2)) & (np.log(2) <= bounds[:, 1]))
    assert 0.94 <= covered <= 0.99


def test_of_few_values_all_are_in_the_interval() -> None:
    assert median_interval([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    assert median_interval([1.0]) == (1.0, 1.0, 1.0)


def test_what_differs_is_told_from_chance() -> None:
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(8)
    columns = {"a": noise, "b": noise + 5 + 0.1 * rng.standard_normal(8), "c": rng.standard_normal(8)}
    assert frozenset("ab") in differing(columns)
    assert p_of(np.zeros(5)) == 1.0
    assert half_width([1.0]) == 0.0
