"""Operators whose inputs are all constants, evaluated when the graph is built.

Axes, sizes and bounds that a model computes from constants become constants, which the converters that need
numbers can then read.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir
import torch
from torch import fx

from torchrlopt.executors.lowering.converters.emitter import Emitter, Entry, Ints
from torchrlopt.executors.lowering.converters.table import Converter, OpCall
from torchrlopt.generated_code import checked

_MAX_ELEMENTS = 256
"""Larger tensors are data: the prologue computes what depends on constants only, once."""


def evaluate(
    emitter: Emitter, node: onnx_ir.Node, inputs: Sequence[Entry | None], converter: Converter
) -> tuple[Entry | None, ...] | None:
    """The results of a node on small constants, None where they are not all small constants."""
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
    """The tensor of a small constant."""
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
