"""Finds the values of a model that may be NaN although its inputs and weights are finite.

NaN arises where an operator leaves its domain, such as in the logarithm of a negative number. Operands are
proved non-negative, such as sums of squares, by lower bounds. Overflow and 0 / 0 are not looked for: nearly
every model divides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable

import numpy as np
import onnx_ir
from numpy.typing import NDArray

from torchrlopt.onnx.opsets import ATEN_DOMAIN
from torchrlopt.ops.traits import ONNX_VIEWS

_NON_NEGATIVE = frozenset(
    {
        "Abs", "Exp", "HardSigmoid", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Relu", "Shape", "Sigmoid",
        "Size", "Softmax", "Softplus", "Sqrt",
    }
)  # fmt: skip
_OF_ELEMENTS = ONNX_VIEWS | {
    "Cast", "Concat", "Gather", "GatherElements", "GatherND", "GlobalMaxPool", "MaxPool", "Min", "ReduceMax",
    "ReduceMean", "ReduceMin", "Tile", "TopK", "Where",
}  # fmt: skip
"""Results lie between elements of the operands."""

_INTEGERS = (_OF_ELEMENTS | {"ConstantOfShape", "Shape", "Size"}) - {"Cast"}
"""Results are numbers of the operands, or sizes."""

_KEEPS_SIGN = frozenset(
    {
        "AveragePool",
        "Conv",
        "CumSum",
        "Div",
        "GlobalAveragePool",
        "MatMul",
        "Mul",
        "Pow",
        "Reciprocal",
        "ReduceSum",
    }
)
"""Non-negative operands give non-negative results."""

_DOMAIN = {"Log": 0.0, "ReduceLogSum": 0.0, "Sqrt": 0.0, "Acosh": 1.0}
"""The least operand that does not give NaN."""

_BOUNDED = frozenset({"Acos", "Asin", "Atanh"})


def may_be_nan(
    model: onnx_ir.Model,
    fixed: Collection[str] = (),
    is_left: Callable[[onnx_ir.Node], bool] = lambda node: node.domain == ATEN_DOMAIN,
) -> set[onnx_ir.Value]:
    """The values that may be NaN.

    Args:
        model: values are typed if their types are known.
        fixed: names of inputs that hold weights. What is computed from these alone is checked elsewhere.
        is_left: whether PyTorch runs a node if NaN reaches it. Regions behind it check their inputs.
    """
    search = _Search((value for value in model.graph.inputs if value.name in fixed), is_left)
    for node in model.graph:
        search.visit(node)
    return search.found


class _Search:
    """Goes over the nodes in order; `fixed` are the values that depend on no input but weights."""

    def __init__(self, fixed: Iterable[onnx_ir.Value], is_left: Callable[[onnx_ir.Node], bool]) -> None:
        self.found: set[onnx_ir.Value] = set()
        self._is_left = is_left
        self._fixed = set(fixed)
        self._least: dict[onnx_ir.Value, float] = {}

    def visit(self, node: onnx_ir.Node) -> None:
        """Enter what is known about a node's results."""
        read = [value for value in node.inputs if value is not None]
        if all(
            value in self._fixed or onnx_ir.convenience.get_const_tensor(value) is not None for value in read
        ):
            self._fixed.update(node.outputs)
        elif not self._is_left(node) and (self._makes_nan(node) or not self.found.isdisjoint(read)):
            self.found.update(
                value for value in node.outputs if value.dtype is None or value.dtype.is_floating_point()
            )
        self._least[node.outputs[0]] = self._result(node)

    def _makes_nan(self, node: onnx_ir.Node) -> bool:
        if node.op_type == "Pow":
            exponent = _content(node.inputs[1])
            is_whole = exponent is not None and bool((exponent == np.floor(exponent)).all())
            return not is_whole and self._of(node.inputs[0]) < 0
        if node.op_type in _DOMAIN:
            return self._of(node.inputs[0]) < _DOMAIN[node.op_type]
        return node.op_type in _BOUNDED

    def _of(self, value: onnx_ir.Value | None) -> float:
        """A lower bound of a value's elements."""
        content = _content(value)
        if content is not None:
            return float(content.min(initial=math.inf))
        return -math.inf if value is None else self._least.get(value, -math.inf)

    def _result(self, node: onnx_ir.Node) -> float:
        """A lower bound of the first result's elements."""
        name, inputs, dtype = node.op_type, node.inputs, node.outputs[0].dtype
        if dtype is not None and dtype.is_integer() and name not in _INTEGERS:
            return -math.inf  # arithmetic wraps around, and casts cut
        if name in _NON_NEGATIVE or (name == "Mul" and inputs[0] is inputs[1]):
            return 0.0
        if name == "Pow" and (exponent := _content(inputs[1])) is not None and (exponent % 2 == 0).all():
            return 0.0
        if name == "Pow" and self._of(inputs[0]) >= 0:
            return 0.0
        if name == "Clip":
            low, high = ([*inputs[1:3], None, None])[:2]
            least = max(self._of(inputs[0]), self._of(low))
            return least if high is None else min(least, self._of(high))
        mode = node.attributes.get("mode")
        if name == "Pad" and (mode is None or mode.as_string() == "constant"):
            around = inputs[2] if len(inputs) > 2 else None
            return min(self._of(inputs[0]), 0.0 if around is None else self._of(around))
        if name == "Sub" and _is_share(inputs[1]):
            return self._of(inputs[0]) - 1.0
        if name == "ConstantOfShape":
            filled = node.attributes.get("value")
            return 0.0 if filled is None else float(filled.as_tensor().numpy().min(initial=math.inf))
        if name == "Max":
            return max(map(self._of, inputs))
        if name in ("Add", "Sum"):
            found = sum(map(self._of, inputs))
            return -math.inf if math.isnan(found) else found
        if name in _OF_ELEMENTS:
            chosen = {"Concat": inputs, "Min": inputs, "Where": inputs[1:]}.get(name, inputs[:1])
            return min(map(self._of, chosen))
        given = [each for each in inputs if each is not None]
        operands = given[:1] if name in ("CumSum", "ReduceSum") else given
        return 0.0 if name in _KEEPS_SIGN and min(map(self._of, operands)) >= 0 else -math.inf


def _is_share(value: onnx_ir.Value | None) -> bool:
    """Whether no element is above 1."""
    producer = None if value is None else value.producer()
    return producer is not None and producer.op_type in ("HardSigmoid", "Sigmoid", "Softmax")


def _content(value: onnx_ir.Value | None) -> NDArray[np.float64] | None:
    """The elements of a constant as float64."""
    tensor = None if value is None else onnx_ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.dtype == onnx_ir.DataType.STRING:
        return None
    return tensor.numpy().astype(np.float64)
