"""Schedules the calls of a graph in groups of consecutive calls, each of which can become one call."""

from __future__ import annotations

import heapq
import operator
from collections.abc import Collection, Iterable, Sequence

import torch
from torch import fx

from torchrlopt.executors.eager.kernels.operators import KERNELS, ROOM
from torchrlopt.ops.traits import RESHAPES

aten = torch.ops.aten

SPLITS = frozenset({aten.split_with_sizes.default, aten.split.Tensor})

LEAST_KERNELS = 2
"""Minimum number of kernels in a sequence."""


def scheduled(graph: fx.Graph, taken: Collection[fx.Node], is_early: bool) -> list[list[fx.Node]]:
    """Order the nodes so that they can run: the nodes in `taken` in groups, every other node alone.

    A group ends when no further taken node is ready. All other ready nodes run before a group or, with
    `is_early`, as few as possible.
    """
    position = {node: at for at, node in enumerate(graph.nodes)}
    # A concat buffer is allocated when its node runs, so run it right before the first write into it.
    late = {node for node in graph.nodes if node.target is ROOM and node not in taken}
    missing = {node: len(set(node.all_input_nodes) - late) for node in graph.nodes if node not in late}
    ours: list[tuple[int, fx.Node]] = []
    others: list[tuple[int, fx.Node]] = []

    def offer(node: fx.Node) -> None:
        heapq.heappush(ours if node in taken else others, (position[node], node))

    def emit(ready: list[tuple[int, fx.Node]]) -> fx.Node:
        node = heapq.heappop(ready)[1]
        for room in late.intersection(node.all_input_nodes):
            late.remove(room)
            groups.append([room])
        for user in node.users:
            missing[user] -= 1
            if missing[user] == 0:
                offer(user)
        return node

    groups: list[list[fx.Node]] = []
    for node, count in missing.items():
        if count == 0:
            offer(node)
    while others or ours:
        if others and not (is_early and ours):
            node = emit(others)
            groups.append([node])
            continue
        group: list[fx.Node] = []
        while ours:
            group.append(emit(ours))
        groups.append(group)
    # The output has no users; other nodes without users may have become ready after it.
    return [each for each in groups if each[0].op != "output"] + [[graph.output_node()]]


def incomplete(groups: Iterable[Sequence[fx.Node]]) -> set[fx.Node]:
    """Nodes that cannot stay in their group."""
    wrong: set[fx.Node] = set()
    for group in groups:
        members = set(group)
        if sum(node.target in KERNELS for node in group) < LEAST_KERNELS:
            wrong |= members
        for node in group:
            # A value that shares memory with others cannot be a result of a sequence.
            if node.target in RESHAPES and not members.issuperset(node.users):
                wrong.add(node)
            if node.target in SPLITS:
                parts = (node, *node.users)
                if not all(members.issuperset(each.users) for each in parts):
                    wrong |= set(parts)
            if node.target is operator.getitem and node.args[0] not in members:
                wrong.add(node)
            # Otherwise it is made outside, and the sequence writes into the buffer it is given.
            if node.target is ROOM and not members.issuperset(node.users):
                wrong.add(node)
    return wrong
