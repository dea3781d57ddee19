"""Plays the rows "wm" and "wm_plus": real episodes that a world model learns from."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from torchrlopt import _C
from torchrlopt.agent.networks.actions import Choices, Draw, LatentState
from torchrlopt.agent.observation import Observation, Schema
from torchrlopt.substitutions import load_library
from training.collectors.worker import state_from
from training.config import Config
from training.device.prices import Prices, cost_of
from training.episodes.play import Key, play_group
from training.networks.candidate_controller import Decision
from training.rollout import Rollout
from training.world.latent_controller import LatentConfig, LatentController
from training.world.replay import UniformPolicy, sequences
from training.world.sequences import Sequences

#: Who plays the groups of a key: the policy; the uniform policy, encoded by the networks; or the uniform
#: policy before the networks exist, with raw observations as states.
POLICY, RANDOM, WATCHED = WAYS = ("policy", "random", "watched")


def latent_config(config: Config, rules: Tensor) -> LatentConfig:
    """Network sizes of a run, for substitution embeddings [S, D]."""
    return LatentConfig(
        row=config.row, encoder=config.encoder, rule_width=rules.shape[1], has_macros=config.macros
    )


@dataclasses.dataclass(frozen=True)
class LatentEpisodes:
    """The episodes of a group.

    Attributes:
        rollout: for scores; for watched episodes, with the observations.
        seen: the world model's view; None for watched episodes.
    """

    rollout: Rollout
    seen: Sequences | None


class Watcher:
    """Chooses uniformly among legal substitutions and locations; the observations become the states."""

    def __init__(self, num_substitutions: int, has_macros: bool = False) -> None:
        self.has_macros = has_macros
        self._count = num_substitutions * (1 + has_macros)

    def choose(self, seen: Observation, draw: Draw) -> tuple[Any, Tensor, Tensor, Decision]:
        """See `training.episodes.play.CandidateChooser`."""
        choices = Choices(seen, self._count, self.has_macros)
        state = LatentState(torch.zeros(seen.num_episodes, 0), choices.legal)
        actions, told = UniformPolicy().act(state, draw)
        return seen, actions, choices.rows_of(actions), told

    def entropy(self, seen: Observation) -> float:
        """Entropy of its first choice in an episode: uniform over all locations of all substitutions."""
        return math.log(max(1, int(Choices(seen, self._count, self.has_macros).legal.num_locations.sum())))


class LatentPlayer:
    """See `training.collectors.worker.Player`. Results are `LatentEpisodes`, or None if there are none.

    Args:
        config: everything that episodes depend on.
        prices: of the device.
        sizes: of the networks.
        graph: text of the graph to play on; None for the curriculum.
    """

    def __init__(self, config: Config, prices: Prices, sizes: LatentConfig, graph: str | None = None) -> None:
        self._config = config
        self._library, self._cost = load_library(), cost_of(prices)
        self._graph = None if graph is None else _C.parse_graph(graph)
        self._controller = LatentController(Schema.current(), sizes, self._library.names).eval()

    def load(self, state: bytes) -> None:
        """Load all weights and buffers."""
        self._controller.load_state_dict(state_from(state))

    def play(self, key: Key) -> LatentEpisodes | None:
        """Play the group of a key."""
        is_watched = key.way == WATCHED
        chooser: Any = Watcher(len(self._library), self._controller.config.has_macros)
        if not is_watched:
            chooser = self._controller.chooser(UniformPolicy() if key.way == RANDOM else None)
        rollout = play_group(chooser, self._library, self._cost, key, self._config, self._graph)
        if rollout is None:
            return None
        return LatentEpisodes(rollout, None if is_watched else sequences(chooser, rollout))
