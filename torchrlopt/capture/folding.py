"""Constant folding while capturing: position ids, causal masks, frequencies.

Only deterministic, functional ATen nodes with constant arguments are run, on the device that the model uses.
A node whose memory could reach the caller (it is an output, or an output views it) stays in the graph: a
constant is one tensor for all calls, and the caller may write to what a call returned.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable
from typing import Any

import torch

from torchrlopt.ops.onnx_types import is_view
from torchrlopt.torch_private import pytree
from torchrlopt.torch_private.operators import OpOverload, base_name, schema_of

# Above this a constant costs more memory than the work it saves is worth.
MAX_FOLDED_ELEMENTS = 1 << 22

# These read only the shape, dtype and device of their tensor argument.
_SHAPE_ONLY = {"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"}


@dataclasses.dataclass(frozen=True)
class Folded:
    """The nodes whose results are the same in every call.

    Attributes:
        tensors: by fx name, get_attr tensors and results that an unfolded node reads; elements of tuples
            under the name of their getitem node. Equal expressions share one tensor.
        names: all fx nodes that need not be computed any more, including those that only folded nodes read.
    """

    tensors: dict[str, torch.Tensor]
    names: frozenset[str]


def fold(gm: torch.fx.GraphModule) -> Folded:
    """Evaluates the nodes of an inference ATen graph that do not depend on any input."""
    returned = _reaching_output(gm.graph)
    known: dict[torch.fx.Node, Any] = {}
    runs: dict[object, Any] = {}
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            found = _attribute(gm, str(node.target))
            if isinstance(found, torch.Tensor):
                known[node] = found
        elif node.op == "call_function" and node not in returned and _foldable(node, known):
            key = _key(node, known)
            result = runs[key] if key in runs else _run(node, known)
            if result is not None:
                known[node] = runs[key] = result
    tensors = {
        node.name: value
        for node, value in known.items()
        if isinstance(value, torch.Tensor) and any(user not in known for user in node.users)
    }
    return Folded(tensors, frozenset(node.name for node in known))


def _key(node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> object:
    """Two nodes with the same key have the same result: models rebuild the same mask in every layer."""

    def name(argument: Any) -> object:
        if isinstance(argument, torch.fx.Node):
            return ("result", id(known[argument])) if argument in known else ("shape of", argument.name)
        return argument

    leaves, structure = pytree.tree_flatten((node.args, dict(node.kwargs)))
    return str(node.target), str(structure), repr([name(leaf) for leaf in leaves])


def _attribute(gm: torch.fx.GraphModule, path: str) -> Any:
    found: Any = gm
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _reaching_output(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    reached: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or (node in reached and node.op == "call_function" and is_view(node.target)):
            reached.update(node.all_input_nodes)
    return reached


def _foldable(node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> bool:
    target = node.target
    if target is operator.getitem:
        return node.args[0] in known
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return False
    if schema_of(target).is_mutable or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    if not _small(node.meta.get("val")):
        return False
    if base_name(target) in _SHAPE_ONLY:
        return all(source is node.args[0] or source in known for source in node.all_input_nodes)
    if base_name(target).startswith(("empty", "new_empty", "sym_")):
        return False
    return all(source in known for source in node.all_input_nodes)


def _small(meta: object) -> bool:
    leaves: Iterable[object] = meta if isinstance(meta, tuple | list) else [meta]
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) or leaf.is_complex():
            return False
        if not all(isinstance(size, int) for size in leaf.shape) or leaf.numel() > MAX_FOLDED_ELEMENTS:
            return False
    return True


def _run(node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> Any:
    def value(argument: Any) -> Any:
        if not isinstance(argument, torch.fx.Node):
            return argument
        if argument in known:
            return known[argument]
        # Where only the shape of a tensor is read, the result has that shape, and it is known.
        meta = argument.meta["val"]
        return torch.empty(tuple(node.meta["val"].shape), dtype=meta.dtype, device=meta.device)

    arguments, keywords = pytree.tree_map(value, (node.args, node.kwargs))
    target: Any = node.target
    try:
        with torch.no_grad():
            return target(*arguments, **keywords)
    except RuntimeError:
        # What fails now (say, out of device memory) is computed in every call, as the model does.
        return None
