"""Samplers of the free parameters of graphs: batch, size or length, width.

What they draw depends on the key and, for "uncertainty", on the policy's weights, so that data are the same
for any number of workers; for the same reason "heterogeneous" gives each group a sampler, not each worker.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from torchrlopt import _C
from torchrlopt.agent.observation import Observation, observe
from training.episodes.random_keys import Purpose, generator, torch_seed
from training.graphs.curriculum import Sample, latin_hypercube, sample_graph

SAMPLERS = ("random", "latin_hypercube", "uncertainty", "heterogeneous")
NUM_PARAMETERS = 3
POOL = 4  # graphs of which the most uncertain is taken

#: Entropy of the policy over the actions of one episode.
Entropy = Callable[[Observation], float]


def draw_sample(
    sampler: str,
    key: tuple[int, int, int],
    graph_key: tuple[int, ...],
    progress: float,
    num_groups: int,
    entropy: Callable[[_C.Graph], float],
) -> Sample:
    """The graph of a group.

    Args:
        sampler: one of `SAMPLERS`.
        key: seed, update and group.
        graph_key: of blocks and depth, as for `sample_graph`.
        progress: of the curriculum.
        num_groups: of an update; a Latin hypercube covers so many.
        entropy: of the policy on a graph, asked by "uncertainty" only.

    Raises:
        ValueError: no such sampler.
    """
    if sampler not in SAMPLERS:
        raise ValueError(f"no sampler {sampler!r}; choose one of: {', '.join(SAMPLERS)}")
    seed, update, group = key
    if sampler == "heterogeneous":
        sampler = SAMPLERS[group % 3]
    if sampler == "random":
        return sample_graph(*graph_key, progress=progress)
    if sampler == "latin_hypercube":
        units = latin_hypercube(
            torch_seed(Purpose.SAMPLER_HYPERCUBE, seed, update), num_groups, NUM_PARAMETERS
        )
        return sample_graph(*graph_key, progress=progress, unit=units[group])
    rng = generator(Purpose.SAMPLER_POOL, *key)
    pool = [sample_graph(*graph_key, progress=progress, unit=rng.random(NUM_PARAMETERS)) for _ in range(POOL)]
    return pool[int(np.argmax([entropy(sample.graph) for sample in pool]))]


def entropy_on(graph: _C.Graph, library: _C.Library, cost: _C.CostModel, of: Entropy) -> float:
    """Entropy of a policy on a graph as it is."""
    env = _C.VecRewriteEnv([graph], library, cost)
    env.reset([0], [{}])
    with torch.no_grad():
        return of(observe(env))
