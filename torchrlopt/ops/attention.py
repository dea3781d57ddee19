"""Attention."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from torchrlopt.ops.builder import GraphBuilder
from torchrlopt.ops.emitter import Emitter, Entry, aten
from torchrlopt.ops.onnx_types import value_dims
from torchrlopt.ops.to_aten import OpCall, converts
from torchrlopt.ops.to_onnx import Target, require, static_int, translation


def _heads(emitter: Emitter, x: fx.Node, count: int) -> fx.Node:
    """Reshapes [B, S, heads * size] to [B, heads, S, size]; 4-D operands stay unchanged."""
    if emitter.rank(x) == 4:
        return x
    batch, length, width = emitter.shape(x)
    split = emitter.op(aten.reshape.default, x, [batch, length, count, emitter.floordiv(width, count)])
    return emitter.op(aten.permute.default, split, [0, 2, 1, 3])


@translation(
    "_scaled_dot_product_flash_attention_for_cpu.default",
    "_scaled_dot_product_flash_attention.default",
    "_scaled_dot_product_efficient_attention.default",
    "_scaled_dot_product_cudnn_attention.default",
)
def _kernel(
    g: GraphBuilder, target: Target, q: ir.Value, k: ir.Value, v: ir.Value, *options: Any
) -> list[ir.Value | None]:
    target.need_only(0)
    return [_sdpa(g, target, q, k, v, *options), *[None] * (len(target.types) - 1)]


@translation("scaled_dot_product_attention.default")
def _sdpa(g: GraphBuilder, target: Target, q: ir.Value, k: ir.Value, v: ir.Value, *options: Any) -> ir.Value:
    given = target.named(q, k, v, *options)
    mask = given.get("attn_mask", given.get("attn_bias"))
    require(given["dropout_p"] == 0, "attention with dropout")
    require(len(target.dims) == 4, "attention of a rank other than 4")
    require(mask is None or not given["is_causal"], "attention with a mask and is_causal")
    scale = given["scale"]
    if scale is not None:
        width = static_int(value_dims(q)[3])
        # ATen and ONNX share this default. Omit it so that equal attentions become equal nodes.
        scale = None if math.isclose(scale, 1 / math.sqrt(width), rel_tol=1e-12) else float(scale)
    is_causal = 1 if given["is_causal"] else None
    return g.op("Attention", q, k, v, mask, dims=target.dims, scale=scale, is_causal=is_causal)


# Attributes of PyTorch's kernel. Others, and results it does not compute, use the standard's function body.
_OF_THE_KERNEL = {"is_causal", "scale", "softcap", "q_num_heads", "kv_num_heads", "qk_matmul_output_mode"}


@converts("Attention")
def _lower_attention(emitter: Emitter, call: OpCall) -> Entry:
    q, k, v, mask = call.x(0), call.x(1), call.x(2), call.maybe_x(3)
    causal = bool(call.attr("is_causal", 0))
    if (
        any(call.maybe(index) is not None for index in (4, 5, 6))
        or any(call.wanted[1:])
        or (causal and mask is not None)
    ):
        raise call.unsupported("a past, scores, or a mask and is_causal")
    if call.attr("softcap", 0.0) or set(call.attributes) - _OF_THE_KERNEL:
        raise call.unsupported(", ".join(sorted(set(call.attributes) - _OF_THE_KERNEL)) or "softcap")
    flat = emitter.rank(q) == 3
    if flat:
        q = _heads(emitter, q, call.required("q_num_heads"))
        k = _heads(emitter, k, call.required("kv_num_heads"))
        v = _heads(emitter, v, call.required("kv_num_heads"))
    groups = emitter.static_dim(q, 1) // emitter.static_dim(k, 1)
    if groups > 1:  # repeat each head `groups` times in a row
        k, v = (emitter.op(aten.repeat_interleave.self_int, x, groups, 1) for x in (k, v))
    if mask is not None:
        mask = _wide_mask(emitter, mask, k)
    target = aten.scaled_dot_product_attention.default
    y = emitter.op(target, q, k, v, mask, 0.0, causal, scale=call.attr("scale", 0.0) or None)
    if not flat:
        return y
    batch, _, length, _ = emitter.shape(q)
    y = emitter.op(aten.permute.default, y, [0, 2, 1, 3])
    return emitter.op(aten.reshape.default, y, [batch, length, -1])


def _wide_mask(emitter: Emitter, mask: fx.Node, k: fx.Node) -> fx.Node:
    """Widens a mask to one column per key; added columns are masked out."""
    have, want = emitter.dim(mask, -1), emitter.dim(k, 2)
    if have in (want, 1) or not isinstance(have, int) or not isinstance(want, int):
        return mask
    fill = False if emitter.dtype(mask) == torch.bool else -math.inf
    return emitter.op(aten.constant_pad_nd.default, mask, [0, want - have], fill)
