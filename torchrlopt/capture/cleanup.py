"""The fixed clean-up of a captured graph: simplifications that always pay, so that none need be searched for.

One forward sweep (identities, casts of casts, reshapes of reshapes, no-op moves, equal nodes) and one
backward sweep (dead nodes). BatchNorms are not folded and equal weights are not merged: the search decides
the first, and the second would be wrong once a weight is updated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import onnx_ir as ir
import torch

from torchrlopt.capture.opaque import DOMAIN
from torchrlopt.onnx.attributes import make_attribute
from torchrlopt.ops.onnx_types import broadcast, reshape_target, set_type, value_dims, value_dtype

_FLOATS = (torch.float16, torch.float32, torch.float64)
# dtype -> the dtypes that hold every value of it.
_EXACT_IN: dict[torch.dtype, tuple[torch.dtype, ...]] = {
    torch.float16: (torch.float32, torch.float64),
    torch.bfloat16: (torch.float32, torch.float64),
    torch.float32: (torch.float64,),
    torch.uint8: (torch.int16, torch.int32, torch.int64, *_FLOATS),
    torch.int8: (torch.int16, torch.int32, torch.int64, *_FLOATS),
    torch.int16: (torch.int32, torch.int64, torch.float32, torch.float64),
    torch.int32: (torch.int64, torch.float64),
    torch.bool: (torch.uint8, torch.int32, torch.int64, *_FLOATS),
}
# Operators whose result may differ between calls: two equal nodes are two draws.
_RANDOM = {
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli",
    "Dropout",
}  # fmt: skip
# These may return a view: their output can share memory with their input.
_VIEWS = {
    "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Expand", "Split", "Flatten",
}  # fmt: skip
# Operators that broadcast their operands; Where's condition is one of them.
_BROADCASTING = {
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "And", "Or", "Xor", "Where", "Equal", "Less",
    "LessOrEqual", "Greater", "GreaterOrEqual",
}  # fmt: skip
# x op neutral is x, bit for bit: NaN, infinities and the sign of zero included.
_NEUTRAL = {"Mul": 1, "Div": 1, "Sub": 0}


@dataclasses.dataclass(frozen=True)
class Cleaned:
    """How the clean-up changed the names of a model.

    Attributes:
        replaced: name of each removed value -> name of the equal value that replaces it.
        rewired: names of the nodes that now read from further up than originally.
    """

    replaced: dict[str, str]
    rewired: frozenset[str]


def clean(model: ir.Model) -> Cleaned:
    """Cleans a model of typed values, without subgraphs, in place; names of what survives do not change."""
    sweep = _Sweep(model.graph)
    for node in list(model.graph):
        sweep.visit(node)
    _remove_dead(model.graph)
    return Cleaned(sweep.replaced, frozenset(sweep.rewired))


class _Sweep:
    """The forward sweep: the inputs of every node it visits are already simplified."""

    def __init__(self, graph: ir.Graph) -> None:
        self.replaced: dict[str, str] = {}
        self.rewired: set[str] = set()
        self._graph = graph
        self._returned = _returned_memory(graph)
        self._known: dict[tuple[object, ...], ir.Node] = {}
        self._sizes: dict[tuple[int, ...], ir.Value] = {}

    def visit(self, node: ir.Node) -> None:
        if node.domain == DOMAIN:
            return
        skip = {"Cast": _inner_cast, "Reshape": _inner_reshape, "Transpose": _inner_transpose}.get(
            node.op_type
        )
        if skip is not None:
            self._skip_inner(node, skip)
        if node.op_type in _BROADCASTING:
            self._skip_expand(node)
        source = _equal_input(node)
        if source is not None:
            self._replace(node, [source])
            return
        twin = self._known.setdefault(_key(node), node)
        if twin is not node and node.op_type not in _RANDOM:
            self._replace(node, list(twin.outputs))

    def _replace(self, node: ir.Node, equals: list[ir.Value]) -> None:
        # What the caller gets must not share memory with an input or another output.
        if any(value in self._returned for value in node.outputs):
            is_output = any(value.is_graph_output() for value in node.outputs)
            if is_output or not all(_is_private(equal) for equal in equals):
                return
        for value, equal in zip(node.outputs, equals, strict=True):
            value.replace_all_uses_with(equal)
            self.replaced[str(value.name)] = str(equal.name)
        # Removed now, so that it does not count as a reader.
        self._graph.remove(node, safe=True)

    def _skip_inner(self, node: ir.Node, skip: Callable[[ir.Node, ir.Node], list[int] | None]) -> None:
        source = node.inputs[0]
        inner = None if source is None else source.producer()
        if inner is None or inner.op_type != node.op_type or inner.domain != "" or inner.inputs[0] is None:
            return
        sizes = skip(inner, node)
        if sizes is None:
            return
        if node.op_type == "Reshape":
            node.replace_input_with(1, self._ints(sizes))
        elif node.op_type == "Transpose":
            node.attributes["perm"] = make_attribute("perm", sizes)
        node.replace_input_with(0, inner.inputs[0])
        self.rewired.add(str(node.name))

    def _skip_expand(self, node: ir.Node) -> None:
        """Reads the operand of an Expand directly if the other operands broadcast it just as far."""
        for index, operand in enumerate(node.inputs):
            inner = None if operand is None else operand.producer()
            if inner is None or inner.op_type != "Expand" or inner.inputs[0] is None:
                continue
            others = [value for at, value in enumerate(node.inputs) if value is not None and at != index]
            dims = broadcast(value_dims(inner.inputs[0]), *map(value_dims, others))
            if dims == value_dims(node.outputs[0]):
                node.replace_input_with(index, inner.inputs[0])
                self.rewired.add(str(node.name))

    def _ints(self, sizes: list[int]) -> ir.Value:
        found = self._sizes.get(tuple(sizes))
        if found is not None:
            return found
        tensor = ir.tensor(sizes, dtype=ir.DataType.INT64)
        name = f"const.size_{len(self._sizes)}"
        node = ir.Node("", "Constant", [], [make_attribute("value", tensor)], name=name)
        value = node.outputs[0]
        value.name = name
        set_type(value, torch.int64, (len(sizes),))
        self._graph.insert_before(self._graph[0], node)
        self._sizes[tuple(sizes)] = value
        return value


def _inner_cast(inner: ir.Node, node: ir.Node) -> list[int] | None:
    """Skips a cast that kept every value: casting its input gives the same result."""
    before, between = _input_dtype(inner), _input_dtype(node)
    if before == between or between in _EXACT_IN.get(before, ()):
        return []
    return None


def _inner_reshape(inner: ir.Node, node: ir.Node) -> list[int] | None:
    source = inner.inputs[0]
    dims = value_dims(node.outputs[0])
    return None if source is None or 0 in dims else reshape_target(value_dims(source), dims)


def _inner_transpose(inner: ir.Node, node: ir.Node) -> list[int] | None:
    first = _order(inner)
    return [first[axis] for axis in _order(node)]


def _input_dtype(node: ir.Node) -> torch.dtype:
    source = node.inputs[0]
    assert source is not None
    return value_dtype(source)


def _order(node: ir.Node) -> list[int]:
    given = node.attributes.get("perm")
    if given is not None:
        return list(given.as_ints())
    return list(range(len(value_dims(node.outputs[0]))))[::-1]


def _equal_input(node: ir.Node) -> ir.Value | None:
    """Returns the input that a node's only output is equal to, bit for bit."""
    source = node.inputs[0] if node.inputs else None
    if source is None or len(node.outputs) != 1 or node.domain != "":
        return None
    out = node.outputs[0]
    match node.op_type:
        case "Identity":
            same = True
        case "Cast":
            same = source.dtype == out.dtype
        case "Reshape" | "Expand":
            same = value_dims(source) == value_dims(out)
        case "Transpose":
            order = _order(node)
            same = order == sorted(order)
        case "Concat":
            same = len(node.inputs) == 1
        case "Mul" | "Div" | "Sub" | "Add":
            return _without_neutral(node, out)
        case _:
            same = False
    return source if same else None


def _without_neutral(node: ir.Node, out: ir.Value) -> ir.Value | None:
    x, y = node.inputs[0], node.inputs[1]
    if x is None or y is None:
        return None
    neutral = _NEUTRAL.get(node.op_type)
    if neutral is None:
        # -0.0 + 0 is +0.0, so only integers have a neutral element of addition.
        if value_dtype(out).is_floating_point:
            return None
        neutral = 0
    # Addition and multiplication commute.
    for kept, other in ((x, y), (y, x)) if node.op_type in ("Mul", "Add") else ((x, y),):
        if value_dims(kept) == value_dims(out) and _is_scalar(other, neutral):
            return kept
    return None


def _is_scalar(value: ir.Value, wanted: int) -> bool:
    node = value.producer()
    if node is None or node.op_type != "Constant" or value_dims(value) not in ((), (1,)):
        return False
    return bool(node.attributes["value"].as_tensor().numpy().reshape(-1)[0] == wanted)


def _key(node: ir.Node) -> tuple[object, ...]:
    """Two nodes with the same key compute the same."""
    attributes = tuple((name, _comparable(node.attributes[name])) for name in sorted(node.attributes))
    return (node.domain, node.op_type, node.inputs, attributes, len(node.outputs))


def _comparable(attribute: ir.Attr) -> object:
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return (tensor.dtype, tuple(tensor.shape), tensor.tobytes())
    value = attribute.value
    return (attribute.type, tuple(value) if isinstance(value, list | tuple) else value)


def _returned_memory(graph: ir.Graph) -> set[ir.Value]:
    """Returns the values whose memory a caller may get: outputs, and values they may be views of."""
    returned = set(graph.outputs)
    for node in reversed(graph):
        source = node.inputs[0] if node.inputs else None
        if source is not None and node.op_type in _VIEWS and any(value in returned for value in node.outputs):
            returned.add(source)
    return returned


def _is_private(value: ir.Value) -> bool:
    """Returns whether the memory of a value is new and visible to its one reader only."""
    while True:
        node = value.producer()
        if node is None or node.op_type == "Constant" or len(value.uses()) != 1 or value.is_graph_output():
            return False
        source = node.inputs[0] if node.inputs else None
        if node.op_type not in _VIEWS or source is None:
            return node.domain == ""
        value = source


def _remove_dead(graph: ir.Graph) -> None:
    for node in reversed(list(graph)):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            graph.remove(node, safe=True)
