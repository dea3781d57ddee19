"""ONNX's own shape inference, which some files hang or crash; `missing_types.py` runs it, with limits."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx.shape_inference


def main(data: bytes, arguments: Sequence[str]) -> bytes:
    """Types of the values of a model.

    Args:
        data: the model, without its large weights.
        arguments: none.

    Returns:
        A graph with nothing but types.
    """
    proto = onnx.ModelProto()
    proto.ParseFromString(data)
    graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    answer: bytes = onnx.GraphProto(value_info=[*graph.value_info, *graph.output]).SerializeToString()
    return answer
