"""Emits the ATen calls of an ONNX node: looks its operator up in the one table, which the subjects fill."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import onnx_ir

from torchrlopt.errors import LoweringError
from torchrlopt.executors.lowering.converters import folding, shapes
from torchrlopt.executors.lowering.converters.emitter import Emitter, Entry
from torchrlopt.executors.lowering.converters.table import CONVERTERS, OpCall

# Importing a subject fills the table.
SUBJECTS = tuple(
    importlib.import_module(f"{__package__}.{name}")
    for name in (
        "attention",
        "broadcast",
        "conv_pool",
        "create",
        "elementwise",
        "indexing",
        "loss",
        "matmul",
        "movement",
        "normalisation",
        "quantise",
        "reduction",
        "resize",
    )
)


def convert(emitter: Emitter, node: onnx_ir.Node, inputs: Sequence[Entry | None]) -> tuple[Entry | None, ...]:
    """Emit the ATen calls of one ONNX node.

    Args:
        emitter: where the calls go.
        node: the ONNX node.
        inputs: what stands for its inputs; None for an omitted one.

    Returns:
        One entry per output of the node.

    Raises:
        LoweringError: the operator, or this form of it, has no converter.
    """
    domain = "" if node.domain in ("", "ai.onnx") else node.domain
    converter = CONVERTERS.get((domain, node.op_type))
    call = OpCall(node, inputs, emitter)
    if converter is None:
        raise LoweringError("operator has no converter", where=call.name, got=f"{domain}:{node.op_type}")
    results: tuple[Entry | None, ...] | None = None
    if domain == "":
        folded = shapes.fold(emitter, call)
        results = (folded,) if folded is not None else None
        if results is None:
            results = folding.evaluate(emitter, node, inputs, converter)
    if results is None:
        result = converter(emitter, call)
        results = result if isinstance(result, tuple) else (result,)
    return results + (None,) * (len(node.outputs) - len(results))
