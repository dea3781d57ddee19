"""Plays policies on one graph from its start: their gains, and the best plan found."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchrlopt import _C
from torchrlopt.agent.networks.actions import Draw
from torchrlopt.agent.observation import Observation
from torchrlopt.env import OUTCOMES
from torchrlopt.substitutions import load_library
from training.config import Config
from training.device.prices import cost_of
from training.dream_trainer import DreamTrainer
from training.episodes.play import CandidateChooser, Key, play
from training.networks.candidate_controller import Decision
from training.papers.graphs import graph_of
from training.papers.runner import Result
from training.random_keys import Purpose, torch_seed
from training.real_trainer import RealTrainer
from training.rollout import Rollout
from training.trainer import read_log
from training.world.model_scores import episode_gains
from training.world.replay import sequences

Steps = list[tuple[str, int]]

#: Sampled episodes per policy; one more takes the likeliest steps, or is sampled too if the policy has none.
#: The number is fixed in advance, and random rivals get the same number.
DRAWN = 16


class UniformCandidates:
    """Chooses uniformly from the core's candidates; stops only if there are none.

    Args:
        has_macros: whether classes of locations are candidates too.
    """

    has_likeliest = False  # uniform: without noise it would always take the first candidate

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
) -> tuple[Result, Rollout]:
    """Play a policy from the start of a graph; returns its results and the rollout of its sampled episodes.

    Gains are those of the best graph visited, as shares of the first predicted time; the plan of a policy is
    the best prefix over all episodes.

    Args:
        graph: where all episodes start.
        cost: prices.
        choosers: two of the same policy, see `training.episodes.play.CandidateChooser`: the first plays the
            likeliest episode or one more sampled one, the second the sampled ones.
        config: seed, max_steps, reward.
    """
    envs = []
    for count, chooser in zip((1, DRAWN), choosers, strict=True):
        given = {"max_steps": config.max_steps, "has_macros": chooser.has_macros}
        envs.append(_C.VecRewriteEnv([graph], load_library(), cost, num_envs=count, **given))
        envs[-1].reset(list(range(count)), [{}] * count)
    key = Key(config.seed, torch_seed(Purpose.EVALUATION), 0)
    if getattr(choosers[0], "has_likeliest", True):
        of_first = dataclasses.replace(key, temperature=0.0)
    else:
        of_first = dataclasses.replace(key, group=1)
    first = play(envs[0], choosers[0], of_first, config)
    began = time.process_time()
    rollout = play(envs[1], choosers[1], key, config)
    spent_ms = 1e3 * (time.process_time() - began)
    if first is None or rollout is None:
        raise ValueError("nothing can be done in the graph")
    outcomes = envs[1].outcomes()
    steps = best_prefix(graph, cost, [*map(envs[1].steps, range(DRAWN)), envs[0].steps(0)])
    told = {
        "gains": (1.0 - outcomes[:, OUTCOMES["best_us"]] / outcomes[:, OUTCOMES["initial_us"]]).tolist(),
        "best": gain_of(graph, cost, steps),
        "steps": steps,
        "step_ms": spent_ms / max(1, rollout.num_steps),
    }
    return told, rollout


def costs_along(graph: _C.Graph, cost: _C.CostModel, steps: Steps) -> list[float]:
    """Predicted microseconds before the first step and after each step."""
    library = load_library()
    state = _C.RewriteState(graph, library, cost)
    found = [state.metrics["time_us"]]
    for name, location in steps:
        if not state.step(library.find(name), location):
            raise ValueError(f"a step of a plan cannot be taken: {name} at {location}")
        found.append(state.metrics["time_us"])
    return found


def gain_of(graph: _C.Graph, cost: _C.CostModel, steps: Steps) -> float:
    """Saving of a plan, as a share of the first predicted time."""
    along = costs_along(graph, cost, steps)
    return 1.0 - along[-1] / along[0]


def best_prefix(graph: _C.Graph, cost: _C.CostModel, episodes: Sequence[Steps]) -> Steps:
    """The steps to the cheapest graph visited in any of the episodes."""
    best, least = [], float("inf")
    for steps in episodes:
        along = costs_along(graph, cost, steps)
        where = min(range(len(along)), key=along.__getitem__)
        if along[where] < least:
            best, least = steps[:where], along[where]
    return best


def env_step_ms(graph: _C.Graph, cost: _C.CostModel, steps: Steps) -> float:
    """Processor time of a step of the environment alone, without observations or networks.

    NaN for a plan without steps.
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


def imagined_step_ms(trainer: DreamTrainer, generator: torch.Generator, batch: int) -> float:
    """Processor time of one imagined step, for a batch of episodes."""
    config = trainer.config
    trainer.config = dataclasses.replace(config, dream_batch=batch)
    try:
        trainer.dream(generator)  # warm-up: the first call does more than the others
        began = time.process_time()
        steps = trainer.dream(generator).num_steps
        return 1e3 * (time.process_time() - began) / steps
    finally:
        trainer.config = config


def _aligned(series: Mapping[str, list[tuple[int, float]]]) -> dict[str, list[float]]:
    """Values by name, one per update; NaN if an update did not log one."""
    updates = sorted({update for line in series.values() for update, _ in line})
    known = {name: dict(line) for name, line in series.items()}
    told = {name: [line.get(update, math.nan) for update in updates] for name, line in known.items()}
    return {"update": [float(update) for update in updates], **told}


def evaluated(trainer: RealTrainer | DreamTrainer, name: str) -> Result:
    """Play the policy of a finished training.

    For a world model, "foretold" is its prediction of each sampled episode's return, from the start state and
    the actions alone; "real" is the actual return of the same episodes under the training's reward.
    """
    graph, cost = graph_of(name), cost_of(trainer.prices)
    trainer.controller.eval()
    foretold: list[float] = []
    imagined_ms = alike_ms = 0.0
    if isinstance(trainer, DreamTrainer):
        latent = [trainer.controller.chooser() for _ in range(2)]
        told, rollout = played(graph, cost, latent, trainer.config)
        generator = torch.Generator().manual_seed(torch_seed(Purpose.EVALUATION, trainer.config.seed))
        gains = episode_gains(trainer.model, sequences(latent[1], rollout), generator)
        foretold, real = (each.tolist() for each in gains)
        imagined_ms, alike_ms = (
            imagined_step_ms(trainer, generator, batch) for batch in (trainer.config.dream_batch, DRAWN)
        )
    else:
        told, rollout = played(graph, cost, [CandidateChooser(trainer.controller)] * 2, trainer.config)
        real = rollout.returns.tolist()
    return {
        "log": _aligned(read_log(trainer.folder)),
        "played": told,
        "foretold": foretold,
        "real": real,
        "real_steps": trainer.real_steps,
        "env_step_ms": env_step_ms(graph, cost, told["steps"]),
        "imagined_step_ms": imagined_ms,
        "imagined_alike_ms": alike_ms,
    }
