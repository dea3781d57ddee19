"""Hand-written graphs: a thin layer over the core's builder."""

from __future__ import annotations

from typing import Any

from torchrlopt import _C

#: Attributes omitted at their defaults, as in graphs read from ONNX. Substitutions omit them too, and
#: consider two convolutions equal only if they have the same attributes.
_WINDOW_DEFAULTS = {"strides": 1, "dilations": 1, "pads": 0}

Shape = tuple[int, ...]
Value = tuple[int, int]


class Sketch:
    """A graph under construction; the core's shape inference checks every operator.

    Attributes:
        operators: number of operators so far.
    """

    def __init__(self) -> None:
        self._builder = _C.GraphBuilder()
        self._names = 0
        self.operators = 0

    def _name(self, stem: str) -> str:
        self._names += 1
        return f"{stem}{self._names}"

    def input(self, *shape: int) -> Value:
        """A float32 graph input."""
        return (self._builder.add_input(self._name("x"), ("f32", shape)), 0)

    def weight(self, *shape: int) -> Value:
        """A float32 weight."""
        return (self._builder.add_input(self._name("w"), ("f32", shape), is_weight=True), 0)

    def number(self, value: float) -> Value:
        """A scalar constant."""
        return (self._builder.add_leaf("Constant", [], {"value": [value]}, [("f32", [])]), 0)

    def op(self, op: str, *inputs: Value, **attrs: Any) -> Value:
        """Add an operator and return its first output."""
        self.operators += 1
        for name, default in _WINDOW_DEFAULTS.items():
            if name in attrs and all(number == default for number in attrs[name]):
                del attrs[name]
        return (self._builder.add_node(op, list(inputs), attrs), 0)

    def split(self, value: Value, axis: int, sizes: list[int]) -> list[Value]:
        """Add a Split and return all of its outputs."""
        self.operators += 1
        node = self._builder.add_node("Split", [value], {"axis": axis, "sizes": sizes})
        return [(node, i) for i in range(len(sizes))]

    def shape(self, value: Value) -> Shape:
        """Dimensions of a value; all are numbers here."""
        dims = self._builder.type(value)[1]
        assert dims is not None
        return tuple(int(dim) for dim in dims)

    def finish(self, *outputs: Value) -> _C.Graph:
        """Finish and return the graph."""
        self._builder.set_outputs(list(outputs), [f"y{i}" for i in range(len(outputs))])
        return self._builder.finish()

    def linear(self, x: Value, width: int, *, bias: bool = True, transposed: bool = True) -> Value:
        """X @ W + b; if `transposed`, the weight is stored as in PyTorch."""
        before = self.shape(x)[-1]
        if transposed:
            weight = self.op("Transpose", self.weight(width, before), perm=[1, 0])
        else:
            weight = self.weight(before, width)
        y = self.op("MatMul", x, weight)
        return self.op("Add", y, self.weight(width)) if bias else y

    def conv(
        self, x: Value, channels: int, kernel: int, *, stride: int = 1, group: int = 1, bias: bool = False
    ) -> Value:
        """A convolution that keeps the size, except for its stride."""
        before = self.shape(x)[1]
        inputs = [x, self.weight(channels, before // group, kernel, kernel)]
        if bias:
            inputs.append(self.weight(channels))
        pad = kernel // 2
        return self.op("Conv", *inputs, strides=[stride, stride], pads=[pad] * 4, group=group)

    def batch_norm(self, x: Value) -> Value:
        """Inference batch normalisation."""
        channels = self.shape(x)[1]
        return self.op("BatchNormalization", x, *(self.weight(channels) for _ in range(4)))

    def layer_norm(self, x: Value) -> Value:
        """Layer normalisation over the last dimension."""
        width = self.shape(x)[-1]
        return self.op("LayerNormalization", x, self.weight(width), self.weight(width))
