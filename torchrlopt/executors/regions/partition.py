"""Groups the nodes of a graph that run together, if only some of them may run in a runtime.

Each node is assigned a round. In each round the nodes left to PyTorch run first, then the taken nodes, as one
region. Along every edge the round stays the same or increases, and it increases from a taken node to one that
is left. So no path leaves a region and returns to it, the regions are ordered, and their number is minimal: a
path that alternates n times needs n rounds. This takes one pass over the edges in each direction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

Node = TypeVar("Node")


def rounds(
    nodes: Sequence[Node],
    reads: Callable[[Node], Iterable[Node]],
    taken: Collection[Node],
    size: Callable[[Node], float] = lambda node: 1.0,
) -> dict[Node, int]:
    """The round of each node; the taken nodes of a round form a region.

    Args:
        nodes: in topological order.
        reads: the nodes whose results a node reads.
        taken: the nodes that the runtime supports.
        size: of a node's results, in any unit.

    Returns:
        The earliest rounds, except that taken nodes read only by later regions are moved there unless that
        increases what crosses the border.
    """
    found: dict[Node, int] = {}
    sources: dict[Node, list[Node]] = {}
    for node in nodes:
        sources[node] = list(reads(node))
        # A region's results exist after its round.
        found[node] = max(
            (found[each] + (each in taken and node not in taken) for each in sources[node]), default=0
        )
    _sink(nodes, sources, taken, size, found)
    return found


def _sink(
    nodes: Sequence[Node],
    sources: Mapping[Node, Sequence[Node]],
    taken: Collection[Node],
    size: Callable[[Node], float],
    found: dict[Node, int],
) -> None:
    """Move taken nodes to the round of their first reader, unless more then crosses the border."""
    latest: dict[Node, int] = {}  # the last round in which a taken node can still serve its readers
    for node in reversed(nodes):
        own = latest.get(node)
        if node in taken:
            if own is not None and own > found[node]:
                siblings = {each for each in sources[node] if found[each] == found[node]}
                if sum(size(each) for each in siblings if each in taken) <= size(node):
                    found[node] = own
            own = found[node]
        else:
            own = found[node] - 1
        for each in sources[node]:
            latest[each] = min(latest.get(each, own), own)
