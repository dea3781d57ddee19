"""Folds constants by onnxscript, with limits, see `limited`. onnxscript loads slowly: a separate file."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx
import onnx_ir
from onnx_ir.passes import common
from onnxscript.optimizer import fold_constants

_MOST_BYTES = 1 << 13  # of an operand or a result: sizes, axes and masks of them, no weights


def _may_fold(node: onnx_ir.Node) -> bool | None:
    """Whether to fold a node; None: as onnxscript sees fit.

    It leaves ConstantOfShape alone lest the model grow. Some runtimes want outputs to be computed by nodes.
    """
    if any(value.is_graph_output() for value in node.outputs):
        return False
    if node.op_type != "ConstantOfShape" or node.inputs[0] is None:
        return None
    sizes = onnx_ir.convenience.get_const_tensor(node.inputs[0])
    return sizes is not None and math.prod(sizes.numpy().tolist()) <= _MOST_BYTES


def main(data: bytes, arguments: Sequence[str]) -> bytes:
    """Evaluate expressions over small constants and over sizes that are known.

    Args:
        data: the model; its large weights are declared without content.
        arguments: names of these weights.
    """
    proto = onnx.ModelProto()
    proto.ParseFromString(data)
    model = onnx_ir.from_proto(proto)
    graph = model.graph
    weights = []
    for name in arguments:  # as inputs, they are not read
        value = graph.initializers.pop(name)
        value.const_value = None
        if value not in graph.inputs:
            graph.inputs.append(value)
            weights.append(value)
    fold_constants(
        model,
        onnx_shape_inference=True,
        input_size_limit=_MOST_BYTES,
        output_size_limit=_MOST_BYTES,
        should_fold=_may_fold,
    )
    for each in (common.IdentityEliminationPass(), common.RemoveUnusedNodesPass()):
        each(model)
    for value in weights:
        graph.inputs.remove(value)
    serialised: bytes = onnx_ir.to_proto(model).SerializeToString()
    return serialised
