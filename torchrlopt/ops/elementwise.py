"""Unary elementwise operators: arithmetic, transcendental functions and activations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from torchrlopt.ops.broadcast import ORDINARY, operand
from torchrlopt.ops.builder import GraphBuilder
from torchrlopt.ops.emitter import Emitter, Entry, Ints, aten
from torchrlopt.ops.onnx_types import value_dtype
from torchrlopt.ops.to_aten import OpCall, converts
from torchrlopt.ops.to_onnx import Target, Translator, require, translation
from torchrlopt.torch_private.operators import schema_of


@dataclasses.dataclass(frozen=True)
class Row:
    """How ATen computes a unary ONNX operator.

    Attributes:
        aten: name of the ATen operator.
        numbers: attributes passed as arguments after the operand, in order, with ONNX's defaults.
        is_captured: whether every call of the ATen operator translates to this one; if not, a translation
            below decides.
    """

    aten: str
    numbers: Mapping[str, float | str] = dataclasses.field(default_factory=dict)
    is_captured: bool = True

    def lower(self, emitter: Emitter, x: fx.Node, numbers: Sequence[Any]) -> fx.Node:
        """Emits the ATen call."""
        target = getattr(aten, self.aten).default
        arguments = list(zip(schema_of(target).arguments[1:], numbers, strict=False))
        by_position = [number for argument, number in arguments if not argument.kwarg_only]
        by_name = {argument.name: number for argument, number in arguments if argument.kwarg_only}
        return emitter.op(target, x, *by_position, **by_name)


ROWS: dict[str, Row] = {
    "Abs": Row("abs"),
    "Acos": Row("acos"),
    "Acosh": Row("acosh"),
    "Asin": Row("asin"),
    "Asinh": Row("asinh"),
    "Atan": Row("atan"),
    "Atanh": Row("atanh"),
    "Ceil": Row("ceil"),
    "Cos": Row("cos"),
    "Cosh": Row("cosh"),
    "Det": Row("linalg_det", is_captured=False),
    "Elu": Row("elu", {"alpha": 1.0}, is_captured=False),
    "Erf": Row("erf"),
    "Exp": Row("exp"),
    "Floor": Row("floor"),
    "Gelu": Row("gelu", {"approximate": "none"}),
    "HardSwish": Row("hardswish"),
    "IsNaN": Row("isnan", is_captured=False),
    "LeakyRelu": Row("leaky_relu", {"alpha": 0.01}),
    "Log": Row("log"),
    "Mish": Row("mish"),
    "Neg": Row("neg"),
    "Not": Row("logical_not", is_captured=False),
    "Reciprocal": Row("reciprocal"),
    "Relu": Row("relu"),
    "Round": Row("round"),  # both round halves to even
    "Sigmoid": Row("sigmoid"),
    "Sin": Row("sin"),
    "Sinh": Row("sinh"),
    "Softplus": Row("softplus", is_captured=False),
    "Sqrt": Row("sqrt"),
    "Tan": Row("tan"),
    "Tanh": Row("tanh"),
}
"""One-to-one operators by ONNX name; both directions are derived from this table."""

_ROUNDS = ("Ceil", "Floor", "Round")


def _unary(op_type: str, names: Iterable[str] = ()) -> Translator:
    """Builds a translation of a call into one node; `names` are the attributes after the operand."""

    def translate(g: GraphBuilder, target: Target, x: ir.Value, *numbers: Any) -> ir.Value:
        if op_type in _ROUNDS and not target.dtype.is_floating_point:
            return g.identity(x)
        require(target.dtype in ORDINARY, f"{op_type} in {target.dtype}")
        attributes = dict(zip(names, numbers, strict=True))
        exact: dict[str, Any] = {
            name: each if isinstance(each, str) else float(each) for name, each in attributes.items()
        }
        return g.op(op_type, g.cast(x, target.dtype), **exact)

    return translate


def _lower_row(emitter: Emitter, call: OpCall) -> Entry:
    row = ROWS[call.op_type]
    return row.lower(emitter, call.x(0), [call.attr(*number) for number in row.numbers.items()])


for _name, _row in ROWS.items():
    converts(_name)(_lower_row)
    if _row.is_captured:
        translation(f"{_row.aten}.default")(_unary(_name, _row.numbers))

# One-to-one in this direction only.
translation("sign.default", "sgn.default")(_unary("Sign"))
translation("celu.default")(_unary("Celu", ["alpha"]))


@translation("hardsigmoid.default")
def _hardsigmoid(g: GraphBuilder, target: Target, x: ir.Value) -> ir.Value:
    return g.op("HardSigmoid", x, alpha=1 / 6, beta=0.5)


@translation("hardshrink.default", "softshrink.default")
def _shrink(g: GraphBuilder, target: Target, x: ir.Value, lambd: Any) -> ir.Value:
    return g.op("Shrink", x, lambd=float(lambd), bias=float(lambd) if target.opname == "softshrink" else 0.0)


@translation("rsqrt.default")
def _rsqrt(g: GraphBuilder, target: Target, x: ir.Value) -> ir.Value:
    return g.op("Reciprocal", g.op("Sqrt", g.cast(x, target.dtype)))


@translation("isnan.default")
def _isnan(g: GraphBuilder, target: Target, x: ir.Value) -> ir.Value:
    require(value_dtype(x).is_floating_point, "IsNaN of integers")
    return g.op("IsNaN", x, dtype=torch.bool)


@translation("isinf.default")
def _isinf(g: GraphBuilder, target: Target, x: ir.Value) -> ir.Value:
    require(value_dtype(x).is_floating_point, "IsInf of integers")
    return g.op("IsInf", x, dtype=torch.bool)


@converts("IsInf")
def _lower_is_inf(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    negative, positive = call.attr("detect_negative", 1), call.attr("detect_positive", 1)
    if negative and positive:
        return emitter.op(aten.isinf.default, x)
    if negative:
        return emitter.op(aten.isneginf.default, x)
    if positive:
        return emitter.op(aten.isposinf.default, x)
    return emitter.op(aten.zeros_like.default, x, dtype=torch.bool)


@translation("clamp.default", "hardtanh.default")
def _clamp(g: GraphBuilder, target: Target, x: ir.Value, low: Any, high: Any) -> ir.Value:
    dtype = target.dtype
    require(dtype in ORDINARY, f"Clip in {dtype}")
    bounds = [None if bound is None else operand(g, bound, dtype) for bound in (low, high)]
    return g.op("Clip", g.cast(x, dtype), *bounds, dims=target.dims)


@converts("Clip")
def _lower_clip(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    bounds = [call.maybe(1), call.maybe(2)]
    if bounds == [None, None]:
        return x
    if all(bound is None or is_number(bound) for bound in bounds):
        low, high = call.number(1), call.number(2)
        if low is not None and high is not None and low > high:
            low = high  # ONNX: all elements become max
        return emitter.op(aten.clamp.default, x, low, high)
    # Bounds computed at run time: apply the maximum first, so that min > max yields max, as in ONNX.
    result = x
    if bounds[0] is not None:
        result = emitter.op(aten.maximum.default, result, call.x(1))
    if bounds[1] is not None:
        result = emitter.op(aten.minimum.default, result, call.x(2))
    return result


def is_number(entry: Entry) -> bool:
    """Whether an entry is a one-element constant."""
    if isinstance(entry, Ints):
        return len(entry.elements) == 1 and isinstance(entry.elements[0], int)
    return isinstance(entry, torch.Tensor) and entry.numel() == 1


@translation("silu.default")
def _silu(g: GraphBuilder, target: Target, x: ir.Value) -> ir.Value:
    return g.op("Mul", x, g.op("Sigmoid", x))


@translation("elu.default")
def _elu(g: GraphBuilder, target: Target, x: ir.Value, alpha: Any, scale: Any, input_scale: Any) -> ir.Value:
    if scale == 1 and input_scale == 1:
        return g.op("Elu", x, alpha=float(alpha))
    require(input_scale == 1, "Elu with an input scale")
    return g.op("Selu", x, alpha=float(alpha), gamma=float(scale))


@converts("Selu")
def _lower_selu(emitter: Emitter, call: OpCall) -> Entry:
    alpha, gamma = call.attr("alpha", 1.6732631921768188), call.attr("gamma", 1.0507010221481323)
    return emitter.op(aten.elu.default, call.x(0), alpha, gamma)


@converts("Celu")
def _lower_celu(emitter: Emitter, call: OpCall) -> Entry:
    alpha = call.attr("alpha", 1.0)
    return emitter.op(aten.elu.default, call.x(0), alpha, 1.0, 1.0 / alpha)


@translation("threshold.default")
def _threshold(g: GraphBuilder, target: Target, x: ir.Value, threshold: Any, value: Any) -> ir.Value:
    require(value == 0 and target.dtype.is_floating_point, "a threshold with another value below it than 0")
    return g.op("ThresholdedRelu", x, alpha=float(threshold))


@converts("ThresholdedRelu")
def _lower_thresholded_relu(emitter: Emitter, call: OpCall) -> Entry:
    return emitter.op(aten.threshold.default, call.x(0), call.attr("alpha", 1.0), 0)


@translation("softplus.default")
def _softplus(g: GraphBuilder, target: Target, x: ir.Value, beta: Any, threshold: Any) -> ir.Value:
    # Above the threshold ATen returns x itself; from 20 on, the formula rounds to x as well.
    require(beta == 1 and threshold >= 20, "softplus with a beta or a low threshold")
    return g.op("Softplus", x)


@translation("log_sigmoid_forward.default")
def _log_sigmoid(g: GraphBuilder, target: Target, x: ir.Value) -> list[ir.Value | None]:
    target.need_only(0)
    return [g.op("Neg", g.op("Softplus", g.op("Neg", x))), None]


@converts("Identity")
def _lower_identity(emitter: Emitter, call: OpCall) -> Entry:
    return call.entry(0)


@converts("Sign")
def _lower_sign(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    result = emitter.op(aten.sign.default, x)
    if not emitter.dtype(x).is_floating_point:
        return result
    # torch's sign maps NaN to 0; ONNX and numpy keep NaN.
    return emitter.op(aten.where.self, emitter.op(aten.isnan.default, x), x, result)


@converts("HardSigmoid")
def _lower_hard_sigmoid(emitter: Emitter, call: OpCall) -> Entry:
    return hard_sigmoid(emitter, call.x(0), call.attr("alpha", 0.2), call.attr("beta", 0.5))


def hard_sigmoid(emitter: Emitter, x: fx.Node, alpha: float, beta: float) -> fx.Node:
    """max(0, min(1, alpha * x + beta)); uses torch's kernel if the coefficients match."""
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return emitter.op(aten.hardsigmoid.default, x)
    scaled = emitter.op(aten.add.Tensor, emitter.op(aten.mul.Tensor, x, alpha), beta)
    return emitter.op(aten.clamp.default, scaled, 0.0, 1.0)


@converts("Softsign")
def _lower_softsign(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    return emitter.op(aten.div.Tensor, x, emitter.op(aten.add.Tensor, emitter.op(aten.abs.default, x), 1.0))


@converts("Swish")
def _lower_swish(emitter: Emitter, call: OpCall) -> Entry:
    x, alpha = call.x(0), call.attr("alpha", 1.0)
    if alpha == 1.0:
        return emitter.op(aten.silu.default, x)
    gate = emitter.op(aten.sigmoid.default, emitter.op(aten.mul.Tensor, x, alpha))
    return emitter.op(aten.mul.Tensor, x, gate)


@converts("Shrink")
def _lower_shrink(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    lambd, bias = call.attr("lambd", 0.5), call.attr("bias", 0.0)
    dtype = emitter.dtype(x)
    zero = emitter.op(aten.zeros_like.default, x)
    below = emitter.cast(emitter.op(aten.add.Tensor, x, bias), dtype)
    above = emitter.cast(emitter.op(aten.sub.Tensor, x, bias), dtype)
    inner = emitter.op(aten.where.self, emitter.op(aten.gt.Scalar, x, lambd), above, zero)
    return emitter.op(aten.where.self, emitter.op(aten.lt.Scalar, x, -lambd), below, inner)


def activate(emitter: Emitter, x: fx.Node, call: OpCall) -> fx.Node:
    """Applies the activation that a fused operator names in its attributes to `x`."""
    name = call.attr("activation", "")
    alpha, beta = call.attr("alpha", 0.0), call.attr("beta", 0.0)
    if name == "":
        return x
    if name == "GeluTanh":
        return emitter.op(aten.gelu.default, x, approximate="tanh")
    if name == "Swish":
        return emitter.op(aten.silu.default, x)
    if name == "HardSigmoid":
        return hard_sigmoid(emitter, x, alpha, beta)
    if name == "Clip":
        return emitter.op(aten.clamp.default, x, alpha, beta)
    if name not in ROWS:
        raise call.unsupported(f"activation {name!r}")
    return ROWS[name].lower(emitter, x, ["none"] if name == "Gelu" else [alpha])
