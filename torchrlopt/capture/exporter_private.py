"""Translates single nodes with torch's ONNX exporter.

It passes *one* ATen node at a time to the exporter, for the many rare operators that we have no translation
for, and gets a small ONNX model through the exporter's registry, which is built once per process (about a
second, hence lazily). If a version of torch lacks one of its private names, such operators stay opaque.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from torchrlopt.onnx.opsets import IR_VERSION, NATIVE
from torchrlopt.onnx.quiet import quiet
from torchrlopt.ops.onnx_types import onnx_dtype
from torchrlopt.torch_private.exporter import ExporterParts, exporter_parts


@functools.cache
def registry() -> tuple[ExporterParts, Any] | None:
    """Returns the exporter's modules and its registry, built once per process; None without one of them."""
    try:
        parts = exporter_parts()
        # The registry warns about every torchvision operator if torchvision is not installed.
        with quiet(parts.registration.__name__):
            return parts, parts.registration.ONNXRegistry.from_torchlib(opset_version=NATIVE)
    except (ImportError, AttributeError, TypeError):
        return None


def translate_node(node: torch.fx.Node, inputs: Sequence[ir.Value]) -> ir.Model | None:
    """Translates one call of an ATen overload, given a typed value for each of `node.all_input_nodes`.

    Returns:
        A model whose inputs stand for `inputs` in order and whose outputs are the elements of the node's
        result; None if the exporter has no translation, or fails.
    """
    found = registry()
    if found is None:
        return None
    parts, table = found
    function, _ = parts.dispatching.dispatch(node, table)
    if function is None:
        return None
    from onnxscript import evaluator, values

    opset = values.Opset("", NATIVE)
    stand_ins = {
        source: parts.tensors.SymbolicTensor(opset, name=f"in_{index}", shape=value.shape, type=value.type)
        for index, (source, value) in enumerate(zip(node.all_input_nodes, inputs, strict=True))
    }
    arguments = [_argument(item, stand_ins) for item in node.args]
    keywords = {name: _argument(item, stand_ins) for name, item in node.kwargs.items()}
    # The exporter's own convention: an absent dtype is -1.
    if "dtype" in keywords and keywords["dtype"] is None:
        keywords["dtype"] = -1
    recorder = parts.building.OpRecorder(opset, {})
    try:
        with quiet(), evaluator.default_as(recorder):
            result = function(*arguments, **keywords)
    except Exception:  # noqa: BLE001 - code of another project on any operator; the verdict is "no translation"
        return None
    outputs = [result] if isinstance(result, ir.Value) else result
    if not isinstance(outputs, Sequence) or not all(isinstance(output, ir.Value) for output in outputs):
        return None
    graph = ir.Graph(
        list(stand_ins.values()), list(outputs), nodes=recorder.nodes, opset_imports={"": NATIVE}
    )
    functions = [
        item if isinstance(item, ir.Function) else ir.serde.deserialize_function(item.to_function_proto())
        for item in recorder.functions.values()
    ]
    return ir.Model(graph, ir_version=IR_VERSION, functions=functions)


def _argument(item: Any, stand_ins: dict[torch.fx.Node, ir.Value]) -> Any:
    if isinstance(item, torch.fx.Node):
        return stand_ins[item]
    if isinstance(item, list | tuple):
        return [_argument(element, stand_ins) for element in item]
    if isinstance(item, torch.device | torch.memory_format | torch.layout):
        return str(item)
    if isinstance(item, torch.dtype):
        return onnx_dtype(item)
    return item
