"""Pads half-precision products whose number of output features is not a multiple of 8.

The rows of such a result are not aligned for tensor cores, and cuBLAS falls back to slow kernels; heads over
a vocabulary are the usual case. The product is padded and the padding cut off. On an H200, bfloat16,
microseconds, including the cut (`python -m baselines.kernels --device cuda` times such calls):

    768 to 50,257, rows     1    29.0 -> 21.4        768 to 30,522, rows     1    19.0 -> 13.4
                           64   155.7 -> 32.9                               64    22.6 -> 21.6
                        2,048    1678 -> 466                             2,048     427 -> 287
    512 to 1,001, rows      8     4.8 -> 5.5
                           64     8.4 -> 5.8

The weight is zero-padded by rows once per set of weights; the padded copy is kept in addition to the
original. An activation after such a product stays a separate call. The `inductor` executor pads its graphs in
the same way: profiles of gpt2 in plain Inductor, with and without frozen weights, showed the slow kernel.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from torchrlopt.executors.eager.kernels.selection import HALF, has_cuda_kernels, insert_after, replace
from torchrlopt.executors.eager.kernels.sites import Product, joined, product_at, rows_of
from torchrlopt.executors.lowering.fx_values import static_shape, tensor_of

aten = torch.ops.aten

_MULTIPLE = 8  # 16 bytes at 2 bytes per element: the alignment that tensor cores need
_MIN_RESULTS, _MIN_FEATURES = 64 * 1_000, 8_192
"""Pad if either is reached: the total number of results, or the number of features per row."""


def align_products(graph: fx.Graph, static: Collection[fx.Node]) -> None:
    """Replace products by a padded product and a cut where that is faster; see `selection`.

    Each cut is contiguous, as the original's result was.
    """
    made: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        site = product_at(node, static, _is_usable)
        if site is not None and _pays(site):
            _rewrite(graph, site, static, made)


def _is_usable(value: torch.Tensor | None) -> bool:
    return has_cuda_kernels(value) and value is not None and value.dtype in HALF


def _pays(site: Product) -> bool:
    shape, value = static_shape(site.first), tensor_of(site.first)
    assert value is not None
    num_features = value.shape[-1]
    if not isinstance(num_features, int) or num_features % _MULTIPLE == 0:
        return False
    return shape is None or num_features >= _MIN_FEATURES or math.prod(shape) >= _MIN_RESULTS


def _rewrite(graph: fx.Graph, site: Product, static: Collection[fx.Node], made: dict[Any, fx.Node]) -> None:
    rows = _extended(graph, rows_of(graph, site, static, made), made)
    result, bias = joined(graph, site)
    if bias is not None:
        bias = _extended(graph, bias, made)
    num_features = result.meta["val"].shape[-1]
    with graph.inserting_before(result):
        product = graph.call_function(aten.linear.default, (site.x, rows, bias))
        product.meta.update(result.meta)
        value = result.meta["val"]  # padding this value would need concrete values for its symbols
        product.meta["val"] = value.new_empty((*value.shape[:-1], rows.meta["val"].shape[0]))
        cut = graph.call_function(aten.slice.Tensor, (product, -1, 0, num_features))
        cut.meta.update(result.meta)
        cut.meta["val"] = product.meta["val"].narrow(-1, 0, num_features)
    call = replace(graph, site.first, result, aten.clone.default, (cut,))
    call.kwargs = {"memory_format": torch.contiguous_format}


def _extended(graph: fx.Graph, node: fx.Node, made: dict[Any, fx.Node]) -> fx.Node:
    """The weight or bias, zero-padded at the end; created once."""
    if node not in made:
        value = node.meta["val"]
        padding = [0, 0] * (value.dim() - 1) + [0, -value.shape[0] % _MULTIPLE]
        made[node] = insert_after(graph, node, aten.constant_pad_nd.default, (node, padding))
        made[node].meta["val"] = F.pad(value, padding)
    return made[node]
