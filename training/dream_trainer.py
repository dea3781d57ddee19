"""The rows WM and WM+: learn a world model from real episodes and train the controller in its imagination.

Each round plays real episodes, refits the model on all episodes so far, and trains the controller with PPO on
imagined ones. The encoder is trained first, on random play, and then frozen. Imagination makes no real steps;
`real_steps` counts the real ones.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

import torch

from torchrlopt.agent.observation import Schema
from training.collectors.collector import Collector
from training.collectors.worker import state_of
from training.episodes.latent_task import POLICY, RANDOM, WATCHED, LatentEpisodes, LatentPlayer, latent_config
from training.episodes.play import Key
from training.learning import ppo
from training.learning.encoder_training import train_encoder
from training.learning.pyg import with_meta_layers
from training.networks.substitution_encoder import SubstitutionEncoder, SubstitutionGraphs
from training.random_keys import Purpose, gumbel_of, torch_seed
from training.rollout import Rollout
from training.trainer import Trainer, summary
from training.world.latent_controller import MODELS, LatentController
from training.world.model_scores import first_returns, gaussian_loss, model_scores
from training.world.replay import Replay, join
from training.world.sequences import Sequences
from training.world.world_model import WorldModel, total

MODEL_LEARNING_RATE = 1e-3  # of the world model; that of the policy is `Config.learning_rate`
EPISODES_PER_BATCH = 32
RANDOM_UPDATES = 2
ENCODER_KEYS = 10**6  # offset of the update numbers, so that no other collection uses these keys
ENCODER_ROUNDS = 3


def fit(
    model: WorldModel,
    optimiser: torch.optim.Optimizer,
    replay: Sequences,
    epochs: int,
    generator: torch.Generator,
    most_batches: int = 10**9,
) -> dict[str, float]:
    """Fit the model to recorded episodes; return the mean losses of the last epoch that was started."""
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


class DreamTrainer(Trainer):
    """One run of the rows WM and WM+.

    Its arguments are those of `Trainer`; the dissertation has one run per graph.
    """

    rows = tuple(MODELS)

    def build(self) -> None:
        """See `Trainer`."""
        config = self.config
        schema = Schema.current()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            with torch.no_grad():  # embeddings of all substitutions, [S, D], by random, untrained networks
                rules = SubstitutionEncoder(schema)(SubstitutionGraphs.of(self.library, schema))
            sizes = latent_config(config, rules)
            self.controller: LatentController = LatentController(schema, sizes, self.library.names, rules)
        with_meta_layers(self.controller.encoder)
        self.encoder, self.model = self.controller.encoder, self.controller.model
        self.policy = self.controller.policy
        self.encoder.requires_grad_(False)
        self.model_optimiser = torch.optim.Adam(self.model.parameters(), MODEL_LEARNING_RATE)
        self.optimiser = torch.optim.Adam(self.policy.parameters(), config.learning_rate)
        self.replay = Replay()
        task = functools.partial(LatentPlayer, config, self.prices, sizes, self.graph_text)
        self.collector = Collector(task, config.workers)

    def parts(self) -> dict[str, Any]:
        """See `Trainer`."""
        return {
            "controller": self.controller,
            "model_optimiser": self.model_optimiser,
            "optimiser": self.optimiser,
            "replay": self.replay,
        }

    def collect(self, update: int, way: str, progress: float | None = None) -> list[LatentEpisodes]:
        """Play the real episodes of an update.

        Args:
            update: its number.
            way: who plays, see `training.episodes.latent_task.WAYS`.
            progress: of the curriculum; derived from the update number if None.
        """
        config = self.config
        if progress is None:
            progress = min(1.0, update / max(1, config.warm_up))
        keys = [Key(config.seed, update, group, progress, way=way) for group in range(config.groups)]
        played = self.collector.collect(state_of(self.controller), keys)
        episodes = [each for each in played if each is not None]
        self.real_steps += sum(each.rollout.num_steps for each in episodes)
        return episodes

    def begin(self) -> dict[str, float]:
        """Train the encoder on random play, freeze it, and fill the replay."""
        generator = torch.Generator().manual_seed(torch_seed(Purpose.ENCODER, self.config.seed))
        watched = [
            each.rollout
            for number in range(ENCODER_ROUNDS)
            for each in self.collect(ENCODER_KEYS + number, WATCHED, number / ENCODER_ROUNDS)
        ]
        logs = train_encoder(self.encoder, self.model.num_substitutions, watched, self.config, generator)
        for update in range(RANDOM_UPDATES):
            self.replay.add(seen_in(self.collect(update, RANDOM)))
        self.model.fit_scales(self.replay.joined())
        self.update = RANDOM_UPDATES
        return logs

    def dream(self, generator: torch.Generator) -> Rollout:
        """Imagine episodes from states of the replay, without any real step."""
        config = self.config
        replay = self.replay.joined()
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

    def scores(self, seen: Sequences, generator: torch.Generator) -> dict[str, float]:
        """Score the model on episodes that the policy has just played and the model has not learnt from.

        Returns:
            The scores of `model_scores`; the model's losses, as fresh_...; and promised_return, the return of
            the same policy in imagination from the same start states.
        """
        with torch.no_grad():
            losses = self.model.loss(seen)
        beginnings = self.model.start(seen.features[:, 0], seen.legal((slice(None), 0)))
        dreamt = self.model.imagine(
            beginnings,
            self.policy,
            self.config.max_steps,
            gumbel_of(generator),
            generator,
            self.config.temperature_dream,
        )
        return {
            **model_scores(self.model, seen, generator),
            **{f"fresh_{name}": float(loss) for name, loss in losses.items()},
            "fresh_gaussian": gaussian_loss(self.model, self.replay.joined(), seen),
            "promised_return": float(first_returns(dreamt).mean()),
        }

    def step(self) -> dict[str, float]:
        """One round: real episodes, world model, controller."""
        begin = time.perf_counter()
        config = self.config
        episodes = self.collect(self.update, POLICY)
        rollouts, seen = [each.rollout for each in episodes], seen_in(episodes)
        middle = time.perf_counter()
        generator = torch.Generator().manual_seed(torch_seed(Purpose.WORLD_MODEL, config.seed, self.update))
        # Score before the model learns from these episodes and before the policy changes.
        scores = self.scores(join(seen), generator) if seen else {}
        self.replay.add(seen)
        losses = fit(
            self.model,
            self.model_optimiser,
            self.replay.joined(),
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
            # Episodes cut off by the horizon count too.
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
        seconds = {**self.collection_seconds(), "learn_seconds": time.perf_counter() - middle}
        return {**logs, **model_losses, **scores, **summary(rollouts), **counts, **seconds}


def seen_in(episodes: Sequence[LatentEpisodes]) -> list[Sequences]:
    """The world model's view of the episodes that its networks played."""
    return [each.seen for each in episodes if each.seen is not None]
