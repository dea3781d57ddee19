"""Which calls of a graph follow on each other, so that they can become one: an order, in groups."""

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
"""Fewer calls are no sequence."""


def scheduled(graph: fx.Graph, taken: Collection[fx.Node], is_early: bool) -> list[list[fx.Node]]:
    """The nodes in an order in which they can run: what is taken in groups, each other node by itself.

    A group ends where nothing more can follow. Everything else that is ready comes before it, or with
    `is_early` as little as there can be.
    """
    position = {node: at for at, node in enumerate(graph.nodes)}
    # A room takes memory from when it is made: that is right before somebody writes into it.
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
    # The output has no users, and what has none either may have been ready after it.
    return [each for each in groups if each[0].op != "output"] + [[graph.output_node()]]


def incomplete(groups: Iterable[Sequence[fx.Node]]) -> set[fx.Node]:
    """Nodes that cannot stay where they are in a group."""
    wrong: set[fx.Node] = set()
    for group in groups:
        members = set(group)
        if sum(node.target in KERNELS for node in group) < LEAST_KERNELS:
            wrong |= members
        for node in group:
            # What shares memory with others is no result of a sequence.
            if node.target in RESHAPES and not members.issuperset(node.users):
                wrong.add(node)
            if node.target in SPLITS:
                parts = (node, *node.users)
                if not all(members.issuperset(each.users) for each in parts):
                    wrong |= set(parts)
            if node.target is operator.getitem and node.args[0] not in members:
                wrong.add(node)
            # Else it is made outside, and the sequence writes into what it is given.
            if node.target is ROOM and not members.issuperset(node.users):
                wrong.add(node)
    return wrong
