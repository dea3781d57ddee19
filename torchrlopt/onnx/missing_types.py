"""Infers types that neither the file nor the core knows: those of operators that are not in the core.

The core infers types for all of its own operators. For others it only knows what the file declares; without
a declaration, everything downstream would stay unoptimised. ONNX's inference knows more operators.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir

from torchrlopt.errors import ModelFormatError, UnsupportedError
from torchrlopt.limited import Limits
from torchrlopt.onnx.answers import answer_of
from torchrlopt.onnx.program import Program
from torchrlopt.onnx.reader import read
from torchrlopt.onnx.weightless import without_weights
from torchrlopt.plain_text import escaped

LIMITS = Limits(seconds=10.0, memory_bytes=4 << 30)
"""Limits of the inference; large models get more time."""

_BYTES_PER_S = 200_000  # of a model: several times what the inference needs

_MAX_BYTES = 64 << 20  # of a model without weights

_CHILD = Path(__file__).with_name("child.py")


def read_with_types(proto: onnx.ModelProto, model: onnx_ir.Model) -> Program:
    """Read a model; if the core meets untyped values, run ONNX's inference for them and read again.

    Inferred types are set on the values of `model`, which was built from `proto`. Raises as `reader.read`.
    """
    program = read(model)
    values = _untyped(program, model)
    if not values:
        return program
    try:
        types = _inferred(proto)
        for value in values:
            if value.name in types:
                _give_type(value, types[value.name])
        return read(model)
    except (UnsupportedError, ModelFormatError):  # inference failed or contradicts the file
        for value in values:
            value.type = value.shape = None
        return program


def _untyped(program: Program, model: onnx_ir.Model) -> list[onnx_ir.Value]:
    """Outputs of opaque nodes without any declared type or shape."""
    opaque = {
        str(node["name"])
        for node in map(program.graph.node, program.graph.topological_order())
        if node["op"] == "Opaque"
    }
    outputs = [output for node in model.graph if node.name in opaque for output in node.outputs]
    return [value for value in outputs if value.name and value.type is None and value.shape is None]


def _inferred(proto: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Types by value name, as far as the inference found them.

    Raises:
        UnsupportedError: see `answer_of`, or the model is too large for the inference.
    """
    data = without_weights(proto).SerializeToString()
    if len(data) > _MAX_BYTES:
        raise UnsupportedError(
            "the model is too large to infer its types", expected=_MAX_BYTES, got=len(data)
        )
    graph = answer_of(_CHILD, (), data, LIMITS, _BYTES_PER_S, "the inference of types", onnx.GraphProto)
    return {info.name: info.type for info in graph.value_info if info.type.tensor_type.elem_type}


def _give_type(value: onnx_ir.Value, type_: onnx.TypeProto) -> None:
    try:
        found = onnx_ir.serde.deserialize_type_proto_for_type(type_)
        shape = onnx_ir.serde.deserialize_type_proto_for_shape(type_)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise ModelFormatError("an inferred type makes no sense", where=str(value.name)) from escaped(error)
    value.type, value.shape = found, shape
