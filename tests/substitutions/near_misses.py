"""Graphs that almost match a pattern: an instance with one change.

A pattern that ignores the changed attribute must be correct for any value of it.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from torchrlopt import _C
from torchrlopt.errors import RlOptError

_FINITE = (0.0, 1.0, 3.0, -2.0)
_REALS = (*_FINITE, math.inf, -math.inf)
_LARGEST = 2**31  # of integers that are changed: beyond it they stand for an end


def near_misses(graph: _C.Graph, draw: random.Random) -> Iterator[tuple[str, _C.Graph]]:
    """Graphs in which one thing is another, with what was changed.

    An attribute, the sizes of an input, the order of two operands, or an input instead of another one.

    Args:
        graph: an instance of a pattern.
        draw: which elements of lists are changed, and how.
    """
    leaves = set(graph.inputs)
    for node_id in graph.topological_order():
        node = graph.node(node_id)
        for name, value in node["attrs"].items():
            # Substitutions are right over the real numbers, and so with finite factors and summands.
            for other in _others(value, draw, _FINITE if node["op"] == "Constant" else _REALS):
                change = _Change(node_id, attrs={**node["attrs"], name: other})
                yield from _named(graph, change, f"{node['op']}'s {name} {value} -> {other}")
        if node_id in leaves:
            dtype, dims = graph.type((node_id, 0))
            for other in _other_sizes(list(dims or ()), draw):
                change = _Change(node_id, type_=(dtype, other))
                yield from _named(graph, change, f"{node['name']}'s sizes {dims} -> {other}")
        inputs = node["inputs"]
        if len(inputs) > 1:
            i, j = draw.sample(range(len(inputs)), 2)
            swapped = list(inputs)
            swapped[i], swapped[j] = inputs[j], inputs[i]
            yield from _named(graph, _Change(node_id, inputs=swapped), f"{node['op']}'s operands {i} and {j}")
            doubled = list(inputs)
            doubled[i] = inputs[j]
            yield from _named(graph, _Change(node_id, inputs=doubled), f"{node['op']}'s operand {i} is {j}")


@dataclasses.dataclass(frozen=True)
class _Change:
    """What is another in one node; None where it is what it was."""

    node: int
    attrs: dict[str, Any] | None = None
    type_: tuple[str, list[Any]] | None = None
    inputs: list[Any] | None = None


def _named(graph: _C.Graph, change: _Change, what: str) -> Iterator[tuple[str, _C.Graph]]:
    changed = _with(graph, change)
    if changed is not None:
        yield what, changed


def _other_sizes(dims: list[Any], draw: random.Random) -> list[list[Any]]:
    """Sizes that broadcasting may take for the given ones."""
    found = [[1, *dims]]
    if dims:
        place = draw.randrange(len(dims))
        found += [
            dims[1:],
            [*dims[:place], 1, *dims[place + 1 :]],
            [*dims[:place], dims[place] + 1, *dims[place + 1 :]],
        ]
    return found


def _others(value: Any, draw: random.Random, reals: Sequence[float]) -> list[Any]:
    """Some values of the type of another one."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1] if abs(value) < _LARGEST else []
    if isinstance(value, float):
        return [other for other in reals if other != value]
    if isinstance(value, (list, tuple)) and value:
        place = draw.randrange(len(value))
        others = _others(value[place], draw, reals)
        return [[*value[:place], other, *value[place + 1 :]] for other in others]
    return []


def _with(graph: _C.Graph, change: _Change) -> _C.Graph | None:
    """The graph with a change; None where it does not go together with the rest."""
    builder = _C.GraphBuilder()
    places: dict[int, int] = {}
    leaves = set(graph.inputs)
    try:
        for node_id in graph.topological_order():
            node, own = graph.node(node_id), change if change.node == node_id else _Change(node_id)
            attrs = node["attrs"] if own.attrs is None else own.attrs
            type_ = graph.type((node_id, 0)) if own.type_ is None else own.type_
            if node_id in leaves:
                places[node_id] = builder.add_input(node["name"], type_, node["op"] == "Weight")
            elif node["op"] == "Constant":
                places[node_id] = builder.add_leaf("Constant", [], attrs, [type_])
            else:
                given = node["inputs"] if own.inputs is None else own.inputs
                inputs = [None if each is None else (places[each[0]], each[1]) for each in given]
                places[node_id] = builder.add_node(node["op"], inputs, attrs)
        builder.set_outputs([(places[id_], i) for id_, i in graph.outputs], graph.output_names)
        return builder.finish()
    except RlOptError:
        return None
