"""Matrix products."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from torchrlopt.ops.builder import GraphBuilder
from torchrlopt.ops.elementwise import activate
from torchrlopt.ops.emitter import Emitter, Entry, aten
from torchrlopt.ops.onnx_types import Dims, is_static, value_dtype
from torchrlopt.ops.to_aten import OpCall, converts
from torchrlopt.ops.to_onnx import Target, require, translation

_MATMUL_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64)


def onnx_matmul(g: GraphBuilder, x: ir.Value, y: ir.Value, dims: Dims) -> ir.Value:
    """Emits a MatMul."""
    require(value_dtype(x) in _MATMUL_DTYPES, f"MatMul in {value_dtype(x)}")
    return g.op("MatMul", x, y, dims=dims)


def linear(g: GraphBuilder, target: Target, x: ir.Value, weight: ir.Value, bias: ir.Value | None) -> ir.Value:
    """Emits `x @ weight + bias` for x of any rank and a weight [in, out]."""
    product = onnx_matmul(g, x, weight, target.dims)
    return product if bias is None else g.op("Add", product, bias, dims=target.dims)


def transposed_weight_gemm(
    g: GraphBuilder, target: Target, x: ir.Value, weight: ir.Value, bias: ir.Value
) -> ir.Value:
    """Emits `x @ weight.T + bias` for a 2-D x and a weight [out, in] as one Gemm."""
    require(value_dtype(x) in _MATMUL_DTYPES, f"Gemm in {value_dtype(x)}")
    return g.op("Gemm", x, weight, bias, dims=target.dims, transB=1)


@translation("mm.default", "bmm.default", "mv.default", "dot.default", "matmul.default")
def _mm(g: GraphBuilder, target: Target, x: ir.Value, y: ir.Value, *options: Any) -> ir.Value:
    require(all(option is None for option in options), "an output dtype")
    return onnx_matmul(g, x, y, target.dims)


@translation("addmm.default")
def _addmm(
    g: GraphBuilder, target: Target, bias: ir.Value, x: ir.Value, y: ir.Value, beta: Any, alpha: Any
) -> ir.Value:
    require(value_dtype(x) in _MATMUL_DTYPES, f"Gemm in {value_dtype(x)}")
    factor = None if alpha == 1 else float(alpha)
    if beta == 0:
        # If beta is 0, ATen promises not to read the bias (it may contain NaN).
        return g.op("Gemm", x, y, dims=target.dims, alpha=factor)
    bias_factor = None if beta == 1 else float(beta)
    return g.op("Gemm", x, y, bias, dims=target.dims, alpha=factor, beta=bias_factor)


@converts("Gemm")
def _lower_gemm(emitter: Emitter, call: OpCall) -> Entry:
    a, b, c = call.x(0), call.x(1), call.maybe_x(2)
    alpha, beta = call.attr("alpha", 1.0), call.attr("beta", 1.0)
    if call.attr("transA", 0):
        a = emitter.op(aten.permute.default, a, [1, 0])
    if call.attr("transB", 0):
        b = emitter.op(aten.permute.default, b, [1, 0])
    dtype = emitter.dtype(a)
    if not dtype.is_floating_point:
        if alpha != 1.0 or beta != 1.0:
            raise call.unsupported("scaled integers")
        y = _integer_matmul(emitter, a, b)
        return y if c is None else emitter.op(aten.add.Tensor, y, c)
    if c is not None and beta != 0.0:
        if alpha == 1.0 and beta == 1.0:
            return emitter.op(aten.addmm.default, c, a, b)
        return emitter.op(aten.addmm.default, c, a, b, beta=beta, alpha=alpha)
    y = emitter.op(aten.mm.default, a, b)
    return y if alpha == 1.0 else emitter.op(aten.mul.Tensor, y, alpha)


@translation("baddbmm.default")
def _baddbmm(
    g: GraphBuilder, target: Target, bias: ir.Value, x: ir.Value, y: ir.Value, beta: Any, alpha: Any
) -> ir.Value:
    product = onnx_matmul(g, x, y, target.dims)
    if alpha != 1:
        product = g.op("Mul", product, g.scalar(alpha, target.dtype))
    if beta == 0:
        return product
    scaled = bias if beta == 1 else g.op("Mul", bias, g.scalar(beta, target.dtype))
    return g.op("Add", scaled, product, dims=target.dims)


@converts("MatMul")
def _lower_matmul(emitter: Emitter, call: OpCall) -> Entry:
    return matmul(emitter, call.x(0), call.x(1))


def matmul(emitter: Emitter, a: fx.Node, b: fx.Node) -> fx.Node:
    """Matmul as in numpy: 1-D operands are vectors, leading dimensions broadcast."""
    rank_a, rank_b = emitter.rank(a), emitter.rank(b)
    if not emitter.dtype(a).is_floating_point:
        return _integer_matmul(emitter, a, b)
    if rank_a == 2 and rank_b == 2:
        return emitter.op(aten.mm.default, a, b)
    if rank_b == 2 and rank_a > 2:
        return _rows(emitter, a, b, None)
    if rank_a == rank_b >= 3:
        lead_a, lead_b = emitter.shape(a)[:-2], emitter.shape(b)[:-2]
        if rank_a == 3 and is_static(lead_a) and lead_a == lead_b:
            return emitter.op(aten.bmm.default, a, b)
    return emitter.op(aten.matmul.default, a, b)


def _rows(emitter: Emitter, x: fx.Node, w: fx.Node, bias: fx.Node | None) -> fx.Node:
    """Computes x [..., k] @ w [k, n] + bias [n] as one 2-D product."""
    *lead, inner = emitter.shape(x)
    flat = emitter.op(aten.reshape.default, x, [emitter.prod(lead), inner])
    if bias is None:
        y = emitter.op(aten.mm.default, flat, w)
    else:
        y = emitter.op(aten.addmm.default, bias, flat, w)
    return emitter.op(aten.reshape.default, y, [*lead, emitter.dim(w, 1)])


def _integer_matmul(emitter: Emitter, a: fx.Node, b: fx.Node) -> fx.Node:
    """Integer product: exact in int64, then wrapped to the operands' width."""
    dtype = emitter.dtype(a)
    wide = emitter.op(aten.matmul.default, emitter.cast(a, torch.int64), emitter.cast(b, torch.int64))
    return emitter.cast(wide, dtype)


@converts("FusedMatMul", domain="rlopt")
def _lower_fused_matmul(emitter: Emitter, call: OpCall) -> Entry:
    x, w, bias, addend = call.x(0), call.x(1), call.maybe_x(2), call.maybe_x(3)
    vector = bias is not None and emitter.rank(bias) == 1 and emitter.dim(bias, 0) == emitter.dim(w, -1)
    if bias is not None and vector and emitter.rank(w) == 2 and emitter.rank(x) >= 2:
        if emitter.rank(x) == 2:
            y = emitter.op(aten.addmm.default, bias, x, w)
        else:
            y = _rows(emitter, x, w, bias)
    else:
        y = matmul(emitter, x, w)
        if bias is not None:
            y = emitter.op(aten.add.Tensor, y, bias)
    if addend is not None:
        y = emitter.op(aten.add.Tensor, y, addend)
    return activate(emitter, y, call)


@converts("Einsum")
def _lower_einsum(emitter: Emitter, call: OpCall) -> Entry:
    operands = call.all_x()
    if not emitter.dtype(operands[0]).is_floating_point:
        raise call.unsupported("integers")
    return emitter.op(aten.einsum.default, call.required("equation").replace(" ", ""), operands)


@converts("MatMulInteger")
def _lower_matmul_integer(emitter: Emitter, call: OpCall) -> Entry:
    a = centred(emitter, call.x(0), call.maybe_x(2), -1)
    b = centred(emitter, call.x(1), call.maybe_x(3), None)
    return emitter.cast(emitter.op(aten.matmul.default, a, b), torch.int32)


def centred(emitter: Emitter, x: fx.Node, zero: fx.Node | None, axis: int | None) -> fx.Node:
    """`x` in int64 minus its zero point; a vector of zero points gets a new axis at `axis`."""
    wide = emitter.cast(x, torch.int64)
    if zero is None:
        return wide
    if axis is not None and emitter.rank(zero) == 1 and emitter.dim(zero, 0) != 1:
        zero = emitter.op(aten.unsqueeze.default, zero, axis)
    return emitter.op(aten.sub.Tensor, wide, emitter.cast(zero, torch.int64))
