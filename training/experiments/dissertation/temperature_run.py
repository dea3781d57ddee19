"""A run that trains a new policy in a world model that is done, at one temperature; then both are scored."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchrlopt.agent.networks.two_stage_controller import TwoStageController
from training.device.prices import cost_of
from training.dream_trainer import DreamTrainer
from training.episodes.random_keys import Purpose, torch_seed
from training.experiments.dissertation.evaluation import played
from training.experiments.dissertation.row_run import RowRun
from training.experiments.dissertation.subjects import graph_of
from training.experiments.runs import Run
from training.learning import ppo
from training.learning.world_data import sequences
from training.scores.world_model_scores import episode_gains


@dataclasses.dataclass(frozen=True)
class TemperatureOutcome:
    """What a run leaves. Both lists are of the same episodes, played by the policy that came out.

    Attributes:
        foretold: what the world model at this temperature says that each gains, from its beginning and its
            actions alone.
        real: what it gained.
    """

    foretold: list[float]
    real: list[float]


@dataclasses.dataclass(frozen=True)
class TemperatureRun(Run[TemperatureOutcome]):
    """See `Run`.

    Attributes:
        base: whose world model it is.
        temperature: of the world model.
        updates: of the policy, all in imagination.
        out: folder of the experiments.
    """

    base: RowRun
    temperature: float
    updates: int
    out: Path = dataclasses.field(compare=False)

    @property
    def name(self) -> str:
        """See `Run`."""
        return f"temperature{self.temperature:g}-{self.updates}-{self.base.name}"

    @property
    def num_steps(self) -> int:
        """Updates."""
        return self.updates

    @property
    def needs(self) -> Sequence[Run[Any]]:
        """See `Run`."""
        return (self.base,)

    def make(self, tell: Callable[[], None]) -> TemperatureOutcome:
        """See `Run`."""
        trainer = self.base.finished_trainer()
        assert isinstance(trainer, DreamTrainer)
        seed = torch_seed(Purpose.TEMPERATURE, self.base.seed)
        trainer.config = dataclasses.replace(trainer.config, temperature_dream=self.temperature)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            trainer.policy = TwoStageController(trainer.model.state_width, trainer.policy.rules)
        optimiser = torch.optim.Adam(trainer.policy.parameters(), trainer.config.learning_rate)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(self.updates):
            rollout = trainer.dream(generator)
            ppo.update(trainer.policy, optimiser, [rollout], trainer.config, generator)
            tell()
        trainer.policy.eval()
        latent = [trainer.controller.chooser(trainer.policy) for _ in range(2)]
        rollout = played(graph_of(self.base.graph), cost_of(trainer.prices), latent, trainer.config)[1]
        seen = sequences(latent[1], rollout)
        foretold, real = episode_gains(trainer.model, seen, generator, self.temperature)
        return TemperatureOutcome(foretold.tolist(), real.tolist())

    def read(self, kept: Mapping[str, Any]) -> TemperatureOutcome:
        """See `Run`."""
        return TemperatureOutcome(kept["foretold"], kept["real"])  # older files have more
