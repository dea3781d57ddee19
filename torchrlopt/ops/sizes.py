"""Shape arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from torchrlopt.ops.broadcast import operand
from torchrlopt.ops.builder import GraphBuilder
from torchrlopt.ops.emitter import Emitter, Ints, SymInt
from torchrlopt.ops.onnx_types import torch_dtype, value_dims
from torchrlopt.ops.to_aten import OpCall
from torchrlopt.ops.to_onnx import Target, require, static_int, translation

_MAX_ELEMENTS = 64  # longer integer tensors are data, not shapes


def fold(emitter: Emitter, call: OpCall) -> Ints | None:
    """Folds an operator whose inputs are all known integers; None if it is not shape arithmetic."""
    known = [None if entry is None else emitter.known_ints(entry) for entry in call.inputs]
    ints = [operand for operand in known if operand is not None]
    if len(ints) != len(known) or not ints or any(len(i.elements) > _MAX_ELEMENTS for i in ints):
        return None
    if any(isinstance(entry, torch.Tensor) and entry.dtype != torch.int64 for entry in call.inputs):
        return None
    rule = _RULES.get(call.op_type)
    return rule(emitter, call, ints) if rule is not None else None


def _elementwise(ints: Sequence[Ints], function: Callable[[SymInt, SymInt], SymInt]) -> Ints | None:
    a, b = ints
    count = max(len(a.elements), len(b.elements))
    if any(len(i.elements) not in (1, count) for i in ints):
        return None
    left, right = (i.elements * (count if len(i.elements) == 1 else 1) for i in ints)
    rank = max(a.rank, b.rank)
    return Ints([function(x, y) for x, y in zip(left, right, strict=True)], rank)


def _div(emitter: Emitter, call: OpCall, ints: Sequence[Ints]) -> Ints | None:
    for element in (*ints[0].elements, *ints[1].elements):
        # Floor and truncation agree only for sizes, which are never negative.
        if isinstance(element, int) and element < 0:
            return None
    if 0 in ints[1].elements:
        return None
    return _elementwise(ints, emitter.floordiv)


def _concat(emitter: Emitter, call: OpCall, ints: Sequence[Ints]) -> Ints | None:
    if any(operand.rank != 1 for operand in ints):
        return None
    return Ints([element for operand in ints for element in operand.elements], 1)


def _gather(emitter: Emitter, call: OpCall, ints: Sequence[Ints]) -> Ints | None:
    data, places = ints
    if data.rank != 1 or not all(isinstance(place, int) for place in places.elements):
        return None
    return Ints([data.elements[place] for place in places.elements if isinstance(place, int)], places.rank)


def _slice(emitter: Emitter, call: OpCall, ints: Sequence[Ints]) -> Ints | None:
    if len(ints) not in (3, 4, 5) or len(call.inputs) != len(ints) or ints[0].rank != 1:
        return None
    bounds = [operand.elements[0] for operand in ints[1:] if len(operand.elements) == 1]
    numbers = [bound for bound in bounds if isinstance(bound, int)]
    if len(numbers) != len(ints) - 1:
        return None
    step = numbers[3] if len(numbers) == 4 else 1
    if step <= 0:
        return None
    return Ints(ints[0].elements[numbers[0] : numbers[1] : step], 1)


def _squeeze(emitter: Emitter, call: OpCall, ints: Sequence[Ints]) -> Ints | None:
    return Ints(ints[0].elements, 0) if len(ints[0].elements) == 1 else None


def _unsqueeze(emitter: Emitter, call: OpCall, ints: Sequence[Ints]) -> Ints | None:
    axes = call.attr("axes") or (ints[1].elements if len(ints) > 1 else ())
    return Ints(ints[0].elements, 1) if ints[0].rank == 0 and len(axes) == 1 else None


def _reshape(emitter: Emitter, call: OpCall, ints: Sequence[Ints]) -> Ints | None:
    if len(ints) != 2 or len(ints[1].elements) > 1 or call.attr("allowzero", 0):
        return None
    if not ints[1].elements:
        return Ints(ints[0].elements, 0) if len(ints[0].elements) == 1 else None
    return Ints(ints[0].elements, 1) if ints[1].elements[0] in (-1, len(ints[0].elements)) else None


def _cast(emitter: Emitter, call: OpCall, ints: Sequence[Ints]) -> Ints | None:
    return ints[0] if torch_dtype(call.required("to")) == torch.int64 else None


def _product(emitter: Emitter, call: OpCall, ints: Sequence[Ints]) -> Ints | None:
    axes = call.attr("axes") or (ints[1].elements if len(ints) > 1 else (0,))
    if ints[0].rank != 1 or len(axes) != 1:
        return None
    return Ints([emitter.prod(ints[0].elements)], 1 if call.attr("keepdims", 1) else 0)


_RULES: dict[str, Callable[[Emitter, OpCall, Sequence[Ints]], Ints | None]] = {
    "Add": lambda emitter, call, ints: _elementwise(ints, emitter.add),
    "Sub": lambda emitter, call, ints: _elementwise(ints, emitter.sub),
    "Mul": lambda emitter, call, ints: _elementwise(ints, emitter.mul),
    "Div": _div,
    "Concat": _concat,
    "Gather": _gather,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Cast": _cast,
    "ReduceProd": _product,
}


@translation("sym_size.int")
def _sym_size(g: GraphBuilder, target: Target, x: ir.Value, axis: Any) -> ir.Value:
    at = static_int(axis) % len(value_dims(x))
    size = g.op("Shape", x, dtype=torch.int64, dims=(1,), start=at, end=at + 1)
    return g.op("Squeeze", size, g.ints([0]), dims=())


def _register(name: str, op_type: str) -> None:
    @translation(name)
    def translate(g: GraphBuilder, target: Target, x: Any, y: Any) -> ir.Value:
        require(target.dtype == torch.int64, f"{name} of symbolic values that are no sizes")
        return g.op(op_type, operand(g, x, torch.int64), operand(g, y, torch.int64))


_register("operator.add", "Add")
_register("operator.sub", "Sub")
_register("operator.mul", "Mul")
# Mod takes the sign of the divisor, in Python and in ONNX.
_register("operator.mod", "Mod")
_register("torch.sym_max", "Max")
_register("torch.sym_min", "Min")


@translation("operator.neg")
def _neg(g: GraphBuilder, target: Target, x: Any) -> ir.Value:
    require(target.dtype == torch.int64, "a negative of what is no size")
    return g.op("Neg", operand(g, x, torch.int64))


@translation("operator.floordiv")
def _floordiv(g: GraphBuilder, target: Target, x: Any, y: Any) -> ir.Value:
    require(target.dtype == torch.int64, "a quotient of what is no size")
    dividend, divisor = operand(g, x, torch.int64), operand(g, y, torch.int64)
    # ONNX truncates; both divisions agree once the remainder is subtracted.
    whole = g.op("Sub", dividend, g.op("Mod", dividend, divisor))
    return g.op("Div", whole, divisor)
