"""Finds the form in which AOTAutograd writes `linear`: view, mm or addmm of a transposed weight, view back.

ONNX's MatMul takes operands of any rank, so the two views only hide the product from its neighbours. They are
undone here, which gives the form that the public exporter gives to `linear`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from torchrlopt.ops.onnx_types import dims_of, meta_of
from torchrlopt.ops.traits import RESHAPES

_aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class Linear:
    """A product of an N-d operand with a matrix, hidden behind views.

    Attributes:
        x: the operand before it was flattened, [..., in].
        weight: the matrix, [in, out].
        bias: [out], or None.
        members: the fx nodes it consists of, in order; the last one yields the result [..., out].
    """

    x: torch.fx.Node
    weight: torch.fx.Node
    bias: torch.fx.Node | None
    members: tuple[torch.fx.Node, ...]


def find_linears(graph: torch.fx.Graph) -> dict[torch.fx.Node, Linear]:
    """Returns the hidden linears of a graph, by the view that yields their result."""
    return {node: linear for node in graph.nodes if (linear := _match(node)) is not None}


def transposed_weight(product: torch.fx.Node) -> torch.fx.Node | None:
    """Returns w if the node is `addmm(bias, x, t(w))`, which is a single Gemm; None otherwise."""
    if product.target is not _aten.addmm.default or product.kwargs:
        return None
    bias, x, transposed = product.args
    if not isinstance(transposed, torch.fx.Node) or transposed.target is not _aten.t.default:
        return None
    weight = transposed.args[0]
    if not isinstance(weight, torch.fx.Node) or len(dims_of(meta_of(transposed))) != 2:
        return None
    return weight if all(isinstance(node, torch.fx.Node) for node in (bias, x)) else None


def _match(view: torch.fx.Node) -> Linear | None:
    if view.op != "call_function" or view.target not in RESHAPES:
        return None
    product = view.args[0]
    if not isinstance(product, torch.fx.Node) or len(product.users) != 1 or product.kwargs:
        return None
    if product.target is _aten.mm.default and len(product.args) == 2:
        bias: Any = None
        flat, weight = product.args
    elif product.target is _aten.addmm.default and len(product.args) == 3:
        bias, flat, weight = product.args
    else:
        return None
    if not isinstance(flat, torch.fx.Node) or flat.target not in RESHAPES:
        return None
    x = flat.args[0]
    if not isinstance(x, torch.fx.Node) or not isinstance(weight, torch.fx.Node):
        return None
    outer, inner, matrix = dims_of(meta_of(view)), dims_of(meta_of(x)), dims_of(meta_of(weight))
    if len(inner) < 3 or inner[-1] != matrix[0] or outer != (*inner[:-1], matrix[1]):
        return None
    if bias is not None and dims_of(meta_of(bias)) != (matrix[1],):
        return None
    return Linear(x, weight, bias, (flat, product, view))
