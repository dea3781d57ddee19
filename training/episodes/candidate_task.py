"""Collector task of the rows "mf", "plan" and "gumbel": real episodes of a `CandidateController`.

The episodes of one graph are always played together under one key, so the network's batches do not depend on
the number of workers.
"""

from __future__ import annotations

import dataclasses

import torch

from torchrlopt import _C
from torchrlopt.agent.observation import Schema
from torchrlopt.substitutions import load_library
from training.collectors import worker
from training.collectors.worker import packed, state_from, unpacked
from training.config import Config
from training.device.prices import Prices, cost_of
from training.episodes.play import CandidateChooser, Key, play_group
from training.episodes.searched_play import play_searched
from training.networks.candidate_controller import CandidateController, ControllerConfig, new_controller
from training.random_keys import Purpose, generator
from training.rollout import Rollout


def controller_config(config: Config) -> ControllerConfig:
    """Network sizes of a run."""
    return ControllerConfig(encoder=config.encoder, width=config.width, rounds=config.rounds)


def state_of(controller: CandidateController) -> bytes:
    """Everything that a worker needs to play like this controller, buffers included."""
    return packed((controller.schema.to_json(), worker.state_of(controller)))


def library_of(key: Key, config: Config) -> _C.Library:
    """The substitutions available to a group, drawn by key: the whole library or only the primitives."""
    drawn = generator(*key.numbers(Purpose.LIBRARY)).random()
    return load_library(primitives_only=bool(drawn < config.primitives_share))


@dataclasses.dataclass(frozen=True)
class CandidateTask:
    """See `training.collectors.worker.Task`. Results are rollouts, or None if a graph offers nothing.

    Attributes:
        config: everything that episodes depend on.
        prices: of the device.
        graph: text of the graph to play on; None for the curriculum.
    """

    config: Config
    prices: Prices = dataclasses.field(default_factory=Prices)
    graph: str | None = None

    def player(self) -> CandidatePlayer:
        """See `Task`."""
        return CandidatePlayer(self)


class CandidatePlayer:
    """See `training.collectors.worker.Player`.

    Args:
        task: whose episodes it plays.
    """

    def __init__(self, task: CandidateTask) -> None:
        self._config = task.config
        self._library, self._cost = load_library(), cost_of(task.prices)
        self._graph = None if task.graph is None else _C.parse_graph(task.graph)
        self._controller: CandidateController | None = None

    def load(self, state: bytes) -> None:
        """Load a controller with this schema and these weights."""
        schema, weights = unpacked(state)
        sizes = controller_config(self._config)
        controller = new_controller(self._library, sizes, schema=Schema.from_json(schema))
        controller.load_state_dict(state_from(weights))
        self._controller = controller.eval()  # only makes it compute embeddings of substitutions once

    def play(self, key: Key) -> Rollout | None:
        """Play the group of a key."""
        assert self._controller is not None
        usable = library_of(key, self._config)
        rows = None
        if usable is not self._library:
            rows = torch.tensor([self._library.find(name) for name in usable.names])
        chooser = CandidateChooser(self._controller, rows)
        if self._config.row == "gumbel":
            return play_searched(chooser, usable, self._cost, key, self._config, self._graph)
        return play_group(chooser, usable, self._cost, key, self._config, self._graph)
