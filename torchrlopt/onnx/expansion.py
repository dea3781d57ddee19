"""Decomposes an ONNX node: collects equivalent nodes and puts them in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir
from numpy.typing import NDArray

from torchrlopt.errors import UnsupportedError


class Expansion:
    """Nodes that together replace one node; the last one added provides its output.

    Args:
        node: the node to replace; it has one output (any others must not be read).
    """

    def __init__(self, node: onnx_ir.Node) -> None:
        self.node = node
        self.nodes: list[onnx_ir.Node] = []
        self._label = node.name or node.outputs[0].name

    def put_in_place(self) -> None:
        """Replace the node in its graph; the output keeps its name, type and shape."""
        graph, node = self.node.graph, self.node
        assert isinstance(graph, onnx_ir.Graph)
        graph.insert_before(node, self.nodes)
        last, output = self.nodes[-1].outputs[0], node.outputs[0]
        onnx_ir.convenience.replace_all_uses_with(output, last, replace_graph_outputs=True)
        last.type, last.shape = output.type, output.shape
        name = output.name
        graph.remove(node, safe=True)
        last.name = name

    # ---- what is known about operands

    def operand(self, index: int) -> onnx_ir.Value:
        """A required input."""
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        if value is None:
            raise UnsupportedError("an operand is missing", where=str(self.node.name), got=self.node.op_type)
        return value

    def rank(self, value: onnx_ir.Value) -> int:
        """Number of dimensions."""
        if value.shape is None:
            raise UnsupportedError("an operand has no shape", where=str(self.node.name), got=value.name)
        return len(value.shape)

    def size(self, value: onnx_ir.Value, axis: int) -> int:
        """A size that must be known."""
        size = None if value.shape is None else value.shape[axis]
        if not isinstance(size, int):
            raise UnsupportedError(
                "a size has to be known to take the operator apart",
                where=f"{self.node.name}, axis {axis} of {value.name}",
                got=size,
            )
        return size

    # ---- nodes

    def add(
        self,
        op: str,
        inputs: Sequence[onnx_ir.Value | None],
        attributes: Sequence[onnx_ir.Attr] = (),
        like: onnx_ir.Value | None = None,
    ) -> onnx_ir.Value:
        """Append a node of the default domain with one output.

        The output has the dtype of `like`; without it, type and shape of the replaced node's output.
        """
        own = self.node.outputs[0]
        output = onnx_ir.Value(
            name=f"{self._label}.{len(self.nodes)}",
            type=own.type if like is None else like.type,
            shape=own.shape if like is None else None,
        )
        name = f"{self._label}.{op}_{len(self.nodes)}"
        self.nodes.append(onnx_ir.Node("", op, inputs, attributes, outputs=[output], name=name))
        return output

    def _constant(self, array: NDArray[Any], dtype: onnx_ir.DataType) -> onnx_ir.Value:
        tensor = onnx_ir.tensor(array, dtype=dtype)
        value = self.add("Constant", [], [onnx_ir.Attr("value", onnx_ir.AttributeType.TENSOR, tensor)])
        value.type, value.shape = onnx_ir.TensorType(dtype), onnx_ir.Shape(array.shape)
        return value

    def scalar(self, number: float, like: onnx_ir.Value) -> onnx_ir.Value:
        """A 0-d constant with the dtype of `like`."""
        dtype = like.dtype
        if dtype is None:
            raise UnsupportedError("an operand has no type", where=str(self.node.name), got=like.name)
        return self._constant(np.asarray(number, dtype=dtype.numpy()), dtype)

    def repeated(self, number: float, count: int, like: onnx_ir.Value) -> onnx_ir.Value:
        """A 1-d constant with the dtype of `like`, filled with one number."""
        dtype = like.dtype
        if dtype is None:
            raise UnsupportedError("an operand has no type", where=str(self.node.name), got=like.name)
        return self._constant(np.full(count, number, dtype=dtype.numpy()), dtype)

    def ints(self, numbers: Sequence[int]) -> onnx_ir.Value:
        """A 1-d int64 constant."""
        return self._constant(np.asarray(numbers, dtype=np.int64), onnx_ir.DataType.INT64)

    def int_scalar(self, number: int) -> onnx_ir.Value:
        """A 0-d int64 constant."""
        return self._constant(np.asarray(number, dtype=np.int64), onnx_ir.DataType.INT64)

    def length(self, value: onnx_ir.Value, axis: int) -> onnx_ir.Value:
        """A size as a 0-d int64 value; read at run time if it is unknown."""
        size = None if value.shape is None else value.shape[axis]
        if isinstance(size, int):
            return self.int_scalar(size)
        index = self.int_scalar(axis)
        return self.add("Gather", [self.add("Shape", [value], like=index), index], like=index)

    def mul(self, a: onnx_ir.Value, b: onnx_ir.Value) -> onnx_ir.Value:
        """`a * b` with the dtype and shape of `a`, to which `b` is broadcast."""
        result = self.add("Mul", [a, b], like=a)
        result.shape = a.shape
        return result

    def cast(self, value: onnx_ir.Value, dtype: onnx_ir.DataType) -> onnx_ir.Value:
        """Cast the value to another dtype."""
        result = self.add("Cast", [value], [onnx_ir.AttrInt64("to", int(dtype))])
        result.type, result.shape = onnx_ir.TensorType(dtype), value.shape
        return result

    def transpose(self, value: onnx_ir.Value, order: Sequence[int]) -> onnx_ir.Value:
        """Permute the axes."""
        result = self.add("Transpose", [value], [onnx_ir.AttrInt64s("perm", list(order))], like=value)
        if value.shape is not None:
            result.shape = onnx_ir.Shape([value.shape[axis] for axis in order])
        return result

    def reshape(self, value: onnx_ir.Value, shape: Sequence[int]) -> onnx_ir.Value:
        """Reshape; 0 keeps a size, -1 is inferred."""
        return self.add("Reshape", [value, self.ints(shape)], like=value)

    def concat(self, values: Sequence[onnx_ir.Value], axis: int) -> onnx_ir.Value:
        """Concatenate the values."""
        return self.add("Concat", values, [onnx_ir.AttrInt64("axis", axis)], like=values[0])

    def split(self, value: onnx_ir.Value, sizes: Sequence[int], axis: int) -> list[onnx_ir.Value]:
        """Consecutive pieces of these sizes, one Slice each because a node here has one output."""
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        return [
            self.add(
                "Slice",
                [value, self.ints([start]), self.ints([start + size]), self.ints([axis])],
                like=value,
            )
            for start, size in zip(starts, sizes, strict=True)
        ]
