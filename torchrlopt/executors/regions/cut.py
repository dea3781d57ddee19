"""Cuts a model: the largest parts that a runtime supports become regions if they are worthwhile.

Constants and size arithmetic are copied to all their readers. Values computed from weights belong to the
region that reads them; if several do, they are computed once, outside the regions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import onnx_ir

from torchrlopt.executors.regions.partition import Kind, rounds
from torchrlopt.executors.weights.split_onnx import steps_of
from torchrlopt.executors.weights.static_part import hoisted

_MOST_TRIES = 8
"""Maximum number of times that regions that do not pay are dropped and the rest is cut again."""


@dataclasses.dataclass(frozen=True, eq=False)
class Region:
    """Nodes that run together in a runtime.

    Attributes:
        nodes: in order, including copies of free nodes.
        taken: the nodes that run nowhere else.
        inputs: values from outside, including weights but not constants.
        outputs: values that are read outside.
    """

    nodes: tuple[onnx_ir.Node, ...]
    taken: tuple[onnx_ir.Node, ...]
    inputs: tuple[onnx_ir.Value, ...]
    outputs: tuple[onnx_ir.Value, ...]


@dataclasses.dataclass(frozen=True)
class Cut:
    """A model in parts.

    Attributes:
        regions: in topological order.
        order: the whole model in topological order: regions, and nodes that PyTorch runs.
        places: maps each node to the indices of the regions it runs in, -1 for PyTorch.
        once: the nodes over weights and constants, which do not run in every call.
    """

    regions: tuple[Region, ...]
    order: tuple[onnx_ir.Node | Region, ...]
    places: Mapping[onnx_ir.Node, frozenset[int]]
    once: Collection[onnx_ir.Node]


OUTSIDE = -1


def cut(
    model: onnx_ir.Model,
    left: Collection[onnx_ir.Node],
    static: Collection[str],
    scalars: Collection[str],
    num_bytes: Callable[[onnx_ir.Value], float],
    pays: Callable[[Region], bool],
) -> Cut:
    """Cut a model into regions and the rest.

    Args:
        model: its nodes are in topological order.
        left: nodes that the runtime does not support.
        static: names of the inputs that are weights.
        scalars: names of the inputs that are sizes.
        num_bytes: size of a value.
        pays: whether a region is worthwhile.
    """
    cutter = _Cutter(model, static, scalars, num_bytes)
    given_up = set(left)
    for _ in range(_MOST_TRIES):
        found = cutter.cut(given_up)
        poor = [region for region in found.regions if not pays(region)]
        if not poor:
            return found
        given_up.update(node for region in poor for node in region.taken)
    return cutter.cut(set(model.graph))


class _Cutter:
    """What is known about a model before it is cut."""

    def __init__(
        self,
        model: onnx_ir.Model,
        static: Collection[str],
        scalars: Collection[str],
        num_bytes: Callable[[onnx_ir.Value], float],
    ) -> None:
        self.nodes = list(model.graph)
        self.num_bytes = num_bytes
        weights = [value for value in model.graph.inputs if value.name in static]
        constants = list(model.graph.initializers.values())
        steps = steps_of(model.graph)
        sources = [step for step in steps if not step.reads and step.is_repeatable]
        given = [value for step in sources for value in step.gives]
        found = hoisted(steps, [*weights, *constants, *given])
        self.fixed = {step.node for step in (*sources, *found)}
        self.composed = {step.node for step in hoisted(steps, weights, constants)}
        self.free = self.fixed | self._sizes({value for value in model.graph.inputs if value.name in scalars})

    def _sizes(self, scalars: Collection[onnx_ir.Value]) -> set[onnx_ir.Node]:
        """The size arithmetic: over the caller's numbers, shapes, and constants."""
        known: set[onnx_ir.Value] = set(scalars)
        found: set[onnx_ir.Node] = set()
        for node in self.nodes:
            read = [value for value in node.inputs if value is not None]
            is_size = node.op_type in ("Shape", "Size") or any(value in known for value in read)
            is_known = node.op_type in ("Shape", "Size") or all(
                value in known or value.const_value is not None or value.producer() in self.fixed
                for value in read
            )
            if is_size and is_known and all(map(_is_small, node.outputs)):
                known.update(node.outputs)
                found.add(node)
        return found

    def cut(self, left: Collection[onnx_ir.Node]) -> Cut:
        def kind(node: onnx_ir.Node) -> Kind:
            if node in left:
                return Kind.LEFT
            return Kind.FREE if node in self.free else Kind.TAKEN

        def size(node: onnx_ir.Node) -> float:
            return sum(map(self.num_bytes, node.outputs))

        round_of = rounds(self.nodes, _producers, kind, size)
        taken = [node for node in self.nodes if kind(node) is Kind.TAKEN]
        numbers = {number: at for at, number in enumerate(sorted({round_of[node] for node in taken}))}
        home = {node: numbers[round_of[node]] for node in taken}
        places = self._places(home, left)
        members: list[list[onnx_ir.Node]] = [[] for _ in numbers]
        for node in self.nodes:
            for place in places[node] - {OUTSIDE}:
                members[place].append(node)
        regions = [_region(nodes, at, home, places) for at, nodes in enumerate(members)]
        outside = [(round_of[node], node) for node in self.nodes if OUTSIDE in places[node]]
        # Within a round, the nodes that PyTorch runs come first.
        units: list[tuple[int, int, onnx_ir.Node | Region]] = [(number, 0, node) for number, node in outside]
        units += [(number, 1, regions[at]) for number, at in numbers.items()]
        units.sort(key=lambda unit: unit[:2])
        return Cut(tuple(regions), tuple(unit for *_, unit in units), places, self.fixed)

    def _places(
        self, home: Mapping[onnx_ir.Node, int], left: Collection[onnx_ir.Node]
    ) -> dict[onnx_ir.Node, frozenset[int]]:
        places: dict[onnx_ir.Node, frozenset[int]] = {}
        for node in reversed(self.nodes):
            if node in home or node in left:
                places[node] = frozenset({home.get(node, OUTSIDE)})
                continue
            wanted = {place for value in node.outputs for use in value.uses() for place in places[use.node]}
            if any(value.is_graph_output() for value in node.outputs):
                wanted.add(OUTSIDE)
            is_shared = node in self.composed and len(wanted) > 1
            places[node] = frozenset({OUTSIDE} if is_shared else wanted)
        return places


def _region(
    nodes: Sequence[onnx_ir.Node],
    place: int,
    home: Mapping[onnx_ir.Node, int],
    places: Mapping[onnx_ir.Node, frozenset[int]],
) -> Region:
    inside = set(nodes)
    inputs: dict[onnx_ir.Value, None] = {}
    outputs: list[onnx_ir.Value] = []
    for node in nodes:
        for value in node.inputs:
            if value is not None and value.producer() not in inside and not _is_initializer(value):
                inputs[value] = None
        if node in home:
            outputs += [value for value in node.outputs if _is_read_outside(value, place, places)]
    taken = tuple(node for node in nodes if node in home)
    return Region(tuple(nodes), taken, tuple(inputs), tuple(outputs))


def _is_read_outside(value: onnx_ir.Value, place: int, places: Mapping[onnx_ir.Node, frozenset[int]]) -> bool:
    return value.is_graph_output() or any(places[use.node] - {place} for use in value.uses())


def _is_initializer(value: onnx_ir.Value) -> bool:
    return value.producer() is None and value.const_value is not None


def _is_small(value: onnx_ir.Value) -> bool:
    """True for an integer or a list of integers."""
    return value.dtype is onnx_ir.DataType.INT64 and value.shape is not None and len(value.shape) <= 1


def _producers(node: onnx_ir.Node) -> Iterable[onnx_ir.Node]:
    found = (value.producer() for value in node.inputs if value is not None)
    return [producer for producer in found if producer is not None]
