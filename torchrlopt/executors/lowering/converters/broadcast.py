"""Operators that broadcast: arithmetic, comparison, logic, selection; and conversions of element type."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from torchrlopt.executors.lowering.converters.dtypes import UNSIGNED_WIDE, torch_dtype
from torchrlopt.executors.lowering.converters.emitter import Emitter, Entry, aten
from torchrlopt.executors.lowering.converters.table import CONVERTERS, OpCall, converts

_PLAIN: dict[str, Any] = {
    "Add": aten.add.Tensor,
    "Sub": aten.sub.Tensor,
    "Mul": aten.mul.Tensor,
    "And": aten.logical_and.default,
    "Or": aten.logical_or.default,
    "Xor": aten.logical_xor.default,
    "BitwiseAnd": aten.bitwise_and.Tensor,
    "BitwiseOr": aten.bitwise_or.Tensor,
    "BitwiseXor": aten.bitwise_xor.Tensor,
    "Equal": aten.eq.Tensor,
    "Greater": aten.gt.Tensor,
    "GreaterOrEqual": aten.ge.Tensor,
    "Less": aten.lt.Tensor,
    "LessOrEqual": aten.le.Tensor,
}

# Exact in int64 up to the final conversion: torch has no kernels for these widths.
_THROUGH_INT64 = frozenset({torch.uint16, torch.uint32})


def _plain(emitter: Emitter, call: OpCall) -> Entry:
    return arithmetic(emitter, _PLAIN[call.op_type], (call.x(0), call.x(1)))


for _name in _PLAIN:
    CONVERTERS[("", _name)] = _plain


def arithmetic(emitter: Emitter, target: Any, operands: tuple[fx.Node, ...]) -> fx.Node:
    """`target` on the operands, through int64 where torch has no kernel for their width."""
    dtype = emitter.dtype(operands[0])
    if dtype not in UNSIGNED_WIDE or target in (aten.eq.Tensor, aten.bitwise_and.Tensor):
        return emitter.op(target, *operands)
    if dtype == torch.uint64 and target not in _WRAPPING:
        # Flipping the top bit maps the order of uint64 onto that of int64.
        wide = [emitter.op(aten.bitwise_xor.Scalar, _bits(emitter, x), -(2**63)) for x in operands]
        result = emitter.op(target, *wide)
        if emitter.dtype(result) == torch.bool:
            return result
        return _unsigned(emitter, emitter.op(aten.bitwise_xor.Scalar, result, -(2**63)))
    result = emitter.op(target, *[emitter.cast(x, torch.int64) for x in operands])
    return result if emitter.dtype(result) == torch.bool else emitter.cast(result, dtype)


_WRAPPING = frozenset(
    {
        aten.add.Tensor,
        aten.sub.Tensor,
        aten.mul.Tensor,
        aten.bitwise_or.Tensor,
        aten.bitwise_xor.Tensor,
        aten.bitwise_not.default,
    }
)


def _bits(emitter: Emitter, x: fx.Node) -> fx.Node:
    return emitter.op(aten.view.dtype, x, torch.int64)


def _unsigned(emitter: Emitter, x: fx.Node) -> fx.Node:
    return emitter.op(aten.view.dtype, x, torch.uint64)


@converts("BitwiseNot")
def _bitwise_not(emitter: Emitter, call: OpCall) -> Entry:
    return arithmetic(emitter, aten.bitwise_not.default, (call.x(0),))


@converts("Div")
def _div(emitter: Emitter, call: OpCall) -> Entry:
    a, b = call.x(0), call.x(1)
    dtype = emitter.dtype(a)
    if dtype.is_floating_point:
        return emitter.op(aten.div.Tensor, a, b)
    if dtype == torch.uint64:
        raise call.unsupported("uint64")
    if dtype in _THROUGH_INT64:
        a, b = emitter.cast(a, torch.int64), emitter.cast(b, torch.int64)
    # Integers truncate towards zero.
    return emitter.cast(emitter.op(aten.div.Tensor_mode, a, b, rounding_mode="trunc"), dtype)


@converts("Mod")
def _mod(emitter: Emitter, call: OpCall) -> Entry:
    target = aten.fmod.Tensor if call.attr("fmod", 0) else aten.remainder.Tensor
    a, b = call.x(0), call.x(1)
    dtype = emitter.dtype(a)
    if dtype == torch.uint64:
        raise call.unsupported("uint64")
    if dtype in _THROUGH_INT64:
        a, b = emitter.cast(a, torch.int64), emitter.cast(b, torch.int64)
    return emitter.cast(emitter.op(target, a, b), dtype)


@converts("Pow")
def _pow(emitter: Emitter, call: OpCall) -> Entry:
    base, exponent = call.x(0), call.x(1)
    dtype = emitter.dtype(base)
    if dtype in UNSIGNED_WIDE or emitter.dtype(exponent) in UNSIGNED_WIDE:
        raise call.unsupported("wide unsigned integers")
    constant = call.maybe(1)
    if isinstance(constant, torch.Tensor) and constant.numel() == 1 and constant.dim() <= emitter.rank(base):
        number = constant.reshape(()).item()
        if dtype.is_floating_point or (isinstance(number, int) and number >= 0):
            # The scalar form has its own fast paths for squares, cubes and roots.
            return emitter.op(aten.pow.Tensor_Scalar, base, number)
    # The result has the type of the base, whatever the exponent's is.
    return emitter.cast(emitter.op(aten.pow.Tensor_Tensor, base, exponent), dtype)


@converts("PRelu")
def _prelu(emitter: Emitter, call: OpCall) -> Entry:
    x, slope = call.x(0), call.x(1)
    if not emitter.dtype(x).is_floating_point and emitter.dtype(x) in UNSIGNED_WIDE:
        raise call.unsupported("wide unsigned integers")
    scaled = emitter.op(aten.mul.Tensor, x, slope)
    return emitter.op(aten.where.self, emitter.op(aten.lt.Scalar, x, 0), scaled, x)


@converts("BitShift")
def _bit_shift(emitter: Emitter, call: OpCall) -> Entry:
    right = call.required("direction") == "RIGHT"
    a, b = call.x(0), call.x(1)
    dtype = emitter.dtype(a)
    if dtype == torch.uint64:
        a, b = _bits(emitter, a), _bits(emitter, b)
        if not right:
            return _unsigned(emitter, emitter.op(aten.bitwise_left_shift.Tensor, a, b))
        # A logical shift: clear what the arithmetic shift copied from the sign bit.
        shifted = emitter.op(aten.bitwise_right_shift.Tensor, a, b)
        ones = emitter.scalar(-1, torch.int64)
        room = emitter.op(aten.rsub.Scalar, b, 63)
        mask = emitter.op(
            aten.bitwise_left_shift.Tensor,
            emitter.op(aten.bitwise_left_shift.Tensor, ones, room),
            emitter.scalar(1, torch.int64),
        )
        kept = emitter.op(aten.bitwise_and.Tensor, shifted, emitter.op(aten.bitwise_not.default, mask))
        return _unsigned(emitter, kept)
    target = aten.bitwise_right_shift.Tensor if right else aten.bitwise_left_shift.Tensor
    return arithmetic(emitter, target, (a, b))


def _fold(emitter: Emitter, call: OpCall, target: Any) -> fx.Node:
    operands = call.all_x()
    result = operands[0]
    for operand in operands[1:]:
        result = arithmetic(emitter, target, (result, operand))
    return result


@converts("Max")
def _max(emitter: Emitter, call: OpCall) -> Entry:
    return _fold(emitter, call, aten.maximum.default)


@converts("Min")
def _min(emitter: Emitter, call: OpCall) -> Entry:
    return _fold(emitter, call, aten.minimum.default)


@converts("Sum")
def _sum(emitter: Emitter, call: OpCall) -> Entry:
    return _fold(emitter, call, aten.add.Tensor)


@converts("Mean")
def _mean(emitter: Emitter, call: OpCall) -> Entry:
    return emitter.op(aten.div.Tensor, _fold(emitter, call, aten.add.Tensor), float(len(call.inputs)))


@converts("Where")
def _where(emitter: Emitter, call: OpCall) -> Entry:
    return emitter.op(aten.where.self, call.x(0), call.x(1), call.x(2))


@converts("Cast")
def _cast(emitter: Emitter, call: OpCall) -> Entry:
    return convert(emitter, call.x(0), torch_dtype(call.required("to")))


@converts("CastLike")
def _cast_like(emitter: Emitter, call: OpCall) -> Entry:
    return convert(emitter, call.x(0), emitter.dtype(call.x(1)))


@converts("BitCast")
def _bit_cast(emitter: Emitter, call: OpCall) -> Entry:
    return emitter.op(aten.view.dtype, call.x(0), torch_dtype(call.required("to")))


def convert(emitter: Emitter, x: fx.Node, dtype: torch.dtype) -> fx.Node:
    """`x` as `dtype`: floats truncate towards zero, bool is x != 0."""
    return emitter.cast(x, dtype)
