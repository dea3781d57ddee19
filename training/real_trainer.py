"""Training on real episodes: the rows MF (PPO), PLAN (search distillation) and GUMBEL (tree search).

What an update collects depends only on (seed, update) and the weights, so a killed and resumed run continues
as if it had not been interrupted.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch

from torchrlopt.substitutions import load_library
from training.collectors.collector import Collector
from training.collectors.worker import state_of
from training.config import Config
from training.episodes.candidate_task import CandidatePlayer, controller_config
from training.episodes.play import Key
from training.learning import distil, gumbel, ppo
from training.learning.pyg import with_meta_layers
from training.networks.candidate_controller import CandidateController, new_controller
from training.random_keys import Purpose, torch_seed
from training.trainer import Trainer, summary

#: How each row learns from collected episodes.
UPDATES: dict[str, Callable[..., dict[str, float]]] = {
    "mf": ppo.update,
    "plan": distil.update,
    "gumbel": gumbel.update,
}


class RealTrainer(Trainer):
    """One run of a row that learns from real episodes.

    Its arguments are those of `Trainer`.
    """

    rows = tuple(UPDATES)

    def build(self) -> None:
        """See `Trainer`."""
        config = self.config
        self.controller: CandidateController = new_networks(config)
        self.optimiser = torch.optim.Adam(self.controller.parameters(), config.learning_rate)
        task = functools.partial(CandidatePlayer, config, self.prices, self.graph_text)
        self.collector = Collector(task, config.workers)

    def parts(self) -> dict[str, Any]:
        """See `Trainer`."""
        return {"controller": self.controller, "optimiser": self.optimiser}

    def keys(self) -> list[Key]:
        """Keys of the groups of the next collection."""
        config = self.config
        progress = min(1.0, self.update / max(1, config.warm_up))
        temperature = 1.0 if config.row == "mf" else config.temperature
        return [Key(config.seed, self.update, group, progress, temperature) for group in range(config.groups)]

    def step(self) -> dict[str, float]:
        """Collect and learn once; returns losses and scores by name."""
        begin = time.perf_counter()
        played = self.collector.collect(state_of(self.controller), self.keys())
        rollouts = [rollout for rollout in played if rollout is not None]
        middle = time.perf_counter()
        logs: dict[str, float] = {}
        if rollouts:
            order = torch.Generator().manual_seed(
                torch_seed(Purpose.MINIBATCHES, self.config.seed, self.update)
            )
            self.controller.train()
            logs = UPDATES[self.config.row](self.controller, self.optimiser, rollouts, self.config, order)
        self.update += 1
        self.real_steps += sum(rollout.num_steps for rollout in rollouts)
        self.seconds += time.perf_counter() - begin
        return {
            **logs,
            **summary(rollouts),
            **self.collection_seconds(),
            "learn_seconds": time.perf_counter() - middle,
            "real_steps": float(self.real_steps),
        }


def new_networks(config: Config) -> CandidateController:
    """The untrained networks of a run, in their training form."""
    controller = new_controller(load_library(), controller_config(config), config.seed)
    with_meta_layers(controller.encoder)
    return controller
