"""ONNX's own converter of opsets, which some files crash; `upgrade.py` runs it, with limits."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx.version_converter


def main(data: bytes, arguments: Sequence[str]) -> bytes:
    """A model in another opset.

    Args:
        data: the model, without its large weights.
        arguments: the version of the default domain.
    """
    proto = onnx.ModelProto()
    proto.ParseFromString(data)
    answer: bytes = onnx.version_converter.convert_version(proto, int(arguments[0])).SerializeToString()
    return answer
