"""Collects ONNX nodes during a walk over the FX graph; every value is typed and names are stable.

A *group* holds the ONNX nodes of one fx node. Its final values take the fx name (`view_3`, or `split.1` for
element 1 of a tuple); inner values are named after their operator (`add_3.Mul`); each node takes the name of
its first output. fx names contain no dot, so names cannot collide. If a translation fails, its whole group
is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from torchrlopt.onnx.attributes import make_attribute
from torchrlopt.ops.onnx_types import Dims, broadcast, onnx_dtype, set_type, value_dims, value_dtype


class Untranslatable(Exception):  # noqa: N818 - a verdict on one node, never seen outside the capture
    """This translator cannot handle the fx node: others are tried, and as a last resort it becomes opaque."""


Scalar = bool | int | float
Result = ir.Value | Sequence[ir.Value | None]


class GraphBuilder:
    """The ONNX graph under construction.

    Attributes:
        inputs: graph inputs, in order.
        constants: Constant nodes, deduplicated by type, shape and bytes; they precede all other nodes.
        nodes: nodes of all closed groups, in topological order.
    """

    def __init__(self) -> None:
        self.inputs: list[ir.Value] = []
        self.constants: list[ir.Node] = []
        self.nodes: list[ir.Node] = []
        self._shared: dict[tuple[object, ...], ir.Value] = {}
        self._group: list[ir.Node] = []

    def add_input(self, name: str, dtype: torch.dtype, dims: Dims) -> ir.Value:
        """Adds a graph input."""
        value = ir.Value(name=name)
        set_type(value, dtype, dims)
        self.inputs.append(value)
        return value

    def op(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        dtype: torch.dtype | None = None,
        dims: Dims | None = None,
        **attributes: Any,
    ) -> ir.Value:
        """Adds a node of the default domain to the open group and returns its one output.

        Its dtype is that of the first input unless given, its dims those of an elementwise operator. Inputs
        and attributes that are None are omitted.
        """
        present = [value for value in inputs if value is not None]
        out_dtype = dtype if dtype is not None else value_dtype(present[0])
        out_dims = dims if dims is not None else broadcast(*map(value_dims, present))
        return self.op_many(op_type, inputs, [(out_dtype, out_dims)], **attributes)[0]

    def op_many(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        outputs: Sequence[tuple[torch.dtype, Dims]],
        domain: str = "",
        **attributes: Any,
    ) -> list[ir.Value]:
        """Adds a node with any number of outputs, typed (dtype, dims), to the open group."""
        kept = list(inputs)
        while kept and kept[-1] is None:
            kept.pop()
        node = ir.Node(
            domain,
            op_type,
            kept,
            [make_attribute(name, value) for name, value in attributes.items() if value is not None],
            num_outputs=len(outputs),
        )
        for value, (dtype, dims) in zip(node.outputs, outputs, strict=True):
            set_type(value, dtype, dims)
        self._group.append(node)
        return list(node.outputs)

    def open_operators(self) -> set[str]:
        """Returns the operators of the nodes in the open group."""
        return {node.op_type for node in self._group}

    def add_nodes(self, nodes: Sequence[ir.Node]) -> None:
        """Adds ready-made, typed nodes to the open group."""
        self._group.extend(nodes)

    def scalar(self, value: Scalar, dtype: torch.dtype) -> ir.Value:
        """Returns `value` as a 0-d constant of a dtype.

        Raises:
            Untranslatable: the dtype cannot represent the value. ATen computes with the number itself: it
                divides float16 tensors by 65536, which overflows to infinity in float16.
        """
        held = torch.tensor(value, dtype=dtype)
        if dtype.is_floating_point and math.isfinite(value):
            error = abs(held.double().item() - value)
            if not error <= torch.finfo(dtype).eps * abs(value):
                raise Untranslatable(f"{value!r} in {dtype}")
        return self.constant(held)

    def ints(self, values: Sequence[int]) -> ir.Value:
        """Returns a 1-d int64 constant, as used for axes, shapes and pads."""
        return self.constant(torch.tensor(list(values), dtype=torch.int64))

    def constant(self, tensor: torch.Tensor, name: str | None = None) -> ir.Value:
        """Returns the value of a Constant node of a small real tensor, on any device.

        Equal contents share one node, unless it has a name.
        """
        host = tensor.detach().cpu().contiguous()
        dims = tuple(host.shape)
        # Copy: an expanded one-element tensor counts as contiguous but its stride rules out a view as bytes.
        dense = host.reshape(-1).clone(memory_format=torch.contiguous_format)
        content = dense.view(torch.uint8).numpy().tobytes() if host.numel() else b""
        key = (host.dtype, dims, content)
        found = self._shared.get(key) if name is None else None
        if found is not None:
            return found
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", _tensor(host.dtype, dims, content))])
        node.name = name if name is not None else f"const.{len(self.constants)}"
        value = node.outputs[0]
        value.name = node.name
        set_type(value, host.dtype, dims)
        self.constants.append(node)
        if name is None:
            self._shared[key] = value
        return value

    def cast(self, value: ir.Value, dtype: torch.dtype) -> ir.Value:
        """Returns the value in a dtype, with a Cast if needed."""
        if value_dtype(value) == dtype:
            return value
        return self.op("Cast", value, dtype=dtype, to=int(onnx_dtype(dtype)))

    def identity(self, value: ir.Value) -> ir.Value:
        """Returns a copy of the value: the translation of a functional clone."""
        return self.op("Identity", value)

    def discard_group(self) -> None:
        """Drops the open group after its translation failed half-way."""
        for node in reversed(self._group):
            for index in range(len(node.inputs)):
                node.replace_input_with(index, None)
        self._group.clear()

    def close_group(
        self, name: str, result: Result, types: Sequence[tuple[torch.dtype, Dims] | None]
    ) -> None:
        """Names and types the values of the open group, and appends its nodes.

        Args:
            name: name of the fx node.
            result: its value, or the elements of its tuple.
            types: dtype and dims that the tracer recorded for each of them.
        """
        single = isinstance(result, ir.Value)
        elements: Sequence[ir.Value | None] = [result] if isinstance(result, ir.Value) else result
        made = {id(value) for node in self._group for value in node.outputs}
        for index, (value, known) in enumerate(zip(elements, types, strict=True)):
            # A value of an earlier group keeps its name; this fx node is an alias of it.
            if value is None or id(value) not in made or value.name is not None:
                continue
            value.name = name if single else f"{name}.{index}"
            if known is not None:
                _adopt_type(value, *known)
        counts: dict[str, int] = {}
        for node in self._group:
            for value in node.outputs:
                if value.name is None:
                    count = counts[node.op_type] = counts.get(node.op_type, -1) + 1
                    value.name = f"{name}.{node.op_type}" + (f"_{count}" if count else "")
            node.name = node.outputs[0].name
        self.nodes.extend(self._group)
        self._group = []


def _adopt_type(value: ir.Value, dtype: torch.dtype, dims: Dims) -> None:
    """Sets the type that the tracer recorded; rejects a translation whose own type contradicts it."""
    found = value_dtype(value), value_dims(value)
    if found == (dtype, dims):
        return
    same_dims = len(found[1]) == len(dims) and all(
        a == b or isinstance(a, str) or isinstance(b, str) for a, b in zip(found[1], dims, strict=True)
    )
    if found[0] != dtype or not same_dims:
        raise Untranslatable(f"{value.name}: translated to {found}, traced as {(dtype, dims)}")
    set_type(value, dtype, dims)


def _tensor(dtype: torch.dtype, dims: Sequence[int], content: bytes) -> ir.TensorProtocol:
    onnx = onnx_dtype(dtype)
    array = np.frombuffer(content, dtype=onnx.numpy()).reshape([int(dim) for dim in dims])
    return ir.Tensor(array, dtype=onnx)
