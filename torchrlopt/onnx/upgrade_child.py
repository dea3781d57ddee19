"""Runs ONNX's version converter, which some files crash; `upgrade.py` starts this with limits."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx.version_converter


def main(data: bytes, arguments: Sequence[str]) -> bytes:
    """Convert a model to another opset.

    Args:
        data: the model, without its large weights.
        arguments: the target version of the default domain.
    """
    proto = onnx.ModelProto()
    proto.ParseFromString(data)
    answer: bytes = onnx.version_converter.convert_version(proto, int(arguments[0])).SerializeToString()
    return answer
