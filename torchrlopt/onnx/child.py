"""Runs a function of ONNX that some files hang or crash; started with limits, see `limited`."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx.inliner
import onnx.shape_inference
import onnx.version_converter


def main(data: bytes, arguments: Sequence[str]) -> bytes:
    """Convert a model without weights to another opset, its functions inlined, or infer types.

    Returns:
        The model in the version that is the argument; without one, a graph that contains only types.
    """
    proto = onnx.ModelProto()
    proto.ParseFromString(data)
    answer: onnx.ModelProto | onnx.GraphProto
    if arguments:
        if proto.functions:
            proto = onnx.inliner.inline_local_functions(proto, convert_version=True)
        answer = onnx.version_converter.convert_version(proto, int(arguments[0]))
    else:
        graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
        answer = onnx.GraphProto(value_info=[*graph.value_info, *graph.output])
    serialised: bytes = answer.SerializeToString()
    return serialised
