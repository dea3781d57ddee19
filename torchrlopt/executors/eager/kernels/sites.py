"""Convolutions and products with precomputed weights, and what kernels need to know about them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.eager.kernels import indirect, packing
from torchrlopt.executors.eager.kernels.epilogues import added_value
from torchrlopt.executors.eager.kernels.selection import insert_after
from torchrlopt.executors.lowering.fx_values import (
    arguments,
    ints,
    is_contiguous,
    shape_key,
    static_shape,
    tensor_of,
)
from torchrlopt.ops.traits import RESHAPES
from torchrlopt.torch_private.tensors import dim_of

aten = torch.ops.aten
_FORWARD = frozenset({aten.conv2d.default, aten.conv3d.default})
_TRANSPOSES = frozenset({aten.permute.default, aten.t.default, aten.transpose.int})

REQUESTED = "rlopt_method"
"""Key in the `meta` of a product or convolution: the method that it shall use, as for `indirect.pack`."""


@dataclass(frozen=True)
class Convolution:
    """One convolution: its node and everything its packed form needs, with sizes as plain ints."""

    node: fx.Node
    x: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    output_padding: list[int] | None
    groups: int


def convolution_at(
    node: fx.Node, static: Collection[fx.Node], is_usable: Callable[[torch.Tensor | None], bool]
) -> Convolution | None:
    """The convolution at this node, if its weight is precomputed and a kernel supports it.

    Args:
        node: any node.
        static: the nodes that are the same in every call.
        is_usable: whether there are such kernels for the dtype and device of a tensor.
    """
    if node.op != "call_function" or not (node.target is aten.convolution.default or node.target in _FORWARD):
        return None
    named = arguments(node)
    x, weight, bias = named["input"], named["weight"], named["bias"]
    weight_shape = _shape_of_ready(weight, static)
    if weight_shape is None or len(weight_shape) not in (4, 5):
        return None
    if not _are_alike((x, weight, node) if bias is None else (x, weight, node, bias), is_usable):
        return None
    rank = len(weight_shape) - 2
    if len(shape_key(x) or ()) != rank + 2:
        return None
    window = [_per_axis(named[name], rank) for name in ("stride", "padding", "dilation")]
    if any(each is None for each in window) or not isinstance(named["groups"], int):
        return None
    stride, padding, dilation = (each for each in window if each is not None)
    output_padding = None
    if named.get("transposed", False):
        output_padding = _per_axis(named["output_padding"], rank)
        if static_shape(x) is None or output_padding is None:
            return None
        if not _can_transpose(weight_shape, stride, output_padding, named["groups"]):
            return None
    return Convolution(node, x, weight, bias, stride, padding, dilation, output_padding, named["groups"])


def are_for_or_packed(value: torch.Tensor | None) -> bool:
    """Whether we have our own kernels for a tensor, or oneDNN has packed ones."""
    return indirect.are_for(value) or packing.can_pack(value)


def _shape_of_ready(weight: Any, static: Collection[fx.Node]) -> tuple[int, ...] | None:
    """The shape of a weight that is precomputed and not empty."""
    shape = static_shape(weight) if weight in static else None
    return None if shape is None or 0 in shape else shape


def _are_alike(nodes: Collection[Any], is_usable: Callable[[torch.Tensor | None], bool]) -> bool:
    """Whether there are kernels for all these nodes and they share one dtype."""
    values = [tensor_of(node) for node in nodes]
    return all(map(is_usable, values)) and len({value.dtype for value in values if value is not None}) == 1


def _per_axis(value: Any, rank: int) -> list[int] | None:
    """One int per spatial axis; None for symbolic or negative ones."""
    if not isinstance(value, list | tuple):
        return None
    numbers = ints(value)
    if numbers is None or any(number < 0 for number in numbers):
        return None
    return numbers * rank if len(numbers) == 1 else numbers


def _can_transpose(
    weight: tuple[int, ...], stride: list[int], output_padding: list[int], groups: int
) -> bool:
    """False for what oneDNN lacks: depthwise, three spatial axes, an output padding >= the stride."""
    if len(weight) != 4 or (groups > 1 and groups == weight[0]):
        return False
    return all(extra < step for extra, step in zip(output_padding, stride, strict=True))


def without_padding(site: Convolution) -> tuple[fx.Node, list[int], list[int]]:
    """Fold zero paddings in front of a 2-D convolution into its window.

    Returns:
        The image before padding, and how far the windows extend beyond it: top and left, bottom and right.
    """
    x, before, behind = site.x, list(site.padding), list(site.padding)
    while x.target is aten.constant_pad_nd.default and (pads := _zeros_around(x)) is not None:
        for axis, (front, back) in enumerate(pads):
            before[axis] += front
            behind[axis] += back
        x = arguments(x)["self"]
    return x, before, behind


def _zeros_around(padding: fx.Node) -> list[tuple[int, int]] | None:
    """For a zero padding of an image: (top, bottom) and (left, right)."""
    named = arguments(padding)
    pads = ints(named["pad"])
    if pads is None or len(pads) > 4 or min(pads, default=0) < 0 or named["value"] != 0:
        return None
    (front, back), (above, below) = (*zip(pads[::2], pads[1::2], strict=True), (0, 0), (0, 0))[:2]
    return [(above, below), (front, back)]


# ---- products


@dataclass(frozen=True)
class Product:
    """One product `x @ weight (+ bias)`.

    Attributes:
        first: the product.
        results: the nodes that hold its result; several if it is reshaped to the same shape several times.
        x: [..., in].
        weight: [in, out], or [out, in] if `is_transposed`.
        bias: [out] or None.
    """

    first: fx.Node
    results: list[fx.Node]
    x: fx.Node
    weight: fx.Node
    is_transposed: bool
    bias: fx.Node | None


def product_at(
    node: fx.Node, static: Collection[fx.Node], is_usable: Callable[[torch.Tensor | None], bool]
) -> Product | None:
    """The product at this node, if its weight is precomputed and a kernel supports it.

    Args:
        node: any node.
        static: the nodes that are the same in every call.
        is_usable: whether there are such kernels for the dtype and device of a tensor.
    """
    if node.op != "call_function":
        return None
    bias = None
    is_transposed = False
    if node.target is aten.mm.default or node.target is aten.matmul.default:
        x, weight = node.args[:2]
    elif node.target is aten.bmm.default:
        x, weight = node.args[0], _behind_expand(node.args[1])
    elif node.target is aten.addmm.default:
        named = arguments(node)
        bias, x, weight = named["self"], named["mat1"], named["mat2"]
        if named["alpha"] != 1 or named["beta"] != 1:
            return None
    elif node.target is aten.linear.default:
        named = arguments(node)
        x, weight, bias, is_transposed = named["input"], named["weight"], named["bias"], True
    else:
        return None
    if not isinstance(x, fx.Node) or not isinstance(weight, fx.Node) or x in static:
        return None
    weight_shape = _shape_of_ready(weight, static)
    if weight_shape is None or len(weight_shape) != 2 or not is_contiguous(node) or not shape_key(x):
        return None
    if not _are_alike((x, weight, node), is_usable):
        return None
    if bias is not None and not _is_bias(bias, node):
        return None
    outer = _through_reshapes(node, x)
    results, x = outer if outer is not None else ([node], x)
    return Product(node, results, x, weight, is_transposed, bias)


def _behind_expand(node: Any) -> fx.Node | None:
    """The matrix expanded to a batch of matrices; ATen writes some products of 3-D inputs this way."""
    while node.target in RESHAPES and shape_key(node) == shape_key(node.args[0]):
        node = node.args[0]
    if node.target is not aten.expand.default:
        return None
    source = node.args[0]
    return source if len(shape_key(source) or ()) == 2 else None


def _is_bias(bias: object, product: fx.Node) -> bool:
    """True for a vector with one number per output feature, in the product's dtype."""
    value, of_product = tensor_of(bias), tensor_of(product)
    if value is None or of_product is None or value.device != of_product.device:
        return False
    return value.dtype == of_product.dtype and shape_key(bias) == (shape_key(product) or ())[-1:]


def _through_reshapes(product: fx.Node, x: fx.Node) -> tuple[list[fx.Node], fx.Node] | None:
    """The reshapes around a 2-D product, if they only fold and unfold the leading dimensions.

    Returns:
        The outer reshapes (the results) and the unfolded input, or None.
    """
    if x.target not in RESHAPES or not product.users:
        return None
    unfolded = x.args[0]
    inner, outer, result = shape_key(unfolded), shape_key(x), shape_key(product)
    if not isinstance(unfolded, fx.Node) or inner is None or outer is None or result is None:
        return None
    if not inner or inner[-1] != outer[-1] or len(outer) != 2:
        return None
    expected = (*inner[:-1], result[-1])
    for user in product.users:
        if user.target not in RESHAPES or shape_key(user) != expected:
            return None
    return list(product.users), unfolded


def joined(graph: fx.Graph, site: Product) -> tuple[fx.Node, fx.Node | None]:
    """The single node that holds the result, including a bias added afterwards, and that bias."""
    result, bias = site.results[0], site.bias
    for twin in site.results[1:]:
        twin.replace_all_uses_with(result)
        graph.erase_node(twin)
    if bias is None:
        added = added_value(result)
        if added is not None and _is_bias(added[1], result) and shape_key(added[0]) == shape_key(result):
            return added
    return result, bias


def rows_of(
    graph: fx.Graph, site: Product, static: Collection[fx.Node], packed: dict[Any, fx.Node]
) -> fx.Node:
    """The weight as [out, in], created once.

    The transpose of concatenated transposes concatenates their sources, so no element is moved twice.
    """
    weight = site.weight
    if site.is_transposed:
        return weight
    source = source_of_transpose(weight)
    if source is not None and source in static:
        return source
    key = (aten.t.default, weight)
    if key not in packed:
        value = weight.meta["val"].t()
        parts = arguments(weight)["tensors"] if weight.target is aten.cat.default else ()
        sources = [source_of_transpose(part) for part in parts]
        if sources and all(each is not None and each in static for each in sources):
            other = 1 - int(dim_of(arguments(weight)["dim"])) % 2
            packed[key] = insert_after(graph, weight, aten.cat.default, (sources, other))
            value = value.contiguous()
        else:
            packed[key] = insert_after(graph, weight, aten.t.default, (weight,))
        packed[key].meta["val"] = value
    return packed[key]


def source_of_transpose(node: fx.Node) -> fx.Node | None:
    """The matrix that this node transposes; None if it is not a transpose."""
    if node.target not in _TRANSPOSES or not isinstance(node.args[0], fx.Node):
        return None
    if node.target is aten.t.default:
        return node.args[0]
    axes: Any = node.args[1] if node.target is aten.permute.default else node.args[1:3]
    turned = [int(dim_of(axis)) % 2 for axis in axes]
    wanted = [1, 0] if node.target is aten.permute.default else None
    is_transpose = turned == wanted if wanted is not None else set(turned) == {0, 1}
    return node.args[0] if is_transpose else None
