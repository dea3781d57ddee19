"""CPU attention with our own kernel (csrc/kernels/attention.h)."""

from __future__ import annotations

import math

import torch
from torch import fx

from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.dtypes import KERNEL_DTYPES
from torchrlopt.executors.eager.kernels.operators import ATTENTION
from torchrlopt.executors.eager.kernels.selection import first_result, replace
from torchrlopt.executors.lowering.fx_values import arguments, shape_key, tensor_of

aten = torch.ops.aten

_ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default


def select_attentions(graph: fx.Graph) -> None:
    """Replace attention by our kernel where that is faster; see `selection`."""
    for node in graph.find_nodes(op="call_function", target=_ATTENTION):
        result = first_result(node)
        is_by_heads = None if result is None else _layout(result)
        if result is None or is_by_heads is None or not _is_taken(node):
            continue
        named = arguments(node)
        scale, size = named["scale"], named["query"].meta["val"].shape[-1]
        k, v = _without_repeat(named["key"], named["value"])
        numbers = (named["is_causal"], 1 / math.sqrt(size) if scale is None else scale, is_by_heads)
        replace(graph, node, result, ATTENTION, (named["query"], k, v, named["attn_mask"], *numbers))


def _layout(result: fx.Node) -> bool | None:
    """True if a result is laid out head by head, False if query by query, None for any other layout."""
    value = tensor_of(result)
    if value is None:
        return None
    _, heads, queries, size = value.shape
    if tuple(value.stride()) == (heads * queries * size, queries * size, size, 1):
        return True
    if tuple(value.stride()) == (queries * heads * size, size, heads * size, 1):
        return False
    return None


def _is_taken(node: fx.Node) -> bool:
    """Whether our kernel supports the operands and, if the sizes are known, is faster for them."""
    named = arguments(node)
    mask = named["attn_mask"]
    operands = [named["query"], named["key"], named["value"], *([] if mask is None else [mask])]
    dtype = operands[0].meta["val"].dtype
    if named["dropout_p"] or not all(indirect.are_for(tensor_of(each), dtype) for each in operands):
        return False
    queries, keys, values = (shape_key(each) or () for each in operands[:3])
    if len(queries) != 4 or not isinstance(queries[3], int) or not isinstance(values[3], int):
        return False
    if KERNEL_DTYPES[dtype].heads_are_even and queries[3] % 2 == 1:
        return False
    if isinstance(queries[2], int) and isinstance(keys[2], int):
        sizes = (queries[2], keys[2], queries[3], values[3])
        return _C.kernel_takes_attention(*sizes, KERNEL_DTYPES[dtype].name)
    return True


def _without_repeat(k: fx.Node, v: fx.Node) -> tuple[fx.Node, fx.Node]:
    """The unrepeated keys and values, if both are repeated equally often along the heads."""
    found = [_repeated(each) for each in (k, v)]
    if found[0] is None or found[1] is None or found[0][1] != found[1][1]:
        return k, v
    return found[0][0], found[1][0]


def _repeated(node: fx.Node) -> tuple[fx.Node, int] | None:
    """The repeated node and the number of repeats along the heads."""
    if node.target is not aten.repeat_interleave.self_int:
        return None
    named = arguments(node)
    source, repeats, dim = named["self"], named["repeats"], named["dim"]
    return (source, repeats) if isinstance(repeats, int) and dim in (1, -3) else None
