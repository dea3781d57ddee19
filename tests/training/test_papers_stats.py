"""Confidence intervals and significant differences: training/papers/stats.py."""

from __future__ import annotations

import numpy as np
import pytest

from training.papers.stats import compared, half_width, mean_text, median_interval, p_of, percent_text


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


def test_intervals_of_means_are_students() -> None:
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.303 / 3**0.5, rel=1e-3)
    assert half_width([1.0]) == 0.0
    assert percent_text([0.0, 0.01, 0.02, 0.03, 0.2]) == "5.2 % (-5.2 to 15.6)"
    assert percent_text([0.015]) == "1.5 %"
    assert mean_text([1.0, 2.0, 3.0]) == "2 ± 2.5"


def test_what_differs_is_told_from_chance() -> None:
    values = np.array([1.0, 2.0, 3.0])
    close = values + np.array([1.0, 1.3, 0.7])  # p = 0.029, and of six pairs that is no evidence
    found = compared({"a": values, "b": close})
    assert found["p"].iloc[0] == pytest.approx(0.029, abs=1e-3)
    assert found["mean difference"].iloc[0] == pytest.approx(-1.0)
    others = {name: values + np.array([n, -n, 2.0 * n]) for n, name in enumerate("cd", start=1)}
    assert compared({"a": values, "b": close, **others})["p"].min() > 0.05
    assert p_of(np.zeros(5)) == 1.0
    assert p_of([1.0]) == 1.0, "one run tells nothing"
