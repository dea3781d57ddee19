"""Broadcasting operators: arithmetic, comparison, logic, selection; and dtype conversions.

PyTorch's type promotion becomes explicit Casts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from torchrlopt.ops.builder import GraphBuilder, Untranslatable
from torchrlopt.ops.emitter import Emitter, Entry, aten
from torchrlopt.ops.onnx_types import UNSIGNED_WIDE, torch_dtype, value_dims, value_dtype
from torchrlopt.ops.to_aten import OpCall, converts
from torchrlopt.ops.to_onnx import SymScalar, Target, Translator, require, translation

_ARITHMETIC = {
    "Mul": "mul",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
}
_COMPARISONS = {"Equal": "eq", "Greater": "gt", "GreaterOrEqual": "ge", "Less": "lt", "LessOrEqual": "le"}
_LOGIC = {"And": "logical_and", "Or": "logical_or", "Xor": "logical_xor"}
ROWS: dict[str, Any] = {"Add": aten.add.Tensor, "Sub": aten.sub.Tensor}
"""One-to-one operators by ONNX name; the tables above are added to it."""

# ATen computes bool + and * as or and and; ONNX's bitwise operators take integers only.
_BOOL_FORMS = {"Add": "Or", "Mul": "And", "BitwiseAnd": "And", "BitwiseOr": "Or", "BitwiseXor": "Xor"}
ORDINARY = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
)


def operand(g: GraphBuilder, argument: Any, dtype: torch.dtype) -> ir.Value:
    """Returns a tensor, symbolic scalar or Python scalar as a value of the given dtype."""
    if isinstance(argument, ir.Value):
        return g.cast(argument, dtype)
    if isinstance(argument, SymScalar):
        return g.cast(argument.value, dtype)
    if isinstance(argument, bool | int | float):
        return g.scalar(argument, dtype)
    raise Untranslatable(f"operand {argument!r}")


def promoted(*arguments: Any) -> torch.dtype:
    """Returns the dtype in which ATen compares these tensors and scalars."""
    samples: list[Any] = []
    for argument in arguments:
        if isinstance(argument, ir.Value):
            # Promotion only looks at the dtype and at whether the tensor is 0-d.
            shape = [1] if value_dims(argument) else []
            samples.append(torch.empty(shape, dtype=value_dtype(argument)))
        elif isinstance(argument, SymScalar):
            samples.append({torch.int64: 1, torch.float64: 1.0}.get(value_dtype(argument.value), True))
        else:
            samples.append(argument)
    if len(samples) == 2:
        return torch.result_type(*samples)
    return torch.result_type(torch.empty([1], dtype=promoted(*arguments[:2])), samples[2])


def binary(g: GraphBuilder, target: Target, op_type: str, x: Any, y: Any) -> ir.Value:
    """Emits a binary operator that computes in the result's dtype."""
    dtype = target.dtype
    if dtype == torch.bool and op_type in _BOOL_FORMS:
        op_type = _BOOL_FORMS[op_type]
    else:
        require(dtype in ORDINARY, f"{op_type} in {dtype}")
    return g.op(op_type, operand(g, x, dtype), operand(g, y, dtype))


def _arithmetic(op_type: str) -> Translator:
    return lambda g, target, x, y: binary(g, target, op_type, x, y)


def _comparison(op_type: str) -> Translator:
    def translate(g: GraphBuilder, target: Target, x: ir.Value, y: Any) -> ir.Value:
        dtype = promoted(x, y)
        return g.op(op_type, operand(g, x, dtype), operand(g, y, dtype), dtype=torch.bool)

    return translate


def _logic(op_type: str) -> Translator:
    return lambda g, target, *operands: g.op(op_type, *(g.cast(x, torch.bool) for x in operands))


def _lower_row(emitter: Emitter, call: OpCall) -> Entry:
    return arithmetic(emitter, call, ROWS[call.op_type], (call.x(0), call.x(1)))


def _enter(rows: Mapping[str, str], translator: Callable[[str], Translator], *overloads: str) -> None:
    """Registers both directions of a table; ONNX's operator lowers to the first overload."""
    for op_type, name in rows.items():
        translation(*(f"{name}.{overload}" for overload in overloads))(translator(op_type))
        ROWS[op_type] = getattr(getattr(aten, name), overloads[0])


_enter(_ARITHMETIC, _arithmetic, "Tensor", "Scalar")
_enter(_COMPARISONS, _comparison, "Tensor", "Scalar")
_enter(_LOGIC, _logic, "default")
converts(*ROWS)(_lower_row)
translation("div.Tensor", "div.Scalar")(_arithmetic("Div"))
translation("maximum.default", "clamp_min.Tensor", "clamp_min.default")(_arithmetic("Max"))
translation("minimum.default", "clamp_max.Tensor", "clamp_max.default")(_arithmetic("Min"))
translation("logical_not.default")(_logic("Not"))


def arithmetic(emitter: Emitter, call: OpCall, target: Any, operands: tuple[fx.Node, ...]) -> fx.Node:
    """Applies `target` to the operands, via int64 if torch has no kernel for their dtype."""
    dtype = emitter.dtype(operands[0])
    if dtype not in UNSIGNED_WIDE or target in (aten.eq.Tensor, aten.bitwise_and.Tensor):
        return emitter.op(target, *operands)
    if dtype == torch.uint64 and target not in _OF_BITS:
        raise call.unsupported("uint64")
    result = emitter.op(target, *[emitter.cast(x, torch.int64) for x in operands])
    return result if emitter.dtype(result) == torch.bool else emitter.cast(result, dtype)


# Of these, int64 gives the bits of uint64.
_OF_BITS = {
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor,
    aten.bitwise_or.Tensor, aten.bitwise_xor.Tensor, aten.bitwise_not.default,
}  # fmt: skip


@translation("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Tensor", "rsub.Scalar")
def _sum(g: GraphBuilder, target: Target, x: Any, y: Any, alpha: Any) -> ir.Value:
    first, second = (y, x) if target.opname == "rsub" else (x, y)
    op_type = "Add" if target.opname == "add" else "Sub"
    return binary(g, target, op_type, first, _scaled(g, target.dtype, second, alpha))


def _scaled(g: GraphBuilder, dtype: torch.dtype, y: Any, alpha: Any) -> Any:
    if alpha == 1:
        return y
    if isinstance(y, int | float):
        return y * alpha
    return g.op("Mul", operand(g, y, dtype), operand(g, alpha, dtype))


@converts("Div")
def _lower_div(emitter: Emitter, call: OpCall) -> Entry:
    if emitter.dtype(call.x(0)).is_floating_point:
        return emitter.op(aten.div.Tensor, call.x(0), call.x(1))
    # Integer division truncates towards zero.
    return _through_int64(emitter, call, aten.div.Tensor_mode, rounding_mode="trunc")


def _through_int64(emitter: Emitter, call: OpCall, target: Any, **options: Any) -> fx.Node:
    """Emits a quotient or remainder; exact via int64 if torch has no kernel for the dtype."""
    a, b = call.x(0), call.x(1)
    dtype = emitter.dtype(a)
    if dtype == torch.uint64:
        raise call.unsupported("uint64")
    if dtype in UNSIGNED_WIDE:
        a, b = emitter.cast(a, torch.int64), emitter.cast(b, torch.int64)
    return emitter.cast(emitter.op(target, a, b, **options), dtype)


@translation("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(g: GraphBuilder, target: Target, x: Any, y: Any, rounding_mode: str | None) -> ir.Value:
    if rounding_mode is None:
        return binary(g, target, "Div", x, y)
    # ONNX's integer Div truncates; no operator floors the quotient of negative integers.
    if not target.dtype.is_floating_point:
        require(rounding_mode == "trunc" or target.dtype == torch.uint8, "integer floor division")
        return binary(g, target, "Div", x, y)
    require(rounding_mode == "floor", "truncated division of floats")
    return g.op("Floor", binary(g, target, "Div", x, y))


@translation("remainder.Tensor", "remainder.Scalar")
def _remainder(g: GraphBuilder, target: Target, x: Any, y: Any) -> ir.Value:
    require(not target.dtype.is_floating_point, "remainder of floats")
    return binary(g, target, "Mod", x, y)


@converts("Mod")
def _lower_mod(emitter: Emitter, call: OpCall) -> Entry:
    target = aten.fmod.Tensor if call.attr("fmod", 0) else aten.remainder.Tensor
    return _through_int64(emitter, call, target)


@translation("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def _pow(g: GraphBuilder, target: Target, x: Any, y: Any) -> ir.Value:
    require(target.dtype.is_floating_point, f"Pow in {target.dtype}")
    # ATen computes with the number at full precision; in ONNX it is a constant of the tensor's dtype.
    is_narrow = target.dtype in (torch.bfloat16, torch.float16)
    is_rounded = isinstance(y, int | float) and torch.tensor(y, dtype=target.dtype).item() != y
    require(not (is_narrow and is_rounded), f"an exponent that {target.dtype} rounds")
    return binary(g, target, "Pow", x, y)


@converts("Pow")
def _lower_pow(emitter: Emitter, call: OpCall) -> Entry:
    base, exponent = call.x(0), call.x(1)
    dtype = emitter.dtype(base)
    if dtype in UNSIGNED_WIDE or emitter.dtype(exponent) in UNSIGNED_WIDE:
        raise call.unsupported("wide unsigned integers")
    constant = call.maybe(1)
    if isinstance(constant, torch.Tensor) and constant.numel() == 1 and constant.dim() <= emitter.rank(base):
        number = constant.reshape(()).item()
        if dtype.is_floating_point or (isinstance(number, int) and number >= 0):
            # The scalar overload has fast paths for squares, cubes and roots.
            return emitter.op(aten.pow.Tensor_Scalar, base, number)
    # The result has the dtype of the base, whatever the exponent's dtype is.
    return emitter.cast(emitter.op(aten.pow.Tensor_Tensor, base, exponent), dtype)


@translation("ne.Tensor", "ne.Scalar")
def _ne(g: GraphBuilder, target: Target, x: ir.Value, y: Any) -> ir.Value:
    dtype = promoted(x, y)
    return g.op("Not", g.op("Equal", operand(g, x, dtype), operand(g, y, dtype), dtype=torch.bool))


@translation("bitwise_not.default")
def _bitwise_not(g: GraphBuilder, target: Target, x: ir.Value) -> ir.Value:
    return g.op("Not" if target.dtype == torch.bool else "BitwiseNot", x)


@converts("BitwiseNot")
def _lower_bitwise_not(emitter: Emitter, call: OpCall) -> Entry:
    return arithmetic(emitter, call, aten.bitwise_not.default, (call.x(0),))


@translation("where.self")
def _where(g: GraphBuilder, target: Target, condition: ir.Value, x: Any, y: Any) -> ir.Value:
    dtype = target.dtype
    return g.op(
        "Where", g.cast(condition, torch.bool), operand(g, x, dtype), operand(g, y, dtype), dtype=dtype
    )


@converts("Where")
def _lower_where(emitter: Emitter, call: OpCall) -> Entry:
    return emitter.op(aten.where.self, call.x(0), call.x(1), call.x(2))


@translation("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(g: GraphBuilder, target: Target, x: ir.Value, mask: ir.Value, value: Any) -> ir.Value:
    dtype = target.dtype
    return g.op("Where", mask, operand(g, value, dtype), operand(g, x, dtype), dtype=dtype)


@translation("_prelu_kernel.default")
def _prelu(g: GraphBuilder, target: Target, x: ir.Value, weight: ir.Value) -> ir.Value:
    return g.op("PRelu", x, weight)


@converts("PRelu")
def _lower_prelu(emitter: Emitter, call: OpCall) -> Entry:
    x, slope = call.x(0), call.x(1)
    if not emitter.dtype(x).is_floating_point and emitter.dtype(x) in UNSIGNED_WIDE:
        raise call.unsupported("wide unsigned integers")
    scaled = emitter.op(aten.mul.Tensor, x, slope)
    return emitter.op(aten.where.self, emitter.op(aten.lt.Scalar, x, 0), scaled, x)


def _add_scaled(op_type: str) -> Translator:
    def translate(g: GraphBuilder, target: Target, x: Any, a: ir.Value, b: ir.Value, value: Any) -> ir.Value:
        inner = binary(g, target, op_type, a, b)
        return binary(g, target, "Add", x, _scaled(g, target.dtype, inner, value))

    return translate


translation("addcmul.default")(_add_scaled("Mul"))
translation("addcdiv.default")(_add_scaled("Div"))


@translation("lerp.Scalar")
def _lerp(g: GraphBuilder, target: Target, start: ir.Value, end: ir.Value, weight: Any) -> ir.Value:
    require(isinstance(weight, int | float) and math.isfinite(weight), "a symbolic weight")
    return g.op("Add", start, _scaled(g, target.dtype, g.op("Sub", end, start), weight))


@translation("_to_copy.default")
def _to_copy(g: GraphBuilder, target: Target, x: ir.Value, *options: Any) -> ir.Value:
    # ONNX cannot express a copy between devices.
    devices = {source.meta["val"].device for source in target.node.all_input_nodes}
    require(devices == {target.node.meta["val"].device}, "a copy to another device")
    return _converted(g, target, x)


@translation("prims.convert_element_type.default")
def _convert_element_type(g: GraphBuilder, target: Target, x: ir.Value, dtype: torch.dtype) -> ir.Value:
    return _converted(g, target, x)


def _converted(g: GraphBuilder, target: Target, x: ir.Value) -> ir.Value:
    source, wanted = value_dtype(x), target.dtype
    if source == wanted:
        return g.identity(x)
    if source.is_floating_point and not wanted.is_floating_point:
        wide = wanted in (torch.int64, torch.int32, torch.bool)
        require(wide, "a cast of floats to a narrow integer wraps in ATen")
    return g.cast(x, wanted)


@converts("BitShift")
def _lower_bit_shift(emitter: Emitter, call: OpCall) -> Entry:
    right = call.required("direction") == "RIGHT"
    target = aten.bitwise_right_shift.Tensor if right else aten.bitwise_left_shift.Tensor
    return arithmetic(emitter, call, target, (call.x(0), call.x(1)))


def _fold(emitter: Emitter, call: OpCall, target: Any) -> fx.Node:
    operands = call.all_x()
    result = operands[0]
    for operand in operands[1:]:
        result = arithmetic(emitter, call, target, (result, operand))
    return result


_FOLDED = {"Max": aten.maximum.default, "Min": aten.minimum.default, "Sum": aten.add.Tensor}


@converts(*_FOLDED)
def _lower_folded(emitter: Emitter, call: OpCall) -> Entry:
    return _fold(emitter, call, _FOLDED[call.op_type])


@converts("Mean")
def _lower_mean(emitter: Emitter, call: OpCall) -> Entry:
    return emitter.op(aten.div.Tensor, _fold(emitter, call, aten.add.Tensor), float(len(call.inputs)))


@converts("Cast")
def _lower_cast(emitter: Emitter, call: OpCall) -> Entry:
    return emitter.cast(call.x(0), torch_dtype(call.required("to")))


@converts("CastLike")
def _lower_cast_like(emitter: Emitter, call: OpCall) -> Entry:
    return emitter.cast(call.x(0), emitter.dtype(call.x(1)))
