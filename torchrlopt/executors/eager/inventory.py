"""Counts what a lowered eager graph runs: packed kernels, plain calls, layout changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.eager.kernels import cudnn, indirect, packing, pixels, quantised
from torchrlopt.executors.eager.kernels.cublas import linear_activation
from torchrlopt.executors.eager.kernels.epilogues import ATTR
from torchrlopt.executors.eager.kernels.library import direct_form
from torchrlopt.executors.lowering.strides import reorder, restride
from torchrlopt.ops.recurrent import CELLS
from torchrlopt.torch_private.operators import OpOverload, schema_of

_PLAIN = {
    "convolution": "convolution", "conv1d": "convolution", "conv2d": "convolution", "conv3d": "convolution",
    "linear": "linear", "addmm": "linear", "mm": "product", "bmm": "product", "baddbmm": "product",
    "matmul": "product", "scaled_dot_product_attention": "attention",
    "_scaled_dot_product_flash_attention_for_cpu": "attention",
}  # fmt: skip

_KERNELS: dict[Any, str] = {
    cudnn.RELU: "convolution + relu",
    torch.cudnn_convolution_relu: "convolution + relu",
    cudnn.ADD_RELU: "convolution + sum + relu",
    torch.cudnn_convolution_add_relu: "convolution + sum + relu",
    cudnn.pixel_product: "convolution",
    pixels.max_pool: "max pool",
    pixels.pixel_mean: "mean",
    pixels.join: "join",
    indirect.pool: "pool",
    indirect.shuffle: "channel shuffle",
    indirect.attention: "attention",
    quantised.CONVOLUTION: "convolution of integers",
    quantised.LINEAR: "linear of integers",
    packing.LINEAR: "linear",
    packing.CONVOLUTION: "convolution",
    packing.CONVOLUTION_ADD: "convolution + sum",
    packing.TRANSPOSED: "transposed convolution",
}
_ACTIVATIONS = {**ATTR, quantised.CONVOLUTION: -3, quantised.LINEAR: -3}
"""Positions among the arguments of the names of activations."""


@dataclass(frozen=True)
class Inventory:
    """Counts of the calls of one graph.

    Attributes:
        packed: selected kernels by what they compute ("convolution + relu", "convolution by tiles"): our own,
            oneDNN's with pre-packed weights, cuDNN's and cuBLAS's.
        plain: convolutions, linears, products and attentions that run as plain ATen calls.
        others: all other calls that run in every call of the graph.
        to_channels_last: copies that convert a value to the layout of the packed convolutions.
        restored: copies that restore the strides of the original program.
    """

    packed: dict[str, int] = field(default_factory=dict)
    plain: dict[str, int] = field(default_factory=dict)
    others: int = 0
    to_channels_last: int = 0
    restored: int = 0


def inventory(graph: fx.Graph) -> Inventory:
    """Count the calls in the part of a graph that runs in every call.

    Args:
        graph: as the eager executor runs it.
    """
    packed: Counter[str] = Counter()
    plain: Counter[str] = Counter()
    others = to_channels_last = restored = 0
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method"):
            continue
        kernel, name = _packed(node), _name(node.target)
        if kernel is not None:
            packed[kernel] += 1
        elif _is_to_channels_last(node):
            to_channels_last += 1
        elif node.target in (restride, reorder):
            restored += 1
        elif name in _PLAIN:
            plain[_PLAIN[name]] += 1
        else:
            others += 1
    return Inventory(dict(packed), dict(plain), others, to_channels_last, restored)


def name_of(node: fx.Node) -> str:
    """What a call computes, in words if a selected kernel does."""
    if _is_to_channels_last(node):
        return "copy to channels_last"
    if node.target in (restride, reorder):
        return "copy to the original strides"
    return _packed(node) or _name(node.target)


def _is_to_channels_last(node: fx.Node) -> bool:
    return node.kwargs.get("memory_format") in (torch.channels_last, torch.channels_last_3d)


def _packed(node: fx.Node) -> str | None:
    """What a selected kernel computes; None for any other call."""
    target, args = direct_form(node)
    if target is linear_activation:
        return "linear + gelu" if args[3] else "linear + relu"
    if target is indirect.recurrent:
        return tuple(CELLS)[args[4]]
    if target in _KERNELS:
        parts = [_KERNELS[target], args[_ACTIVATIONS[target]] if target in _ACTIVATIONS else ""]
    elif target is indirect.linear:
        parts = [f"linear{_way(node)}", indirect.activation_in(node)]
    elif target is indirect.convolve:
        has_sum = args[2] is not None
        parts = [f"convolution{_way(node)}", "sum" if has_sum else "", indirect.activation_in(node)]
    else:
        return None
    return " + ".join(str(part) for part in parts if part not in (None, "none", ""))


def _way(node: fx.Node) -> str:
    method = indirect.method_of(node)
    if method == indirect.BF16X2:
        return " in the matrix unit, in two parts"
    if method in indirect.IN_UNIT:
        return " in the matrix unit"
    if method == indirect.INT8:
        return " in int8"
    return " by tiles" if method in indirect.TILES else ""


def _name(target: Any) -> str:
    """The operator's name without namespace and overload."""
    if isinstance(target, str):
        return target
    if isinstance(target, OpOverload):
        return schema_of(target).name.rpartition("::")[2]
    return str(getattr(target, "__name__", target))
