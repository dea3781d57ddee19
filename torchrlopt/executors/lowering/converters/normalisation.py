"""Normalisation and softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from torchrlopt.executors.lowering.converters.emitter import Emitter, Entry, aten, normal_axis
from torchrlopt.executors.lowering.converters.table import OpCall, Result, converts


@converts("BatchNormalization")
def _batch_norm(emitter: Emitter, call: OpCall) -> Result:
    if call.attr("training_mode", 0) or any(call.wanted[1:]):
        return _batch_norm_training(emitter, call)
    x = call.x(0)
    affine = [emitter.cast(call.x(index), emitter.dtype(x)) for index in range(1, 5)]
    epsilon = call.attr("epsilon", 1e-5)
    target = aten._native_batch_norm_legit_no_training.default
    return emitter.item(emitter.op(target, x, *affine, 0.0, epsilon), 0)


def _batch_norm_training(emitter: Emitter, call: OpCall) -> Result:
    x, scale, bias, mean, var = (call.x(index) for index in range(5))
    momentum, epsilon = call.attr("momentum", 0.9), call.attr("epsilon", 1e-5)
    dims = [axis for axis in range(emitter.rank(x)) if axis != 1]
    now = emitter.op(aten.mean.dim, x, dims)
    spread = emitter.op(aten.var.correction, x, dims, correction=0)
    arguments = (scale, bias, now, spread, 0.0, epsilon)
    y = emitter.item(emitter.op(aten._native_batch_norm_legit_no_training.default, x, *arguments), 0)
    running = [
        emitter.op(
            aten.add.Tensor,
            emitter.op(aten.mul.Tensor, old, momentum),
            emitter.op(aten.mul.Tensor, new, 1 - momentum),
        )
        for old, new in ((mean, now), (var, spread))
    ]
    return (y, *running)


@converts("LayerNormalization")
def _layer_norm(emitter: Emitter, call: OpCall) -> Result:
    x, scale, bias = call.x(0), call.x(1), call.maybe_x(2)
    axis = normal_axis(call.attr("axis", -1), emitter.rank(x))
    sizes = emitter.shape(x)[axis:]
    if emitter.dtype(x) == torch.float64 and call.attr("stash_type", 1) == 1 and call.num_outputs > 1:
        raise call.unsupported("float64 statistics in float32")
    scale = _full(emitter, scale, sizes)
    bias = None if bias is None else _full(emitter, bias, sizes)
    found = emitter.op(aten.native_layer_norm.default, x, sizes, scale, bias, call.attr("epsilon", 1e-5))
    return tuple(emitter.item(found, index) for index in range(call.num_outputs))


def _full(emitter: Emitter, affine: fx.Node, sizes: list[Any]) -> fx.Node:
    """A scale or bias in exactly the normalised shape, which torch asks for."""
    if emitter.shape(affine) == sizes:
        return affine
    if emitter.rank(affine) > len(sizes):
        affine = emitter.op(aten.reshape.default, affine, emitter.shape(affine)[-len(sizes) :])
    return emitter.op(aten.expand.default, affine, sizes)


@converts("RMSNormalization")
def _rms_norm(emitter: Emitter, call: OpCall) -> Entry:
    x, scale = call.x(0), call.x(1)
    axis = normal_axis(call.attr("axis", -1), emitter.rank(x))
    epsilon = call.attr("epsilon", 1e-5)
    dtype = emitter.dtype(x)
    narrow = dtype in (torch.float16, torch.bfloat16)
    wide = emitter.cast(x, torch.float32) if narrow else x
    dims = list(range(axis, emitter.rank(x)))
    squares = emitter.op(aten.mean.dim, emitter.op(aten.pow.Tensor_Scalar, wide, 2), dims, True)
    inverse = emitter.op(aten.rsqrt.default, emitter.op(aten.add.Tensor, squares, epsilon))
    normal = emitter.cast(emitter.op(aten.mul.Tensor, wide, inverse), dtype)
    return emitter.op(aten.mul.Tensor, normal, scale)


@converts("InstanceNormalization")
def _instance_norm(emitter: Emitter, call: OpCall) -> Entry:
    x, scale, bias = call.x(0), call.x(1), call.x(2)
    arguments = (None, None, True, 0.0, call.attr("epsilon", 1e-5), False)
    return emitter.op(aten.instance_norm.default, x, scale, bias, *arguments)


@converts("GroupNormalization")
def _group_norm(emitter: Emitter, call: OpCall) -> Entry:
    x, scale, bias = call.x(0), call.x(1), call.x(2)
    groups, epsilon = call.required("num_groups"), call.attr("epsilon", 1e-5)
    return emitter.op(aten.group_norm.default, x, groups, scale, bias, epsilon, False)


@converts("LRN")
def _lrn(emitter: Emitter, call: OpCall) -> Entry:
    x, size = call.x(0), call.required("size")
    alpha, beta, bias = call.attr("alpha", 1e-4), call.attr("beta", 0.75), call.attr("bias", 1.0)
    rank = emitter.rank(x)
    squares = emitter.op(aten.mul.Tensor, x, x)
    before = (size - 1) // 2
    behind = 2 * (rank - 2)
    padded = emitter.op(aten.constant_pad_nd.default, squares, [0] * behind + [before, size - 1 - before])
    windows = emitter.op(aten.unfold.default, padded, 1, size, 1)
    total = emitter.op(aten.sum.dim_IntList, windows, [rank])
    base = emitter.op(aten.add.Tensor, emitter.op(aten.mul.Tensor, total, alpha / size), bias)
    return emitter.op(aten.div.Tensor, x, emitter.op(aten.pow.Tensor_Scalar, base, beta))


@converts("LpNormalization")
def _lp_norm(emitter: Emitter, call: OpCall) -> Entry:
    x, axis, power = call.x(0), call.attr("axis", -1), call.attr("p", 2)
    norm = emitter.op(aten.linalg_vector_norm.default, x, power, [axis], True)
    quotient = emitter.op(aten.div.Tensor, x, norm)
    # A zero vector stays zero.
    zero = emitter.op(aten.zeros_like.default, x)
    return emitter.op(aten.where.self, emitter.op(aten.eq.Scalar, norm, 0), zero, quotient)


@converts("MeanVarianceNormalization")
def _mean_variance(emitter: Emitter, call: OpCall) -> Entry:
    x, axes = call.x(0), list(call.attr("axes") or (0, 2, 3))
    centred = emitter.op(aten.sub.Tensor, x, emitter.op(aten.mean.dim, x, axes, True))
    squares = emitter.op(aten.mean.dim, emitter.op(aten.mul.Tensor, centred, centred), axes, True)
    spread = emitter.op(aten.add.Tensor, emitter.op(aten.sqrt.default, squares), 1e-9)
    return emitter.op(aten.div.Tensor, centred, spread)


@converts("Softmax", "LogSoftmax")
def _softmax(emitter: Emitter, call: OpCall) -> Entry:
    target = aten._softmax.default if call.op_type == "Softmax" else aten._log_softmax.default
    x = call.x(0)
    return emitter.op(target, x, normal_axis(call.attr("axis", -1), emitter.rank(x)), False)


@converts("Hardmax")
def _hardmax(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    axis = normal_axis(call.attr("axis", -1), emitter.rank(x))
    position = emitter.op(aten.argmax.default, x, axis, True)
    return emitter.op(aten.scatter.value, emitter.op(aten.zeros_like.default, x), axis, position, 1)
