"""Samplers of start states and free parameters: training/samplers.py."""

from __future__ import annotations

import numpy as np
import pytest

from training.samplers import HOMOGENEOUS, SAMPLERS, Place, draw_points


def doubt(points: np.ndarray) -> np.ndarray:
    return points[:, 0]


def draw(sampler: str, group: int = 0, num_groups: int = 3, update: int = 5) -> np.ndarray:
    return draw_points(sampler, Place(1, update, group, num_groups, 10), 2, doubt, 50)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_points_depend_on_their_key_only(sampler: str) -> None:
    points = [draw(sampler, group) for group in range(3)]
    assert all(each.shape == (10, 2) and (each >= 0).all() and (each < 1).all() for each in points)
    assert np.array_equal(points[1], draw(sampler, 1))
    assert not np.array_equal(points[0], points[1])
    assert not np.array_equal(points[1], draw(sampler, 1, update=6))


def test_a_latin_hypercube_covers_every_coordinate_evenly() -> None:
    points = np.concatenate([draw("latin_hypercube", group) for group in range(3)])
    assert np.array_equal(np.sort((points * 30).astype(int), axis=0), np.arange(30)[:, None].repeat(2, 1))


def test_the_most_uncertain_point_of_a_pool_is_taken() -> None:
    points = draw("uncertainty")
    assert points[:, 0].min() > 0.8
    assert points[:, 1].min() < 0.5


def test_heterogeneous_groups_have_a_sampler_each() -> None:
    for group in (0, 2):
        assert np.array_equal(draw("heterogeneous", group), draw(HOMOGENEOUS[group], group))
    # Only every third group draws from the hypercube: these points cover the coordinates by themselves.
    covered = np.concatenate([draw("heterogeneous", group, 6) for group in (1, 4)])
    assert np.array_equal(np.sort((covered * 20).astype(int), axis=0), np.arange(20)[:, None].repeat(2, 1))


def test_an_unknown_sampler_is_refused() -> None:
    with pytest.raises(ValueError, match="latin_hypercube"):
        draw("sobol")
