"""Direct translations of elementwise ATen operators, with PyTorch's type promotion made explicit by Casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch

from torchrlopt.capture.builder import GraphBuilder, Untranslatable
from torchrlopt.capture.onnx_types import value_dims, value_dtype
from torchrlopt.capture.translate.table import SymScalar, Target, require, translation

_UNARY = {
    "abs.default": "Abs",
    "neg.default": "Neg",
    "exp.default": "Exp",
    "log.default": "Log",
    "sqrt.default": "Sqrt",
    "sin.default": "Sin",
    "cos.default": "Cos",
    "tan.default": "Tan",
    "asin.default": "Asin",
    "acos.default": "Acos",
    "atan.default": "Atan",
    "sinh.default": "Sinh",
    "cosh.default": "Cosh",
    "asinh.default": "Asinh",
    "acosh.default": "Acosh",
    "atanh.default": "Atanh",
    "tanh.default": "Tanh",
    "sigmoid.default": "Sigmoid",
    "erf.default": "Erf",
    "reciprocal.default": "Reciprocal",
    "sign.default": "Sign",
    "sgn.default": "Sign",
    "relu.default": "Relu",
    "hardswish.default": "HardSwish",
    "mish.default": "Mish",
}
# From the numbers (and texts) behind the operand to the ONNX operator and its attributes.
_UNARY_WITH_NUMBERS: dict[str, Callable[..., tuple[str, dict[str, Any]]]] = {
    "celu.default": lambda alpha: ("Celu", {"alpha": float(alpha)}),
    "gelu.default": lambda approximate: ("Gelu", {"approximate": approximate}),
    "leaky_relu.default": lambda slope: ("LeakyRelu", {"alpha": float(slope)}),
    "hardsigmoid.default": lambda: ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    "hardshrink.default": lambda lambd: ("Shrink", {"lambd": float(lambd), "bias": 0.0}),
    "softshrink.default": lambda lambd: ("Shrink", {"lambd": float(lambd), "bias": float(lambd)}),
}
_ROUNDING = {"floor.default": "Floor", "ceil.default": "Ceil", "round.default": "Round"}
_COMPARISONS = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}
# ATen computes + and * of bools as or and and; the bitwise operators of ONNX take integers only.
_BOOL_FORMS = {"Add": "Or", "Mul": "And", "BitwiseAnd": "And", "BitwiseOr": "Or", "BitwiseXor": "Xor"}
_ORDINARY = (
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
    """Returns a tensor, symbolic or Python scalar argument as a value of a dtype."""
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
            # Only the dtype and whether the tensor is 0-d matter to promotion.
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
    """Emits a binary operator computed in the dtype of the result."""
    dtype = target.dtype
    if dtype == torch.bool and op_type in _BOOL_FORMS:
        op_type = _BOOL_FORMS[op_type]
    else:
        require(dtype in _ORDINARY, f"{op_type} in {dtype}")
    return g.op(op_type, operand(g, x, dtype), operand(g, y, dtype))


def _register_unary() -> None:
    def make(op_type: str) -> Any:
        def translate(g: GraphBuilder, target: Target, x: ir.Value) -> ir.Value:
            require(target.dtype in _ORDINARY, f"{op_type} in {target.dtype}")
            return g.op(op_type, g.cast(x, target.dtype))

        return translate

    for name, op_type in _UNARY.items():
        translation(name)(make(op_type))


def _register_unary_with_numbers() -> None:
    def make(form: Callable[..., tuple[str, dict[str, Any]]]) -> Any:
        def translate(g: GraphBuilder, target: Target, x: ir.Value, *numbers: Any) -> ir.Value:
            op_type, attributes = form(*numbers)
            return g.op(op_type, x, **attributes)

        return translate

    for name, form in _UNARY_WITH_NUMBERS.items():
        translation(name)(make(form))


def _register_rounding() -> None:
    def make(op_type: str) -> Any:
        def translate(g: GraphBuilder, target: Target, x: ir.Value) -> ir.Value:
            return g.op(op_type, x) if target.dtype.is_floating_point else g.identity(x)

        return translate

    for name, op_type in _ROUNDING.items():
        translation(name)(make(op_type))


def _register_binary(names: tuple[str, ...], op_type: str) -> None:
    @translation(*names)
    def translate(g: GraphBuilder, target: Target, x: Any, y: Any) -> ir.Value:
        return binary(g, target, op_type, x, y)


def _register_comparisons() -> None:
    def make(op_type: str) -> Any:
        def translate(g: GraphBuilder, target: Target, x: ir.Value, y: Any) -> ir.Value:
            dtype = promoted(x, y)
            return g.op(op_type, operand(g, x, dtype), operand(g, y, dtype), dtype=torch.bool)

        return translate

    for name, op_type in _COMPARISONS.items():
        translation(f"{name}.Tensor", f"{name}.Scalar")(make(op_type))


_register_unary()
_register_unary_with_numbers()
_register_rounding()
_register_comparisons()
_register_binary(("mul.Tensor", "mul.Scalar"), "Mul")
_register_binary(("maximum.default", "clamp_min.Tensor", "clamp_min.default"), "Max")
_register_binary(("minimum.default", "clamp_max.Tensor", "clamp_max.default"), "Min")
_register_binary(("bitwise_and.Tensor", "bitwise_and.Scalar"), "BitwiseAnd")
_register_binary(("bitwise_or.Tensor", "bitwise_or.Scalar"), "BitwiseOr")
_register_binary(("bitwise_xor.Tensor", "bitwise_xor.Scalar"), "BitwiseXor")


@translation("rsqrt.default")
def _rsqrt(g: GraphBuilder, target: Target, x: ir.Value) -> ir.Value:
    return g.op("Reciprocal", g.op("Sqrt", g.cast(x, target.dtype)))


@translation("add.Tensor", "add.Scalar")
def _add(g: GraphBuilder, target: Target, x: Any, y: Any, alpha: Any) -> ir.Value:
    return binary(g, target, "Add", x, _scaled(g, target.dtype, y, alpha))


@translation("sub.Tensor", "sub.Scalar")
def _sub(g: GraphBuilder, target: Target, x: Any, y: Any, alpha: Any) -> ir.Value:
    return binary(g, target, "Sub", x, _scaled(g, target.dtype, y, alpha))


@translation("rsub.Tensor", "rsub.Scalar")
def _rsub(g: GraphBuilder, target: Target, x: Any, y: Any, alpha: Any) -> ir.Value:
    return binary(g, target, "Sub", y, _scaled(g, target.dtype, x, alpha))


def _scaled(g: GraphBuilder, dtype: torch.dtype, y: Any, alpha: Any) -> Any:
    if alpha == 1:
        return y
    if isinstance(y, int | float):
        return y * alpha
    return g.op("Mul", operand(g, y, dtype), operand(g, alpha, dtype))


@translation("div.Tensor", "div.Scalar")
def _div(g: GraphBuilder, target: Target, x: Any, y: Any) -> ir.Value:
    return binary(g, target, "Div", x, y)


@translation("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(g: GraphBuilder, target: Target, x: Any, y: Any, rounding_mode: str | None) -> ir.Value:
    if rounding_mode is None:
        return binary(g, target, "Div", x, y)
    # ONNX's integer Div truncates; floor division of negative integers has no operator.
    if not target.dtype.is_floating_point:
        require(rounding_mode == "trunc" or target.dtype == torch.uint8, "integer floor division")
        return binary(g, target, "Div", x, y)
    require(rounding_mode == "floor", "truncated division of floats")
    return g.op("Floor", binary(g, target, "Div", x, y))


@translation("remainder.Tensor", "remainder.Scalar")
def _remainder(g: GraphBuilder, target: Target, x: Any, y: Any) -> ir.Value:
    require(not target.dtype.is_floating_point, "remainder of floats")
    return binary(g, target, "Mod", x, y)


@translation("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def _pow(g: GraphBuilder, target: Target, x: Any, y: Any) -> ir.Value:
    require(target.dtype.is_floating_point, f"Pow in {target.dtype}")
    # ATen computes with the number as it is given; in ONNX it is a constant of the tensor's type.
    is_narrow = target.dtype in (torch.bfloat16, torch.float16)
    is_rounded = isinstance(y, int | float) and torch.tensor(y, dtype=target.dtype).item() != y
    require(not (is_narrow and is_rounded), f"an exponent that {target.dtype} rounds")
    return binary(g, target, "Pow", x, y)


@translation("ne.Tensor", "ne.Scalar")
def _ne(g: GraphBuilder, target: Target, x: ir.Value, y: Any) -> ir.Value:
    dtype = promoted(x, y)
    return g.op("Not", g.op("Equal", operand(g, x, dtype), operand(g, y, dtype), dtype=torch.bool))


@translation("logical_and.default")
def _logical_and(g: GraphBuilder, target: Target, x: ir.Value, y: ir.Value) -> ir.Value:
    return g.op("And", g.cast(x, torch.bool), g.cast(y, torch.bool))


@translation("logical_or.default")
def _logical_or(g: GraphBuilder, target: Target, x: ir.Value, y: ir.Value) -> ir.Value:
    return g.op("Or", g.cast(x, torch.bool), g.cast(y, torch.bool))


@translation("logical_xor.default")
def _logical_xor(g: GraphBuilder, target: Target, x: ir.Value, y: ir.Value) -> ir.Value:
    return g.op("Xor", g.cast(x, torch.bool), g.cast(y, torch.bool))


@translation("logical_not.default")
def _logical_not(g: GraphBuilder, target: Target, x: ir.Value) -> ir.Value:
    return g.op("Not", g.cast(x, torch.bool))


@translation("bitwise_not.default")
def _bitwise_not(g: GraphBuilder, target: Target, x: ir.Value) -> ir.Value:
    return g.op("Not" if target.dtype == torch.bool else "BitwiseNot", x)


@translation("isnan.default")
def _isnan(g: GraphBuilder, target: Target, x: ir.Value) -> ir.Value:
    require(value_dtype(x).is_floating_point, "IsNaN of integers")
    return g.op("IsNaN", x, dtype=torch.bool)


@translation("isinf.default")
def _isinf(g: GraphBuilder, target: Target, x: ir.Value) -> ir.Value:
    require(value_dtype(x).is_floating_point, "IsInf of integers")
    return g.op("IsInf", x, dtype=torch.bool)


@translation("where.self")
def _where(g: GraphBuilder, target: Target, condition: ir.Value, x: Any, y: Any) -> ir.Value:
    dtype = target.dtype
    return g.op(
        "Where", g.cast(condition, torch.bool), operand(g, x, dtype), operand(g, y, dtype), dtype=dtype
    )


@translation("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(g: GraphBuilder, target: Target, x: ir.Value, mask: ir.Value, value: Any) -> ir.Value:
    dtype = target.dtype
    return g.op("Where", mask, operand(g, value, dtype), operand(g, x, dtype), dtype=dtype)


@translation("clamp.default", "hardtanh.default")
def _clamp(g: GraphBuilder, target: Target, x: ir.Value, low: Any, high: Any) -> ir.Value:
    dtype = target.dtype
    require(dtype in _ORDINARY, f"Clip in {dtype}")
    bounds = [None if bound is None else operand(g, bound, dtype) for bound in (low, high)]
    return g.op("Clip", g.cast(x, dtype), *bounds, dims=target.dims)


@translation("silu.default")
def _silu(g: GraphBuilder, target: Target, x: ir.Value) -> ir.Value:
    return g.op("Mul", x, g.op("Sigmoid", x))


@translation("elu.default")
def _elu(g: GraphBuilder, target: Target, x: ir.Value, alpha: Any, scale: Any, input_scale: Any) -> ir.Value:
    if scale == 1 and input_scale == 1:
        return g.op("Elu", x, alpha=float(alpha))
    require(input_scale == 1, "Elu with an input scale")
    return g.op("Selu", x, alpha=float(alpha), gamma=float(scale))


@translation("threshold.default")
def _threshold(g: GraphBuilder, target: Target, x: ir.Value, threshold: Any, value: Any) -> ir.Value:
    require(value == 0 and target.dtype.is_floating_point, "a threshold with another value below it than 0")
    return g.op("ThresholdedRelu", x, alpha=float(threshold))


@translation("softplus.default")
def _softplus(g: GraphBuilder, target: Target, x: ir.Value, beta: Any, threshold: Any) -> ir.Value:
    # Above the threshold ATen returns x itself; from 20 on that is the rounded value of the formula.
    require(beta == 1 and threshold >= 20, "softplus with a beta or a low threshold")
    return g.op("Softplus", x)


@translation("log_sigmoid_forward.default")
def _log_sigmoid(g: GraphBuilder, target: Target, x: ir.Value) -> list[ir.Value | None]:
    target.need_only(0)
    return [g.op("Neg", g.op("Softplus", g.op("Neg", x))), None]


@translation("_prelu_kernel.default")
def _prelu(g: GraphBuilder, target: Target, x: ir.Value, weight: ir.Value) -> ir.Value:
    return g.op("PRelu", x, weight)


@translation("addcmul.default")
def _addcmul(g: GraphBuilder, target: Target, x: Any, a: ir.Value, b: ir.Value, value: Any) -> ir.Value:
    product = binary(g, target, "Mul", a, b)
    return binary(g, target, "Add", x, _scaled(g, target.dtype, product, value))


@translation("addcdiv.default")
def _addcdiv(g: GraphBuilder, target: Target, x: Any, a: ir.Value, b: ir.Value, value: Any) -> ir.Value:
    quotient = binary(g, target, "Div", a, b)
    return binary(g, target, "Add", x, _scaled(g, target.dtype, quotient, value))


@translation("lerp.Scalar")
def _lerp(g: GraphBuilder, target: Target, start: ir.Value, end: ir.Value, weight: Any) -> ir.Value:
    require(isinstance(weight, int | float) and math.isfinite(weight), "a symbolic weight")
    return g.op("Add", start, _scaled(g, target.dtype, g.op("Sub", end, start), weight))


@translation("_to_copy.default")
def _to_copy(g: GraphBuilder, target: Target, x: ir.Value, *options: Any) -> ir.Value:
    # A move between devices is not a computation ONNX can express.
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
