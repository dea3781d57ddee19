"""Plays the rows "mf", "plan" and "gumbel": real episodes of a `CandidateController`.

The episodes of one graph are always played together under one key, so the network's batches do not depend on
the number of workers.
"""

from __future__ import annotations

import torch

from torchrlopt import _C
from torchrlopt.substitutions import load_library
from training.collectors.worker import state_from
from training.config import Config
from training.device.prices import Prices, cost_of
from training.episodes.play import CandidateChooser, Key, play_group
from training.episodes.searched_play import play_searched
from training.networks.candidate_controller import ControllerConfig, new_controller
from training.random_keys import Purpose, generator
from training.rollout import Rollout


def controller_config(config: Config) -> ControllerConfig:
    """Network sizes of a run."""
    return ControllerConfig(encoder=config.encoder, width=config.width, rounds=config.rounds)


def library_of(key: Key, config: Config) -> _C.Library:
    """The substitutions available to a group, drawn by key: the whole library or only the primitives."""
    drawn = generator(*key.numbers(Purpose.LIBRARY)).random()
    return load_library(primitives_only=bool(drawn < config.primitives_share))


class CandidatePlayer:
    """See `training.collectors.worker.Player`. Results are rollouts, or None if a graph offers nothing.

    Args:
        config: everything that episodes depend on.
        prices: of the device; the default device if None.
        graph: text of the graph to play on; None for the curriculum.
    """

    def __init__(self, config: Config, prices: Prices | None = None, graph: str | None = None) -> None:
        self._config = config
        self._library, self._cost = load_library(), cost_of(prices or Prices())
        self._graph = None if graph is None else _C.parse_graph(graph)
        self._controller = new_controller(self._library, controller_config(config))

    def load(self, state: bytes) -> None:
        """Load all weights and buffers."""
        self._controller.load_state_dict(state_from(state))
        self._controller.eval()  # makes it compute the embeddings of substitutions anew, and once

    def play(self, key: Key) -> Rollout | None:
        """Play the group of a key."""
        usable = library_of(key, self._config)
        rows = None
        if usable is not self._library:
            rows = torch.tensor([self._library.find(name) for name in usable.names])
        chooser = CandidateChooser(self._controller, rows)
        if self._config.row == "gumbel":
            return play_searched(chooser, usable, self._cost, key, self._config, self._graph)
        return play_group(chooser, usable, self._cost, key, self._config, self._graph)
