"""Direct translations of matrix products, convolution and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from torchrlopt.capture.builder import GraphBuilder
from torchrlopt.capture.onnx_types import Dims, value_dims, value_dtype
from torchrlopt.capture.translate.table import Target, require, static_int, translation

_MATMUL_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64)


def matmul(g: GraphBuilder, x: ir.Value, y: ir.Value, dims: Dims) -> ir.Value:
    """Emits a MatMul."""
    require(value_dtype(x) in _MATMUL_DTYPES, f"MatMul in {value_dtype(x)}")
    return g.op("MatMul", x, y, dims=dims)


def linear(g: GraphBuilder, target: Target, x: ir.Value, weight: ir.Value, bias: ir.Value | None) -> ir.Value:
    """Emits `x @ weight + bias` for x of any rank and a weight [in, out]."""
    product = matmul(g, x, weight, target.dims)
    return product if bias is None else g.op("Add", product, bias, dims=target.dims)


def transposed_weight_gemm(
    g: GraphBuilder, target: Target, x: ir.Value, weight: ir.Value, bias: ir.Value
) -> ir.Value:
    """Emits `x @ weight.T + bias` for a 2-D x and a weight [out, in] as one Gemm."""
    require(value_dtype(x) in _MATMUL_DTYPES, f"Gemm in {value_dtype(x)}")
    return g.op("Gemm", x, weight, bias, dims=target.dims, transB=1)


@translation("mm.default", "bmm.default", "mv.default", "dot.default")
def _mm(g: GraphBuilder, target: Target, x: ir.Value, y: ir.Value, *options: Any) -> ir.Value:
    require(all(option is None for option in options), "an output dtype")
    return matmul(g, x, y, target.dims)


@translation("addmm.default")
def _addmm(
    g: GraphBuilder, target: Target, bias: ir.Value, x: ir.Value, y: ir.Value, beta: Any, alpha: Any
) -> ir.Value:
    require(value_dtype(x) in _MATMUL_DTYPES, f"Gemm in {value_dtype(x)}")
    factor = None if alpha == 1 else float(alpha)
    if beta == 0:
        # ATen promises not to read the bias then (it may hold NaN).
        return g.op("Gemm", x, y, dims=target.dims, alpha=factor)
    bias_factor = None if beta == 1 else float(beta)
    return g.op("Gemm", x, y, bias, dims=target.dims, alpha=factor, beta=bias_factor)


@translation("baddbmm.default")
def _baddbmm(
    g: GraphBuilder, target: Target, bias: ir.Value, x: ir.Value, y: ir.Value, beta: Any, alpha: Any
) -> ir.Value:
    product = matmul(g, x, y, target.dims)
    if alpha != 1:
        product = g.op("Mul", product, g.scalar(alpha, target.dtype))
    if beta == 0:
        return product
    scaled = bias if beta == 1 else g.op("Mul", bias, g.scalar(beta, target.dtype))
    return g.op("Add", scaled, product, dims=target.dims)


@translation("convolution.default")
def _convolution(
    g: GraphBuilder,
    target: Target,
    x: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: Any,
) -> ir.Value:
    rank = len(value_dims(x)) - 2
    # Unbatched images (C, H, W) have no form in ONNX.
    require(rank == len(value_dims(weight)) - 2 and rank >= 1, "an unbatched convolution")
    attributes: dict[str, Any] = {
        "strides": _per_axis(stride, rank),
        "pads": _per_axis(padding, rank) * 2,
        "dilations": _per_axis(dilation, rank),
        "group": static_int(groups),
    }
    if not transposed:
        return g.op("Conv", x, weight, bias, dims=target.dims, **attributes)
    extra = _per_axis(output_padding, rank)
    if any(extra):
        attributes["output_padding"] = extra
    return g.op("ConvTranspose", x, weight, bias, dims=target.dims, **attributes)


def _per_axis(sizes: Sequence[Any], rank: int) -> list[int]:
    ints = [static_int(size) for size in sizes]
    return ints * rank if len(ints) == 1 else ints


@translation("_scaled_dot_product_flash_attention_for_cpu.default")
def _sdpa_cpu(
    g: GraphBuilder,
    target: Target,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    dropout_p: float,
    is_causal: bool,
    mask: ir.Value | None,
    scale: float | None,
) -> list[ir.Value | None]:
    target.need_only(0)
    return [_attention(g, target, q, k, v, mask, dropout_p, is_causal, scale), None]


@translation("_scaled_dot_product_flash_attention.default")
def _sdpa_flash(
    g: GraphBuilder,
    target: Target,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    scale: float | None,
) -> list[ir.Value | None]:
    target.need_only(0)
    found = _attention(g, target, q, k, v, None, dropout_p, is_causal, scale)
    return [found, *[None] * (len(target.types) - 1)]


@translation("_scaled_dot_product_efficient_attention.default", "_scaled_dot_product_cudnn_attention.default")
def _sdpa_efficient(
    g: GraphBuilder,
    target: Target,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    mask: ir.Value | None,
    compute_log_sumexp: bool,
    dropout_p: float,
    is_causal: bool,
    *rest: Any,
) -> list[ir.Value | None]:
    target.need_only(0)
    # The cuDNN form has `return_debug_mask` before the scale.
    found = _attention(g, target, q, k, v, mask, dropout_p, is_causal, rest[-1])
    return [found, *[None] * (len(target.types) - 1)]


def _attention(
    g: GraphBuilder,
    target: Target,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    mask: ir.Value | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> ir.Value:
    require(dropout_p == 0, "attention with dropout")
    require(len(target.dims) == 4, "attention of a rank other than 4")
    require(mask is None or not is_causal, "attention with a mask and is_causal")
    if scale is not None:
        width = static_int(value_dims(q)[3])
        # The default of both worlds is left out, so that equal attentions are equal nodes.
        scale = None if math.isclose(scale, 1 / math.sqrt(width), rel_tol=1e-12) else float(scale)
    return g.op("Attention", q, k, v, mask, dims=target.dims, scale=scale, is_causal=1 if is_causal else None)
