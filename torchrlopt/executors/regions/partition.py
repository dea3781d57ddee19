"""Groups the nodes of a graph that run together, if only some of them may run in a runtime.

Each node is assigned a round. In each round the nodes left to PyTorch run first, then the taken nodes, as one
region. Along every edge the round stays the same or increases, and it increases from a taken node to one that
is left. So no path leaves a region and returns to it, the regions are ordered, and their number is minimal: a
path that alternates n times needs n rounds. This takes one pass over the edges in each direction.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

Node = TypeVar("Node")


class Kind(enum.Enum):
    """Where a node may run."""

    TAKEN = "the runtime takes it"
    LEFT = "it is left to PyTorch"
    FREE = "it may run anywhere, more than once too: it costs nothing in a call"


def rounds(
    nodes: Sequence[Node],
    reads: Callable[[Node], Iterable[Node]],
    kind: Callable[[Node], Kind],
    size: Callable[[Node], float] = lambda node: 1.0,
) -> dict[Node, int]:
    """The round of each node; the taken nodes of a round form a region.

    Args:
        nodes: in topological order.
        reads: the nodes whose results a node reads.
        kind: of a node.
        size: of a node's results, in any unit.

    Returns:
        The earliest rounds, except that taken nodes read only by later regions are moved there unless that
        increases what crosses the border. The round of a free node is the first in which PyTorch can run it.
    """
    found: dict[Node, int] = {}
    # The first round in which a reader can run, by the reader's kind.
    to_taken: dict[Node, int] = {}
    to_left: dict[Node, int] = {}
    sources: dict[Node, list[Node]] = {}
    for node in nodes:
        sources[node] = list(reads(node))
        taken = max((to_taken[each] for each in sources[node]), default=0)
        left = max((to_left[each] for each in sources[node]), default=0)
        if kind(node) is Kind.TAKEN:
            found[node], taken, left = taken, taken, taken + 1
        else:
            found[node] = left
            if kind(node) is Kind.LEFT:
                taken = left
        to_taken[node], to_left[node] = taken, left
    _sink(nodes, sources, kind, size, found)
    return found


def _sink(
    nodes: Sequence[Node],
    sources: Mapping[Node, Sequence[Node]],
    kind: Callable[[Node], Kind],
    size: Callable[[Node], float],
    found: dict[Node, int],
) -> None:
    """Move taken nodes to the round of their first reader, unless more then crosses the border."""
    latest: dict[Node, int] = {}  # the last round in which a taken node can still serve its readers
    for node in reversed(nodes):
        own = latest.get(node)
        if kind(node) is Kind.TAKEN:
            if own is not None and own > found[node]:
                beside = {each for each in sources[node] if found[each] == found[node]}
                if sum(size(each) for each in beside if kind(each) is Kind.TAKEN) <= size(node):
                    found[node] = own
            own = found[node]
        elif kind(node) is Kind.LEFT:
            own = found[node] - 1
        if own is not None:
            for each in sources[node]:
                latest[each] = min(latest.get(each, own), own)
