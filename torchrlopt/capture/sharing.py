"""Finds tensors that share memory, so that writing to one changes the other.

A stage that computes outputs one by one would give each its own memory, even if several are views of one
value. So that value becomes an output too, and every executor takes its views as the original does.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from torchrlopt.generated_code import checked
from torchrlopt.torch_private.operators import OpOverload, schema_of

aten = torch.ops.aten


def with_bases(graph: fx.GraphModule) -> tuple[fx.GraphModule, int]:
    """Add outputs to a functional graph: the values that overlapping outputs are views of.

    Returns:
        The graph itself if there is nothing to add, else a copy; and the number of added outputs, which are
        at the end.
    """
    (output,) = graph.graph.find_nodes(op="output")
    added = _bases(output.all_input_nodes)
    if not added:
        return graph, 0
    copied = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    returned = copied.graph_copy(graph.graph, copies)
    node = copied.output((*returned, *(copies[each] for each in added)))  # type: ignore[misc]  # a tuple
    node.meta = dict(output.meta)
    return fx.GraphModule(graph, checked(copied)), len(added)


def _bases(outputs: Iterable[fx.Node]) -> list[fx.Node]:
    """Return the values that overlapping outputs are views of and that are not outputs, in output order."""
    views: dict[fx.Node, list[torch.Tensor]] = {}
    returned = list(outputs)
    for node in returned:
        base, value = base_of(node), node.meta.get("val")
        if base.op == "call_function" and isinstance(value, torch.Tensor):
            views.setdefault(base, []).append(value)
    return [base for base, values in views.items() if base not in returned and _overlaps(base, values)]


def _overlaps(base: fx.Node, values: list[torch.Tensor]) -> bool:
    """Whether two elements of these views share a place in memory."""
    if not isinstance(base.meta.get("val"), torch.Tensor):
        return False
    if any(value.layout is not torch.strided for value in values):
        return False
    if not all(map(is_apart, values)):
        return True
    return any_overlap([_plain(value) for value in values if 0 not in map(hint, value.shape)])


def _plain(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor without data at the same place in memory, with the sizes of the trace."""
    sizes, strides = ([hint(each) for each in those] for those in (value.shape, value.stride()))
    first = hint(value.storage_offset())
    length = 1 + first + sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))
    return torch.empty(length, dtype=value.dtype, device="meta").as_strided(sizes, strides, first)


def base_of(node: fx.Node) -> fx.Node:
    """Return the node whose memory a node's value may lie in: itself, unless it is a view."""
    while node.op == "call_function":
        sources = node.all_input_nodes
        if not sources or not may_be_view(node):
            break
        node = sources[0]
    return node


class NewMemory:
    """Base class of callables in a graph that are not operators, and whose results never share memory."""


def gives_new_memory(node: fx.Node) -> bool:
    """True for a call of a `NewMemory`; for operators, the schema says so."""
    return isinstance(node.target, NewMemory)


def may_be_view(node: fx.Node) -> bool:
    """Whether the result of a call may lie in the memory of its first operand."""
    target = node.target
    if (
        target is operator.getitem
    ):  # of a view of several parts, or of a function that may hand on its argument
        (whole,) = node.all_input_nodes
        target = whole.target
        if whole.op == "call_function" and not isinstance(target, OpOverload):
            return not gives_new_memory(whole)
    if not isinstance(target, OpOverload):
        return False
    if target in (aten.reshape.default, aten.contiguous.default, aten._unsafe_view.default):
        return True
    return any(result.alias_info is not None for result in schema_of(target).returns)


def is_apart(value: torch.Tensor) -> bool:
    """Whether no two elements share a place in memory, except along an expanded axis."""
    reach = 1  # of the axes with smaller strides
    axes = [(hint(stride), hint(size)) for size, stride in zip(value.shape, value.stride(), strict=True)]
    for stride, size in sorted(axes):
        if stride == 0 or size == 1:
            continue
        if stride < reach:
            return False
        reach += stride * (size - 1)
    return True


def hint(size: Any) -> int:
    """The size, or the example that a symbolic one was traced with."""
    if isinstance(size, int):
        return size
    known = size.node.hint
    return int(known) if known is not None else 2


def overlaps(outputs: Sequence[Any], inputs: Sequence[Any]) -> list[str | None]:
    """Return, for each output, the first input or earlier output that shares some of its elements.

    Two rows of a matrix lie in the same storage and share no element: they are indistinguishable from two
    separate tensors.
    """
    by_storage: dict[int, list[tuple[str, torch.Tensor]]] = {}
    named = [(f"input {i}", tensor) for i, tensor in enumerate(inputs)]
    named += [(f"output {i}", tensor) for i, tensor in enumerate(outputs)]
    for name, tensor in named:
        if isinstance(tensor, torch.Tensor) and tensor.numel() > 0:
            by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append((name, tensor))
    found: dict[str, str] = {}
    for together in by_storage.values():
        if any(name.startswith("output") for name, _ in together) and any_overlap([x for _, x in together]):
            for at, (name, tensor) in enumerate(together):
                first = next((other for other, known in together[:at] if any_overlap((tensor, known))), None)
                if first is not None:
                    found[name] = first
    return [found.get(f"output {i}") for i in range(len(outputs))]


def any_overlap(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether any two tensors of one storage have bytes in common; they have elements, maybe without data."""
    ranges = sorted(map(_bytes, tensors))
    if all(last <= first for (_, last), (first, _) in itertools.pairwise(ranges)):
        return False
    if len({each.element_size() for each in tensors}) > 1:
        if len(tensors) == 2:  # for example two numbers viewed as one
            return True
        return any(map(any_overlap, itertools.combinations(tensors, 2)))
    # Overlapping ranges may still be interleaved rows and columns.
    width, begin = tensors[0].element_size(), ranges[0][0]
    taken = torch.zeros((max(last for _, last in ranges) - begin) // width, dtype=torch.bool)
    for each in tensors:
        places = _places(taken, each, begin // width)
        if bool(places.any()):
            return True
        places.fill_(True)
    return False


def _places(taken: torch.Tensor, tensor: torch.Tensor, first: int) -> torch.Tensor:
    """Return a tensor's places within its storage from `first` on; expanded axes count once."""
    sizes = [1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return taken.as_strided(sizes, tensor.stride(), int(tensor.storage_offset()) - first)


def _bytes(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the tensor's first byte in its storage, and the one behind its last."""
    first = int(tensor.storage_offset())
    last = first + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return first * tensor.element_size(), (last + 1) * tensor.element_size()
