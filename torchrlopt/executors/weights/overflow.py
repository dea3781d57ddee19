"""Makes a weight prologue reject weights for which its arithmetic overflows.

An input passes through two layers with weights of 1e22 and stays finite as long as it is small, but the
product of the two weights is infinite. A folded weight is therefore checked wherever it is computed in, or
rounded to, a dtype of the weights: a non-finite result of finite operands is an overflow. Operations that
produce infinities from finite numbers by themselves (quotients, roots, masks) do so in the original, too.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from torchrlopt.errors import WeightsError
from torchrlopt.executors.lowering.fx_values import tensor_of

aten = torch.ops.aten

# Arithmetic whose results are finite for finite operands, unless they overflow.
_MAY_OVERFLOW = frozenset(
    {
        aten._to_copy.default,
        aten.add.Tensor,
        aten.addmm.default,
        aten.bmm.default,
        aten.convolution.default,
        aten.einsum.default,
        aten.matmul.default,
        aten.mm.default,
        aten.mul.Scalar,
        aten.mul.Tensor,
        aten.sub.Tensor,
        aten.sum.dim_IntList,
    }
)


def refuse_overflows(prologue: fx.GraphModule) -> None:
    """Make a prologue raise WeightsError if it overflows.

    Costs one pass over each of its results.

    Args:
        prologue: a graph of weights only; modified in place. Nodes carry fake tensors in `meta["val"]`.
    """
    graph = prologue.graph
    # Arithmetic in a wider dtype than the weights is checked where it is rounded.
    dtypes = {_floating_dtype(node) for node in graph.find_nodes(op="placeholder")}
    for node in list(graph.nodes):
        dtype = _floating_dtype(node)
        if not (node.target in _MAY_OVERFLOW or _is_condition(node)) or dtype is None or dtype not in dtypes:
            continue
        operands = [each for each in node.all_input_nodes if _floating_dtype(each) is not None]
        if operands:
            with graph.inserting_after(node):
                checked = graph.call_function(_without_overflow)
            checked.meta = dict(node.meta)
            node.replace_all_uses_with(checked)
            checked.args = (node, *operands)
    prologue.recompile()


def _is_condition(node: fx.Node) -> bool:
    """Whether a kernel asks weights for what it relies on: `where(condition, x, nan)`, as no model masks."""
    return node.target is aten.where.ScalarOther and node.args[2] != node.args[2]


def _floating_dtype(node: fx.Node) -> torch.dtype | None:
    value = tensor_of(node)
    return value.dtype if value is not None and value.is_floating_point() else None


def _without_overflow(result: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
    """Return the result.

    Raises:
        WeightsError: it is not finite although all operands are.
    """
    if not _is_finite(result) and all(map(_is_finite, operands)):
        raise WeightsError(
            "what was composed of the weights overflows, or a kernel does not compute with such weights",
            expected=f"finite numbers in {result.dtype}, as the weights are",
            got=f"{int((~result.isfinite()).sum())} of {result.numel()} that are not finite",
            todo="let the original graph run with these weights, or use a wider dtype",
        )
    return result


def _is_finite(tensor: torch.Tensor) -> bool:
    # A sum takes one pass, isfinite().all() three; but a sum of finite numbers may itself overflow.
    dtype = torch.float64 if tensor.dtype is torch.float64 else torch.float32
    return math.isfinite(tensor.sum(dtype=dtype).item()) or bool(tensor.isfinite().all())
