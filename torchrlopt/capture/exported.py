"""Captures a model with torch.export: its functional ATen graph as a `Traced`, and how a call maps to it.

The backend's graphs leave the signature of a call to Dynamo and AOTAutograd. A saved model needs its own, and
torch.export provides it; the graph itself is the one that the backend sees.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from torchrlopt.capture.aten import reason_to_leave_alone
from torchrlopt.capture.effects import KEPT
from torchrlopt.capture.fast_paths import PARTS, DenseMasks
from torchrlopt.capture.trace import Traced
from torchrlopt.capture.whole import REARRANGED, whole_operators
from torchrlopt.errors import CaptureError, UnsupportedError
from torchrlopt.torch_private.operators import is_composite
from torchrlopt.torch_private.pytree import tree_leaves

STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
"""Kinds of inputs that are the same in every call."""


@dataclasses.dataclass(frozen=True)
class Exported:
    """An exported model.

    Attributes:
        program: the result of torch.export, in functional ATen operators.
        traced: its graph, without unread inputs and constant outputs.
        inputs: for each input of `traced`, its position among the inputs of the program.
    """

    program: ExportedProgram
    traced: Traced
    inputs: tuple[int, ...]


def export(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> Exported:
    """Export a model in eval mode for the arguments of a call, with the dynamic shapes of `torch.export`.

    Raises:
        CaptureError: torch.export rejects the model.
        UnsupportedError: the model writes to its state or inputs, or its graph must not be rewritten.
    """
    try:
        with torch.no_grad(), whole_operators(), DenseMasks():
            plain = torch.export.export(model, tuple(args), dict(kwargs), dynamic_shapes=dynamic_shapes)
            program = plain.run_decompositions(_composites() | PARTS | KEPT | REARRANGED)
    except Exception as error:  # of many types
        raise CaptureError(
            "torch.export refuses the model",
            got=f"{type(error).__name__}: {error}",
            is_bug=False,
            todo="see what torch.export.export(model, inputs) says; dynamic_shapes are passed on to it",
        ) from error
    outputs = program.graph_signature.output_specs
    written = [spec.target for spec in outputs if spec.kind is not OutputKind.USER_OUTPUT]
    if written:
        raise UnsupportedError(
            "the model writes to its own state or to its inputs",
            got=f"writes to {', '.join(map(str, written))}",
        )
    graph, kept = reduced(program)
    reason = reason_to_leave_alone(graph)
    if reason is not None:
        raise UnsupportedError(reason)
    values = _values(program, args, kwargs)
    inputs = [values[place] for place in kept]
    if not all(isinstance(value, torch.Tensor) for value in inputs):
        raise UnsupportedError(
            "an input of the exported graph is no tensor", got=[type(v).__name__ for v in inputs]
        )
    specs = program.graph_signature.input_specs
    static = tuple(i for i, place in enumerate(kept) if specs[place].kind in STATE)
    return Exported(program, Traced(graph, tuple(inputs), static, frozenset(), 0), kept)


def _composites() -> dict[Any, Any]:
    """Return the decompositions of composite operators: AOTAutograd applies all, torch.export none.

    Attention stays whole: its parts depend on the device.
    """
    table = torch.export.default_decompositions().items()
    whole = torch.ops.aten.scaled_dot_product_attention.default
    return {each: parts for each, parts in table if is_composite(each) and each is not whole}


def reduced(program: ExportedProgram) -> tuple[torch.fx.GraphModule, tuple[int, ...]]:
    """Return the graph without unread inputs and constant outputs, and the positions of the kept inputs."""
    module = copy.deepcopy(program.graph_module)
    kept = []
    for place, node in enumerate(list(module.graph.find_nodes(op="placeholder"))):
        if node.users:
            kept.append(place)
        else:
            module.graph.erase_node(node)
    (output,) = module.graph.find_nodes(op="output")
    output.args = (tuple(each for each in output.args[0] if isinstance(each, torch.fx.Node)),)
    module.recompile()
    return module, tuple(kept)


def _values(program: ExportedProgram, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the value of each input of the program in this call."""
    leaves = iter(tree_leaves((tuple(args), dict(kwargs))))
    held = {**program.constants, **program.state_dict}
    return [
        held[str(spec.target)] if spec.kind in STATE else next(leaves)
        for spec in program.graph_signature.input_specs
    ]
