"""Samplers of start states and free parameters: points of the unit cube, drawn by key.

What they draw depends on the key and, for "uncertainty", on the policy's weights, so that data are the same
for any number of workers. "heterogeneous" gives each group of episodes a sampler of its own, not each worker,
for the same reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from training.episodes.random_keys import Purpose, generator

HOMOGENEOUS = ("random", "latin_hypercube", "uncertainty")
SAMPLERS = (*HOMOGENEOUS, "heterogeneous")

#: How unsure the policy is in each of some points: [M] of [M, dims].
Doubt = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Place:
    """For which group of which update points are drawn.

    Attributes:
        seed: of the run.
        update: its number.
        group: number of the group in it.
        num_groups: of the update.
        count: points of each group.
    """

    seed: int
    update: int
    group: int
    num_groups: int
    count: int = 1


def draw_points(sampler: str, place: Place, dims: int, doubt: Doubt, pool: int) -> np.ndarray:
    """The points of a group, [count, dims] in [0, 1).

    Args:
        sampler: one of `SAMPLERS`. A Latin hypercube covers all points of the update that are drawn so.
        place: key of what is drawn.
        dims: of a point.
        doubt: entropy of the policy, asked by "uncertainty" only.
        pool: random points of which "uncertainty" takes the one with the largest entropy.

    Raises:
        ValueError: no such sampler.
    """
    if sampler not in SAMPLERS:
        raise ValueError(f"no sampler {sampler!r}; choose one of: {', '.join(SAMPLERS)}")
    groups = range(place.num_groups)
    if sampler == "heterogeneous":
        of_group = place.group % len(HOMOGENEOUS)
        sampler, groups = HOMOGENEOUS[of_group], groups[of_group :: len(HOMOGENEOUS)]
    if sampler == "latin_hypercube":
        from scipy.stats import qmc  # takes a second, which processes that never ask for it can do without

        rng = generator(Purpose.SAMPLER_HYPERCUBE, place.seed, place.update)
        points = qmc.LatinHypercube(dims, rng=rng).random(len(groups) * place.count)
        first = groups.index(place.group) * place.count
        return np.asarray(points[first : first + place.count])
    rng = generator(Purpose.SAMPLER_POOL, place.seed, place.update, place.group)
    if sampler == "random":
        return rng.random((place.count, dims))
    candidates = rng.random((place.count, pool, dims))
    doubts = doubt(candidates.reshape(-1, dims)).reshape(place.count, pool)
    return candidates[np.arange(place.count), doubts.argmax(1)]
