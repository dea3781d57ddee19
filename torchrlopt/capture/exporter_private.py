"""Translates single nodes with torch's ONNX exporter.

It passes *one* ATen node at a time to the exporter, for the many rare operators that we have no translation
for, and gets a small ONNX model through the exporter's registry, which is built once per process (about a
second, hence lazily). If a version of torch lacks one of its private names, such operators stay opaque.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from torchrlopt.onnx.opsets import IR_VERSION, NATIVE
from torchrlopt.onnx.quiet import quiet
from torchrlopt.ops.onnx_types import onnx_dtype
from torchrlopt.torch_private.exporter import exporter_parts


@dataclasses.dataclass(frozen=True)
class Registry:
    """The exporter's registry and what is needed to call its functions.

    Attributes:
        dispatch: fx node -> (ONNX function or None, message).
        recorder: class that records ONNX nodes while a function runs.
        symbolic_tensor: class of the values that such a function computes with.
        opset: the opset object that nodes are recorded with.
    """

    dispatch: Callable[[torch.fx.Node], tuple[Callable[..., Any] | None, str]]
    recorder: Callable[..., Any]
    symbolic_tensor: Callable[..., ir.Value]
    opset: Any


@functools.cache
def registry() -> Registry | None:
    """Returns the exporter's registry, built once per process; None if a private name is missing."""
    try:
        registration, dispatching, building, tensors = exporter_parts()
        onnxscript = importlib.import_module("onnxscript")
        # The registry warns about every torchvision operator if torchvision is not installed.
        with quiet(registration.__name__):
            table = registration.ONNXRegistry.from_torchlib(opset_version=NATIVE)
        return Registry(
            dispatch=lambda node: dispatching.dispatch(node, table),
            recorder=building.OpRecorder,
            symbolic_tensor=tensors.SymbolicTensor,
            opset=onnxscript.values.Opset("", NATIVE),
        )
    except (ImportError, AttributeError, TypeError):
        return None


def translate_node(node: torch.fx.Node, inputs: Sequence[ir.Value]) -> ir.Model | None:
    """Translates one ATen node.

    Args:
        node: a call of an ATen overload.
        inputs: a typed value, of any name, for each of `node.all_input_nodes`.

    Returns:
        A model whose inputs stand for `inputs` in order and whose outputs are the elements of the node's
        result; None if the exporter has no translation, or fails.
    """
    found = registry()
    function = None if found is None else found.dispatch(node)[0]
    if found is None or function is None:
        return None
    from onnxscript import evaluator

    stand_ins = {
        source: found.symbolic_tensor(found.opset, name=f"in_{index}", shape=value.shape, type=value.type)
        for index, (source, value) in enumerate(zip(node.all_input_nodes, inputs, strict=True))
    }
    arguments = [_argument(item, stand_ins) for item in node.args]
    keywords = {name: _argument(item, stand_ins) for name, item in node.kwargs.items()}
    # The exporter's own convention: an absent dtype is -1.
    if "dtype" in keywords and keywords["dtype"] is None:
        keywords["dtype"] = -1
    recorder = found.recorder(found.opset, {})
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
    functions = [_ir_function(item) for item in recorder.functions.values()]
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


def _ir_function(function: Any) -> ir.Function:
    if isinstance(function, ir.Function):
        return function
    return ir.serde.deserialize_function(function.to_function_proto())
