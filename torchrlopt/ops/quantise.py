"""Linear quantisation to 8-bit integers and back."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from torchrlopt.ops.builder import GraphBuilder
from torchrlopt.ops.emitter import Emitter, Entry, aten, normal_axis
from torchrlopt.ops.matmul import centred
from torchrlopt.ops.onnx_types import torch_dtype, value_dtype
from torchrlopt.ops.to_aten import OpCall, converts
from torchrlopt.ops.to_onnx import Target, non_negative_axis, require, translation

_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.uint16)


@translation("quantized_decomposed.quantize_per_tensor.default")
def _quantize_per_tensor(
    g: GraphBuilder,
    target: Target,
    x: ir.Value,
    scale: float,
    zero: int,
    least: int,
    most: int,
    dtype: torch.dtype,
) -> ir.Value:
    require(dtype in _INTEGERS and value_dtype(x) == torch.float32, f"{value_dtype(x)} to {dtype}")
    bounds = torch.iinfo(dtype)
    require((least, most) == (bounds.min, bounds.max), "integers of a narrower range than their type")
    parameters = g.scalar(scale, torch.float32), g.scalar(zero, dtype)
    return g.op("QuantizeLinear", x, *parameters, dtype=dtype, dims=target.dims)


@translation("quantized_decomposed.dequantize_per_tensor.default")
def _dequantize_per_tensor(
    g: GraphBuilder, target: Target, x: ir.Value, scale: float, zero: int, *_: Any
) -> ir.Value:
    return _dequantize(g, target, x, g.scalar(scale, torch.float32), g.scalar(zero, value_dtype(x)))


@translation("quantized_decomposed.dequantize_per_channel.default")
def _dequantize_per_channel(
    g: GraphBuilder, target: Target, x: ir.Value, scales: ir.Value, zeros: ir.Value | None, axis: int, *_: Any
) -> ir.Value:
    zero = None if zeros is None else g.cast(zeros, value_dtype(x))
    return _dequantize(g, target, x, scales, zero, axis=non_negative_axis(axis, len(target.dims)))


def _dequantize(
    g: GraphBuilder, target: Target, x: ir.Value, scale: ir.Value, zero: ir.Value | None, **attributes: int
) -> ir.Value:
    types = value_dtype(x), value_dtype(scale), target.dtype
    require(types[0] in _INTEGERS and types[1:] == (torch.float32, torch.float32), f"from {types}")
    return g.op("DequantizeLinear", x, scale, zero, dtype=target.dtype, dims=target.dims, **attributes)


def _along(emitter: Emitter, call: OpCall, parameter: fx.Node, x: fx.Node) -> fx.Node:
    """Reshapes a scale or zero point so that it broadcasts against `x`."""
    if emitter.rank(parameter) == 0 or emitter.shape(parameter) == [1]:
        return parameter
    block = call.attr("block_size", 0)
    axis = normal_axis(call.attr("axis", 1), emitter.rank(x))
    if block:
        wide = emitter.op(aten.repeat_interleave.self_int, parameter, block, axis)
        return emitter.op(aten.slice.Tensor, wide, axis, 0, emitter.dim(x, axis))
    if emitter.rank(parameter) != 1:
        raise call.unsupported("scales of this shape")
    trailing = emitter.rank(x) - 1 - axis
    return emitter.op(aten.reshape.default, parameter, [-1] + [1] * trailing)


def _quantise(
    emitter: Emitter, x: fx.Node, scale: fx.Node, zero: fx.Node | None, dtype: torch.dtype
) -> fx.Node:
    """saturate(round(x / scale) + zero), rounding halves to even."""
    y = emitter.op(aten.round.default, emitter.op(aten.div.Tensor, x, scale))
    if zero is not None:
        y = emitter.op(aten.add.Tensor, y, emitter.cast(zero, emitter.dtype(y)))
    bounds = torch.iinfo(dtype)
    return emitter.cast(emitter.op(aten.clamp.default, y, bounds.min, bounds.max), dtype)


@converts("QuantizeLinear")
def _lower_quantize_linear(emitter: Emitter, call: OpCall) -> Entry:
    x, scale, zero = call.x(0), call.x(1), call.maybe_x(2)
    requested = call.attr("output_dtype", 0)
    dtype = torch_dtype(requested) if requested else torch.uint8
    if zero is not None:
        dtype = emitter.dtype(zero)
        zero = _along(emitter, call, zero, x)
    if dtype not in _INTEGERS or emitter.dtype(x) != torch.float32 or call.attr("precision", 0) not in (0, 1):
        raise call.unsupported(f"{emitter.dtype(x)} to {dtype}")
    return _quantise(emitter, x, _along(emitter, call, scale, x), zero, dtype)


@converts("DequantizeLinear")
def _lower_dequantize_linear(emitter: Emitter, call: OpCall) -> Entry:
    x, scale, zero = call.x(0), call.x(1), call.maybe_x(2)
    if emitter.dtype(x) not in (*_INTEGERS, torch.int32):
        raise call.unsupported(str(emitter.dtype(x)))
    dtype = emitter.dtype(scale)
    wide = emitter.cast(x, torch.int32)
    if zero is not None:
        zero = emitter.cast(_along(emitter, call, zero, x), torch.int32)
        wide = emitter.op(aten.sub.Tensor, wide, zero)
    return emitter.op(aten.mul.Tensor, emitter.cast(wide, dtype), _along(emitter, call, scale, x))


@converts("QLinearMatMul")
def _lower_qlinear_matmul(emitter: Emitter, call: OpCall) -> Entry:
    a, b = call.x(0), call.x(3)
    scales = [call.x(index) for index in (1, 4, 6)]
    zeros = [call.x(index) for index in (2, 5, 7)]
    if any(emitter.rank(p) > 1 or emitter.shape(p) not in ([], [1]) for p in scales + zeros):
        raise call.unsupported("one scale per row or column")
    product = emitter.op(
        aten.matmul.default, centred(emitter, a, zeros[0], None), centred(emitter, b, zeros[1], None)
    )
    ratio = emitter.op(aten.div.Tensor, emitter.op(aten.mul.Tensor, scales[0], scales[1]), scales[2])
    one = emitter.scalar(1.0, torch.float32)
    scaled = emitter.op(
        aten.mul.Tensor, emitter.cast(product, torch.float32), emitter.cast(ratio, torch.float32)
    )
    return _quantise(emitter, scaled, one, zeros[2], emitter.dtype(zeros[2]))
