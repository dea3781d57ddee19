"""Facts about AOTAutograd's ATen graph: its content key, and whether it may be rewritten.

The key makes a recompilation that does not change the graph a cache hit, which takes milliseconds.
"""

from __future__ import annotations

import hashlib
import operator
import re
import types
import uuid
from collections.abc import Collection
from typing import Any

import torch

from torchrlopt.capture.effects import has_effect, is_assertion
from torchrlopt.torch_private.operators import OpOverload, schema_of
from torchrlopt.torch_private.pytree import tree_leaves, tree_map

NO_OPERATORS = "the graph has no operators"

_SYMBOL = re.compile(r"\b[su]\d+\b")


def content_key(aten: torch.fx.GraphModule, static_indices: Collection[int]) -> str:
    """SHA-256 (hexadecimal) over operators, arguments, types, strides and constants of the graph.

    Two graphs with equal keys compute the same function of their inputs, of which some (`static_indices`) are
    weights; shape symbols and node names do not matter.
    """
    numbers: dict[torch.fx.Node, int] = {}
    lines = [f"static {sorted(static_indices)}"]
    for node in aten.graph.nodes:
        numbers[node] = len(numbers)
        operands = tree_map(
            lambda a: _Operand(numbers[a]) if isinstance(a, torch.fx.Node) else a, (node.args, node.kwargs)
        )
        what = _constant_text(aten, node.target) if node.op == "get_attr" else _target_text(node.target)
        if node.op in ("placeholder", "output"):
            what = ""
        lines.append(f"{node.op} {what} {operands} {_meta_text(node.meta.get('val'))}")
    symbols: dict[str, str] = {}
    text = _SYMBOL.sub(lambda m: symbols.setdefault(m[0], f"S{len(symbols)}"), "\n".join(lines))
    return hashlib.sha256(text.encode()).hexdigest()


class _Operand:
    """Stands for a node in an argument list; prints as its number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"%{self.number}"


def _target_text(target: Any) -> str:
    """Return a name of the callee that is the same in every process."""
    if isinstance(target, types.FunctionType):  # its str() holds an address
        return f"{target.__module__}.{target.__qualname__}"
    return str(target)


def _meta_text(value: Any) -> str:
    """Type, shape, strides and device of a node's result."""
    if isinstance(value, (tuple, list)):
        return f"({', '.join(_meta_text(item) for item in value)})"
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout is torch.strided else value.layout
        return f"{value.dtype} {tuple(value.shape)} {strides} {value.device}"
    return str(value)


def _constant_text(aten: torch.fx.GraphModule, target: Any) -> str:
    """Content of a lifted constant; one whose content is not visible equals nothing, not even itself."""
    value = operator.attrgetter(str(target))(aten)
    if isinstance(value, torch.fx.GraphModule):
        return content_key(value, ())
    if not isinstance(value, torch.Tensor) or not _has_plain_data(value):
        # An object's address may be reused, and differs in the next process.
        return f"{type(value).__name__} {uuid.uuid4().hex}"
    # Copied: a contiguous tensor may still have the strides of an expanded one, which view(uint8) rejects.
    dense = value.detach().cpu().flatten().clone(memory_format=torch.contiguous_format)
    raw: Any = dense.view(torch.uint8).numpy()
    return f"{value.dtype} {tuple(value.shape)} {value.device} {hashlib.sha256(raw).hexdigest()}"


def _has_plain_data(tensor: torch.Tensor) -> bool:
    """False for tensors without plain storage: on the meta device, sparse, quantised, or subclasses."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_meta
    )


def reason_to_leave_alone(aten: torch.fx.GraphModule) -> str | None:
    """Return why the graph must not be rewritten; None if it may be.

    Random operators, complex inputs and outputs, tensors on several devices and tensors that are not plain
    strided ones stay with PyTorch. So do calls that are made for their side effects, as the check would
    repeat them. On the CPU, assertions may be repeated: one that fails raises there, but would disable a GPU
    for good.
    """
    devices: set[torch.device] = set()
    num_operators = 0
    assertion: torch.fx.Node | None = None
    returned = set(aten.graph.output_node().all_input_nodes)
    for node in aten.graph.nodes:
        if node.op == "call_function":
            num_operators += 1
            if _draws_random_numbers(node):
                return f"the graph draws random numbers ({node.target})"
            if has_effect(node):
                if not is_assertion(node):
                    return f"the graph calls an operator for its effect ({node.target})"
                if "assert_async" in str(node.target):  # the others read numbers in CPU memory
                    assertion = node
        for value in _tensors(node.meta.get("val")):
            devices.add(value.device)
            if value.is_complex() and (node.op == "placeholder" or node in returned):
                return f"the graph takes or returns complex tensors ({node.name})"
            if value.layout is not torch.strided or value.is_quantized:
                return f"the graph has sparse or quantised tensors ({node.name})"
    if len(devices) > 1:
        return f"the graph is on several devices ({', '.join(sorted(map(str, devices)))})"
    if assertion is not None and {device.type for device in devices} - {"cpu"}:
        return f"the graph asserts something on a GPU ({assertion.target})"
    if torch.device("meta") in devices:
        return "tensors on the meta device hold no data"
    if num_operators == 0:
        return NO_OPERATORS
    return None


def _draws_random_numbers(node: torch.fx.Node) -> bool:
    """True for random operators, but not for attention or dropout with probability 0."""
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    for position, argument in enumerate(schema_of(target).arguments):
        if argument.name in ("dropout_p", "train"):
            given = node.args[position : position + 1] or (argument.default_value,)
            return bool(node.kwargs.get(argument.name, given[0]))
    return True


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def device_of(aten: torch.fx.GraphModule) -> torch.device:
    """Return the device of the graph's tensors (CPU if it has none).

    CPU scalars that a graph on another device reads do not count.
    """
    for node in aten.graph.nodes:
        for value in _tensors(node.meta.get("val")):
            if value.device.type != "cpu":
                return value.device
    return torch.device("cpu")
