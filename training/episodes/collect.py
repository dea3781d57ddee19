"""Collection by one or several processes, bit for bit the same.

A worker is a pure function of (weights, keys): it holds no random state and no episode from one call to the
next, and a group of episodes is never divided, so that no batch depends on how many workers there are.
"""

from __future__ import annotations

import hashlib
import io
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from types import TracebackType

import torch

from torchrlopt import _C
from torchrlopt.agent.checkpoint import new_controller
from torchrlopt.agent.networks.candidate_controller import CandidateController, ControllerConfig
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
    torch.save(controller.state_dict(), memory)
    return memory.getvalue()


def collect_groups(
    weights: bytes, keys: Sequence[Key], config: Config, temperature: float, prices: Prices
) -> list[Rollout]:
    """What a worker does: play the groups of some keys with some weights, on one thread."""
    torch.set_num_threads(1)
    library, cost = load_library(), cost_of(prices)
    controller = new_controller(library, controller_config(config))
    controller.load_state_dict(torch.load(io.BytesIO(weights), weights_only=True))
    controller.eval()  # which only changes that embeddings are computed once
    rollouts = []
    for key in keys:
        usable = library_of(key, config)
        rows = None if usable is library else torch.tensor([library.find(name) for name in usable.names])
        chooser = CandidateChooser(controller, rows)
        rollouts.append(play_group(chooser, usable, cost, key, config, temperature))
    return [rollout for rollout in rollouts if rollout is not None]


def library_of(key: Key, config: Config) -> _C.Library:
    """The substitutions of a group: all, or the primitives only."""
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


def data_hash(rollouts: Sequence[Rollout]) -> str:
    """SHA-256 of everything that was collected: equal for any number of workers."""
    digest = hashlib.sha256()
    for rollout in rollouts:
        for tensor in (rollout.actions, rollout.log_probs, rollout.rewards, rollout.values, rollout.active):
            digest.update(tensor.contiguous().numpy().tobytes())
        for state in rollout.states:
            digest.update(state.nodes.numpy().tobytes())
            digest.update(state.candidates.numpy().tobytes())
    return digest.hexdigest()
