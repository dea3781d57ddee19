"""What is known statically about values of an FX graph: shapes, strides, arguments, purity.

Every query returns None or False if the graph does not say: symbolic sizes are compared by their expressions
and never guarded on.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from torchrlopt.torch_private.operators import OpOverload, schema_of
from torchrlopt.torch_private.tensors import dim_of, is_contiguous_or_false

# Elementwise, although torch does not tag it as pointwise.
_UNTAGGED = frozenset({torch.ops.aten.hardswish.default, torch.ops.aten._prelu_kernel.default})

ORIGIN = "rlopt_origin"
"""Key in a node's `meta`: the names of the ONNX nodes it implements."""


def tensor_of(node: object) -> torch.Tensor | None:
    """The fake tensor of the node's value (`meta["val"]`); None if it is not a single tensor."""
    if not isinstance(node, fx.Node):
        return None
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def shape_key(node: object) -> tuple[int | str, ...] | None:
    """The shape with symbolic sizes as expressions; None if the node is not a tensor."""
    value = tensor_of(node)
    return None if value is None else tuple(dim_of(dim) for dim in value.shape)


def static_shape(node: object) -> tuple[int, ...] | None:
    """The shape if every size is an int, otherwise None."""
    key = shape_key(node)
    if key is None or any(isinstance(dim, str) for dim in key):
        return None
    return tuple(int(dim) for dim in key)


def static_stride(node: object) -> tuple[int, ...] | None:
    """The strides of the node's value in the original program; None if any is symbolic."""
    value = tensor_of(node)
    if value is None or value.layout != torch.strided:
        return None
    strides = [dim_of(stride) for stride in value.stride()]
    return None if any(isinstance(stride, str) for stride in strides) else tuple(int(s) for s in strides)


def is_contiguous(node: object) -> bool:
    """True if the node's value is known to be contiguous in the original program."""
    value = tensor_of(node)
    return value is not None and bool(is_contiguous_or_false(value))


def arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of a call of an `OpOverload` by name, including defaults."""
    bound: dict[str, Any] = {}
    for position, argument in enumerate(schema_of(node.target).arguments):
        if position < len(node.args):
            bound[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            bound[argument.name] = node.kwargs[argument.name]
        elif argument.has_default_value():
            bound[argument.name] = argument.default_value
    return bound


def cast_to(node: object) -> torch.dtype | None:
    """The dtype to which a call converts a tensor, changing nothing else; None for any other node."""
    if not isinstance(node, fx.Node) or node.target is not torch.ops.aten._to_copy.default:
        return None
    given, made = tensor_of(node.args[0]), tensor_of(node)
    if len(node.args) != 1 or set(node.kwargs) != {"dtype"} or given is None or made is None:
        return None
    return None if given.dtype is made.dtype else made.dtype


def only_user(node: fx.Node) -> fx.Node | None:
    """The single node that reads this one; None if there are none or several."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def ancestors(nodes: Collection[fx.Node]) -> set[fx.Node]:
    """The nodes and everything they are computed from."""
    found: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return found


def is_pure(node: fx.Node) -> bool:
    """True for a call whose result depends only on its arguments and that modifies none of them."""
    target = node.target
    if not isinstance(target, OpOverload):
        return getattr(target, "__module__", None) == "_operator"
    if node.is_impure():
        return False  # assertions and the like must stay although nothing reads them
    return not schema_of(target).is_mutable and torch.Tag.nondeterministic_seeded not in target.tags


def is_mutable(node: fx.Node) -> bool:
    """True for a call that writes to one of its arguments."""
    return isinstance(node.target, OpOverload) and schema_of(node.target).is_mutable


def ints(values: Any) -> list[int] | None:
    """The list of ints; None if one of them is symbolic or not an int."""
    items = list(values)
    return items if all(isinstance(item, int) for item in items) else None


def is_elementwise(target: Any) -> bool:
    """True for an operator that computes each element from the same position of its operands."""
    if not isinstance(target, OpOverload) or schema_of(target).is_mutable:
        return False
    return is_pointwise(target)


def is_pointwise(target: OpOverload) -> bool:
    """The same for an operator that may also write to its first operand."""
    return torch.Tag.pointwise in target.tags or target in _UNTAGGED
