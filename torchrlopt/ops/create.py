"""Operators that create tensors, from nothing or from shapes."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from torchrlopt.ops.builder import GraphBuilder
from torchrlopt.ops.emitter import Emitter, Entry, Ints, aten
from torchrlopt.ops.onnx_types import tensor_of
from torchrlopt.ops.to_aten import OpCall, converts
from torchrlopt.ops.to_onnx import SymScalar, Target, require, shape_value, static_int, translation


@translation("native_dropout.default")
def _native_dropout(g: GraphBuilder, target: Target, x: ir.Value, p: float, train: Any) -> list[Any]:
    target.need_only(0)
    require(train is False, "dropout in training")
    return [g.identity(x), None]


@translation("full.default", "full_like.default", "new_full.default")
def _full(g: GraphBuilder, target: Target, source: Any, *arguments: Any) -> ir.Value:
    return _filled(g, target, target.named(source, *arguments)["fill_value"], source)


@translation("zeros.default", "zeros_like.default", "new_zeros.default")
@translation("ones.default", "ones_like.default", "new_ones.default")
def _uniform(g: GraphBuilder, target: Target, source: Any, *options: Any) -> ir.Value:
    return _filled(g, target, int("ones" in target.opname), source)


@translation("scalar_tensor.default")
def _scalar_tensor(g: GraphBuilder, target: Target, value: Any, *options: Any) -> ir.Value:
    return _filled(g, target, value, None)


def _filled(g: GraphBuilder, target: Target, value: Any, source: Any) -> ir.Value:
    if isinstance(value, SymScalar):
        scalar = g.cast(value.value, target.dtype)
    else:
        require(isinstance(value, bool | int | float), f"fill value {value!r}")
        scalar = g.scalar(value, target.dtype)
    if not target.dims:
        return g.identity(scalar)
    sources = [source] if isinstance(source, ir.Value) else []
    return g.op("Expand", scalar, shape_value(g, target, target.dims, *sources), dims=target.dims)


@translation("arange.default", "arange.start", "arange.start_step")
def _arange(g: GraphBuilder, target: Target, *arguments: Any) -> ir.Value:
    given = target.named(*arguments)
    dtype = target.dtype
    require(dtype in (torch.int64, torch.int32), "a range of floats rounds differently")
    values = [
        g.cast(bound.value, dtype) if isinstance(bound, SymScalar) else g.scalar(static_int(bound), dtype)
        for bound in (given.get("start", 0), given["end"], given.get("step", 1))
    ]
    return g.op("Range", *values, dims=target.dims)


@converts("Range")
def _lower_range(emitter: Emitter, call: OpCall) -> Entry:
    entries = [call.entry(index) for index in range(3)]
    known = [emitter.known_ints(entry) for entry in entries]
    if all(ints is not None for ints in known):
        bounds = [ints.elements[0] for ints in known if ints is not None]
        dtype = torch.int64
        if isinstance(entries[0], torch.Tensor):
            dtype = entries[0].dtype
        return emitter.op(aten.arange.start_step, *bounds, dtype=dtype, device=emitter.device)
    nodes = call.all_x()
    dtype = emitter.dtype(nodes[0])
    scalars = [emitter.op(aten._local_scalar_dense.default, node) for node in nodes]
    return emitter.op(aten.arange.start_step, *scalars, dtype=dtype, device=emitter.device)


@converts("Constant")
def _lower_constant(emitter: Emitter, call: OpCall) -> Entry:
    attributes = call.attributes
    if "value" in attributes:
        return tensor_of(attributes["value"])
    for name, value in attributes.items():
        if name in ("value_float", "value_floats", "value_int", "value_ints"):
            return torch.tensor(value, dtype=torch.float32 if "float" in name else torch.int64)
    raise call.unsupported("a value that is no dense numeric tensor")


@converts("ConstantOfShape")
def _lower_constant_of_shape(emitter: Emitter, call: OpCall) -> Entry:
    value = call.attr("value")
    fill = torch.zeros(1) if value is None else tensor_of(value)
    sizes = emitter.ints(call.entry(0))
    number = fill.reshape(()).item()
    return emitter.op(aten.full.default, sizes, number, dtype=fill.dtype, device=emitter.device)


@converts("Shape")
def _lower_shape(emitter: Emitter, call: OpCall) -> Entry:
    sizes = emitter.shape(call.x(0))
    return Ints(sizes[slice(call.attr("start", 0), call.attr("end"))], 1)


@converts("Size")
def _lower_size(emitter: Emitter, call: OpCall) -> Entry:
    return Ints([emitter.prod(emitter.shape(call.x(0)))], 0)


@converts("Dropout")
def _lower_dropout(emitter: Emitter, call: OpCall) -> tuple[Entry | None, ...]:
    x = call.x(0)
    training = call.maybe(2)
    if training is not None:
        if not isinstance(training, torch.Tensor):
            raise call.unsupported("training_mode from the graph")
        if bool(training) and call.number(1) != 0:
            raise call.unsupported("training mode: it draws random numbers")
    if call.num_outputs == 1:
        return (call.entry(0),)
    return call.entry(0), emitter.op(aten.ones_like.default, x, dtype=torch.bool)
