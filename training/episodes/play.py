"""Play groups of real episodes: a group shares one graph and one start, and all is drawn by key."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchrlopt import _C
from torchrlopt.agent.networks.actions import Draw, no_noise
from torchrlopt.agent.observation import Observation, observe
from torchrlopt.env import OUTCOMES, REWARDS
from training.config import Config
from training.graphs.samplers import draw_sample, entropy_on
from training.networks.candidate_controller import CandidateController, Decision
from training.random_keys import Purpose, generator, gumbel, torch_seed
from training.rollout import Rollout, RolloutBuilder
from training.samplers import Place

MAX_WALK = 8
GREEDY_EXPANSIONS = 200
_NO_LIMIT_MS = 1e12


@dataclasses.dataclass(frozen=True)
class Key:
    """Identifies a group of episodes; its data depend only on the key and the weights.

    Attributes:
        seed: of the run.
        update: number of the collection.
        group: number of the graph in it.
        progress: of the curriculum, 0 to 1.
        temperature: of the policy's noise.
        way: who plays, if there is a choice; see `training.episodes.latent_task.WAYS`.
    """

    seed: int
    update: int
    group: int
    progress: float = 1.0
    temperature: float = 1.0
    way: str = "policy"

    def numbers(self, purpose: Purpose, *more: int) -> tuple[int, ...]:
        """The complete random-number key for a purpose."""
        return (purpose, self.seed, self.update, self.group, *more)


class CandidateChooser:
    """Lets a `CandidateController` choose: it maps observations to actions of the core.

    Args:
        controller: the networks.
        rows: position of each substitution of the environment's library in the controller's library; None if
            the two are the same.
    """

    def __init__(self, controller: CandidateController, rows: Tensor | None = None) -> None:
        self.controller = controller
        self.has_macros = True
        self._rows = rows

    def choose(self, seen: Observation, draw: Draw) -> tuple[Any, Tensor, Tensor, Decision]:
        """The policy's input, its actions, the core's actions, and its decision."""
        seen = self.translated(seen)
        actions, decision = self.controller.act(seen, draw)
        return seen, actions, actions, decision

    def entropy(self, seen: Observation) -> float:
        """Entropy of the policy on one episode."""
        return float(self.controller.act(self.translated(seen), no_noise)[1].entropy)

    def translated(self, seen: Observation) -> Observation:
        """Map substitution indices to those of the controller's library."""
        if self._rows is None:
            return seen
        return dataclasses.replace(seen, substitutions=self._rows[seen.substitutions])


def draw_graph(chooser: Any, library: _C.Library, cost: _C.CostModel, key: Key, config: Config) -> _C.Graph:
    """Draw the graph of a key with the configured sampler."""
    return draw_sample(
        config.sampler,
        Place(key.seed, key.update, key.group, config.groups),
        key.numbers(Purpose.GRAPH),
        key.progress,
        lambda drawn: entropy_on(drawn, library, cost, chooser.entropy, chooser.has_macros),
    ).graph


def draw_start(graph: _C.Graph, library: _C.Library, cost: _C.CostModel, key: Key, config: Config) -> Any:
    """Choose a group's start: the graph itself, a state along greedy's plan, or the end of a random walk."""
    rng = generator(*key.numbers(Purpose.START))
    kind = rng.random()
    if kind < config.original_share:
        return {}
    if kind < (1 + config.original_share) / 2:
        # A limit in expansions, not in time, is the same in every process.
        greedy = _C.search(
            graph, library, cost, searcher="greedy", budget_ms=_NO_LIMIT_MS, budget_steps=GREEDY_EXPANSIONS
        )
        steps = greedy["steps"]
        # Half of these start at the end of greedy's plan, to learn to find what greedy overlooks.
        length = len(steps) if rng.random() < 0.5 else int(rng.integers(len(steps) + 1))
        return {"prefix": steps[:length]}
    return {"random_steps": int(rng.integers(1, MAX_WALK + 1)), "seed": int(rng.integers(2**32))}


def shown_steps(
    graph: _C.Graph, library: _C.Library, cost: _C.CostModel, key: Key, config: Config
) -> list[tuple[int, int]]:
    """Find what a teacher shows: (substitution, location) of the steps of a plan; none if no plan saves.

    Sampling rarely finds a sequence that raises the cost for several steps before it pays off. Iterated local
    search does. Its limit is in expansions, not in time, so that every process finds the same plan.
    """
    found = _C.search(
        graph,
        library,
        cost,
        searcher="iterated",
        budget_ms=_NO_LIMIT_MS,
        budget_steps=config.teacher_expansions,
        max_length=config.max_steps - 1,
        seed=torch_seed(*key.numbers(Purpose.TEACHER)),
    )
    return [(library.find(name), location) for name, location in found["steps"]]


def play_group(
    chooser: Any,
    library: _C.Library,
    cost: _C.CostModel,
    key: Key,
    config: Config,
    graph: _C.Graph | None = None,
) -> Rollout | None:
    """Play the episodes of one group; return None if the graph offers no substitution.

    Args:
        chooser: what plays; see `CandidateChooser`.
        library: the substitutions.
        cost: prices.
        key: of graph, start and noise.
        config: rollouts, max_steps, reward.
        graph: to play on; None for the key's graph.
    """
    if graph is None:
        graph = draw_graph(chooser, library, cost, key, config)
    given = {"max_steps": config.max_steps, "has_macros": chooser.has_macros}
    env = _C.VecRewriteEnv([graph], library, cost, num_envs=config.rollouts, **given)
    start = draw_start(graph, library, cost, key, config)
    env.reset(list(range(config.rollouts)), [start] * config.rollouts)
    shown: list[tuple[int, int]] | None = None
    if config.row == "plan" and config.teacher_expansions > 0:
        shown = shown_steps(env.graph(0), library, cost, key, config)
    return play(env, chooser, key, config, shown)


def play(
    env: _C.VecRewriteEnv,
    chooser: Any,
    key: Key,
    config: Config,
    shown: Sequence[tuple[int, int]] | None = None,
) -> Rollout | None:
    """Play all episodes of an environment that was just reset; see `play_group`.

    Args:
        env: with all episodes at their start.
        chooser: what plays.
        key: of the noise and its temperature.
        config: reward.
        shown: (substitution, location) of the steps that the first episode is forced to take before it stops,
            regardless of the policy.
    """
    count = env.num_envs
    first = before = env.outcomes()
    if before[0, OUTCOMES["terminated"]]:
        return None
    draw = gumbel([generator(*key.numbers(Purpose.EPISODE, i)) for i in range(count)], key.temperature)
    reward_of = REWARDS[config.reward]
    builder = RolloutBuilder(count)
    step = 0
    with torch.no_grad():
        while builder.alive.any():
            states, actions, rows, decision = chooser.choose(observe(env), draw)
            if shown is not None:
                is_over = step >= len(shown)
                actions[0] = rows[0] = int(states.counts[0]) if is_over else env.find(0, *shown[step])
                if rows[0] < 0:
                    raise RuntimeError(f"a step of a plan cannot be taken: {shown[step]}")
            after = env.step(rows.tolist())
            step += 1
            terminated, truncated = (
                torch.from_numpy(after[:, OUTCOMES[name]] > 0) for name in ("terminated", "truncated")
            )
            rewards = torch.from_numpy(reward_of(before, after, first).astype(np.float32))
            builder.add(
                states,
                actions,
                decision.log_prob,
                decision.value,
                rewards,
                terminated,
                terminated | truncated,
            )
            before = after
        last = chooser.choose(observe(env), draw)[3].value
    return builder.finish(last)
