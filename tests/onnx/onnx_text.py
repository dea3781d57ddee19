"""ONNX models from ONNX's own text syntax, for tests."""

from __future__ import annotations

import onnx
import onnx.parser
import onnx_ir

from torchrlopt.onnx import opsets
from torchrlopt.onnx.files import prepared


def proto_of(body: str, opset: int = opsets.NATIVE, imports: str = "") -> onnx.ModelProto:
    """A model from the text of its graph, such as `g (float[2] x) => (float[2] y) { y = Relu(x) }`."""
    header = f'<ir_version: 10, opset_import: ["" : {opset}{imports}]>'
    return onnx.parser.parse_model(f"{header}\n{body}")


def model_of(body: str, opset: int = opsets.NATIVE, imports: str = "") -> onnx_ir.Model:
    """The same, checked and ready to be read."""
    return prepared(proto_of(body, opset, imports))
