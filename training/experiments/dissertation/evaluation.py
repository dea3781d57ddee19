"""Plays a policy on a graph from its beginning: what it gains, and the best plan that it found.

The number of episodes is fixed beforehand, and rivals that draw have as many. The plan of a policy is the
best prefix of all of them; its mean over the drawn episodes is told beside it.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchrlopt import _C
from torchrlopt.agent.networks.candidate_controller import Decision, Draw
from torchrlopt.agent.observation import Observation
from torchrlopt.agent.rollout import Rollout
from torchrlopt.env import OUTCOMES
from torchrlopt.substitutions import load_library
from training.config import Config
from training.episodes.play import Key, play
from training.episodes.random_keys import Purpose, torch_seed

DRAWN = 16  # episodes; one more plays what is likeliest, or is drawn as well where nothing is

Steps = list[tuple[str, int]]


@dataclasses.dataclass(frozen=True)
class Played:
    """What a policy did on a graph. Gains are shares of the first predicted time, of the best graph met.

    Attributes:
        likeliest: gain of the episode that takes the likeliest action everywhere, or of the one more.
        gains: of the drawn episodes.
        best: gain of `steps`.
        steps: the best prefix of any of the episodes.
        lengths: of the drawn episodes.
        step_ms: processor time of a step of one drawn episode: observing, networks, rewriting.
    """

    likeliest: float
    gains: list[float]
    best: float
    steps: Steps
    lengths: list[int]
    step_ms: float


class UniformCandidates:
    """Takes any candidate of the core, each alike; it stops where there is none.

    Args:
        has_macros: whether classes of locations are candidates too.
    """

    has_likeliest = False  # all are alike: without noise it would always take the first

    def __init__(self, has_macros: bool) -> None:
        self.has_macros = has_macros

    def choose(self, seen: Observation, draw: Draw) -> tuple[Any, Tensor, Tensor, Decision]:
        """See `training.episodes.play.CandidateChooser`."""
        counts = seen.counts.tolist()
        noise = draw(counts).split(counts)
        actions = torch.tensor([int(each.argmax()) if len(each) else 0 for each in noise])
        zero = torch.zeros(len(counts))
        return seen, actions, actions, Decision(zero, zero, zero, zero.unsqueeze(1))


def played(
    graph: _C.Graph, cost: _C.CostModel, choosers: Sequence[Any], config: Config
) -> tuple[Played, Rollout]:
    """What a policy does, and the rollout of its drawn episodes.

    Args:
        graph: where all episodes begin.
        cost: prices.
        choosers: two of the same policy, see `training.episodes.play.CandidateChooser`: the first plays the
            likeliest episode, or one more drawn one, the second those that are drawn.
        config: seed, max_steps, reward.
    """
    likeliest, drawn = (
        _new_env(graph, cost, count, chooser, config)
        for count, chooser in zip((1, DRAWN), choosers, strict=True)
    )
    key = Key(config.seed, torch_seed(Purpose.EVALUATION), 0)
    if getattr(choosers[0], "has_likeliest", True):
        of_first = dataclasses.replace(key, temperature=0.0)
    else:
        of_first = dataclasses.replace(key, group=1)
    first = play(likeliest, choosers[0], of_first, config)
    began = time.process_time()
    rollout = play(drawn, choosers[1], key, config)
    spent_ms = 1e3 * (time.process_time() - began)
    if first is None or rollout is None:
        raise ValueError("nothing can be done in the graph")
    gains = [1.0 - each for each in rollout.info["best"].tolist()]
    everything = [drawn.steps(row) for row in range(DRAWN)] + [likeliest.steps(0)]
    steps = best_prefix(graph, cost, everything)
    told = Played(
        1.0 - float(first.info["best"]),
        gains,
        gain_of(graph, cost, steps),
        steps,
        [int(each) for each in rollout.info["lengths"].tolist()],
        spent_ms / max(1, rollout.num_steps),
    )
    return told, rollout


def _new_env(
    graph: _C.Graph, cost: _C.CostModel, count: int, chooser: Any, config: Config
) -> _C.VecRewriteEnv:
    env = _C.VecRewriteEnv(
        [graph],
        load_library(),
        cost,
        num_envs=count,
        max_steps=config.max_steps,
        has_macros=chooser.has_macros,
    )
    env.reset(list(range(count)), [{}] * count)
    return env


def costs_along(graph: _C.Graph, cost: _C.CostModel, steps: Steps) -> list[float]:
    """Predicted microseconds before the first step and after each."""
    library = load_library()
    state = _C.RewriteState(graph, library, cost)
    found = [state.metrics["time_us"]]
    for name, location in steps:
        if not state.step(library.find(name), location):
            raise ValueError(f"a step of a plan cannot be taken: {name} at {location}")
        found.append(state.metrics["time_us"])
    return found


def gain_of(graph: _C.Graph, cost: _C.CostModel, steps: Steps) -> float:
    """Share of the first predicted time that a plan saves."""
    along = costs_along(graph, cost, steps)
    return 1.0 - along[-1] / along[0]


def best_prefix(graph: _C.Graph, cost: _C.CostModel, episodes: Sequence[Steps]) -> Steps:
    """The cheapest graph that any of the episodes passed, as the steps to it."""
    best, least = [], float("inf")
    for steps in episodes:
        along = costs_along(graph, cost, steps)
        where = min(range(len(along)), key=along.__getitem__)
        if along[where] < least:
            best, least = steps[:where], along[where]
    return best


def env_step_ms(graph: _C.Graph, cost: _C.CostModel, steps: Steps) -> float:
    """Processor time of a step of the environment alone, without observing it or asking a network.

    Not a number for a plan without steps.
    """
    library = load_library()
    env = _C.VecRewriteEnv([graph], library, cost, has_macros=False, max_steps=len(steps) + 1)
    env.reset([0], [{}])
    spent, count = 0.0, 0
    for name, location in steps:
        row = env.find(0, library.find(name), location)
        began = time.process_time()
        outcomes = env.step([row])
        spent += time.process_time() - began
        count += 1
        if outcomes[0, OUTCOMES["terminated"]] or outcomes[0, OUTCOMES["truncated"]]:
            break
    return 1e3 * spent / count if count else math.nan
