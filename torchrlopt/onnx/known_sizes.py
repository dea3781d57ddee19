"""Evaluates sizes that are known without running the model, and names the targets of reshapes.

Exporters compute a target of free sizes from the sizes of other values, in ten nodes for each reshape. Part
of a child process, see `fold_child`.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir

from torchrlopt.onnx.opsets import STANDARD_DOMAINS
from torchrlopt.onnx.subgraphs import nested

Dims = list[int | str | None]
"""Sizes: numbers, names, of which equal ones are equal sizes, or None if they are not known."""

_MOST_ROUNDS = (
    32  # each tells the next one more: ShuffleNet, whose 16 blocks each halve what they read, needs 17
)

_MOST_ELEMENTS = 64  # of a list of sizes

_MOST_DEPTH = 32  # of an expression over sizes

# Division truncates in runtimes: it is left alone where an operand may be negative.
_ARITHMETIC = {"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": operator.floordiv}

_EVALUATED = (
    *_ARITHMETIC, "Cast", "Concat", "Equal", "Gather", "Slice", "Squeeze", "Unsqueeze", "Where",
)  # fmt: skip


def name_sizes(model: onnx_ir.Model) -> None:
    """Evaluate sizes, give reshapes constant targets, remove expansions and casts that do nothing, in place.

    In a target, 0 keeps a size, and one size may be left to the runtime. Names of free sizes are believed
    where inputs have them, and nowhere else: inside they are often wrong.
    """
    for _ in range(_MOST_ROUNDS):
        known = _Known(model)
        nodes = [node for node in model.graph if node.domain in STANDARD_DOMAINS]
        if not sum(known.simplify(node) for node in nodes):
            return


class _Known:
    """What is known about sizes of a model's values: by ONNX's inference, and by expressions over them."""

    def __init__(self, model: onnx_ir.Model) -> None:
        proto = onnx_ir.to_proto(model)
        del proto.graph.value_info[:]
        for value in proto.graph.output:
            value.type.tensor_type.ClearField("shape")
        self._infer(proto)
        # ONNX takes sizes for unchanged by any cast.
        casts = [node for node in model.graph if node.op_type == "Cast" and not _keeps_sizes(node)]
        if any(self.elements(node.inputs[0]) is not None for node in casts):
            self._infer(proto, follows_elements=False)

    def _infer(self, proto: onnx.ModelProto, follows_elements: bool = True) -> None:
        graph = onnx.shape_inference.infer_shapes(proto, data_prop=follows_elements).graph
        self._dims: dict[str, Dims] = {each.name: list(each.dims) for each in proto.graph.initializer}
        self._dtypes: dict[str, int] = {}
        self._elements: dict[onnx_ir.Value, Dims | None] = {}
        shared = _names_in_sequences(graph) | _names_in_einsums(graph)
        for value in (*graph.input, *graph.value_info, *graph.output):
            kind = value.type.tensor_type
            self._dtypes[value.name] = kind.elem_type
            if kind.HasField("shape"):
                self._dims[value.name] = [
                    dim.dim_value
                    if dim.HasField("dim_value")
                    else None
                    if dim.dim_param in shared
                    else dim.dim_param or None
                    for dim in kind.shape.dim
                ]

    def simplify(self, node: onnx_ir.Node) -> bool:
        """Change a node, or replace its output; return whether that was done."""
        output = node.outputs[0]
        is_inner = bool(output.uses()) and not output.is_graph_output()
        if node.op_type in ("Expand", "Reshape"):
            x, dims = node.inputs[0], self.dims(node.inputs[0])
            is_same = dims is not None and None not in dims and dims == self.dims(output)
            if x is not None and is_same and is_inner:
                onnx_ir.convenience.replace_all_uses_with(output, x)
                return True
            return node.op_type == "Reshape" and self._name_target(node)
        if not is_inner or node.op_type == "Equal":
            return False
        x = node.inputs[0] if node.op_type == "Cast" else None
        if x is not None and self._dtypes.get(str(x.name)) == node.attributes["to"].as_int():
            onnx_ir.convenience.replace_all_uses_with(output, x)
            return True
        found, shape = self.elements(output), self.dims(output)
        if node.op_type == "Constant" or found is None or shape is None:
            return False
        if not _are_numbers(found):
            return node.op_type == "Where" and self._list_anew(node, found)
        if shape not in ([], [len(found)]):
            return False
        dtype = onnx_ir.DataType(self._dtypes.get(str(output.name), 0))
        if not dtype.is_integer():
            return False
        onnx_ir.convenience.replace_all_uses_with(
            output, _constant(node, np.array(found, dtype.numpy()).reshape(shape))
        )
        return True

    def dims(self, value: onnx_ir.Value | None) -> Dims | None:
        """The sizes of a value."""
        return None if value is None else self._dims.get(str(value.name))

    def elements(self, value: onnx_ir.Value | None, depth: int = 0) -> Dims | None:
        """The elements of a number or list of sizes."""
        if value is None or depth > _MOST_DEPTH:
            return None
        if value not in self._elements:
            self._elements[value] = self._evaluated(value, depth)
        return self._elements[value]

    def _evaluated(self, value: onnx_ir.Value, depth: int) -> Dims | None:
        tensor = None if value.is_graph_input() else onnx_ir.convenience.get_const_tensor(value)
        if tensor is not None:
            is_listed = tensor.dtype.is_integer() or tensor.dtype == onnx_ir.DataType.BOOL
            is_list = is_listed and len(tensor.shape) <= 1 and tensor.size <= _MOST_ELEMENTS
            return tensor.numpy().reshape(-1).tolist() if is_list else None
        node = value.producer()
        shape = self.dims(value)
        if node is None or node.domain not in STANDARD_DOMAINS or shape is None or len(shape) > 1:
            return None
        if node.op_type == "Shape":
            start, end = (node.attributes.get_int(key) for key in ("start", "end"))
            dims = self.dims(node.inputs[0])
            return None if dims is None else dims[start:end]
        if node.op_type not in _EVALUATED:
            return None
        if node.op_type == "Cast" and not _keeps_sizes(node):
            return None
        # Only the axes of a slice can be left out before another operand.
        parts = [[0] if each is None else self.elements(each, depth + 1) for each in node.inputs]
        if any(part is None for part in parts[: 1 if node.op_type in ("Squeeze", "Unsqueeze") else None]):
            return None
        found = _applied(node.op_type, parts)  # type: ignore[arg-type]  # none of those that are used is None
        return None if found is None or len(found) > _MOST_ELEMENTS else found

    def _list_anew(self, node: onnx_ir.Node, found: Dims) -> bool:
        """Concatenate the chosen sizes: PyTorch's `expand(n, -1)` is Where(Equal(sizes, -1), 1, sizes)."""
        maker = node.inputs[2].producer() if node.inputs[2] is not None else None
        if maker is None or maker.op_type != "Concat" or len(maker.inputs) != len(found):
            return False
        parts = []
        for at, (part, dim) in enumerate(zip(maker.inputs, found, strict=True)):
            if isinstance(dim, int):
                parts.append(_constant(node, np.array([dim], np.int64), f".{at}"))
            elif dim is None or part is None or self.elements(part) != [dim]:
                return False
            else:
                parts.append(part)
        (old,) = node.outputs
        new = onnx_ir.Node("", "Concat", parts, [onnx_ir.AttrInt64("axis", 0)], name=f"{node.name}.known")
        output = new.outputs[0]
        output.name, output.type, output.shape = f"{old.name}.known", old.type, old.shape
        assert node.graph is not None
        node.graph.insert_before(node, new)
        onnx_ir.convenience.replace_all_uses_with(old, output)
        return True

    def _name_target(self, node: onnx_ir.Node) -> bool:
        """Give a reshape a constant target, or one without -1."""
        x, target = node.inputs
        if node.attributes.get_int("allowzero", 0):
            return False
        before, after, given = self.dims(x), self.dims(node.outputs[0]), self.elements(target)
        if before is None or target is None:
            return False
        if given is not None and not any(dim == 0 and at >= len(before) for at, dim in enumerate(given)):
            asked = [before[at] if dim == 0 else None if dim == -1 else dim for at, dim in enumerate(given)]
            if len(after or asked) != len(asked):
                return False
            after = [new if dim is None else dim for dim, new in zip(asked, after or asked, strict=True)]
        wanted = None if after is None else _target(before, after)
        is_constant = onnx_ir.convenience.get_const_tensor(target) is not None
        if wanted is None or (is_constant and (-1 in wanted or given is None or -1 not in given)):
            return False
        if {0, -1} <= set(wanted) and (given is None or -1 not in given):
            return False  # where a size that is kept is 0, runtimes refuse -1, but not what was given
        node.replace_input_with(1, _constant(node, np.array(wanted, np.int64)))
        return True


def _keeps_sizes(cast: onnx_ir.Node) -> bool:
    """Whether the type that a node casts to has every size."""
    return cast.attributes["to"].as_int() in (onnx_ir.DataType.INT32, onnx_ir.DataType.INT64)


def _names_in_sequences(graph: onnx.GraphProto) -> set[str]:
    """Names that inference gives to sizes of a sequence's elements, which need not have one size."""
    kinds = [value.type for each in nested(graph) for value in (*each.input, *each.value_info, *each.output)]
    tensors = (value.type.tensor_type for value in graph.input)
    return _names(
        kind for kind in kinds if kind.HasField("sequence_type") or kind.HasField("optional_type")
    ) - {dim.dim_param for kind in tensors for dim in kind.shape.dim}


def _names_in_einsums(graph: onnx.GraphProto) -> set[str]:
    """Names of sizes that share a letter of an einsum. Inference takes the first one, which may be 1."""
    shapes: dict[str, list[int | str]] = {}
    for each in nested(graph):
        for value in (*each.input, *each.value_info, *each.output):
            dims = value.type.tensor_type.shape.dim
            shapes[value.name] = [dim.dim_param or dim.dim_value for dim in dims]
    found: set[str] = set()
    for node in (node for each in nested(graph) for node in each.node if node.op_type == "Einsum"):
        equation = next((a.s.decode() for a in node.attribute if a.name == "equation"), "")
        letters: dict[str, set[int | str]] = {}
        for term, name in zip(
            equation.partition("->")[0].replace(" ", "").split(","), node.input, strict=False
        ):
            # Without letters of their own, all sizes behind an ellipsis count as one.
            each_letter = term if "." not in term else "." * len(shapes.get(name, ()))
            for letter, dim in zip(each_letter, shapes.get(name, ()), strict=False):
                letters.setdefault(letter, set()).add(dim)
        found |= {dim for dims in letters.values() if len(dims) > 1 for dim in dims if isinstance(dim, str)}
    return found


def _names(kinds: Iterable[onnx.TypeProto]) -> set[str]:
    found: set[str] = set()
    for kind in kinds:
        while kind.HasField("sequence_type") or kind.HasField("optional_type"):
            kind = getattr(kind, str(kind.WhichOneof("value"))).elem_type
        found |= {dim.dim_param for dim in kind.tensor_type.shape.dim if dim.dim_param}
    return found


def _applied(op: str, parts: Sequence[Dims]) -> Dims | None:
    """The elements of what an operator computes from lists, if they are known."""
    first, *others = parts
    if op == "Concat":
        return [dim for part in parts for dim in part]
    if op in ("Cast", "Squeeze", "Unsqueeze"):
        return first
    if op in ("Equal", "Where"):
        length = max(map(len, parts))
        if 0 in map(len, parts) or {len(part) for part in parts} - {1, length}:
            return None
        rows = zip(*(part * (length // len(part)) for part in parts), strict=True)
        return [_compared(*row) if op == "Equal" else _chosen(*row) for row in rows]
    if not all(map(_are_numbers, others)):
        return None
    numbers: Any = others
    if op == "Gather":
        is_inside = all(-len(first) <= at < len(first) for at in numbers[0])
        return [first[at] for at in numbers[0]] if is_inside else None
    if op == "Slice":
        starts, ends, *rest = numbers
        steps = rest[1] if len(rest) > 1 else [1]
        return first[starts[0] : ends[0]] if len(starts) == 1 and steps == [1] else None
    (second,) = numbers
    length = max(len(first), len(second))
    if not (first and second and _are_numbers(first)) or {len(first), len(second)} - {1, length}:
        return None
    if op == "Div" and min((*first, *second), default=0) < 1:
        return None
    pairs = zip(*(each * (length // len(each)) for each in (first, second)), strict=True)
    return [_ARITHMETIC[op](a, b) for a, b in pairs]


def _compared(one: int | str | None, other: int | str | None) -> int | None:
    """Whether two sizes are equal, as 0 or 1; a size that has a name is not negative."""
    if isinstance(one, int) and isinstance(other, int):
        return int(one == other)
    numbers = [dim for dim in (one, other) if isinstance(dim, int)]
    return 0 if numbers and numbers[0] < 0 and None not in (one, other) else None


def _chosen(condition: int | str | None, *dims: int | str | None) -> int | str | None:
    return None if condition is None else dims[0 if condition else 1]


def _are_numbers(dims: Dims) -> bool:
    return all(isinstance(dim, int) for dim in dims)


def _constant(node: onnx_ir.Node, array: np.ndarray[Any, Any], suffix: str = "") -> onnx_ir.Value:
    """A new initializer."""
    assert node.graph is not None
    initializers = node.graph.initializers
    name = f"{node.outputs[0].name}.known{suffix}"
    taken = {*initializers, *(each.name for each in node.graph.inputs)}  # weights without content are inputs
    if name in taken:
        name = f"{name}.{len(taken)}"
    tensor = onnx_ir.tensor(array, name=name)
    value = onnx_ir.Value(
        name=name, type=onnx_ir.TensorType(tensor.dtype), shape=onnx_ir.Shape(array.shape), const_value=tensor
    )
    initializers.add(value)
    return value


def _target(before: Dims, after: Dims) -> list[int] | None:
    """The constant target of a reshape, if there is one."""
    if 0 in before or 0 in after:
        return None
    after = list(after)
    names = Counter(dim for dim in before if isinstance(dim, str))
    unknown = [at for at, dim in enumerate(after) if not isinstance(dim, int) and dim not in names]
    others = Counter(dim for dim in after if isinstance(dim, str) and dim in names)
    if len(unknown) == 1 and None not in before and others == names:
        # Names cancel: [n, 128, 7, 7] -> [n, 128, ?]
        left = math.prod(dim for dim in after if isinstance(dim, int))
        whole, rest = divmod(math.prod(dim for dim in before if isinstance(dim, int)), left)
        if rest:
            return None
        after[unknown[0]] = whole
    target = []
    for at, dim in enumerate(after):
        is_kept = at < len(before) and dim is not None and dim == before[at]
        target.append(dim if isinstance(dim, int) else 0 if is_kept else -1)
    return target if target.count(-1) <= 1 else None
