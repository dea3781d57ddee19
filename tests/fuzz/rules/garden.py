"""Grows a random graph around instances of patterns.

An instance's inputs come from anywhere: fresh inputs, results of random operators, existing values of the
graph (a shared weight, one tensor twice, a chain of patterns). Its intermediates get additional readers and
become outputs. All random parts are well conditioned, so that rounding cannot hide a wrong result.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from tests.fuzz.rules import makers
from torchrlopt import _C
from torchrlopt.errors import ModelFormatError

Ref = tuple[int, int]
Type = tuple[str, tuple[int, ...]]

_MAX_ELEMENTS = 4096  # the reference interpreter is slow


@dataclasses.dataclass
class Planted:
    """An instance in the graph.

    Attributes:
        nodes: its operators.
        intermediates: what one of them reads of another.
    """

    nodes: list[int]
    intermediates: list[Ref]


class Garden:
    """A graph that grows.

    Args:
        draw: all choices come from it.

    Attributes:
        pool: what may be read so far.
        types: of all values that stand in the graph.
        static: values that depend on weights and constants only.
    """

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.pool: list[Ref] = []
        self.types: dict[Ref, Type] = {}
        self.static: set[Ref] = set()
        self._builder = _C.GraphBuilder()
        self._read: set[Ref] = set()
        self._inner: set[Ref] = set()
        self._outputs: list[Ref] = []
        self._num_inputs = 0

    def finish(self) -> _C.Graph:
        """The graph: what nothing reads is an output, and some of the rest."""
        unread = [value for value in self.pool if value not in self._read]
        outputs = list(dict.fromkeys([*unread, *self._outputs])) or self.pool[-1:]
        self._builder.set_outputs(outputs, [f"out{i}" for i in range(len(outputs))])
        return self._builder.finish()

    def input(self, type_: Type, is_weight: bool = False) -> Ref:
        """A new input or weight."""
        self._num_inputs += 1
        value = (self._builder.add_input(f"in{self._num_inputs}", type_, is_weight), 0)
        self.types[value] = type_
        if is_weight:
            self.static.add(value)
        return value

    def node(self, op: str, inputs: Sequence[Ref | None], attrs: dict[str, object]) -> list[Ref]:
        """A new operator; its outputs.

        Raises:
            ModelFormatError: it does not take these operands.
        """
        node = self._builder.add_node(op, inputs, attrs)
        given = {value for value in inputs if value is not None}
        self._read |= given
        outputs = [(node, i) for i in range(makers.num_outputs(op, attrs))]
        for value in outputs:
            self._know(value)
            if given <= self.static:
                self.static.add(value)
        return outputs

    def plant(self, instance: _C.Graph) -> Planted:
        """Put an instance in, with random sources for its inputs."""
        places: dict[int, list[Ref]] = {}
        planted = Planted([], [])
        given = set(instance.inputs)
        fixed = _variances_and_indices(instance)
        for node_id in instance.topological_order():
            node = instance.node(node_id)
            if node_id in given:
                places[node_id] = [self._source(_type(instance, node_id), node["op"], node_id in fixed)]
            elif node["op"] == "Constant":
                types = [instance.type((node_id, 0))]
                value = (self._builder.add_leaf("Constant", [], node["attrs"], types), 0)
                self._know(value)
                self.static.add(value)
                places[node_id] = [value]
            else:
                inputs = [None if each is None else places[each[0]][each[1]] for each in node["inputs"]]
                planted.intermediates += [
                    value
                    for value, each in zip(inputs, node["inputs"], strict=True)
                    if each is not None
                    and each[0] not in given
                    and instance.node(each[0])["op"] != "Constant"
                ]
                places[node_id] = self.node(node["op"], inputs, node["attrs"])
                planted.nodes.append(places[node_id][0][0])
                self.pool += places[node_id]
        self._inner |= set(planted.intermediates)
        return planted

    def surround(self, planted: Planted) -> None:
        """Further readers for an intermediate, or a place among the graph's outputs."""
        for value in dict.fromkeys(planted.intermediates):
            chance = self.draw.random()
            if chance < 0.12:
                self._outputs.append(value)
            elif chance < 0.24 and self.types[value][0] == "f32":
                self.pool += self.node(self.draw.choice(makers.UNARY), [value], {})

    def grow(self, count: int) -> None:
        """Random operators on what is there."""
        for _ in range(count):
            # Many patterns want to be the only readers of what is inside them.
            among = self.pool if self.draw.random() < 0.15 else [v for v in self.pool if v not in self._inner]
            readable = [value for value in among if self._may_read(value)]
            if not readable:
                continue
            value = self.draw.choice(readable[-12:])
            try:
                self.pool += makers.consume(self, value)
            except ModelFormatError:
                continue  # the operator does not take it after all

    def partner(self, value: Ref) -> Ref | None:
        """Another value of the same type, if there is one."""
        others = [each for each in self.pool if self.types[each] == self.types[value] and each != value]
        return self.draw.choice(others) if others else None

    def _source(self, type_: Type, op: str, is_fixed: bool) -> Ref:
        """A value of a type, for an input or weight of an instance."""
        is_weight = op == "Weight"
        chance = self.draw.random()
        if not is_fixed and chance < 0.4:
            known = [
                value
                for value in (self.static if is_weight else self.pool)
                if self.types[value] == type_ and (value in self.static) == is_weight
                if value not in self._inner or self.draw.random() < 0.15
            ]
            if known:
                return self.draw.choice(sorted(known))
        if not is_fixed and chance < 0.75 and type_[0] == "f32":
            try:
                value = makers.make(self, type_, is_weight)
            except ModelFormatError:
                return self.input(type_, is_weight)
            if not is_weight:
                self.pool.append(value)
            return value
        value = self.input(type_, is_weight)
        if not is_weight and not is_fixed:
            self.pool.append(value)
        return value

    def _know(self, value: Ref) -> None:
        dtype, dims = self._builder.type(value)
        self.types[value] = (dtype, tuple(int(dim) for dim in dims or ()))

    def _may_read(self, value: Ref) -> bool:
        dtype, dims = self.types[value]
        size = 1
        for dim in dims:
            size *= dim
        return dtype == "f32" and size <= _MAX_ELEMENTS


def _type(graph: _C.Graph, node_id: int) -> Type:
    dtype, dims = graph.type((node_id, 0))
    return dtype, tuple(int(dim) for dim in dims or ())


def _variances_and_indices(graph: _C.Graph) -> set[int]:
    """Inputs that cannot be any number: variances, and whatever is no floating point number."""
    found = {node_id for node_id in graph.inputs if _type(graph, node_id)[0] != "f32"}
    for node_id in graph.topological_order():
        node = graph.node(node_id)
        if node["op"] == "BatchNormalization":
            found.add(node["inputs"][4][0])
    return found
