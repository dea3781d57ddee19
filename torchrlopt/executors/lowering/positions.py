"""Which positions PyTorch refuses where they are negative, while ONNX counts them from the end.

`embedding`, `index_select`, `gather` and `scatter` do; `x[i]` counts from the end itself. In the captured
model both are a Gather. What a rewritten node stands for is seen by the name of the positions that it reads.
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
    """Say of each node of a rewritten model whether its positions count from the front only, in `meta`.

    Positions that no captured node reads, since a substitution made them, are taken for such as well: at the
    worst the original runs.

    Args:
        model: the rewritten model; nothing but `meta` is changed.
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
