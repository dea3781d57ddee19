"""Training in real episodes: the rows MF (PPO) and PLAN (search distillation).

What an update collects depends on (seed, update) and the weights only, so a run that was killed and resumed
goes on as if nothing had happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchrlopt import _C
from torchrlopt.agent import checkpoint
from torchrlopt.agent.checkpoint import Agent
from torchrlopt.agent.networks.candidate_controller import CandidateController, ControllerConfig
from torchrlopt.agent.observation import Schema
from torchrlopt.errors import AgentError
from torchrlopt.substitutions import load_library
from training.config import Config
from training.device.prices import Prices
from training.episodes.answers import Answers
from training.episodes.candidate_task import CandidateTask, controller_config, state_of
from training.episodes.play import Key
from training.episodes.random_keys import Purpose, torch_seed
from training.learning import distil, gumbel, ppo
from training.learning.pyg import with_meta_layers
from training.trainer import Trainer, summary

#: How each row learns from what was collected.
UPDATES: dict[str, Callable[..., dict[str, float]]] = {
    "mf": ppo.update,
    "plan": distil.update,
    "gumbel": gumbel.update,
}


class RealTrainer(Trainer):
    """One run of the rows that learn in real episodes.

    Args:
        config: all arguments; `row` is "mf", "plan" or "gumbel".
        folder: of the run; made where it is missing.
        resume: continue what is there; without it, the folder must hold no run.
        prices: of the device; the default one if None.
        start: an agent to go on from, see `why_not_from`; None to begin at random.
        graph: see `Trainer`.
        answers: see `Trainer`.

    Raises:
        OptionsError: see `Trainer`.
        FileExistsError: there is a run already.
        ValueError: the run there has other arguments.
        AgentError: the networks of `start` are of another shape.
    """

    rows = tuple(UPDATES)

    def __init__(
        self,
        config: Config,
        folder: Path,
        *,
        resume: bool = False,
        prices: Prices | None = None,
        start: Agent | None = None,
        graph: _C.Graph | None = None,
        answers: Answers | None = None,
    ) -> None:
        super().__init__(config, folder, prices, graph, answers)
        reason = why_not_from(start, controller_config(config)) if start is not None else ""
        if reason:
            raise AgentError("training cannot go on from this agent", got=reason)
        # An agent of an earlier core goes on with the columns and operators that it knows.
        schema = start.controller.schema if start is not None else None
        self.controller: CandidateController = new_networks(config, schema)
        if start is not None:
            self.controller.load_state_dict(start.controller.state_dict())
        self.optimiser = torch.optim.Adam(self.controller.parameters(), config.learning_rate)
        self.collector = self.collector_of(CandidateTask(config, self.prices, self.graph_text, answers))
        self.open(resume)

    def parts(self) -> dict[str, Any]:
        """See `Trainer`."""
        return {"controller": self.controller, "optimiser": self.optimiser}

    def keys(self) -> list[Key]:
        """Of the groups of the next collection."""
        config = self.config
        progress = min(1.0, self.update / max(1, config.warm_up))
        temperature = 1.0 if config.row == "mf" else config.temperature
        return [Key(config.seed, self.update, group, progress, temperature) for group in range(config.groups)]

    def step(self) -> dict[str, float]:
        """Collect and learn once; losses and scores by name."""
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


def new_networks(config: Config, schema: Schema | None = None) -> CandidateController:
    """The untrained networks of a run, in their form for training."""
    controller = checkpoint.new_controller(load_library(), controller_config(config), config.seed, schema)
    with_meta_layers(controller.encoder)
    return controller


def _sizes(config: ControllerConfig) -> str:
    return f"{config.encoder} encoder, width {config.width}, rounds {config.rounds}"


def why_not_from(start: Agent, config: ControllerConfig) -> str:
    """Why the weights of an agent do not fit networks of these sizes; empty where they do."""
    given = start.controller
    if not isinstance(given, CandidateController):
        return "it plays in a world model, not in real episodes"
    if given.config != config:
        return f"its sizes are {_sizes(given.config)}; here {_sizes(config)}"
    return ""
