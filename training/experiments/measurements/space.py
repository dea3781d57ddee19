"""All graphs that substitutions lead to from one, and which of them lie one step apart.

Graphs with one `fingerprint` are one.
"""

from __future__ import annotations

import collections
import dataclasses

from torchrlopt import _C
from torchrlopt.errors import SearchError
from training.graphs.fingerprint import fingerprint

Steps = list[tuple[str, int]]


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
        env = _C.VecRewriteEnv(
            [graph], library, cost, num_envs=2, max_steps=_NO_LIMIT, max_locations=_NO_LIMIT, has_macros=False
        )
        env.reset([0, 1], [{}, {}])
        graphs: list[_C.Graph] = [graph]
        steps: list[Steps] = [[]]
        following: list[list[int]] = []
        places = {fingerprint(graph): 0}
        todo = collections.deque([0])
        while todo:
            env.reset([0], [{"prefix": steps[todo.popleft()]}])
            reached = set()
            for action in range(len(env.hashes_after(0))):
                env.branch([0], [1], [action])
                after = env.graph(1)
                place = places.setdefault(fingerprint(after), len(graphs))
                reached.add(place)
                if place == len(graphs):
                    graphs.append(after)
                    steps.append(env.steps(1))
                    todo.append(place)
                if len(graphs) > most:
                    raise SearchError("substitutions lead to more graphs", expected=f"at most {most}")
            following.append(sorted(reached))
        return cls(graphs, steps, following)


_NO_LIMIT = 10_000  # steps and locations
