"""Draws the graph of a group; a sampler draws its free parameters (batch, size or length, width)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from torchrlopt import _C
from torchrlopt.agent.observation import Observation, observe
from training.graphs.curriculum import Sample, sample_graph
from training.samplers import Place, draw_points

NUM_PARAMETERS = 3
POOL = 4  # candidate graphs from which "uncertainty" takes the most uncertain one

#: Entropy of the policy over the actions of one episode.
Entropy = Callable[[Observation], float]


def draw_sample(
    sampler: str,
    place: Place,
    graph_key: tuple[int, ...],
    progress: float,
    entropy: Callable[[_C.Graph], float],
) -> Sample:
    """Draw the graph of a group.

    Args:
        sampler: one of `training.samplers.SAMPLERS`.
        place: of the group.
        graph_key: of blocks and depth, as for `sample_graph`.
        progress: of the curriculum.
        entropy: of the policy on a graph; called by "uncertainty" only.

    Raises:
        ValueError: the sampler is unknown.
    """

    def graph_of(unit: np.ndarray) -> Sample:
        return sample_graph(*graph_key, progress=progress, unit=unit)

    def doubt(units: np.ndarray) -> np.ndarray:
        return np.array([entropy(graph_of(unit).graph) for unit in units])

    return graph_of(draw_points(sampler, place, NUM_PARAMETERS, doubt, POOL)[0])


def entropy_on(
    graph: _C.Graph, library: _C.Library, cost: _C.CostModel, of: Entropy, has_macros: bool
) -> float:
    """Entropy of a policy on an unmodified graph, in an environment with or without macros."""
    env = _C.VecRewriteEnv([graph], library, cost, has_macros=has_macros)
    env.reset([0], [{}])
    with torch.no_grad():
        return of(observe(env))
