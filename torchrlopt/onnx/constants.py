"""Folds constants before a file is read: exporters write sizes as dozens of nodes of integer arithmetic.

The core knows neither these operators nor the shapes behind them, so nothing around them would be rewritten.
"""

from __future__ import annotations

from pathlib import Path

import onnx

from torchrlopt.errors import UnsupportedError
from torchrlopt.limited import Limits
from torchrlopt.onnx.answers import answer_of
from torchrlopt.onnx.weightless import has_content, without_weights

LIMITS = Limits(seconds=60.0, memory_bytes=4 << 30)
"""Limits of the folding; large models get more time."""

_BYTES_PER_S = 100_000  # of a model without weights: 0.24 s for one of 150 kB

_MAY_BE_KNOWN = ("Shape", "Size", "Identity", "If", "Loop", "Scan")

LARGE = 65
"""Elements of constants whose content the core does not know."""


_CHILD = Path(__file__).with_name("fold_child.py")


def folded(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a valid model with expressions over constants and known sizes evaluated, and without identities.

    Returns:
        `proto` itself if there is nothing to fold, or if folding fails.
    """
    if not _may_be_folded(proto.graph) or proto.functions or proto.graph.sparse_initializer:
        return proto
    small = without_weights(proto)
    data = small.SerializeToString()
    inputs = {value.name for value in small.graph.input}  # a call may override the weights among them
    weights = small.graph.initializer
    names = [each.name for each in weights if each.name in inputs or not has_content(each)]
    try:
        found = answer_of(_CHILD, names, data, LIMITS, _BYTES_PER_S, "the folding of constants")
    except UnsupportedError:
        return proto
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    emptied = set(names)
    found.graph.initializer.extend(each for each in proto.graph.initializer if each.name in emptied)
    for field in ("node", "initializer"):  # types that were only half inferred would hide those of ONNX
        del getattr(result.graph, field)[:]
        getattr(result.graph, field).extend(getattr(found.graph, field))
    return result


def _may_be_folded(graph: onnx.GraphProto) -> bool:
    """Whether a node has a body, or reads constants only, or what may be known without running the model."""
    fixed = {tensor.name for tensor in graph.initializer} - {value.name for value in graph.input}
    for node in graph.node:
        if node.op_type == "Constant":
            fixed.update(node.output)
        elif node.op_type in _MAY_BE_KNOWN or all(name in fixed for name in node.input):
            return True
    return False
