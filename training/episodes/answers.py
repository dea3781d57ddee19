"""Episodes whose costs are measured times of whole graphs instead of prices of operators.

Either each graph of one space was measured before, so that asking costs nothing here, or what is asked for is
measured then. Counted is how many graphs were asked for.
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
    """What a machine answers to who measures graphs of one space.

    Attributes:
        times: of graphs by fingerprint, in any unit.
        names: of the substitutions that make the space.
        asked: fingerprints of the graphs that were measured, each once, in order.
        is_at_end: asked for is the graph that an episode ends with, and no other but the first; a step
            before it has the time that its price promises.
    """

    times: Mapping[str, float]
    names: Sequence[str]
    asked: dict[str, None] = dataclasses.field(default_factory=dict)
    is_at_end: bool = False

    def library(self) -> _C.Library:
        """The substitutions that make the space."""
        return subset_of(load_library(), list(self.names))

    def time(self, graph: _C.Graph) -> float:
        """The time of a graph.

        Raises:
            EnvError: it is not in the space.
        """
        key = fingerprint(graph)
        if key not in self.times:
            raise EnvError("a graph is not among those that were measured", got=key)
        self.asked[key] = None
        return self.times[key]


class MeasuredEnv(_C.VecRewriteEnv):
    """An environment whose costs of whole graphs are measured; prices of nodes and of candidates stay.

    Where only the last graph of an episode is measured, take a reward of which the steps add up to what the
    episode saves ("R5"): then what the prices promised on the way falls out of the sum.

    Args:
        graph: that all episodes begin at.
        library: the substitutions.
        cost: prices.
        answers: the times.
        **given: see `_C.VecRewriteEnv`.
    """

    def __init__(
        self, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, answers: Answers, **given: Any
    ) -> None:
        super().__init__([graph], library, cost, **given)
        self._answers = answers
        # Of each episode: time before the last step, after it, least so far, of its first graph.
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
        """See `_C.VecRewriteEnv`; of all episodes."""
        super().observe(arrays)
        arrays["globals"][:, _COST] = self._after / self._first
        arrays["globals"][:, _BEST] = self._least / self._first


def _is_over(outcomes: NDArray[np.float64]) -> NDArray[np.bool_]:
    return (outcomes[:, OUTCOMES["terminated"]] > 0) | (outcomes[:, OUTCOMES["truncated"]] > 0)
