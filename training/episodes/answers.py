"""Episodes whose costs are measured times of whole graphs instead of operator prices.

Either every graph of a space was measured in advance, so that a query is free here, or graphs are measured on
demand. The number of distinct graphs queried is counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchrlopt import _C
from torchrlopt.env import OUTCOMES
from torchrlopt.env.observation import columns
from torchrlopt.errors import EnvError
from torchrlopt.substitutions import load_library
from torchrlopt.substitutions.load import subset_of
from training.graphs.fingerprint import fingerprint

_COST, _BEST = (columns("global").index(name) for name in ("cost", "best_cost"))


@dataclasses.dataclass
class Answers:
    """Measured times for queries about graphs of one space.

    Attributes:
        times: of graphs by fingerprint, in any unit.
        names: of the substitutions that span the space.
        asked: fingerprints of the queried graphs, each once, in order.
        is_at_end: query only the first graph and the last graph of an episode; a step before the last uses
            the time predicted by the price.
    """

    times: Mapping[str, float]
    names: Sequence[str]
    asked: dict[str, None] = dataclasses.field(default_factory=dict)
    is_at_end: bool = False

    def library(self) -> _C.Library:
        """The substitutions that span the space."""
        return subset_of(load_library(), list(self.names))

    def time(self, graph: _C.Graph) -> float:
        """Measured time of a graph.

        Raises:
            EnvError: the graph is not in the space.
        """
        key = fingerprint(graph)
        if key not in self.times:
            raise EnvError("a graph is not among those that were measured", got=key)
        self.asked[key] = None
        return self.times[key]


class MeasuredEnv(_C.VecRewriteEnv):
    """An environment with measured costs of whole graphs; prices of nodes and candidates are unchanged.

    If only the last graph of an episode is measured, use a reward whose steps add up to the episode's saving
    ("R5"): then the predicted intermediate times cancel in the sum.

    Args:
        graph: where all episodes start.
        library: the substitutions.
        cost: prices.
        answers: the measured times.
        **given: see `_C.VecRewriteEnv`.
    """

    def __init__(
        self, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, answers: Answers, **given: Any
    ) -> None:
        super().__init__([graph], library, cost, **given)
        self._answers = answers
        # Per episode: time before and after the last step, lowest so far, and of the first graph.
        self._before, self._after, self._least, self._first = np.ones((4, self.num_envs))
        self._is_over = np.zeros(self.num_envs, bool)

    def reset(self, envs: Sequence[int], starts: Sequence[Mapping[str, Any]]) -> None:
        """See `_C.VecRewriteEnv`."""
        super().reset(envs, starts)
        for place in envs:
            time = self._answers.time(self.graph(place))
            for each in (self._before, self._after, self._least, self._first):
                each[place] = time
            self._is_over[place] = False

    def step(self, actions: Sequence[int]) -> NDArray[np.float64]:
        """See `_C.VecRewriteEnv`."""
        self._is_over = _is_over(super().outcomes())
        super().step(actions)
        priced = super().outcomes()
        is_last = _is_over(priced)
        promised = self._first * priced[:, OUTCOMES["cost_after_us"]] / priced[:, OUTCOMES["initial_us"]]
        for place in np.nonzero(~self._is_over)[0]:
            is_asked = is_last[place] or not self._answers.is_at_end
            time = self._answers.time(self.graph(int(place))) if is_asked else promised[place]
            self._before[place], self._after[place] = self._after[place], time
            self._least[place] = min(self._least[place], time)
        return self.outcomes()

    def outcomes(self) -> NDArray[np.float64]:
        """See `_C.VecRewriteEnv`."""
        found = super().outcomes()
        known = {"cost_before_us": self._before, "cost_after_us": self._after}
        for name, values in (known | {"best_us": self._least, "initial_us": self._first}).items():
            found[:, OUTCOMES[name]] = values
        return found

    def observe(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """See `_C.VecRewriteEnv`; always all episodes."""
        super().observe(arrays)
        arrays["globals"][:, _COST] = self._after / self._first
        arrays["globals"][:, _BEST] = self._least / self._first


def _is_over(outcomes: NDArray[np.float64]) -> NDArray[np.bool_]:
    return (outcomes[:, OUTCOMES["terminated"]] > 0) | (outcomes[:, OUTCOMES["truncated"]] > 0)
