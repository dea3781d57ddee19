"""Translates AOTAutograd's inference ATen graph into a weightless ONNX model.

Every surviving tensor of the ATen graph keeps its name, so that the eager executor can restore original ATen
calls for nodes that were not rewritten. Weights stay inputs: neither their values nor their bytes are read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir
import torch

from torchrlopt.capture.captured import Captured
from torchrlopt.capture.cleanup import clean
from torchrlopt.capture.names import relate_names
from torchrlopt.capture.opaque import DOMAIN
from torchrlopt.capture.walk import Walker
from torchrlopt.errors import CaptureError
from torchrlopt.onnx import opsets
from torchrlopt.torch_private.modes import without_dispatch_modes


def capture(
    gm: torch.fx.GraphModule, static_indices: Collection[int], exclude: Collection[str] = ()
) -> Captured:
    """Captures the functional ATen graph that AOTAutograd passes to its inference compiler, unchanged.

    Args:
        gm: the graph, with fake values in `meta["val"]`.
        static_indices: positions of the inputs that are weights.
        exclude: modules and operators to leave as they are, see `Options.exclude`.

    Raises:
        CaptureError: the graph writes to its inputs, has no fake values, or has a dtype without an ONNX
            name.
    """
    placeholders = gm.graph.find_nodes(op="placeholder")
    static = frozenset(placeholders[index].name for index in static_indices)
    # Constants made under AOTAutograd's fake mode would be fake themselves.
    with without_dispatch_modes():
        walker = Walker(gm, exclude)
        model = _model(walker, gm)
        return relate_names(gm, walker, model, clean(model), static)


def _model(walker: Walker, gm: torch.fx.GraphModule) -> ir.Model:
    outputs: list[ir.Value] = []
    for node in gm.graph.output_node().all_input_nodes:
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
        _by_first_use(builder.inputs, [*builder.nodes], outputs),
        outputs,
        nodes=[*builder.constants, *builder.nodes],
        opset_imports={"": opsets.NATIVE, DOMAIN: 1},
        name="captured",
    )
    return ir.Model(graph, ir_version=opsets.IR_VERSION, producer_name="torchrlopt")


def _by_first_use(
    inputs: Sequence[ir.Value], nodes: Sequence[ir.Node], outputs: Sequence[ir.Value]
) -> list[ir.Value]:
    """Return the inputs in the order in which nodes read them; unread ones come last."""
    read = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None)
    order = {value: place for place, value in enumerate((*read, *outputs))}
    return sorted(inputs, key=lambda value: order.get(value, len(order)))
