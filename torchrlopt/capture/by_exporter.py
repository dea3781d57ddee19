"""Translates operators that we have no translation for: torch's exporter translates the node.

The exporter returns a model of that node alone (`exporter_private.py`). Here it is inlined and simplified,
every value is given a type, and its nodes are spliced into the graph under construction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import torch

from torchrlopt.capture import exporter_private
from torchrlopt.errors import LoweringError
from torchrlopt.onnx import opsets
from torchrlopt.onnx.quiet import quiet
from torchrlopt.ops.builder import GraphBuilder, Result, Untranslatable
from torchrlopt.ops.onnx_types import TORCH_DTYPES, Dim, onnx_dtype, tensor_of
from torchrlopt.ops.to_onnx import Target, require
from torchrlopt.torch_private.operators import OpOverload, base_name, schema_of

# Larger constants inside one operator's translation would be weights in disguise.
_MAX_CONSTANT_ELEMENTS = 64

# Operators whose attributes or inputs changed between opset 18, which the exporter's functions are written
# for, and ours.
_CHANGED = frozenset({"GridSample", "DFT", "GroupNormalization", "Scan", "Loop", "If"})

# The exporter writes these as log(1 + x), exp(x) - 1, 1 - erf(x), ...: right over the reals, but a small x or
# a small result loses all its digits. They stay opaque.
_INACCURATE = {
    "log1p", "expm1", "special_expm1", "erfc", "special_erfc", "special_erfcx", "logaddexp", "logaddexp2",
    "sinc",
}  # fmt: skip

_WRONG = {
    # The exporter returns the running statistics unchanged: in training they must be updated.
    "_native_batch_norm_legit_functional", "_native_batch_norm_legit", "native_batch_norm",
    # Written as a product with the identity matrix: NaN and infinities off the diagonal leak into it.
    "diagonal", "diagonal_copy",
    # Only right for a contiguous operand: the elements are counted in its logical order.
    "as_strided",
}  # fmt: skip

# Forms that the exporter silently replaces by another operator: by argument and value.
_WRONG_FORMS = {"scatter_reduce": ("reduce", "mean"), "index_reduce": ("reduce", "mean")}

# The size of their results depends on data: they can neither be planned with nor typed by a converter.
_DATA_DEPENDENT = frozenset({"NonZero", "Compress", "Unique", "NonMaxSuppression"})


def translate_by_exporter(g: GraphBuilder, target: Target, environment: Mapping[str, Any]) -> Result | None:
    """Emits the exporter's translation of an ATen node, given the ONNX values by fx name.

    Returns:
        The results, or None if the exporter has no translation.

    Raises:
        Untranslatable: the translation does not fit what the tracer saw, or leaves a value without a type.
    """
    operator = target.node.target
    if not isinstance(operator, OpOverload) or base_name(operator) in _INACCURATE | _WRONG:
        return None
    if _is_wrong_form(target.node, operator):
        return None
    if operator.namespace not in ("aten", "prims", "torchvision"):
        # A custom operator: not worth building the registry only to find that it is unknown there.
        return None
    inputs = [environment.get(source.name) for source in target.node.all_input_nodes]
    values = [value for value in inputs if isinstance(value, ir.Value)]
    if len(values) != len(inputs):
        return None
    model = exporter_private.translate_node(target.node, values)
    if model is None or len(model.graph.outputs) != len(target.types):
        return None
    return _splice(g, target, _simplified(model, target), values)


def _is_wrong_form(node: torch.fx.Node, operator: OpOverload) -> bool:
    wrong = _WRONG_FORMS.get(base_name(operator))
    names = [argument.name for argument in schema_of(operator).arguments]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    return wrong is not None and given.get(wrong[0]) == wrong[1]


def _simplified(model: ir.Model, target: Target) -> ir.Model:
    """Inlines functions and folds shape arithmetic, which also types the intermediate values."""
    import onnxscript.optimizer

    for index, output in enumerate(model.graph.outputs):
        output.name = f"out_{index}"
        known = target.types[index]
        if output.type is None and known is not None:
            output.type = ir.TensorType(onnx_dtype(known[0]))
    try:
        with quiet():
            common_passes.NameFixPass()(model)
            for function in model.functions.values():
                # Functions declare opset 18, which they were written for; _CHANGED lists what breaks.
                function.opset_imports[""] = opsets.NATIVE
            if model.functions:
                common_passes.InlinePass()(model)
            onnxscript.optimizer.fold_constants(model, onnx_shape_inference=True)
            common_passes.RemoveUnusedNodesPass()(model)
    except Exception as error:  # code of other projects on any operator
        raise Untranslatable(f"{target.node.name}: the exporter's translation does not simplify") from error
    return model


def _splice(g: GraphBuilder, target: Target, model: ir.Model, inputs: list[ir.Value]) -> Result:
    graph = model.graph
    replaced: dict[ir.Value, ir.Value] = dict(zip(graph.inputs, inputs, strict=True))
    for value in graph.initializers.values():
        replaced[value] = _constant(g, value.const_value)
    kept: list[ir.Node] = []
    for node in list(graph):
        fits = node.domain == "" and node.op_type not in _CHANGED
        require(
            fits and node.op_type not in _DATA_DEPENDENT,
            f"the translation holds {node.domain}::{node.op_type}",
        )
        if node.op_type == "Constant":
            replaced[node.outputs[0]] = _constant(g, node.outputs[0].const_value)
        else:
            kept.append(node)
    graph.remove(kept)
    results: list[ir.Value | None] = []
    outputs = list(graph.outputs)
    graph.outputs.clear()
    for number, node in enumerate(kept):
        for index, source in enumerate(node.inputs):
            if source in replaced:
                node.replace_input_with(index, replaced[source])
        for value in node.outputs:
            _complete_type(value, f"{target.node.name}.{number}")
            value.name = None
        node.metadata_props.clear()
        node.doc_string = None
    for output, known in zip(outputs, target.types, strict=True):
        found = replaced.get(output, output)
        # An output that is an unchanged input or constant still needs a node of its own.
        results.append(None if known is None else found)
    g.add_nodes(kept)
    if isinstance(target.node.meta["val"], tuple | list):
        return results
    if results[0] is None:
        raise Untranslatable("the translation has no output")
    return results[0]


def _constant(g: GraphBuilder, tensor: ir.TensorProtocol | None) -> ir.Value:
    if tensor is None:
        raise Untranslatable("a constant without a value")
    require(tensor.size <= _MAX_CONSTANT_ELEMENTS, "a large constant")
    try:
        return g.constant(tensor_of(tensor))
    except LoweringError as error:
        raise Untranslatable("a constant of a type that torch lacks") from error


def _complete_type(value: ir.Value, prefix: str) -> None:
    """Rejects an untyped value and names every dim that the inference left open."""
    if value.dtype is None or value.dtype not in TORCH_DTYPES or value.shape is None:
        raise Untranslatable(f"{value.name} has no type")
    dims: list[Dim] = []
    for axis, dim in enumerate(value.shape):
        named = dim if isinstance(dim, int) else dim.value
        dims.append(f"{prefix}_{value.index()}_{axis}" if named is None else named)
    value.shape = ir.Shape(dims)
