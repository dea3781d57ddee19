"""Capture: the inference ATen graph of AOTAutograd becomes a weightless ONNX model.

Every tensor of the ATen graph that survives keeps its name, so that the eager executor can put original ATen
calls back for what was not rewritten. Weights stay inputs: neither their values nor their bytes are read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch.utils._python_dispatch import _disable_current_modes

from torchrlopt.capture.cleanup import clean
from torchrlopt.capture.names import relate_names
from torchrlopt.capture.opaque import DOMAIN
from torchrlopt.capture.walk import Walker
from torchrlopt.errors import CaptureError
from torchrlopt.onnx import opsets

__all__ = ["Captured", "capture"]


@dataclasses.dataclass(frozen=True)
class Captured:
    """A captured graph.

    The model's outputs are the distinct tensors that `aten` returns, in order of first appearance, without
    placeholders returned as they are. `aten`'s own output node says how they, the returned inputs, Nones and
    scalars make up the result. Behind them is the token of the last call with an effect, where there is one
    (`effects.py`).

    Attributes:
        model: the ONNX model. Its inputs are the placeholders of `aten` in order (tensors, and symbolic
            scalars as 0-d values; a placeholder that is neither has none), then `constants`.
        aten: the AOT inference graph, untouched.
        static_inputs: names of the inputs that are weights (parameters and buffers).
        constants: constants of more than 64 elements, by name of their input.
        values: ONNX value -> fx node whose output it is, `"name.i"` for element i of a tuple.
        origins: ONNX node -> fx node it was translated from; a node that is absent was merged or moved by
            the clean-up and stands for no single ATen call.
        opaque: ATen operators that have no translation, in order of first appearance.
        fx_values: fx node or `"name.i"` -> ONNX value that is equal to it; the inverse of `values`, and
            more, as an equal value also stands for copies, no-op views and repeated expressions.
        groups: fx node of `origins` -> all fx nodes, in order, that its ONNX nodes stand for, where that
            is more than itself (a linear is a view, a product and a view).
    """

    model: ir.Model
    aten: torch.fx.GraphModule
    static_inputs: frozenset[str]
    constants: dict[str, torch.Tensor]
    values: dict[str, str]
    origins: dict[str, str]
    opaque: tuple[str, ...]
    fx_values: dict[str, str]
    groups: dict[str, tuple[str, ...]]


def capture(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], static_indices: Collection[int]
) -> Captured:
    """Captures the graph that AOTAutograd hands to its inference compiler.

    Args:
        gm: the functional ATen graph with fake values in `meta["val"]`; it is not changed.
        example_inputs: its inputs, real, fake or symbolic; only their number is looked at.
        static_indices: positions of the inputs that are weights.

    Returns:
        The captured graph.

    Raises:
        CaptureError: the graph writes to its inputs, carries no fake values, or has a dtype without an
            ONNX name.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    if len(placeholders) != len(example_inputs):
        raise CaptureError(
            "the graph and its example inputs differ in number",
            expected=len(placeholders),
            got=len(example_inputs),
        )
    # Constants made under AOTAutograd's fake mode would be fake themselves.
    with _disable_current_modes(), _no_garbage_collection():
        walker = Walker(gm)
        model = _model(walker, gm)
        cleaned = clean(model)
        names = relate_names(gm, walker, model, cleaned)
    static = frozenset(placeholders[index].name for index in static_indices)
    return Captured(
        model=model,
        aten=gm,
        static_inputs=static,
        constants={name: walker.constants[name] for name in walker.constants if name in names.inputs},
        values=names.values,
        origins=names.origins,
        opaque=tuple(dict.fromkeys(node.op_type for node in model.graph if node.domain == DOMAIN)),
        fx_values=names.fx_values,
        groups=names.groups,
    )


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    # Thousands of small objects are made here, all of them needed: collections triggered by that would scan
    # the heap of the whole process in vain, for longer than the capture itself takes.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _model(walker: Walker, gm: torch.fx.GraphModule) -> ir.Model:
    outputs: list[ir.Value] = []
    (output,) = [node for node in gm.graph.nodes if node.op == "output"]
    for node in output.all_input_nodes:
        if node.op == "placeholder" or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        value = walker.environment.get(node.name)
        if not isinstance(value, ir.Value):
            raise CaptureError("an output of the graph has no value", where=node.name)
        outputs.append(value)
    if walker.token is not None:
        outputs.append(walker.token)
    builder = walker.builder
    graph = ir.Graph(
        builder.inputs,
        outputs,
        nodes=[*builder.constants, *builder.nodes],
        opset_imports={"": opsets.NATIVE, DOMAIN: 1},
        name="captured",
    )
    return ir.Model(graph, ir_version=opsets.IR_VERSION, producer_name="torchrlopt")
