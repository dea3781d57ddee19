"""Computes convolutions and products of quantised models with oneDNN's kernels of 8-bit integers.

Their operands are integers times scales, so the sums of products of the integers, which are exact, are scaled
once: that is more exact than a product of the dequantised numbers. A ReLU and the quantisation of the result
are fused. Without VNNI the sums would saturate, so these are used where our own kernel of integers is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.selection import replace
from torchrlopt.executors.eager.kernels.sites import Convolution, Product, joined, source_of_transpose
from torchrlopt.executors.lowering.fx_values import arguments, only_user, static_shape, tensor_of

aten = torch.ops.aten

CONVOLUTION = torch.ops.onednn.qconv_pointwise.default
LINEAR = torch.ops.onednn.qlinear_pointwise.default
_PACK_CONVOLUTION = torch.ops.onednn.qconv_prepack.default
_PACK_LINEAR = torch.ops.onednn.qlinear_prepack.default

# By name: these operators exist once `torch.ao.quantization` or torchao is loaded.
_QUANTISE, _DEQUANTISE, _DEQUANTISE_CHANNELS = (
    f"quantized_decomposed.{name}.default"
    for name in ("quantize_per_tensor", "dequantize_per_tensor", "dequantize_per_channel")
)


_MOST_TERMS = (2**31 - 1) // (255 * 128)
"""Sums of more products may leave 32 bits."""

_Finder = Callable[
    [fx.Node, Collection[fx.Node], Callable[[torch.Tensor | None], bool]], Convolution | Product | None
]


def select_quantised(graph: fx.Graph, static: Collection[fx.Node], site_at: _Finder) -> list[fx.Node]:
    """Replace convolutions or products of dequantised operands by kernels of 8-bit integers; see `selection`.

    Args:
        graph: an ATen graph, before weights are packed.
        static: the nodes that are the same in every call.
        site_at: `convolution_at` or `product_at`.

    Returns:
        The calls. Convolutions are channels_last regardless of the original; the caller restores layouts.
    """
    sites = [site_at(node, static, _is_usable) for node in graph.nodes]
    found = [site for site in sites if site is not None and (site.bias is None or site.bias in static)]
    return [call for site in found for call in _integers(graph, site, static)]


def _is_usable(value: torch.Tensor | None) -> bool:
    is_float = value is not None and value.dtype == torch.float32
    return is_float and indirect.are_for(value) and indirect.has_int8(torch.float32)


def _integers(graph: fx.Graph, site: Convolution | Product, static: Collection[fx.Node]) -> list[fx.Node]:
    """Replace a site whose operands are dequantised; returns the call, in a list."""
    rows: fx.Node | None = site.weight
    window: tuple[Any, ...] = ()
    if isinstance(site, Convolution):
        if site.output_padding is not None or len(site.stride) != 2:
            return []
        window = (site.stride, site.padding, site.dilation, site.groups)
    elif not site.is_transposed:
        rows = source_of_transpose(site.weight)
    x = _dequantised(site.x, _DEQUANTISE, torch.uint8)
    weight = _dequantised(rows, _DEQUANTISE_CHANNELS, torch.int8)
    if x is None or weight is None or weight["axis"] != 0 or weight["zero_points"] is None:
        return []
    stored = tensor_of(weight["input"])
    if stored is None or math.prod(stored.shape[1:]) > _MOST_TERMS:
        return []
    if isinstance(site, Convolution):
        first, result, bias = site.node, site.node, site.bias
    else:
        first, (result, bias) = site.first, joined(graph, site)
        if bias is not None and bias not in static:
            result, bias = site.results[0], site.bias
    numbers, integers = (x["input"], x["scale"], x["zero_point"]), weight["input"]
    with graph.inserting_before(first):
        # The kernel takes zero points of weights to be zero: `refuse_overflows` raises where they are not.
        is_zero = graph.call_function(aten.eq.Scalar, (weight["zero_points"], 0))
        scales = graph.call_function(aten.where.ScalarOther, (is_zero, weight["scales"], math.nan))
        shape = static_shape(numbers[0])
        if window:
            packed = graph.call_function(_PACK_CONVOLUTION, (integers, scales, *numbers[1:], *window, shape))
        else:
            packed = graph.call_function(_PACK_LINEAR, (integers, shape))
    for made, like in ((is_zero, "scales"), (scales, "scales"), (packed, "input")):
        made.meta["val"] = weight[like].meta["val"]
    last, activation, out = _epilogue(result)
    operands = (*numbers, packed, scales, weight["zero_points"], bias, *window, *out, activation, [], "")
    return [replace(graph, first, last, CONVOLUTION if window else LINEAR, operands)]


def _dequantised(node: Any, how: str, dtype: torch.dtype) -> dict[str, Any] | None:
    """The arguments of the call that dequantises a value of a dtype; None if another call computes it."""
    if not isinstance(node, fx.Node) or str(node.target) != how:
        return None
    named = arguments(node)
    value = tensor_of(named["input"])
    return named if value is not None and value.dtype == dtype else None


def _epilogue(result: fx.Node) -> tuple[fx.Node, str, tuple[float, int, torch.dtype]]:
    """What is fused: the last node, the name of the activation, and how the result is quantised."""
    last, activation = result, "none"
    reader = only_user(last)
    if reader is not None and reader.target is aten.relu.default:
        last, activation = reader, "relu"
        reader = only_user(last)
    if reader is not None and str(reader.target) == _QUANTISE:
        named = arguments(reader)
        if (named["quant_min"], named["quant_max"], named["dtype"]) == (0, 255, torch.uint8):
            return reader, activation, (named["scale"], named["zero_point"], torch.uint8)
    return last, activation, (1.0, 0, torch.float32)


def expand_quantisation(graph: fx.Graph) -> None:
    """Replace what quantises and dequantises float32 tensors by the calls that it makes, in place.

    It is written in Python, which takes as long as its calls, and passes that reuse memory do not see them.
    """
    for node in list(graph.nodes):
        if str(node.target) not in (_QUANTISE, _DEQUANTISE):
            continue
        named, is_quantised = arguments(node), str(node.target) == _QUANTISE
        result, floats = tensor_of(node), tensor_of(named["input"] if is_quantised else node)
        if result is None or floats is None or floats.dtype != torch.float32:
            continue
        scale, zero = named["scale"], named["zero_point"]
        if is_quantised:
            bounds = named["quant_min"], named["quant_max"]
            steps = [(aten.mul.Tensor, (1.0 / scale,)), (aten.round.default, ()), (aten.add.Tensor, (zero,))]
            steps += [(aten.clamp.default, bounds), (aten._to_copy.default, ())]
        else:
            steps = [(aten._to_copy.default, ()), (aten.sub.Tensor, (zero,)), (aten.mul.Tensor, (scale,))]
        call = named["input"]
        with graph.inserting_before(node):
            for target, args in steps:
                is_cast = target is aten._to_copy.default
                call = graph.call_function(target, (call, *args), {"dtype": result.dtype} if is_cast else {})
                call.meta = {**node.meta, "val": floats}
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        graph.erase_node(node)
