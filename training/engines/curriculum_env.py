"""The episodes of the row "mf" as a Gymnasium environment: each is on another graph of the curriculum."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from torchrlopt import _C
from torchrlopt.env import REWARDS, Padding, RewriteEnv
from torchrlopt.env.observation import Arrays
from torchrlopt.substitutions import load_library
from training.config import Config
from training.device.prices import Prices, cost_of
from training.episodes.candidate_task import library_of
from training.episodes.play import Key, draw_graph, draw_start

#: Of 60 graphs of the curriculum none has more than 170 nodes, 200 edges and 70 candidates. Models have more.
PADDING = Padding(nodes=256, edges=320, candidates=128)
LARGE_PADDING = Padding()


@dataclasses.dataclass(frozen=True)
class Episodes:
    """What episodes depend on; an argument of `CurriculumEnv`, and pickled to the processes of an engine.

    Attributes:
        config: of the run.
        prices: of the device.
        graph: text of the graph to play on; None for the curriculum.
    """

    config: Config
    prices: Prices = dataclasses.field(default_factory=Prices)
    graph: str | None = None

    @property
    def padding(self) -> Padding:
        """The sizes of observations."""
        return PADDING if self.graph is None else LARGE_PADDING


class CurriculumEnv(gymnasium.Env[dict[str, Any], np.int64]):
    """Episodes of a run; those of different numbers differ.

    Args:
        given: "episodes", and optionally "number" of this environment among those of the run.

    Attributes:
        env: of the current episode.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - required by Gymnasium

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._episodes: Episodes = given["episodes"]
        # An engine passes its own object, which says which of its processes this is.
        number = getattr(given, "worker_index", 0), getattr(given, "vector_index", 0)
        self._number = given.get("number", number[0] * 1000 + number[1])
        self._library, self._cost = load_library(), cost_of(self._episodes.prices)
        text = self._episodes.graph
        self._graph = None if text is None else _C.parse_graph(text)
        self._played = 0
        self._rows: np.ndarray[Any, Any] | None = None
        self.env = self._env_of(self._graph or self._drawn(self._key()), self._library)
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Begin the next episode; `seed` is not used, since the run's seed and the number draw everything."""
        config, key = self._episodes.config, self._key()
        self._played += 1
        library = library_of(key, config)
        self._rows = None
        if library is not self._library:
            self._rows = np.asarray([self._library.find(name) for name in library.names])
        graph = self._graph or self._drawn(key)
        self.env = self._env_of(graph, library)
        start = draw_start(graph, library, self._cost, key, config)
        observation, info = self.env.reset(options=start)
        return self._translated(observation), info

    def step(self, action: np.int64) -> tuple[Arrays, float, bool, bool, dict[str, Any]]:
        """See `RewriteEnv`."""
        observation, *rest = self.env.step(action)
        return self._translated(observation), *rest

    def _key(self) -> Key:
        """The key of the next episode. The curriculum grows with the episodes of this environment."""
        config = self._episodes.config
        progress = min(1.0, self._played / max(1, config.warm_up))
        return Key(config.seed, self._played, self._number, progress)

    def _drawn(self, key: Key) -> _C.Graph:
        return draw_graph(None, self._library, self._cost, key, self._episodes.config)

    def _env_of(self, graph: _C.Graph, library: _C.Library) -> RewriteEnv:
        config = self._episodes.config
        return RewriteEnv(
            [graph],
            library,
            self._cost,
            max_steps=config.max_steps,
            reward=REWARDS[config.reward],
            padding=self._episodes.padding,
            has_macros=True,
        )

    def _translated(self, observation: Arrays) -> Arrays:
        """Number substitutions as the whole library does."""
        if self._rows is not None:
            found = observation["substitutions"]
            observation["substitutions"] = np.where(found < 0, found, self._rows[found])
        return observation
