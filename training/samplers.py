"""Samplers of start states and free parameters: points of the unit cube, drawn by key.

Draws depend only on the key and, for "uncertainty", on the policy's weights, so that the data are the same
for any number of workers. For the same reason, "heterogeneous" assigns samplers to groups of episodes, not to
workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from training.random_keys import Purpose, generator

HOMOGENEOUS = ("random", "latin_hypercube", "uncertainty")
SAMPLERS = (*HOMOGENEOUS, "heterogeneous")

#: The policy's uncertainty at some points: [M] from [M, dims].
Doubt = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Place:
    """The group and update for which points are drawn.

    Attributes:
        seed: of the run.
        update: its number.
        group: number of the group in it.
        num_groups: of the update.
        count: points per group.
    """

    seed: int
    update: int
    group: int
    num_groups: int
    count: int = 1


def draw_points(sampler: str, place: Place, dims: int, doubt: Doubt, pool: int) -> np.ndarray:
    """Draw the points of a group, [count, dims] in [0, 1).

    Args:
        sampler: one of `SAMPLERS`. A Latin hypercube spans all points of the update that use it.
        place: key of the draw.
        dims: of a point.
        doubt: entropy of the policy; called by "uncertainty" only.
        pool: random points from which "uncertainty" takes the one with the largest entropy.

    Raises:
        ValueError: the sampler is unknown.
    """
    if sampler not in SAMPLERS:
        raise ValueError(f"no sampler {sampler!r}; choose one of: {', '.join(SAMPLERS)}")
    groups = range(place.num_groups)
    if sampler == "heterogeneous":
        of_group = place.group % len(HOMOGENEOUS)
        sampler, groups = HOMOGENEOUS[of_group], groups[of_group :: len(HOMOGENEOUS)]
    if sampler == "latin_hypercube":
        from scipy.stats import qmc  # takes a second; processes that never use it need not pay for it

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
