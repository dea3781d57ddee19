"""Makes ONNX attributes from plain Python values."""

from __future__ import annotations

from typing import Any

import onnx_ir


def make_attribute(name: str, value: Any) -> onnx_ir.Attr:
    """Make an attribute from an int, bool, float, string, tensor, or a list of ints, floats or strings."""
    match value:
        case bool() | int():
            return onnx_ir.AttrInt64(name, int(value))
        case float():
            return onnx_ir.AttrFloat32(name, value)
        case str():
            return onnx_ir.AttrString(name, value)
        case list() | tuple() if any(isinstance(item, float) for item in value):
            return onnx_ir.AttrFloat32s(name, [float(item) for item in value])
        case list() | tuple() if any(isinstance(item, str) for item in value):
            return onnx_ir.AttrStrings(name, list(value))
        case list() | tuple():
            return onnx_ir.AttrInt64s(name, [int(item) for item in value])
        case _:
            return onnx_ir.AttrTensor(name, value)
