"""Products with a weight that is ready before the call become a packed, fused linear: our own or oneDNN's.

The packed call takes an input of any rank, so the reshapes that wrap a 2-D product go; a bias that is added
behind it and an activation come along.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect, packing
from torchrlopt.executors.eager.kernels.epilogues import NONE, added_value, fused_activation
from torchrlopt.executors.eager.kernels.operators import LINEAR
from torchrlopt.executors.eager.kernels.packed_weights import PackedWeights
from torchrlopt.executors.eager.kernels.selection import insert_after, replace, select
from torchrlopt.executors.lowering.fx_values import (
    arguments,
    is_contiguous,
    shape_key,
    static_shape,
    tensor_of,
)
from torchrlopt.ops.onnx_types import dim_of
from torchrlopt.ops.traits import RESHAPES

aten = torch.ops.aten
# With so many rows or fewer our sums are as quick as oneDNN or quicker, whatever the weight (`python -m
# baselines.kernels`, an AMD EPYC of Zen 5, two threads, alternating weights: 32 x 768 x 3072 take 0.67 times
# as long, 128 x 768 x 3072 0.96, and 197 x 384 x 1536 1.02).
_MANY_SUMMED_ROWS = 192
# With more of them oneDNN's linear is as quick beyond this.
_MAX_PRODUCT_FLOP = 8.0e7
# The same where the number of rows is not known before the call.
_MAX_PRODUCT_WEIGHT = 1 << 17
# On processors with a matrix unit other limits were measured, before sums fetched what they need next: a
# larger weight comes from memory at each call of a network, and with more rows than a few oneDNN was quicker.
# On an Intel Xeon 8 x 1024 x 2048 took 304 us, and 440 with ours (twelve weights in turns, a script of its
# own).
_MAX_WEIGHT_IN_CACHE = 5 << 18
_FEW_ROWS = 2
# With fewer rows than this, such a weight was not timed in the matrix unit.
_MANY_ROWS = 64

_TRANSPOSES = frozenset({aten.permute.default, aten.t.default, aten.transpose.int})


@dataclass(frozen=True)
class Site:
    """One product `x @ weight (+ bias)`.

    Attributes:
        first: the product.
        results: the nodes that hold its result; several when it is reshaped several times to one shape.
        x: [..., in].
        weight: [in, out], or [out, in] when `is_transposed`.
        bias: [out] or None.
    """

    first: fx.Node
    results: list[fx.Node]
    x: fx.Node
    weight: fx.Node
    is_transposed: bool
    bias: fx.Node | None


def select_linears(
    graph: fx.Graph, static: Collection[fx.Node], finite: Collection[fx.Node], is_real: bool
) -> list[fx.Node]:
    """Replace what pays by packed calls, in place.

    Args:
        graph: an ATen graph with `meta["val"]`.
        static: the nodes that are the same at every call.
        finite: the nodes whose values may be taken for finite.
        is_real: whether rounding may differ, so that the matrix unit may be used.

    Returns:
        The packed calls; each result is contiguous, as the original's was.
    """
    packed: dict[Any, fx.Node] = {}
    ours = PackedWeights(graph)
    methods: dict[fx.Node, int | None] = {}

    def rewrite(site: Site) -> fx.Node:
        method = methods.get(site.first)
        if method is not None:
            return _rewrite_to_indirect(graph, site, static, packed, ours, method)
        return _rewrite(graph, site, static, packed, finite)

    def pays(site: Site) -> bool:
        method = _method(site, static, is_real)
        if method is None:
            return packing.can_pack(tensor_of(site.first)) and _pays(site)
        wanted = [method, indirect.SUMS]
        methods[site.first] = ours.first_that_fits(site.weight, site.bias, 1, wanted, site.is_transposed)
        return methods[site.first] is not None

    return select(graph, lambda node: site_of(node, static, indirect.are_for_or_packed), pays, rewrite)


def site_of(
    node: fx.Node, static: Collection[fx.Node], is_usable: Callable[[torch.Tensor | None], bool]
) -> Site | None:
    """The product at this node, when its weight is ready before the call and a kernel takes it.

    Args:
        node: any node.
        static: the nodes that are the same at every call.
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
    if not isinstance(x, fx.Node) or not isinstance(weight, fx.Node) or weight not in static or x in static:
        return None
    values = [tensor_of(each) for each in (x, weight, node)]
    if not all(map(is_usable, values)) or not is_contiguous(node):
        return None
    weight_shape = static_shape(weight)
    if weight_shape is None or len(weight_shape) != 2 or 0 in weight_shape:
        return None
    if len({value.dtype for value in values if value is not None}) != 1 or not shape_key(x):
        return None
    if bias is not None and not _is_bias(bias, node):
        return None
    outer = _through_reshapes(node, x)
    results, x = outer if outer is not None else ([node], x)
    return Site(node, results, x, weight, is_transposed, bias)


def _behind_expand(node: Any) -> fx.Node | None:
    """The matrix that a batch of matrices repeats, which is how ATen writes some products of 3-D inputs."""
    while node.target in RESHAPES and shape_key(node) == shape_key(node.args[0]):
        node = node.args[0]
    if node.target is not aten.expand.default:
        return None
    source = node.args[0]
    return source if len(shape_key(source) or ()) == 2 else None


def _is_bias(bias: object, product: fx.Node) -> bool:
    """True for a vector of one number per output feature, in the product's dtype."""
    value, of_product = tensor_of(bias), tensor_of(product)
    if value is None or of_product is None or value.device != of_product.device:
        return False
    return value.dtype == of_product.dtype and shape_key(bias) == (shape_key(product) or ())[-1:]


def _through_reshapes(product: fx.Node, x: fx.Node) -> tuple[list[fx.Node], fx.Node] | None:
    """The reshapes around a 2-D product, when they only fold the leading dimensions and unfold them again.

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


def _sizes(site: Site) -> tuple[int | None, int, int]:
    """Rows, if they are known before the call, in features and out features."""
    shape, weight = static_shape(site.first), static_shape(site.weight)
    assert weight is not None
    rows = None if shape is None else math.prod(shape[:-1])
    in_features, out_features = reversed(weight) if site.is_transposed else weight
    return rows, in_features, out_features


def _pays(site: Site) -> bool:
    return packing.packed_linear_pays(*_sizes(site), site.first.meta["val"].dtype)


def _method(site: Site, static: Collection[fx.Node], is_real: bool) -> int | None:
    """How a kernel of our own computes the product; None where none is quicker than oneDNN and ATen."""
    if site.bias is not None and site.bias not in static:
        return None
    if not indirect.are_for(tensor_of(site.first)):
        return None
    return quickest(*_sizes(site), is_real, site.first.meta["val"].dtype)


def quickest(
    rows: int | None,
    in_features: int,
    out_features: int,
    is_real: bool = True,
    dtype: torch.dtype = torch.float32,
) -> int | None:
    """How a kernel of our own computes a product: SUMS, BF16X3, or None, where oneDNN is quicker.

    Args:
        rows: None where their number is not known before the call.
        in_features: terms of a sum.
        out_features: of the weight.
        is_real: whether rounding may differ.
        dtype: float32 or bfloat16.
    """
    if dtype is torch.bfloat16:
        # oneDNN was not quicker with up to 197 rows (`python -m baselines.kernels --dtype bfloat16`).
        # With 2048 it took 0.92 to 1.03 times as long (a script of its own).
        return indirect.SUMS if in_features <= _C.MOST_KERNEL_CHANNELS else None
    # Where there are more outputs, as of a vocabulary, a copy that is half as large again was not measured.
    may_be_split = max(in_features, out_features) <= _C.MOST_KERNEL_CHANNELS
    is_in_cache = in_features * out_features <= _MAX_WEIGHT_IN_CACHE
    if is_real and rows is not None and may_be_split and (is_in_cache or rows >= _MANY_ROWS):
        numbers = indirect.Window(out_features, (1, 1), (1, 1), (0, 0), (1, 1)).of_convolution(1, NONE)
        if _C.kernel_method(1, in_features, 1, rows, numbers, torch.get_num_threads()) == indirect.BF16X3:
            return indirect.BF16X3
    return indirect.SUMS if _is_quick_by_sums(rows, in_features, out_features) else None


def _is_quick_by_sums(rows: int | None, in_features: int, out_features: int) -> bool:
    """Whether sums are quicker than oneDNN and ATen."""
    if in_features > _C.MOST_KERNEL_CHANNELS:
        return False
    if rows is None:
        return in_features * out_features < _MAX_PRODUCT_WEIGHT
    if not _C.kernel_has_matrix_unit() and rows <= _MANY_SUMMED_ROWS:
        return True
    if rows > _FEW_ROWS and in_features * out_features > _MAX_WEIGHT_IN_CACHE:
        return False
    return 2.0 * rows * in_features * out_features < _MAX_PRODUCT_FLOP


def _rewrite(
    graph: fx.Graph,
    site: Site,
    static: Collection[fx.Node],
    packed: dict[Any, fx.Node],
    finite: Collection[fx.Node],
) -> fx.Node:
    """Put the packed call where the last fused node was; returns it."""
    weight = _packed_weight(graph, site, static, packed)
    result, bias = joined(graph, site)
    last, epilogue = fused_activation(result, result in finite)
    args = (site.x, weight, bias, epilogue.attr, list(epilogue.scalars), epilogue.algorithm)
    return replace(graph, site.first, last, packing.LINEAR, args)


def _rewrite_to_indirect(
    graph: fx.Graph,
    site: Site,
    static: Collection[fx.Node],
    packed: dict[Any, fx.Node],
    ours: PackedWeights,
    method: int,
) -> fx.Node:
    """The same with a kernel of our own; what is added behind it stays a call if it varies."""
    result, bias = joined(graph, site)
    if bias is not None and bias not in static:
        result, bias = site.results[0], site.bias
    rows = rows_of(graph, site, static, packed)
    weight = ours.node(rows, bias, 1, method)
    last, epilogue = indirect.with_epilogue(result)
    args = (site.x, weight, _sizes(site)[2], method, *indirect.arguments_of(epilogue))
    return replace(graph, site.first, last, LINEAR, args)


def joined(graph: fx.Graph, site: Site) -> tuple[fx.Node, fx.Node | None]:
    """The one node that holds the result, a bias that is added behind it included, and that bias."""
    result, bias = site.results[0], site.bias
    for twin in site.results[1:]:
        twin.replace_all_uses_with(result)
        graph.erase_node(twin)
    if bias is None:
        added = added_value(result)
        if added is not None and _is_bias(added[1], result) and shape_key(added[0]) == shape_key(result):
            return added
    return result, bias


def _packed_weight(
    graph: fx.Graph, site: Site, static: Collection[fx.Node], packed: dict[Any, fx.Node]
) -> fx.Node:
    """The packing call of this weight, made once; packing wants [out, in]."""
    weight = rows_of(graph, site, static, packed)
    key = (packing.PACK_LINEAR, weight)
    if key not in packed:
        packed[key] = insert_after(graph, weight, packing.PACK_LINEAR, (weight,))
    return packed[key]


def rows_of(graph: fx.Graph, site: Site, static: Collection[fx.Node], packed: dict[Any, fx.Node]) -> fx.Node:
    """The weight as [out, in]."""
    return site.weight if site.is_transposed else _transposed(graph, site.weight, static, packed)


def _transposed(
    graph: fx.Graph, weight: fx.Node, static: Collection[fx.Node], packed: dict[Any, fx.Node]
) -> fx.Node:
    """The transpose of a matrix that is ready before the call, made once.

    That of joined transposes joins what they were made of: no element is moved twice.
    """
    source = _source_of_transpose(weight)
    if source is not None and source in static:
        return source
    key = (aten.t.default, weight)
    if key not in packed:
        value = weight.meta["val"].t()
        parts = arguments(weight)["tensors"] if weight.target is aten.cat.default else ()
        sources = [_source_of_transpose(part) for part in parts]
        if sources and all(each is not None and each in static for each in sources):
            other = 1 - int(dim_of(arguments(weight)["dim"])) % 2
            packed[key] = insert_after(graph, weight, aten.cat.default, (sources, other))
            value = value.contiguous()
        else:
            packed[key] = insert_after(graph, weight, aten.t.default, (weight,))
        packed[key].meta["val"] = value
    return packed[key]


def _source_of_transpose(node: fx.Node) -> fx.Node | None:
    """The matrix of which this node is the transpose, None when it is no transpose."""
    if node.target not in _TRANSPOSES or not isinstance(node.args[0], fx.Node):
        return None
    if node.target is aten.t.default:
        return node.args[0]
    axes: Any = node.args[1] if node.target is aten.permute.default else node.args[1:3]
    turned = [int(dim_of(axis)) % 2 for axis in axes]
    wanted = [1, 0] if node.target is aten.permute.default else None
    is_transpose = turned == wanted if wanted is not None else set(turned) == {0, 1}
    return node.args[0] if is_transpose else None
