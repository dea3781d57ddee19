"""The rows WM and WM+: learn a world model from real episodes, and the controller in its imagination.

    python -m training.dream --row wm --minutes 30 --out runs/wm

Rounds of: play real episodes, refit the model on all of them, train the controller with PPO on imagined ones.
The encoder is trained first, on what random play saw, and frozen. Imagination makes no real step;
`real_steps` counts those that were made.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import time
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from torchrlopt import _C
from torchrlopt.agent import checkpoint
from torchrlopt.agent.networks.substitution_encoder import SubstitutionEncoder, SubstitutionGraphs
from torchrlopt.agent.observation import Schema
from torchrlopt.agent.rollout import Rollout
from torchrlopt.agent.world.latent_controller import LatentChooser, LatentConfig, LatentController
from torchrlopt.agent.world.sequences import Sequences
from torchrlopt.agent.world.world_model import WorldModel, total
from torchrlopt.machine.cost import device_model
from torchrlopt.substitutions import load_library
from training.config import Config
from training.device.prices import Prices, cost_of, prices_of
from training.episodes.play import Key, play_group
from training.episodes.random_keys import gumbel_of, torch_seed
from training.learning import ppo
from training.learning.encoder_training import train_encoder
from training.learning.world_data import UniformPolicy, join, sequences
from training.scores.world_model_scores import model_scores
from training.train import (
    AGENT,
    STATE,
    add_arguments,
    claim,
    config_of,
    log,
    provenance,
    summary,
    updates,
)

EPISODES_PER_BATCH = 32
RANDOM_UPDATES = 2
FIT, DREAM, WORLD = 5, 6, 7  # first numbers of keys


def fit(
    model: WorldModel,
    optimiser: torch.optim.Optimizer,
    replay: Sequences,
    epochs: int,
    generator: torch.Generator,
    most_batches: int = 10**9,
) -> dict[str, float]:
    """Minimise the model's losses over recorded episodes; their means in the last epoch that was begun."""
    logs: list[dict[str, float]] = []
    left = most_batches
    model.train()
    for _ in range(epochs):
        batches = torch.randperm(len(replay.valid), generator=generator).split(EPISODES_PER_BATCH)[:left]
        if not batches:
            break
        left -= len(batches)
        logs = []
        for rows in batches:
            part = replay.select(rows)
            if not part.valid.any():
                continue
            losses = model.loss(part)
            norm = ppo.descend(model, optimiser, total(losses), 5.0)
            logs.append({**{name: float(loss.detach()) for name, loss in losses.items()}, "norm": norm})
    model.eval()
    return ppo.mean_of(logs)


class DreamTrainer:
    """One run of the rows WM and WM+.

    Args:
        config: all arguments; `row` is "wm" or "wm_plus".
        graph: play on this graph only, as the dissertation does; None for the curriculum.
        prices: of the device, see `training.device.prices`; the default one if None.
    """

    def __init__(self, config: Config, graph: _C.Graph | None = None, prices: Prices | None = None) -> None:
        torch.set_num_threads(1)
        self.config = config
        self.graph = graph
        self.prices = prices or Prices()
        self.library = load_library()
        schema = Schema.current()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            with torch.no_grad():
                self.rules = SubstitutionEncoder(schema)(SubstitutionGraphs.of(self.library, schema))
            sizes = LatentConfig(config.row, config.encoder, rule_width=self.rules.shape[1])
            self.controller = LatentController(schema, sizes, self.library.names, self.rules)
        self.encoder, self.model = self.controller.encoder, self.controller.model
        self.policy = self.controller.policy
        self.encoder.requires_grad_(False)
        self.model_optimiser = torch.optim.Adam(self.model.parameters(), 1e-3)
        self.optimiser = torch.optim.Adam(self.policy.parameters(), config.learning_rate)
        self.replay: list[Sequences] = []
        self._joined: tuple[int, Sequences] | None = None
        self.update = self.real_steps = self.imagined_steps = 0
        self.seconds = 0.0

    def collect(self, update: int, *, is_random: bool) -> tuple[list[Rollout], list[Sequences]]:
        """Real episodes of an update, by the policy or at random."""
        config = self.config
        progress = min(1.0, update / max(1, config.warm_up))
        rollouts, seen = [], []
        for group in range(config.groups):
            policy = UniformPolicy() if is_random else self.policy
            chooser = LatentChooser(self.encoder, self.model, policy)
            key = Key(config.seed, update, group, progress)
            cost = cost_of(self.prices)
            rollout = play_group(chooser, self.library, cost, key, config, graph=self.graph)
            if rollout is not None:
                rollouts.append(rollout)
                seen.append(sequences(chooser, rollout))
                self.real_steps += rollout.num_steps
        return rollouts, seen

    def begin(self) -> dict[str, float]:
        """Train the encoder on what random play sees, then freeze it, and fill the replay."""
        generator = torch.Generator().manual_seed(torch_seed(FIT, self.config.seed))
        logs, self.real_steps = train_encoder(
            self.encoder, self.rules, self.library, self.config, generator, self.graph, cost_of(self.prices)
        )
        for update in range(RANDOM_UPDATES):
            self.replay += self.collect(update, is_random=True)[1]
        self.model.fit_scales(self.recorded())
        self.update = RANDOM_UPDATES
        return logs

    def recorded(self) -> Sequences:
        """All real episodes so far."""
        if self._joined is None or self._joined[0] != len(self.replay):
            self._joined = (len(self.replay), join(self.replay))
        return self._joined[1]

    def dream(self, generator: torch.Generator) -> Rollout:
        """Imagined episodes from states of the replay; no real step is made."""
        config = self.config
        replay = self.recorded()
        starts = torch.nonzero(replay.valid)
        chosen = starts[torch.randint(len(starts), (config.dream_batch,), generator=generator)]
        episode, time_step = chosen[:, 0], chosen[:, 1]
        legal = replay.legal((episode, time_step))
        state = self.model.start(replay.features[episode, time_step], legal)
        rollout = self.model.imagine(
            state,
            self.policy,
            config.dream_horizon,
            gumbel_of(generator),
            generator,
            config.temperature_dream,
            config.doubt_penalty,
        )
        self.imagined_steps += rollout.num_steps
        return rollout

    def step(self) -> dict[str, float]:
        """One round: real episodes, the model, the controller."""
        begin = time.perf_counter()
        config = self.config
        rollouts, seen = self.collect(self.update, is_random=False)
        generator = torch.Generator().manual_seed(torch_seed(WORLD, config.seed, self.update))
        # Scored before the model has learnt from these episodes.
        scores = model_scores(self.model, join(seen), generator) if seen else {}
        self.replay += seen
        losses = fit(
            self.model,
            self.model_optimiser,
            self.recorded(),
            config.model_epochs,
            generator,
            config.model_batches,
        )
        logs = {}
        before, dreaming = self.imagined_steps, 0.0
        for _ in range(config.dream_updates):
            now = time.perf_counter()
            rollout = self.dream(generator)
            dreaming += time.perf_counter() - now
            logs = ppo.update(self.policy, self.optimiser, [rollout], config, generator)
            # Those that the horizon cut off count as episodes too.
            episodes = int(rollout.ended.sum()) + config.dream_batch
            logs["dream_return"] = float(rollout.returns.sum()) / episodes
        self.update += 1
        self.seconds += time.perf_counter() - begin
        counts = {
            "real_steps": float(self.real_steps),
            "imagined_steps": float(self.imagined_steps),
            "imagined_per_second": (self.imagined_steps - before) / max(dreaming, 1e-9),
        }
        model_losses = {f"model_{name}": value for name, value in losses.items()}
        return {**logs, **model_losses, **scores, **summary(rollouts), **counts}

    def export(self, path: Path, scores: dict[str, Any] | None = None) -> Path:
        """Write the agent; where it is."""
        metadata = {**provenance(self, scores), "imagined_steps": self.imagined_steps}
        checkpoint.save(path, self.controller, self.library, metadata)
        return path

    def _parts(self) -> dict[str, Any]:
        """What has a state dict."""
        return {
            "controller": self.controller,
            "model_optimiser": self.model_optimiser,
            "optimiser": self.optimiser,
        }

    def save(self, folder: Path) -> None:
        """Everything that `load` needs, in one piece."""
        state: dict[str, Any] = {name: part.state_dict() for name, part in self._parts().items()}
        state["replay"] = [dataclasses.asdict(part) for part in self.replay]
        state["counters"] = [self.update, self.real_steps, self.imagined_steps]
        state["seconds"] = self.seconds
        state["config"] = self.config.to_json()
        memory = io.BytesIO()
        torch.save(state, memory)
        checkpoint.write_whole(folder / STATE, memory.getvalue())

    def load(self, folder: Path) -> None:
        """Continue a run; see `Config.check_same_run`."""
        state: dict[str, Any] = torch.load(folder / STATE, weights_only=True)
        self.config.check_same_run(Config.from_json(state["config"]))
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        self.replay = [Sequences(**part) for part in state["replay"]]
        self.update, self.real_steps, self.imagined_steps = state["counters"]
        self.seconds = float(state["seconds"])

    def run(self, folder: Path, *, resume: bool = False) -> None:
        """Train until the updates or minutes are used up, with a bar and TensorBoard; save now and then."""
        # Imported here: it takes a second, and tests of the rest do not need it.
        from torch.utils.tensorboard import SummaryWriter

        holds_run = claim(folder, resume)
        begin = time.perf_counter()
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with SummaryWriter(str(folder)) as writer, Progress(*columns) as progress:
            bar = progress.add_task(f"{self.config.row}: encoder", total=1.0)
            if holds_run:
                self.load(folder)
            else:
                self.begin()
            for logs in updates(self, self.step, lambda: self.save(folder), begin, progress, bar):
                for name, value in logs.items():
                    writer.add_scalar(name, value, self.update)
                log(folder, self.update, logs)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="directory of the run")
    parser.add_argument("--resume", action="store_true", help="continue the run in it")
    add_arguments(parser)
    # A world model learns more from two episodes of each of sixteen graphs than from eight of each of four.
    parser.set_defaults(row="wm", encoder="graph_network", groups=16, rollouts=2)
    given = parser.parse_args()
    prices = prices_of(device_model("eager", "cpu"))  # before the trainer sets the number of threads
    trainer = DreamTrainer(config_of(given), prices=prices)
    trainer.run(given.out, resume=given.resume)
    print(trainer.export(given.out / AGENT))


if __name__ == "__main__":
    main()
