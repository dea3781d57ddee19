"""A candidate pair of the generator as lines of operators, with the shapes it was found with.

The core numbers values; here they have names: inputs have those of their world; values inside the pattern are
`t1, t2, ...`, those inside the replacement `u1, ...`, and the outputs `y1, ...`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from torchrlopt import _C
from training.generate import _enumerate

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Input:
    """An input of a world, or a constant: a `number`, or a matrix that only a replacement can create."""

    name: str
    sort: int
    is_constant: bool
    number: float | None
    shape: Shape


@cache
def world_inputs(world: str) -> tuple[Input, ...]:
    """The inputs of a world, in numeric order."""
    return tuple(
        Input(**{**each, "shape": tuple(each["shape"])}) for each in _enumerate.world(world)["inputs"]
    )


@cache
def world_letters(world: str) -> tuple[dict[str, Any], ...]:
    """Name, op, arity and num_outputs of each letter."""
    return tuple(_enumerate.world(world)["letters"])


@dataclass(frozen=True)
class OpLine:
    """`outs = op(ins)` with the attributes of the instance; shapes by position."""

    op: str
    ins: tuple[str, ...]
    outs: tuple[str, ...]
    attrs: Mapping[str, Any]
    in_shapes: tuple[Shape, ...]
    out_shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class Side:
    """One graph of a pair: operators as [letter, operand, operand], and the numbers of its outputs."""

    world: str
    ops: tuple[tuple[int, int, int], ...]
    outputs: tuple[int, ...]

    @property
    def num_ops(self) -> int:
        """Number of operators; 0 if the output is an input."""
        return 0 if self.ops[0][0] < 0 else len(self.ops)

    def graph(self, trial: int = 0, shapes: Sequence[Shape] = (), statics: Sequence[bool] = ()) -> _C.Graph:
        """As a graph of the core, with the shapes of a trial or with given ones (one per sort)."""
        ops = [list(op) for op in self.ops]
        sizes = [list(shape) for shape in shapes]
        return _enumerate.term_graph(self.world, ops, list(self.outputs), sizes, list(statics), trial)

    @cached_property
    def inputs(self) -> frozenset[int]:
        """Numbers of the inputs and constants that are read."""
        count = len(world_inputs(self.world))
        return frozenset(value for op in self.ops for value in op[1:] if 0 <= value < count)

    @property
    def data_inputs(self) -> frozenset[int]:
        """The inputs without constants."""
        return frozenset(i for i in self.inputs if not world_inputs(self.world)[i].is_constant)

    def names(self, inner: str) -> dict[int, str]:
        """Names of all values; inner ones start with `inner`."""
        inputs = world_inputs(self.world)
        names = {i: each.name for i, each in enumerate(inputs)}
        letters = world_letters(self.world)
        for number, output in enumerate(self.outputs):
            if output >= len(inputs):
                names[output] = f"y{number + 1}" if len(self.outputs) > 1 else "y"
        count = 0
        for i, op in enumerate(self.ops[: self.num_ops]):
            for k in range(letters[op[0]]["num_outputs"]):
                value = len(inputs) + 2 * i + k
                if value not in names:
                    count += 1
                    names[value] = f"{inner}{count}"
        return names

    def lines(self, inner: str) -> list[OpLine]:
        """The operators with names, and with the attributes and shapes of the enumeration."""
        graph = self.graph()
        names = self.names(inner)
        letters = world_letters(self.world)
        base = len(world_inputs(self.world))
        nodes = [graph.node(i) for i in graph.topological_order()]
        nodes = sorted((n for n in nodes if n["op"] not in ("Input", "Constant")), key=lambda n: int(n["id"]))
        lines = []
        for i, (op, node) in enumerate(zip(self.ops[: self.num_ops], nodes, strict=True)):
            letter = letters[op[0]]
            lines.append(
                OpLine(
                    op=node["op"],
                    ins=tuple(names[value] for value in op[1 : 1 + letter["arity"]]),
                    outs=tuple(names[base + 2 * i + k] for k in range(letter["num_outputs"])),
                    attrs=node["attrs"],
                    in_shapes=tuple(_sizes(graph.type(value)) for value in node["inputs"]),
                    out_shapes=tuple(_sizes(type_) for type_ in node["types"]),
                )
            )
        return lines


def _sizes(type_: _C.TensorType) -> Shape:
    return tuple(int(size) for size in type_[1] or ())


@dataclass(frozen=True)
class Pair:
    """A direction of a candidate pair: `before` may be replaced by `after`."""

    before: Side
    after: Side

    @classmethod
    def from_core(cls, world: str, found: Mapping[str, Any]) -> Pair:
        """From a result of `_enumerate.enumerate_pairs`: the larger graph before, the smaller after."""

        def side(name: str) -> Side:
            ops = tuple((op[0], op[1], op[2]) for op in found[name])
            return Side(world, ops, tuple(found[f"{name}_outputs"]))

        return cls(side("left"), side("right"))

    def reversed(self) -> Pair:
        """The opposite direction."""
        return Pair(self.after, self.before)

    def in_order(self) -> Pair:
        """The pair with its inputs named in the order in which the graph before reads them."""
        inputs = world_inputs(self.before.world)
        free = {
            sort: [i for i, each in enumerate(inputs) if each.sort == sort]
            for sort in {e.sort for e in inputs}
        }
        order = [value for op in self.before.ops for value in op[1:] if 0 <= value < len(inputs)]
        order += sorted(self.after.inputs)
        names = {value: free[inputs[value].sort].pop(0) for value in dict.fromkeys(order)}

        def renamed(side: Side) -> Side:
            ops = tuple((op[0], names.get(op[1], op[1]), names.get(op[2], op[2])) for op in side.ops)
            return Side(side.world, ops, tuple(names.get(value, value) for value in side.outputs))

        return Pair(renamed(self.before), renamed(self.after))

    @property
    def size(self) -> int:
        """Total number of operators on both sides."""
        return self.before.num_ops + self.after.num_ops

    @property
    def is_possible(self) -> bool:
        """Whether the direction can be a substitution: the replacement only reads inputs of the pattern."""
        inputs = world_inputs(self.before.world)
        made = all(inputs[i].number is not None for i in self.before.inputs - self.before.data_inputs)
        return self.before.num_ops > 0 and made and self.after.data_inputs <= self.before.data_inputs
