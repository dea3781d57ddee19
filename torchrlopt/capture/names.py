"""Relates the values and nodes of a cleaned-up model to ATen calls, by name.

The executors that run ATen restore the original call for every node that was not rewritten. These tables say
which call that is, and where in the model to find each of its operands.
"""

from __future__ import annotations

import onnx_ir as ir
import torch

from torchrlopt.capture.captured import Captured
from torchrlopt.capture.cleanup import Cleaned
from torchrlopt.capture.opaque import DOMAIN, node_inputs
from torchrlopt.capture.walk import Walker
from torchrlopt.ops.onnx_types import Dim
from torchrlopt.torch_private.operators import base_name
from torchrlopt.torch_private.tensors import dim_of

# ATen operators that fail, or return something else, if their input has another memory layout.
_STRIDE_SENSITIVE = {"view", "_unsafe_view", "as_strided"}


def relate_names(
    gm: torch.fx.GraphModule, walker: Walker, model: ir.Model, cleaned: Cleaned, static: frozenset[str]
) -> Captured:
    """Builds the tables for the values and nodes that remain after the clean-up."""
    fx_nodes = {node.name: node for node in gm.graph.nodes}
    inputs = {str(value.name) for value in model.graph.inputs}
    live = inputs | {str(value.name) for node in model.graph for value in node.outputs}
    fx_values = _fx_values(walker, cleaned, live)
    origins: dict[str, str] = {}
    verdicts: dict[str, bool] = {}
    for node in model.graph:
        name = str(node.name)
        origin = walker.origins.get(name)
        if origin is None or name in cleaned.rewired:
            continue
        if origin not in verdicts:
            members = walker.groups.get(origin, (origin,))
            verdicts[origin] = _can_be_put_back(members, fx_nodes, fx_values)
        if verdicts[origin]:
            origins[name] = origin
    kept = set(origins.values())
    return Captured(
        model=model,
        aten=gm,
        static_inputs=static,
        constants={name: tensor for name, tensor in walker.constants.items() if name in inputs},
        values={name: name for name in live if _is_fx_output(name, fx_nodes)},
        origins=origins,
        opaque=tuple(dict.fromkeys(node.op_type for node in model.graph if node.domain == DOMAIN)),
        fx_values=fx_values,
        groups={name: members for name, members in walker.groups.items() if name in kept},
        excluded=frozenset(walker.excluded),
    )


def _fx_values(walker: Walker, cleaned: Cleaned, live: set[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, entry in walker.environment.items():
        elements = [(name, entry)] if isinstance(entry, ir.Value) else []
        if isinstance(entry, list):
            elements = [(f"{name}.{index}", value) for index, value in enumerate(entry) if value is not None]
        for key, value in elements:
            onnx_name = str(value.name)
            onnx_name = cleaned.replaced.get(onnx_name, onnx_name)
            if onnx_name in live:
                found[key] = onnx_name
    return found


def _is_fx_output(name: str, fx_nodes: dict[str, torch.fx.Node]) -> bool:
    head, _, index = name.partition(".")
    return head in fx_nodes and (not index or index.isdigit())


def _can_be_put_back(
    members: tuple[str, ...], fx_nodes: dict[str, torch.fx.Node], fx_values: dict[str, str]
) -> bool:
    """Returns whether every operand of these ATen calls is available, in a layout that they accept."""
    for member in members:
        node = fx_nodes[member]
        for source in node_inputs(node):
            if source.name in members or not isinstance(source.meta.get("val"), torch.Tensor):
                continue
            stands_for = fx_values.get(source.name)
            if stands_for is None:
                return False
            sensitive = base_name(node.target) in _STRIDE_SENSITIVE
            if sensitive and _strides(source.name, fx_nodes) != _strides(stands_for, fx_nodes):
                return False
    return True


def _strides(name: str, fx_nodes: dict[str, torch.fx.Node]) -> tuple[Dim, ...] | None:
    """Returns the strides of an fx node's result, or of element i of it for "name.i"."""
    head, _, index = name.partition(".")
    node = fx_nodes.get(head)
    meta = None if node is None else node.meta.get("val")
    if index.isdigit() and isinstance(meta, tuple | list):
        meta = meta[int(index)]
    return tuple(map(dim_of, meta.stride())) if isinstance(meta, torch.Tensor) else None
