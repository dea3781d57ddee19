"""Lowers an ONNX node: folds shape arithmetic and small constants now, emits ATen calls for the rest."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir
import torch
from torch import fx

from torchrlopt.errors import LoweringError
from torchrlopt.generated_code import checked
from torchrlopt.ops import sizes
from torchrlopt.ops.emitter import Emitter, Entry, Ints
from torchrlopt.ops.functions import body_of, output_name
from torchrlopt.ops.to_aten import CONVERTERS, Converter, OpCall

_MAX_ELEMENTS = 256
"""Larger tensors are data: whatever depends on constants only, the prologue computes once."""


def convert(emitter: Emitter, node: onnx_ir.Node, inputs: Sequence[Entry | None]) -> tuple[Entry | None, ...]:
    """Emit the ATen calls of one ONNX node, given the entries of its inputs; return one entry per output.

    Raises:
        LoweringError: the operator, or this form of it, has no converter.
    """
    domain = "" if node.domain in ("", "ai.onnx") else node.domain
    converter = CONVERTERS.get((domain, node.op_type))
    call = OpCall(node, inputs, emitter)
    try:
        if converter is None:
            raise LoweringError("operator has no converter", where=call.name, got=f"{domain}:{node.op_type}")
        results = _converted(emitter, call, node, converter)
    except LoweringError:
        body = None if domain else body_of(emitter, node, inputs)
        if body is None:
            raise
        results = _run_body(emitter, body, inputs, len(node.outputs))
    return results + (None,) * (len(node.outputs) - len(results))


def _converted(
    emitter: Emitter, call: OpCall, node: onnx_ir.Node, converter: Converter
) -> tuple[Entry | None, ...]:
    if node.domain in ("", "ai.onnx"):
        folded = sizes.fold(emitter, call)
        known = (folded,) if folded is not None else _evaluated(emitter, node, call.inputs, converter)
        if known is not None:
            return known
    result = converter(emitter, call)
    return result if isinstance(result, tuple) else (result,)


def _run_body(
    emitter: Emitter, body: onnx_ir.Graph, inputs: Sequence[Entry | None], num_outputs: int
) -> tuple[Entry | None, ...]:
    """The results of converting the nodes of a body, which are in topological order."""
    given = [entry for entry in inputs if entry is not None]
    entries: dict[onnx_ir.Value | None, Entry | None] = dict(zip(body.inputs, given, strict=True))
    entries[None] = None
    for node in body:
        results = convert(emitter, node, [entries[value] for value in node.inputs])
        entries |= dict(zip(node.outputs, results, strict=True))
    by_name = {str(value.name): entries[value] for value in body.outputs}
    return tuple(by_name.get(output_name(index)) for index in range(num_outputs))


def _evaluated(
    emitter: Emitter, node: onnx_ir.Node, inputs: Sequence[Entry | None], converter: Converter
) -> tuple[Entry | None, ...] | None:
    """Evaluates a node on small constants; None if an input or a result is not a small constant.

    Axes, sizes and bounds that the model computes from constants thereby become constants, which some
    converters require.
    """
    constants = [_constant(entry) for entry in inputs]
    if not inputs or any(c is None and e is not None for c, e in zip(constants, inputs, strict=True)):
        return None
    scratch = Emitter(emitter.fake_mode, torch.device("cpu"))
    result = converter(scratch, OpCall(node, constants, scratch))
    results = result if isinstance(result, tuple) else (result,)
    nodes = [None if entry is None else scratch.tensor(entry) for entry in results]
    if not all(found is None or _is_small(found) for found in nodes):
        return None
    scratch.graph.output(tuple(nodes))
    module = fx.GraphModule(scratch.attributes, checked(scratch.graph))
    values: tuple[torch.Tensor | None, ...] = module()
    return values


def _constant(entry: Entry | None) -> torch.Tensor | None:
    """The tensor of a small constant, else None."""
    if isinstance(entry, Ints):
        numbers = [element for element in entry.elements if isinstance(element, int)]
        if len(numbers) != len(entry.elements):
            return None
        return torch.tensor(numbers if entry.rank else numbers[0], dtype=torch.int64)
    if isinstance(entry, torch.Tensor) and entry.numel() <= _MAX_ELEMENTS:
        return entry
    return None


def _is_small(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not all(isinstance(size, int) for size in value.shape):
        return False
    return value.numel() <= _MAX_ELEMENTS
