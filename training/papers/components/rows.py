"""The one place that composes each row: its components and the values passed between them.

    composition(Config.of_row("wm")).wires()

`python training/reproduce.py components` draws it. The trainers (`training.real_trainer`,
`training.dream_trainer`) run the same parts; `tests/training/test_papers_components.py` compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchrlopt.agent.networks.actions import kinds_of
from torchrlopt.agent.observation import Schema
from torchrlopt.substitutions import load_library
from training.collectors import worker
from training.config import Config
from training.device.prices import Prices
from training.dream_trainer import fit
from training.episodes import candidate_task
from training.episodes.candidate_task import CandidateTask
from training.episodes.latent_task import RANDOM, LatentTask, latent_config
from training.episodes.play import Key
from training.learning import ppo
from training.learning.imagining import imagine, optimisers_of, rules_of
from training.papers.components import specs
from training.papers.components.component import Component, Composition, Space, Spec
from training.real_trainer import UPDATES, new_networks
from training.world.latent_controller import MODELS, LatentConfig, LatentController


def composition(config: Config, prices: Prices | None = None) -> Composition:
    """The components of a configuration's row, checked to be compatible.

    Args:
        config: all arguments of a training.
        prices: of the device; the default device if None.
    """
    compose = _in_imagination if config.row in MODELS else _in_real_episodes
    return compose(config, prices or Prices())


def _in_real_episodes(config: Config, prices: Prices) -> Composition:
    """Rows "mf", "plan" and "gumbel"; the tree search of "gumbel" is part of its collector."""
    rollout = specs.SEARCHED_ROLLOUT if config.row == "gumbel" else specs.ROLLOUT
    return Composition(
        config.row,
        (
            specs.sampler(config),
            specs.encoder(config),
            specs.controller(config),
            specs.rollout_memory(),
            specs.collector(config, CandidateTask(config, prices), Key, "rollouts", rollout),
            specs.learner(
                config,
                UPDATES[config.row],
                lambda: new_networks(config),
                rollout,
                candidate_task.state_of,
            ),
        ),
        OUTSIDE,
    )


def _in_imagination(config: Config, prices: Prices) -> Composition:
    """Rows "wm" and "wm_plus"."""
    rules = specs.seeded(config.seed, lambda: rules_of(load_library(), Schema.current()))
    sizes = latent_config(config, rules)
    kinds = kinds_of(rules, sizes.has_macros)
    count = len(kinds)
    episode = specs.sequences_space(specs.width_of(sizes), count)
    task = LatentTask(config, prices, sizes)

    def key_of(seed: int, update: int, group: int) -> Key:
        return Key(seed, update, group, way=RANDOM)

    return Composition(
        config.row,
        (
            specs.sampler(config),
            specs.latent_encoder(config, sizes, count),
            specs.world_model(config, sizes, kinds),
            specs.latent_controller(config, sizes, kinds),
            specs.collector(config, task, key_of, "episodes", {"seen": episode}),
            specs.replay_memory(specs.width_of(sizes), count),
            _dream_learner(config, sizes, rules, episode),
        ),
        OUTSIDE,
    )


#: Values that no component produces: what to play, and the environment's observations and rewards.
OUTSIDE: Mapping[str, Space] = {
    "keys": specs.KEYS,
    "observation": specs.OBSERVATION,
    "outcome": specs.OUTCOME,
}


def _dream_learner(config: Config, sizes: LatentConfig, rules: Tensor, episode: Mapping[str, Space]) -> Spec:
    """Fits the world model to the replay, then updates the policy in imagination once."""

    def build() -> tuple[LatentController, torch.optim.Optimizer, torch.optim.Optimizer]:
        names = load_library().names
        made = specs.seeded(config.seed, lambda: LatentController(Schema.current(), sizes, names, rules))
        return made, *optimisers_of(made, config)

    def run(built: Any, replay: Any) -> Mapping[str, Any]:
        made, model_optimiser, optimiser = built
        source = torch.Generator().manual_seed(config.seed)
        made.model.fit_scales(replay)
        fit(made.model, model_optimiser, replay, config.model_epochs, source, config.model_batches)
        start = made.model.start(replay.features[:, 0], replay.legal((slice(None), 0)))
        dreamt = imagine(made.model, made.policy, start, config, source)
        ppo.update(made.policy, optimiser, [dreamt], config, source)
        return {"weights": np.frombuffer(worker.state_of(made), dtype=np.uint8)}

    return Spec("learner", {"replay": episode}, {"weights": specs.WEIGHTS}, build, run)


def build(parts: Composition) -> dict[str, Component]:
    """Build all components of a composition independently; returns them by name."""
    return {spec.name: Component(spec) for spec in parts.specs}
