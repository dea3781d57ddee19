"""Folds constants before a file is read: exporters write sizes as dozens of nodes of integer arithmetic.

The core knows neither these operators nor the shapes behind them, so nothing around them would be rewritten.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
from onnx_ir.passes import common

from torchrlopt.errors import UnsupportedError
from torchrlopt.limited import Limits
from torchrlopt.onnx.answers import answer_of
from torchrlopt.onnx.opsets import STANDARD_DOMAINS
from torchrlopt.onnx.weightless import has_content, without_weights

LIMITS = Limits(seconds=60.0, memory_bytes=4 << 30)
"""Limits of the folding; large models get more time."""

_BYTES_PER_S = 100_000  # of a model without weights: 0.24 s for one of 150 kB

_MOST_FILLED_BYTES = 1 << 20  # of all tensors that `_fill` makes: norms need little, masks would bloat files

_MAY_BE_KNOWN = ("Shape", "Size", "Identity", "If", "Loop", "Scan")

LARGE = 65
"""Elements of constants whose content the core does not know."""


_CHILD = Path(__file__).with_name("fold_child.py")


def folded(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with expressions over constants and known sizes evaluated, and without identities.

    Args:
        proto: a valid model.

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


def lift(model: onnx_ir.Model, least: int) -> None:
    """Make weights of constants that nodes hold, or fill, in place.

    Args:
        model: the model.
        least: number of elements from which on a constant is a weight.
    """
    common.LiftConstantsToInitializersPass(size_limit=least)(model)
    _fill(model)


def _fill(model: onnx_ir.Model) -> None:
    """Make weights of nodes that fill tensors of known sizes with floats, in place.

    Nothing is known about the elements of what a node computes, so a norm over such weights would stay.
    """
    room = _MOST_FILLED_BYTES
    for node in list(model.graph):
        if node.op_type != "ConstantOfShape" or node.domain not in STANDARD_DOMAINS or node.inputs[0] is None:
            continue
        (output,) = node.outputs
        sizes = onnx_ir.convenience.get_const_tensor(node.inputs[0])
        given = node.attributes["value"].as_tensor() if "value" in node.attributes else None
        element = np.zeros(1, np.float32) if given is None else given.numpy()
        if sizes is None or output.is_graph_output() or element.dtype.kind != "f" or element.size != 1:
            continue
        shape = sizes.numpy().tolist()
        # A size of 0 leaves others that numpy refuses.
        num_bytes = math.prod(max(size, 1) for size in shape) * element.itemsize
        if min(shape, default=0) < 0 or num_bytes > room:
            continue
        room -= num_bytes
        name, output.name = output.name, f"{output.name}.filled"
        tensor = onnx_ir.tensor(np.full(shape, element.reshape(()), element.dtype), name=name)
        weight = onnx_ir.Value(
            name=name, type=onnx_ir.TensorType(tensor.dtype), shape=onnx_ir.Shape(shape), const_value=tensor
        )
        model.graph.initializers.add(weight)
        onnx_ir.convenience.replace_all_uses_with(output, weight)
        model.graph.remove(node, safe=True)
