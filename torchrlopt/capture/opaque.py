"""Opaque nodes: an ATen operator without a translation, kept as one node of our own domain.

The node holds the fx node's name, so that the eager executor can restore the original call verbatim.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
import torch

from torchrlopt.errors import CaptureError
from torchrlopt.onnx import opsets
from torchrlopt.ops.builder import GraphBuilder
from torchrlopt.ops.onnx_types import Dims
from torchrlopt.torch_private import pytree
from torchrlopt.torch_private.operators import OpOverload

DOMAIN = opsets.ATEN_DOMAIN


def opaque_name(target: object) -> str:
    """Returns the operator name of an fx target, such as `aten.foo.default`."""
    if isinstance(target, OpOverload):
        return str(target)
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__name__", None) or str(target)
    return f"{module.lstrip('_')}.{name}" if module else name


def node_inputs(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Returns the fx nodes among a node's flattened (keyword) arguments, in order, repeats included."""
    leaves = pytree.tree_leaves((node.args, dict(node.kwargs)))
    return [leaf for leaf in leaves if isinstance(leaf, torch.fx.Node)]


Types = tuple[tuple[torch.dtype, Dims] | None, ...]
"""Dtype and dims of each element of a result, None for one that is neither tensor nor scalar."""


def emit_opaque(
    g: GraphBuilder,
    node: torch.fx.Node,
    environment: Mapping[str, Any],
    types: Types,
    before: ir.Value | None = None,
    has_token: bool = False,
) -> tuple[list[ir.Value | None], ir.Value | None]:
    """Emits the opaque node of an fx node.

    Args:
        g: the builder.
        node: the fx node.
        environment: ONNX values by fx name; an argument without one (a subgraph, None) is not an input.
        types: of the node's result.
        before: token of the preceding call with a side effect, if this one comes after it.
        has_token: whether the call is made for its side effect, see `effects`.

    Returns:
        Its outputs, one per element of `types`, and its token.

    Raises:
        CaptureError: it returns nothing and has no side effect, or takes a whole tuple.
    """
    typed = [known for known in types if known is not None]
    if not typed and not has_token:
        raise CaptureError("an operator without a translation returns no tensor", where=node.name)
    inputs = _inputs(node, environment) + ([] if before is None else [before])
    made = g.op_many(
        opaque_name(node.target),
        inputs,
        [*typed, (torch.bool, ())] if has_token else typed,
        domain=DOMAIN,
        fx_node=node.name,
        has_token=True if has_token else None,
    )
    token = made.pop() if has_token else None
    if token is not None:
        token.name = f"{node.name}.token"
    results = iter(made)
    return [None if known is None else next(results) for known in types], token


def _inputs(node: torch.fx.Node, environment: Mapping[str, Any]) -> list[ir.Value]:
    inputs: list[ir.Value] = []
    for source in node_inputs(node):
        value = environment.get(source.name)
        if isinstance(value, ir.Value):
            inputs.append(value)
        elif isinstance(value, list):
            raise CaptureError(
                "an operator without a translation takes a tuple", where=node.name, got=source.name
            )
    return inputs
