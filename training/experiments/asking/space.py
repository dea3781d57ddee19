"""All graphs that substitutions lead to from one, and which of them lie one step apart.

Graphs with one `fingerprint` are one.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator

from torchrlopt import _C
from torchrlopt.errors import SearchError
from training.graphs.fingerprint import fingerprint

Steps = list[tuple[str, int]]


class Around:
    """What lies one step from the graphs that substitutions lead to.

    Args:
        graph: where all steps begin.
        library: the substitutions.
        cost: any; an environment has one.
    """

    def __init__(self, graph: _C.Graph, library: _C.Library, cost: _C.CostModel) -> None:
        self._env = _C.VecRewriteEnv(
            [graph], library, cost, num_envs=2, max_steps=_NO_LIMIT, max_locations=_NO_LIMIT, has_macros=False
        )
        self._env.reset([0, 1], [{}, {}])

    def after(self, steps: Steps) -> Iterator[tuple[_C.Graph, Steps]]:
        """Graphs one step after some steps, each with all steps that lead to it.

        One that is begun is ended, or let go, before the next is begun.
        """
        self._env.reset([0], [{"prefix": steps}])
        for action in range(len(self._env.hashes_after(0))):
            self._env.branch([0], [1], [action])
            yield self._env.graph(1), self._env.steps(1)


@dataclasses.dataclass(frozen=True)
class Space:
    """N graphs; the first is where all begin.

    Attributes:
        graphs: in the order of the fewest steps that lead to them.
        steps: that lead to each.
        next: positions that one step leads to from each, in rising order.
    """

    graphs: list[_C.Graph]
    steps: list[Steps]
    next: list[list[int]]

    @classmethod
    def of(cls, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, most: int) -> Space:
        """Everything that can be reached.

        Args:
            graph: where to begin.
            library: the substitutions.
            cost: any; an environment has one.
            most: graphs.

        Raises:
            SearchError: there are more graphs than that.
        """
        around = Around(graph, library, cost)
        graphs: list[_C.Graph] = [graph]
        steps: list[Steps] = [[]]
        following: list[list[int]] = []
        places = {fingerprint(graph): 0}
        todo = collections.deque([0])
        while todo:
            reached = set()
            for after, taken in around.after(steps[todo.popleft()]):
                place = places.setdefault(fingerprint(after), len(graphs))
                reached.add(place)
                if place == len(graphs):
                    graphs.append(after)
                    steps.append(taken)
                    todo.append(place)
                if len(graphs) > most:
                    raise SearchError("substitutions lead to more graphs", expected=f"at most {most}")
            following.append(sorted(reached))
        return cls(graphs, steps, following)


_NO_LIMIT = 10_000  # steps and locations
