"""A run that trains one row on one graph and plays the policy that came out, for several figures."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from torchrlopt.substitutions import load_library
from training.config import Config
from training.device.prices import Prices, cost_of, typical_prices
from training.dream_trainer import DreamTrainer
from training.episodes.play import CandidateChooser
from training.episodes.random_keys import Purpose, torch_seed
from training.experiments.dissertation.evaluation import DRAWN, Played, env_step_ms, played
from training.experiments.dissertation.subjects import graph_of
from training.experiments.runs import MINUTES, RUNS, Run, path_of
from training.learning.world_data import sequences
from training.real_trainer import RealTrainer
from training.scores.world_model_scores import episode_gains
from training.train import trainer_of
from training.trainer import STATE, read_log

EXECUTOR = "eager"  # whose prices are the rewards
CPU, GPU = "cpu", "cuda"
#: Beside the defaults of runs on one graph; a part of the name of each run.
SETTINGS: dict[str, dict[str, Any]] = {
    "mf": {"max_steps": 50},
    "wm": {"max_steps": 50, "model_batches": 12, "dream_batch": 128, "dream_updates": 5},
}
ROW_TITLES = {"mf": "MF", "wm": "WM"}


def config_of(row: str, graph: str, **given: Any) -> Config:
    """How a row is trained on a graph; `given` are arguments beside its `SETTINGS`."""
    return Config.of_row(row, **{"graph": graph, **given, **SETTINGS[row]})


def prices_on(device: str) -> Prices:
    """Typical prices of the executor on a type of device, of one thread where it is a CPU."""
    return typical_prices(EXECUTOR, device)


@dataclasses.dataclass(frozen=True)
class RowOutcome:
    """What a run leaves.

    Attributes:
        log: values of each update by name, in order.
        played: of the policy that came out, in the real environment.
        foretold: of the world model, what each drawn episode gains, from its beginning and actions alone.
        real: what the same episodes really gained, by the reward of the training.
        real_steps: of the training.
        env_step_ms: processor time of a step of the environment alone.
        imagined_step_ms: the same of an imagined step, in batches as large as the training's; 0 without a
            world model.
        imagined_alike_ms: the same with as many episodes side by side as real ones are drawn.
        cpu_seconds: of the training.
    """

    log: dict[str, list[float]]
    played: Played
    foretold: list[float]
    real: list[float]
    real_steps: int
    env_step_ms: float
    imagined_step_ms: float
    cpu_seconds: float
    imagined_alike_ms: float = math.nan  # runs of before have none

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> RowOutcome:
        """The outcome of its fields, as JSON gives them back."""
        log = {
            name: [math.nan if value is None else value for value in values]
            for name, values in kept["log"].items()
        }
        told = {name: math.nan if value is None else value for name, value in kept.items()}
        return cls(**{**told, "log": log, "played": played_of(kept["played"])})


def played_of(kept: Mapping[str, Any]) -> Played:
    """See `RowOutcome.of`."""
    return Played(**{**kept, "steps": [(name, location) for name, location in kept["steps"]]})


@dataclasses.dataclass(frozen=True)
class RowRun(Run[RowOutcome]):
    """See `Run`. What was trained is kept beside its file, so that a run that was killed goes on.

    Attributes:
        row: "mf" or "wm".
        graph: a name in `subjects`.
        seed: of the training.
        updates: of the training.
        out: folder of the experiments.
        reward: a name in `torchrlopt.env.REWARDS`.
        device: type of the device whose typical prices are the rewards.
        minutes: most of the training.
    """

    row: str
    graph: str
    seed: int
    updates: int
    out: Path = dataclasses.field(compare=False)
    reward: str = "best_so_far"
    device: str = CPU
    minutes: float = MINUTES

    @property
    def config(self) -> Config:
        """All arguments of the training."""
        given = {"seed": self.seed, "updates": self.updates, "reward": self.reward, "minutes": self.minutes}
        return config_of(self.row, self.graph, **given)

    @property
    def name(self) -> str:
        """See `Run`."""
        code = hashlib.sha256(self.beside.encode()).hexdigest()[:8]  # it names the folder of the training
        return f"{self.row}-{self.graph}-{self.reward}-{self.updates}-seed{self.seed}-{self.device}-{code}"

    @property
    def beside(self) -> str:
        """See `Run`."""
        settings = dataclasses.replace(self.config, updates=0, seed=0).settings()
        return f"{settings} {load_library().hash} {prices_on(self.device).to_json()} {DRAWN}"

    @property
    def num_steps(self) -> int:
        """Updates."""
        return self.updates

    @property
    def folder(self) -> Path:
        """Of the training: another version of PyTorch begins anew."""
        return self.out / RUNS / f"{self.name}-torch{torch.__version__}"

    def trainer(self) -> RealTrainer | DreamTrainer:
        """The training, as far as it has gone."""
        resume = (self.folder / STATE).exists()
        graph, prices = graph_of(self.graph), prices_on(self.device)
        return trainer_of(self.config, self.folder, resume=resume, prices=prices, graph=graph)

    def finished_trainer(self) -> RealTrainer | DreamTrainer:
        """The training, which has ended.

        Raises:
            FileNotFoundError: what it came to is there, and the folder of the training is not.
        """
        if not (self.folder / STATE).exists():
            file = path_of(self, self.out)
            raise FileNotFoundError(f"there is no {self.folder / STATE}; remove {file}, and it is made again")
        return self.trainer()

    def make(self, tell: Callable[[], None]) -> RowOutcome:
        """See `Run`."""
        trainer = self.trainer()
        for _ in range(trainer.update):
            tell()
        for _ in trainer.updates():
            tell()
        return evaluated(trainer, self.graph)

    def read(self, kept: Mapping[str, Any]) -> RowOutcome:
        """See `Run`."""
        return RowOutcome.of(kept)


def imagined_step_ms(trainer: DreamTrainer, generator: torch.Generator, batch: int) -> float:
    """Processor time of one imagined step, of so many episodes together."""
    config = trainer.config
    trainer.config = dataclasses.replace(config, dream_batch=batch)
    try:
        trainer.dream(generator)  # the first does more than the others
        began = time.process_time()
        steps = trainer.dream(generator).num_steps
        return 1e3 * (time.process_time() - began) / steps
    finally:
        trainer.config = config


def _aligned(series: Mapping[str, list[tuple[int, float]]]) -> dict[str, list[float]]:
    """Values by name, one for each update; not a number where an update did not log one."""
    updates = sorted({update for line in series.values() for update, _ in line})
    known = {name: dict(line) for name, line in series.items()}
    told = {name: [line.get(update, math.nan) for update in updates] for name, line in known.items()}
    return {"update": [float(update) for update in updates], **told}


def evaluated(trainer: RealTrainer | DreamTrainer, name: str) -> RowOutcome:
    """Play the policy of a training that has ended."""
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
    return RowOutcome(
        _aligned(read_log(trainer.folder)),
        told,
        foretold,
        real,
        trainer.real_steps,
        env_step_ms(graph, cost, told.steps),
        imagined_ms,
        trainer.cpu_seconds,
        alike_ms,
    )
