"""What the user excludes from rewriting: modules by path, operators by name.

Their calls become opaque nodes, which no substitution matches, and run as they are (`lowering/as_is.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch

from torchrlopt.capture.sources import path_of
from torchrlopt.onnx.forms.from_onnx import OPERATORS
from torchrlopt.substitutions import load_library
from torchrlopt.torch_private.operators import OpOverload, base_name

_PREFIX = "aten."


def is_operator(name: str) -> bool:
    """Whether a name is that of an operator: ONNX's ("Conv"), or PyTorch's with "aten." before it."""
    packet = name.removeprefix(_PREFIX).partition(".")[0]
    is_torchs = name.startswith(_PREFIX) and any(
        hasattr(torch.ops.aten, each) for each in (packet, f"_{packet}")
    )
    return is_torchs or name in OPERATORS


def excluded_calls(gm: torch.fx.GraphModule, names: Collection[str]) -> frozenset[str]:
    """Return the names of the calls that lie in one of the modules, or call one of PyTorch's operators."""
    if not names:
        return frozenset()
    return frozenset(
        node.name
        for node in gm.graph.nodes
        if node.op == "call_function" and not _names_of(node).isdisjoint(names)
    )


def unmatched(gm: torch.fx.GraphModule, names: Collection[str]) -> list[str]:
    """Return the names that are no operator, no substitution, and no module with calls in a graph."""
    modules = {path for node in gm.graph.nodes for path in _paths(node)} if names else set()
    library = load_library()
    return [
        name for name in names if name not in modules and not is_operator(name) and library.find(name) < 0
    ]


def _names_of(node: torch.fx.Node) -> set[str]:
    found = set(_paths(node))
    if isinstance(node.target, OpOverload) and node.target.namespace == "aten":
        packet = f"{_PREFIX}{base_name(node.target)}"
        found |= {str(node.target), packet, packet.replace("._", ".")}
    return found


def _paths(node: torch.fx.Node) -> Iterable[str]:
    """The paths of the modules around a call, outermost first."""
    stack: dict[str, Any] = node.meta.get("nn_module_stack") or {}
    return (path_of(str(name)) for name, _ in stack.values())
