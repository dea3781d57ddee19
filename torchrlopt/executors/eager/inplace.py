"""Turns elementwise calls into in-place ones if nothing reads the operand afterwards.

This halves the memory traffic of an activation after a convolution (0.036 to 0.020 ms for 3 MB). It runs on
the main part only, after the prologue has been split off: later calls read the prologue's values again, so
nothing may overwrite them.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.eager.kernels import cudnn, indirect
from torchrlopt.executors.eager.kernels.library import NAMESPACE
from torchrlopt.executors.eager.kernels.operators import WRITERS
from torchrlopt.executors.lowering.fx_values import (
    arguments,
    is_contiguous,
    is_elementwise,
    is_mutable,
    is_pointwise,
    only_user,
    shape_key,
    static_stride,
    tensor_of,
)
from torchrlopt.torch_private.operators import OpOverload, is_composite, overload_name, schema_of

aten = torch.ops.aten

# The results of these are always new, unaliased memory. The same holds for our operators and oneDNN's packed
# ones; there the schema says so.
_FRESH = frozenset(
    {
        aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.convolution.default,
        aten._softmax.default, aten.cat.default, cudnn.RELU, cudnn.ADD_RELU, aten.linear.default,
        indirect.joined,
    }
)  # fmt: skip
_COMMUTATIVE = frozenset({aten.add.Tensor, aten.mul.Tensor})


def reuse_memory(module: fx.GraphModule) -> None:
    """Turn elementwise calls on dead temporaries into their in-place forms; generates no code.

    Args:
        module: the main part of a graph, with `meta["val"]`; left unchanged if it already mutates values.
    """
    if any(is_mutable(node) and node.target not in WRITERS for node in module.graph.nodes):
        return  # this pass does not track the program's own mutations
    reused: set[fx.Node] = set()
    for node in module.graph.nodes:
        target = _in_place_form(node.target) if node.op == "call_function" else None
        if target is None:
            continue
        operands = node.args[:2] if _is_commutative(node) else node.args[:1]
        operand = next((each for each in operands if _is_dead_temporary(each, node, reused)), None)
        if operand is not None:
            if operand is not node.args[0]:
                node.args = (operand, node.args[0])
            node.target = target
            reused.add(node)


def _is_commutative(node: fx.Node) -> bool:
    return node.target in _COMMUTATIVE and arguments(node).get("alpha", 1) == 1


def _in_place_form(target: Any) -> Any:
    """The overload that writes to its first argument and takes the same arguments; None if there is none."""
    if not is_elementwise(target):
        return None
    name = schema_of(target).name.rpartition("::")[2] + "_"
    overload = getattr(getattr(aten, name, None), overload_name(target), None)
    if overload is None:
        return None
    ours = [(argument.name, str(argument.type)) for argument in schema_of(target).arguments]
    theirs = [(argument.name, str(argument.type)) for argument in schema_of(overload).arguments]
    return overload if ours == theirs else None


def _is_dead_temporary(operand: object, node: fx.Node, reused: Collection[fx.Node]) -> bool:
    """True if only `node` reads the operand and its result fits into the operand's memory."""
    if not isinstance(operand, fx.Node) or only_user(operand) is not node or operand.op != "call_function":
        return False
    if operand not in reused and not _is_fresh(operand):
        return False
    before, after = tensor_of(operand), tensor_of(node)
    if before is None or after is None or before.dtype != after.dtype or before.device != after.device:
        return False
    if shape_key(operand) != shape_key(node):
        return False
    if is_contiguous(operand):
        return is_contiguous(node)
    stride = static_stride(operand)
    return stride is not None and stride == static_stride(node)


def _is_fresh(operand: fx.Node) -> bool:
    """Whether a result is memory that nothing else shares."""
    if operand.target in _FRESH:
        return True
    # Every result of a sequence of kernels is new memory.
    source: Any = operand.args[0] if operand.target is operator.getitem else operand
    if not isinstance(source.target, OpOverload):
        return False
    if source.target.namespace in (NAMESPACE, "mkldnn"):
        return all(result.alias_info is None for result in schema_of(source.target).returns)
    return source is operand and is_pointwise(source.target) and not is_composite(source.target)
