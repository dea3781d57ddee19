"""The converter table, and the view of an ONNX node that a converter receives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import onnx_ir
import torch
from torch import fx

from torchrlopt.errors import LoweringError
from torchrlopt.ops.emitter import Emitter, Entry, Ints

T = TypeVar("T")

Result = Entry | tuple[Entry | None, ...]
Converter = Callable[[Emitter, "OpCall"], Result]

FROM_FRONT = "from_front"
"""Key in `meta` of a node whose positions only count from the front."""

CONVERTERS: dict[tuple[str, str], Converter] = {}
"""Converters by (domain, operator type); the default domain is ""."""


class OpCall:
    """One ONNX node, with its inputs as entries and its attributes as plain values.

    Attributes:
        inputs: one entry per input slot; None for an omitted one.
        num_outputs: number of outputs, including omitted ones.
        wanted: for each output, whether anything may read it.
        is_from_front: whether PyTorch rejects positions that count from the end.
    """

    def __init__(self, node: onnx_ir.Node, inputs: Sequence[Entry | None], emitter: Emitter) -> None:
        self.op_type = node.op_type
        self.name = node.name or (node.outputs[0].name if node.outputs else "") or node.op_type
        self.inputs = tuple(inputs)
        self.num_outputs = len(node.outputs)
        self.wanted = tuple(bool(output.name) for output in node.outputs)
        self.is_from_front = bool(node.meta.get(FROM_FRONT))
        self.attributes: Mapping[str, Any] = {
            name: _plain(attribute) for name, attribute in node.attributes.items()
        }
        self._emitter = emitter

    def attr(self, name: str, default: Any = None) -> Any:
        """Value of an attribute; `default` if it is absent."""
        value = self.attributes.get(name)
        return default if value is None else value

    def choice(self, name: str, default: str, table: Mapping[str, T]) -> T:
        """Look up the text of an attribute in a table.

        Raises:
            LoweringError: the table has no such text; a file may contain any.
        """
        value = self.attr(name, default)
        if value not in table:
            raise self.unsupported(f"{name}={value!r}")
        return table[value]

    def required(self, name: str) -> Any:
        """Value of a required attribute.

        Raises:
            LoweringError: it is absent.
        """
        value = self.attributes.get(name)
        if value is None:
            raise LoweringError(f"{self.op_type} needs the attribute {name}", where=self.name)
        return value

    def entry(self, index: int) -> Entry:
        """Entry of a required input.

        Raises:
            LoweringError: it is omitted.
        """
        found = self.maybe(index)
        if found is None:
            raise LoweringError(f"{self.op_type} needs input {index}", where=self.name)
        return found

    def maybe(self, index: int) -> Entry | None:
        """Entry of an input; None if it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def x(self, index: int) -> fx.Node:
        """Node of a required input."""
        return self._emitter.tensor(self.entry(index))

    def maybe_x(self, index: int) -> fx.Node | None:
        """Node of an input; None if it is omitted."""
        found = self.maybe(index)
        return None if found is None else self._emitter.tensor(found)

    def all_x(self) -> list[fx.Node]:
        """Nodes of all inputs; none may be omitted."""
        return [self.x(index) for index in range(len(self.inputs))]

    def number(self, index: int) -> float | int | None:
        """The number in a one-element constant input; None if the input is omitted.

        Raises:
            LoweringError: the input is not a constant.
        """
        found = self.maybe(index)
        if found is None:
            return None
        if isinstance(found, torch.Tensor) and found.numel() == 1:
            value: float | int = found.reshape(()).item()
            return value
        if isinstance(found, Ints) and len(found.elements) == 1 and isinstance(found.elements[0], int):
            return found.elements[0]
        raise self.unsupported(f"input {index} that is no constant")

    def unsupported(self, what: str) -> LoweringError:
        """The error for a form of the operator without a converter."""
        return LoweringError(f"{self.op_type} with {what} has no converter", where=self.name)


def converts(*op_types: str, domain: str = "") -> Callable[[Converter], Converter]:
    """Register a converter for the given operator types."""

    def enter(function: Converter) -> Converter:
        for op_type in op_types:
            if (domain, op_type) in CONVERTERS:
                raise ValueError(f"two converters for {domain}:{op_type}")
            CONVERTERS[(domain, op_type)] = function
        return function

    return enter


def _plain(attribute: onnx_ir.Attr) -> Any:
    """The value of an attribute; lists as tuples, strings as str."""
    if attribute.type in (onnx_ir.AttributeType.INTS, onnx_ir.AttributeType.FLOATS):
        return tuple(attribute.value)
    return attribute.value
