"""Random numbers by key: an episode's draws depend on (seed, update, episode), never on the worker."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np
import torch
from numpy.random import Generator, Philox, SeedSequence
from torch import Tensor

from torchrlopt.agent.networks.actions import Draw


class Purpose(enum.IntEnum):
    """What random numbers are used for: the first number of a key, so that purposes never share streams."""

    GRAPH = 1
    START = 2
    EPISODE = 3
    MINIBATCHES = 4
    ENCODER = 5
    WORLD_MODEL = 7
    HELD_OUT_GRAPH = 9
    SAMPLER_POOL = 11
    SAMPLER_HYPERCUBE = 12
    TEACHER = 13
    LIBRARY = 14
    WORLD_MODEL_TEST = 15
    KNOWN_GRAPH = 16
    NETWORKS = 17
    GROUND_TRUTH = 18
    TEST_GRAPH = 19
    EVALUATION = 20
    TEMPERATURE = 21


def generator(*key: int) -> Generator:
    """A separate generator for every key of non-negative integers."""
    return Generator(Philox(SeedSequence([int(number) for number in key])))


def torch_seed(*key: int) -> int:
    """A torch seed derived from a key."""
    return int(generator(*key).integers(2**62))


def gumbel(generators: Sequence[Generator], temperature: float = 1.0) -> Draw:
    """Gumbel noise for a policy; episode i draws from generator i.

    Args:
        generators: one per episode.
        temperature: of the sampling; above 1 is more random.
    """

    def draw(sizes: Sequence[int]) -> Tensor:
        drawn = [
            each.gumbel(scale=temperature, size=size) for each, size in zip(generators, sizes, strict=True)
        ]
        return torch.from_numpy(np.concatenate(drawn).astype(np.float32))

    return draw


def normal(generators: Sequence[Generator]) -> Draw:
    """Standard normal noise for policies over continuous actions; otherwise like `gumbel`."""

    def draw(sizes: Sequence[int]) -> Tensor:
        drawn = [each.standard_normal(size) for each, size in zip(generators, sizes, strict=True)]
        return torch.from_numpy(np.concatenate(drawn))

    return draw


def gumbel_of(source: torch.Generator) -> Draw:
    """Gumbel noise for imagined episodes, all from one torch generator."""

    def draw(sizes: Sequence[int]) -> Tensor:
        uniform = torch.rand(sum(sizes), generator=source).clamp(min=1e-20)
        return -(-uniform.log()).clamp(min=1e-20).log()

    return draw
