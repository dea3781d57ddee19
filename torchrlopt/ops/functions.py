"""Function bodies from the ONNX standard, for operators without a converter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import onnx.inliner
import onnx_ir
import torch

from torchrlopt.onnx import opsets
from torchrlopt.ops.emitter import Emitter, Entry
from torchrlopt.ops.onnx_types import dims_of, set_type

_DOMAIN = "rlopt.body"  # domain of the function while it is inlined


def body_of(emitter: Emitter, node: onnx_ir.Node, inputs: Sequence[Entry | None]) -> onnx_ir.Graph | None:
    """The function body of an operator for these operand types; None if the standard defines none.

    The body has an input for each operand that is not omitted.
    """
    imports = {} if node.graph is None else node.graph.opset_imports
    opset = int(node.meta.get(opsets.FORM, imports.get("", opsets.NATIVE)))
    try:
        schema = onnx.defs.get_schema(node.op_type, opset)
    except onnx.defs.SchemaError:
        return None
    operands = [None if entry is None else _typed(emitter, entry, f"x{i}") for i, entry in enumerate(inputs)]
    call = onnx_ir.Node("", node.op_type, operands, node.attributes.values(), num_outputs=len(node.outputs))
    for index, (output, original) in enumerate(zip(call.outputs, node.outputs, strict=True)):
        output.name = output_name(index) if original.name else ""
    given = [operand for operand in operands if operand is not None]
    outputs = [output for output in call.outputs if output.name]
    graph = onnx_ir.Graph(given, outputs, nodes=[call], opset_imports={"": opset, _DOMAIN: 1}, name="body")
    model = onnx_ir.to_proto(onnx_ir.Model(graph, ir_version=opsets.IR_VERSION))
    types = [onnx.TypeProto() if each is None else _type_of(model, str(each.name)) for each in operands]
    try:
        function = _function(schema, opset, model.graph.node[0], types)
    except RuntimeError:  # attributes that make no sense
        return None
    if function is None:
        return None
    # Inlining passes on only attributes that the call sets, so the defaults must be set explicitly.
    present = {each.name for each in model.graph.node[0].attribute}
    defaults = [each.default_value for name, each in schema.attributes.items() if name not in present]
    model.graph.node[0].attribute.extend(each for each in defaults if each.name)
    model.graph.node[0].domain = function.domain = _DOMAIN
    model.functions.append(function)
    return onnx_ir.from_proto(onnx.inliner.inline_local_functions(model)).graph


def output_name(index: int) -> str:
    """Name of an output of a body; outputs that nobody reads are omitted."""
    return f"y{index}"


def _function(
    schema: Any, opset: int, call: onnx.NodeProto, types: Sequence[onnx.TypeProto]
) -> onnx.FunctionProto | None:
    """The newest body available up to an opset. `schema` is an OpSchema, which has no type stubs."""
    fixed = [version for version in schema.function_opset_versions if version <= opset]
    by_types = [version for version in schema.context_dependent_function_opset_versions if version <= opset]
    if fixed:
        content = schema.get_function_with_opset_version(max(fixed))
    elif by_types:
        content = schema.get_context_dependent_function_with_opset_version(
            max(by_types), call.SerializeToString(), [each.SerializeToString() for each in types]
        )
    else:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(content)
    return function if content else None


def _type_of(model: onnx.ModelProto, name: str) -> onnx.TypeProto:
    found: onnx.TypeProto = next(value.type for value in model.graph.input if value.name == name)
    return found


def _typed(emitter: Emitter, entry: Entry, name: str) -> onnx_ir.Value:
    fake = entry if isinstance(entry, torch.Tensor) else emitter.fake_of(emitter.tensor(entry))
    value = onnx_ir.Value(name=name)
    set_type(value, fake.dtype, dims_of(fake))
    return value
