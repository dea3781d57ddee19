"""Finds the original ATen calls that a rewritten model still contains whole.

Capture translates every ATen call into a group of ONNX nodes. If a rewritten model still has all nodes of a
group, the lowering restores the original call instead of converting the nodes: the call is exact, and it has
properties that ONNX cannot express.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir
from torch import fx

from torchrlopt.ops.to_aten import FROM_FRONT
from torchrlopt.torch_private.operators import OpOverload, base_name

if TYPE_CHECKING:
    from torchrlopt.capture.captured import Captured


@dataclass(frozen=True)
class Group:
    """Original ATen calls that can be restored, and the nodes they replace.

    Attributes:
        members: the nodes of the rewritten model that make up the group, in the order of the original model.
        calls: the fx nodes of the original graph, in order.
        outputs: rewritten ONNX values that the group yields, with the fx key ("name" or "name.i") of each.
        redirected: maps the name of an original ONNX value to its counterpart in the rewritten model.
    """

    members: tuple[onnx_ir.Node, ...]
    calls: tuple[fx.Node, ...]
    outputs: Mapping[onnx_ir.Value, str]
    redirected: Mapping[str, onnx_ir.Value]


class Groups:
    """The groups of a rewritten model that are whole.

    Nodes of other groups are converted; properties of the positions that the original call implies are
    recorded in `meta`.

    Args:
        model: the rewritten model.
        captured: what it was rewritten from.
    """

    def __init__(self, model: onnx_ir.Model, captured: Captured) -> None:
        mark_positions(model, captured)
        self._captured = captured
        self._calls = {node.name: node for node in captured.aten.graph.nodes}
        self._now = {str(node.name): node for node in model.graph}
        self._then = {str(node.name): node for node in captured.model.graph}
        self._members: dict[str, list[str]] = {}
        for name, origin in captured.origins.items():
            self._members.setdefault(origin, []).append(name)
        self._found: dict[str, Group | None] = {}

    def of(self, node: onnx_ir.Node) -> Group | None:
        """The whole group that a node of the rewritten model belongs to; None if there is none."""
        origin = self._captured.origins.get(str(node.name))
        if origin is None:
            return None
        if origin not in self._found:
            self._found[origin] = self._group(origin)
        return self._found[origin]

    def forget(self, node: onnx_ir.Node) -> None:
        """Treat the group of a node as incomplete: its nodes are converted one by one."""
        self._found[self._captured.origins[str(node.name)]] = None

    def _group(self, origin: str) -> Group | None:
        names = self._captured.groups.get(origin, (origin,))
        members = self._members[origin]
        if any(name not in self._now for name in members) or any(name not in self._calls for name in names):
            return None
        inside = {str(value.name) for name in members for value in self._then[name].outputs}
        redirected: dict[str, onnx_ir.Value] = {}
        outputs: dict[onnx_ir.Value, str] = {}
        for name in members:
            then, now = self._then[name], self._now[name]
            if then.op_type != now.op_type or len(then.inputs) != len(now.inputs):
                return None
            for old, new in zip(then.inputs, now.inputs, strict=True):
                if (old is None) != (new is None):
                    return None
                if old is None or new is None or old.name == new.name:
                    continue
                if str(old.name) in inside:
                    return None
                redirected[str(old.name)] = new
            for old_output, output in zip(then.outputs, now.outputs, strict=True):
                key = self._captured.values.get(str(old_output.name))
                if key is not None and (key in names or key.rpartition(".")[0] in names):
                    outputs[output] = key
                elif self._is_read_outside(output, members):
                    return None
        nodes = tuple(self._now[name] for name in members)
        return Group(nodes, tuple(self._calls[name] for name in names), outputs, redirected)

    def _is_read_outside(self, value: onnx_ir.Value, members: list[str]) -> bool:
        """Whether other nodes read a value inside a group that the ATen calls do not return."""
        if value.is_graph_output():
            return True
        return any(str(use.node.name) not in members for use in value.uses())


_READERS = frozenset({"Gather", "GatherElements", "ScatterElements"})
_STRICT = frozenset({"embedding", "gather", "index_select", "scatter", "scatter_add"})


def mark_positions(model: onnx_ir.Model, captured: Captured) -> None:
    """Record in each node's `meta` whether its indices count from the front only.

    `embedding`, `index_select`, `gather` and `scatter` reject negative indices; `x[i]` counts them from the
    end, as ONNX does. In the captured model both are a Gather. The name of a rewritten node's index value
    shows which of them it implements.

    Indices that no captured node reads, because a substitution created them, are also assumed to: at worst
    the original runs.

    Args:
        model: the rewritten model; only `meta` is modified.
        captured: what it was rewritten from.
    """
    calls = {node.name: node.target for node in captured.aten.graph.nodes}
    counted = {
        _positions(node)
        for node in captured.model.graph
        if node.op_type in _READERS and not _is_strict(calls.get(captured.origins.get(str(node.name), "")))
    }
    for node in model.graph:
        if node.op_type in _READERS and not node.domain:
            node.meta[FROM_FRONT] = _positions(node) not in counted


def _positions(node: onnx_ir.Node) -> str:
    value = node.inputs[1]
    return "" if value is None else str(value.name)


def _is_strict(target: object) -> bool:
    return isinstance(target, OpOverload) and base_name(target) in _STRICT
