"""Finds indices that PyTorch rejects if negative, although ONNX counts negative ones from the end.

`embedding`, `index_select`, `gather` and `scatter` reject them; `x[i]` counts from the end itself. In the
captured model both are a Gather. The name of a rewritten node's index value shows which of them it
implements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir

from torchrlopt.ops.to_aten import FROM_FRONT
from torchrlopt.torch_private.operators import OpOverload, base_name

if TYPE_CHECKING:
    from torchrlopt.capture.captured import Captured

_READERS = frozenset({"Gather", "GatherElements", "ScatterElements"})
_STRICT = frozenset({"embedding", "gather", "index_select", "scatter", "scatter_add"})


def mark_positions(model: onnx_ir.Model, captured: Captured) -> None:
    """Record in each node's `meta` whether its indices count from the front only.

    Indices that no captured node reads, because a substitution created them, are also assumed to: at worst
    the original runs.

    Args:
        model: the rewritten model; only `meta` is modified.
        captured: what it was rewritten from.
    """
    calls = {node.name: node.target for node in captured.aten.graph.nodes}
    counted = {
        _positions(node)
        for node in captured.model.graph
        if node.op_type in _READERS and not _is_strict(calls.get(captured.origins.get(str(node.name), "")))
    }
    for node in model.graph:
        if node.op_type in _READERS and not node.domain:
            node.meta[FROM_FRONT] = _positions(node) not in counted


def _positions(node: onnx_ir.Node) -> str:
    value = node.inputs[1]
    return "" if value is None else str(value.name)


def _is_strict(target: object) -> bool:
    return isinstance(target, OpOverload) and base_name(target) in _STRICT
