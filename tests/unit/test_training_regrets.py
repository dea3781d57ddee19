"""Means over graphs and their intervals: training/experiments/asking/regrets.py."""

from __future__ import annotations

import numpy as np
import pytest

from training.experiments.asking.regrets import Key, by_subject, interval
from training.experiments.intervals import half_width
from training.experiments.measurements.asking_run import ROWS
from training.experiments.measurements.experiment import TITLES


def test_rows_are_compared_graph_by_graph_in_whatever_order_they_come() -> None:
    graphs = [f"graph{number}" for number in range(10)]
    regrets: dict[Key, np.ndarray] = {}
    for row, order in (("price", graphs), ("mf", graphs[::-1])):
        for graph in order:
            for seed in range(2):
                told = graphs.index(graph) + 0.1 * seed + (row == "mf")
                regrets[row, graph, "eager", seed] = np.array([told, 2 * told])
    assert by_subject(regrets, "price")[3].tolist() == pytest.approx([3.05, 6.1])
    differences = by_subject(regrets, "mf") - by_subject(regrets, "price")
    np.testing.assert_allclose(differences, [[1.0, 2.0]] * 10)


def test_the_interval_is_students() -> None:
    values = np.array([0.0, 0.01, 0.02, 0.03, 0.2])
    half = half_width(values)
    low, high = 100 * (values.mean() - half), 100 * (values.mean() + half)
    assert interval(values) == f"5.2 % ({low:.1f} to {high:.1f})"
    assert low < 0, "symmetric"


def test_one_graph_has_no_interval() -> None:
    assert interval(np.array([0.015])) == "1.5 %"


def test_titles_are_in_the_order_of_the_rows() -> None:
    assert tuple(TITLES) == ROWS
    assert len(set(TITLES.values())) == len(ROWS)
