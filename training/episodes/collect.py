"""Plays the real episodes of an update, in this process or in several; the data are the same bit for bit.

What a worker plays depends on the weights and the keys that it is given, and on nothing else: it keeps no
random numbers and no episode from one call to the next. The episodes of one graph are always played together
by one worker, so that the batches that its networks see do not depend on how many workers there are.
"""

from __future__ import annotations

import io
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from types import TracebackType

import torch

from torchrlopt import _C
from torchrlopt.agent.checkpoint import new_controller
from torchrlopt.agent.networks.candidate_controller import CandidateController, ControllerConfig
from torchrlopt.agent.observation import Schema
from torchrlopt.agent.rollout import Rollout
from torchrlopt.substitutions import load_library
from training.config import Config
from training.device.prices import Prices, cost_of
from training.episodes.play import CandidateChooser, Key, play_group
from training.episodes.random_keys import Purpose, generator


def controller_config(config: Config) -> ControllerConfig:
    """Sizes of the networks of a run."""
    return ControllerConfig(encoder=config.encoder, width=config.width, rounds=config.rounds)


def weights_of(controller: CandidateController) -> bytes:
    """Everything that a worker needs to play like this controller, buffers included."""
    memory = io.BytesIO()
    torch.save({"schema": controller.schema.to_json(), "state": controller.state_dict()}, memory)
    return memory.getvalue()


def collect_groups(
    weights: bytes, keys: Sequence[Key], config: Config, temperature: float, prices: Prices
) -> list[Rollout]:
    """What a worker does: play the groups of some keys with some weights, on one thread of the CPU."""
    torch.set_num_threads(1)
    library, cost = load_library(), cost_of(prices)
    given = torch.load(io.BytesIO(weights), weights_only=True)
    controller = new_controller(library, controller_config(config), schema=Schema.from_json(given["schema"]))
    controller.load_state_dict(given["state"])
    controller.eval()  # embeddings of substitutions are computed once; nothing else changes
    rollouts = []
    for key in keys:
        usable = library_of(key, config)
        rows = None if usable is library else torch.tensor([library.find(name) for name in usable.names])
        chooser = CandidateChooser(controller, rows)
        rollouts.append(play_group(chooser, usable, cost, key, config, temperature))
    return [rollout for rollout in rollouts if rollout is not None]


def library_of(key: Key, config: Config) -> _C.Library:
    """The substitutions that a group may use: all of them, or the primitives only; drawn by key."""
    drawn = generator(*key.numbers(Purpose.LIBRARY)).random()
    return load_library(primitives_only=bool(drawn < config.primitives_share))


class Collector:
    """Plays all groups of an update.

    Args:
        config: workers and everything that episodes depend on. With one worker there is no other process.
        prices: of the device; the default one if None.
    """

    def __init__(self, config: Config, prices: Prices | None = None) -> None:
        self._config = config
        self._prices = prices or Prices()
        # Processes are spawned, not forked: a fork would copy the state of threads and generators.
        context = multiprocessing.get_context("spawn")
        is_alone = config.workers <= 1
        self._pool = None if is_alone else ProcessPoolExecutor(config.workers, mp_context=context)

    def __enter__(self) -> Collector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def collect(
        self, controller: CandidateController, keys: Sequence[Key], temperature: float = 1.0
    ) -> list[Rollout]:
        """The rollouts of all keys that have any, in the order of the keys."""
        weights = weights_of(controller)
        if self._pool is None:
            return collect_groups(weights, keys, self._config, temperature, self._prices)
        futures = [
            self._pool.submit(collect_groups, weights, [key], self._config, temperature, self._prices)
            for key in keys
        ]
        return [rollout for future in futures for rollout in future.result()]
