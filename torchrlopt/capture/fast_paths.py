"""Prepares attention for tracing: decomposes the transformer fast path, and keeps the rest fused.

`torch.nn.TransformerEncoderLayer` and `torch.nn.MultiheadAttention` run one opaque operator if no gradient is
recorded. Its parts are ordinary: projections, attention, layer norms and two linear layers, which those
modules run otherwise. The formulas follow their kernels (aten/src/ATen/native/transformers). The check of a
rewritten graph sees only the decomposed form: `tests/capture/test_fast_paths.py` compares with the kernels
themselves.

The fused CUDA kernels, on the other hand, need a mask whose last stride is 1. Models expand theirs from one
column, and then PyTorch splits attention into products, softmax and copies in float32: a BERT of 12 layers
then ran 293 kernels on an H100 instead of 165.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_PADDING = 1  # mask_type: True at keys to ignore, (batch, keys); the other types broadcast to the scores


def _heads(x: Tensor, num_heads: int) -> Tensor:
    """Split (batch, length, width) into (batch, heads, length, width of a head)."""
    return x.view(*x.shape[:-1], num_heads, x.shape[-1] // num_heads).transpose(1, 2)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`aten::_native_multi_head_attention` on (batch, length, width)."""
    if query is key and key is value:
        projected = functional.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    else:
        parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
        projected = tuple(functional.linear(*part) for part in parts)
    q, k, v = (_heads(each, num_head) for each in projected)
    shares: Tensor | None = None
    if mask is None and not need_weights:
        context = functional.scaled_dot_product_attention(q, k, v)
    else:
        scores = (q * (embed_dim // num_head) ** -0.5) @ k.transpose(-2, -1)
        if mask is not None:
            left_out = mask.to(torch.bool)
            if mask_type == _PADDING:
                left_out = left_out[:, None, None, :]
            # A fully masked row is NaN, as in the kernel.
            scores = scores.masked_fill(left_out, float("-inf"))
        shares = scores.softmax(-1)
        context = shares @ v
        if not need_weights:
            shares = None
        elif average_attn_weights:
            shares = shares.mean(1)
    return functional.linear(context.transpose(1, 2).flatten(-2), proj_weight, proj_bias), shares


def _encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """`aten::_transformer_encoder_layer_fwd` on (batch, length, width)."""

    def attend(x: Tensor) -> Tensor:
        projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        found, _ = _attention(x, x, x, embed_dim, num_heads, *projections, mask, False, False, mask_type)
        return found

    def feed(x: Tensor) -> Tensor:
        hidden = functional.linear(x, ffn_weight_1, ffn_bias_1)
        hidden = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
        return functional.linear(hidden, ffn_weight_2, ffn_bias_2)

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.layer_norm(x, (embed_dim,), weight, bias, eps)

    if norm_first:
        x = src + attend(norm(src, norm_weight_1, norm_bias_1))
        return x + feed(norm(x, norm_weight_2, norm_bias_2))
    x = norm(src + attend(src), norm_weight_1, norm_bias_1)
    return norm(x + feed(x), norm_weight_2, norm_bias_2)


PARTS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._native_multi_head_attention.default: _attention,
    torch.ops.aten._transformer_encoder_layer_fwd.default: _encoder_layer,
}
"""Decompositions for AOTAutograd and torch.export."""


_MASK = 3
"""Position of the mask among the arguments of `scaled_dot_product_attention`."""


class DenseMasks(TorchFunctionMode):
    """While active, makes attention masks dense along their last axes; the values stay the same.

    Args:
        device_types: of the masks to change.
    """

    def __init__(self, device_types: Collection[str] = ("cuda",)) -> None:
        super().__init__()
        self._device_types = device_types

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls the function."""
        kwargs = dict(kwargs or {})
        if func is functional.scaled_dot_product_attention:
            if self._is_sparse(kwargs.get("attn_mask")):
                kwargs["attn_mask"] = _dense(kwargs["attn_mask"])
            elif len(args) > _MASK and self._is_sparse(args[_MASK]):
                args = (*args[:_MASK], _dense(args[_MASK]), *args[_MASK + 1 :])
        return func(*args, **kwargs)

    def _is_sparse(self, mask: Any) -> bool:
        if not isinstance(mask, torch.Tensor) or mask.device.type not in self._device_types:
            return False
        return mask.stride(-1) != 1


def _dense(mask: Tensor) -> Tensor:
    """Make the last two axes contiguous; axes expanded before them stay expanded."""
    small = mask
    for axis in range(mask.dim() - 2):
        if mask.stride(axis) == 0:
            small = small.narrow(axis, 0, 1)
    return small.contiguous().expand(mask.shape)
