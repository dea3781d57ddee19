"""Elementwise operators of one operand: arithmetic, transcendental functions and activations."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.lowering.converters.emitter import Emitter, Entry, Ints, aten
from torchrlopt.executors.lowering.converters.table import CONVERTERS, OpCall, converts

_SAME_TYPE: dict[str, Any] = {
    "Abs": aten.abs.default,
    "Acos": aten.acos.default,
    "Acosh": aten.acosh.default,
    "Asin": aten.asin.default,
    "Asinh": aten.asinh.default,
    "Atan": aten.atan.default,
    "Atanh": aten.atanh.default,
    "Ceil": aten.ceil.default,
    "Cos": aten.cos.default,
    "Cosh": aten.cosh.default,
    "Det": aten.linalg_det.default,
    "Erf": aten.erf.default,
    "Exp": aten.exp.default,
    "Floor": aten.floor.default,
    "HardSwish": aten.hardswish.default,
    "IsNaN": aten.isnan.default,
    "Log": aten.log.default,
    "Mish": aten.mish.default,
    "Neg": aten.neg.default,
    "Not": aten.logical_not.default,
    "Reciprocal": aten.reciprocal.default,
    "Relu": aten.relu.default,
    "Round": aten.round.default,  # both round halves to even
    "Sigmoid": aten.sigmoid.default,
    "Sin": aten.sin.default,
    "Sinh": aten.sinh.default,
    "Sqrt": aten.sqrt.default,
    "Tan": aten.tan.default,
    "Tanh": aten.tanh.default,
}


def _same_type(emitter: Emitter, call: OpCall) -> Entry:
    return emitter.op(_SAME_TYPE[call.op_type], call.x(0))


for _name in _SAME_TYPE:
    CONVERTERS[("", _name)] = _same_type


@converts("Identity")
def _identity(emitter: Emitter, call: OpCall) -> Entry:
    return call.entry(0)


@converts("Sign")
def _sign(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    result = emitter.op(aten.sign.default, x)
    if not emitter.dtype(x).is_floating_point:
        return result
    # torch's sign maps NaN to 0, ONNX and numpy keep it.
    return emitter.op(aten.where.self, emitter.op(aten.isnan.default, x), x, result)


@converts("IsInf")
def _is_inf(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    negative, positive = call.attr("detect_negative", 1), call.attr("detect_positive", 1)
    if negative and positive:
        return emitter.op(aten.isinf.default, x)
    if negative:
        return emitter.op(aten.isneginf.default, x)
    if positive:
        return emitter.op(aten.isposinf.default, x)
    return emitter.op(aten.zeros_like.default, x, dtype=torch.bool)


@converts("Gelu")
def _gelu(emitter: Emitter, call: OpCall) -> Entry:
    return emitter.op(aten.gelu.default, call.x(0), approximate=call.attr("approximate", "none"))


@converts("Elu")
def _elu(emitter: Emitter, call: OpCall) -> Entry:
    return emitter.op(aten.elu.default, call.x(0), call.attr("alpha", 1.0))


@converts("Celu")
def _celu(emitter: Emitter, call: OpCall) -> Entry:
    alpha = call.attr("alpha", 1.0)
    return emitter.op(aten.elu.default, call.x(0), alpha, 1.0, 1.0 / alpha)


@converts("Selu")
def _selu(emitter: Emitter, call: OpCall) -> Entry:
    alpha, gamma = call.attr("alpha", 1.6732631921768188), call.attr("gamma", 1.0507010221481323)
    return emitter.op(aten.elu.default, call.x(0), alpha, gamma)


@converts("LeakyRelu")
def _leaky_relu(emitter: Emitter, call: OpCall) -> Entry:
    return emitter.op(aten.leaky_relu.default, call.x(0), call.attr("alpha", 0.01))


@converts("ThresholdedRelu")
def _thresholded_relu(emitter: Emitter, call: OpCall) -> Entry:
    return emitter.op(aten.threshold.default, call.x(0), call.attr("alpha", 1.0), 0)


@converts("HardSigmoid")
def _hard_sigmoid(emitter: Emitter, call: OpCall) -> Entry:
    return hard_sigmoid(emitter, call.x(0), call.attr("alpha", 0.2), call.attr("beta", 0.5))


def hard_sigmoid(emitter: Emitter, x: fx.Node, alpha: float, beta: float) -> fx.Node:
    """max(0, min(1, alpha * x + beta)); torch's own kernel where it has these coefficients."""
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return emitter.op(aten.hardsigmoid.default, x)
    scaled = emitter.op(aten.add.Tensor, emitter.op(aten.mul.Tensor, x, alpha), beta)
    return emitter.op(aten.clamp.default, scaled, 0.0, 1.0)


@converts("Softplus")
def _softplus(emitter: Emitter, call: OpCall) -> Entry:
    return emitter.op(aten.softplus.default, call.x(0))


@converts("Softsign")
def _softsign(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    return emitter.op(aten.div.Tensor, x, emitter.op(aten.add.Tensor, emitter.op(aten.abs.default, x), 1.0))


@converts("Swish")
def _swish(emitter: Emitter, call: OpCall) -> Entry:
    return swish(emitter, call.x(0), call.attr("alpha", 1.0))


def swish(emitter: Emitter, x: fx.Node, alpha: float) -> fx.Node:
    """The product of `x` and sigmoid(alpha * x)."""
    if alpha == 1.0:
        return emitter.op(aten.silu.default, x)
    gate = emitter.op(aten.sigmoid.default, emitter.op(aten.mul.Tensor, x, alpha))
    return emitter.op(aten.mul.Tensor, x, gate)


@converts("Shrink")
def _shrink(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    lambd, bias = call.attr("lambd", 0.5), call.attr("bias", 0.0)
    dtype = emitter.dtype(x)
    zero = emitter.op(aten.zeros_like.default, x)
    below = emitter.cast(emitter.op(aten.add.Tensor, x, bias), dtype)
    above = emitter.cast(emitter.op(aten.sub.Tensor, x, bias), dtype)
    inner = emitter.op(aten.where.self, emitter.op(aten.gt.Scalar, x, lambd), above, zero)
    return emitter.op(aten.where.self, emitter.op(aten.lt.Scalar, x, -lambd), below, inner)


@converts("Clip")
def _clip(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    bounds = [call.maybe(1), call.maybe(2)]
    if bounds == [None, None]:
        return x
    if all(bound is None or is_number(bound) for bound in bounds):
        low, high = call.number(1), call.number(2)
        if low is not None and high is not None and low > high:
            low = high  # ONNX: every element becomes max
        return emitter.op(aten.clamp.default, x, low, high)
    # Bounds from the graph: maximum first, so that min > max gives max, as ONNX says.
    result = x
    if bounds[0] is not None:
        result = emitter.op(aten.maximum.default, result, call.x(1))
    if bounds[1] is not None:
        result = emitter.op(aten.minimum.default, result, call.x(2))
    return result


def is_number(entry: Entry) -> bool:
    """Whether an entry is a constant with one element."""
    if isinstance(entry, Ints):
        return len(entry.elements) == 1 and isinstance(entry.elements[0], int)
    return isinstance(entry, torch.Tensor) and entry.numel() == 1


def activate(emitter: Emitter, x: fx.Node, call: OpCall) -> fx.Node:
    """The activation that a fused operator names in its attributes, applied to `x`."""
    name = call.attr("activation", "")
    alpha, beta = call.attr("alpha", 0.0), call.attr("beta", 0.0)
    plain = {"Relu": aten.relu, "Sigmoid": aten.sigmoid, "Tanh": aten.tanh, "HardSwish": aten.hardswish}
    if name == "":
        return x
    if name in plain:
        return emitter.op(plain[name].default, x)
    if name in ("Gelu", "GeluTanh"):
        return emitter.op(aten.gelu.default, x, approximate="tanh" if name == "GeluTanh" else "none")
    if name == "Swish":
        return emitter.op(aten.silu.default, x)
    if name == "HardSigmoid":
        return hard_sigmoid(emitter, x, alpha, beta)
    if name == "LeakyRelu":
        return emitter.op(aten.leaky_relu.default, x, alpha)
    if name == "Clip":
        return emitter.op(aten.clamp.default, x, alpha, beta)
    if name == "Elu":
        return emitter.op(aten.elu.default, x, alpha)
    raise call.unsupported(f"activation {name!r}")
