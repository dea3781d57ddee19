"""Bounds the integer inputs of a runtime, so that out-of-range values behave as in PyTorch.

PyTorch raises if an index is out of range or a divisor is 0. ONNX counts negative indices from the end,
OpenVINO reads zeros or another row, and a division that traps kills the program. So the inputs that indices
and divisors come from are checked in every call; if one is out of range, the original runs, which raises
PyTorch's error. Values computed inside the graph must be in range for all inputs, or the node is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir
import torch

from torchrlopt.executors.onnx_runtimes.integer_ranges import (
    Range,
    Ranges,
    attribute,
    constant_range,
    size_of,
)

Bounds = tuple[float, float]

_OUTSIDE = "positions that may be out of range, where PyTorch raises"
_DIVISION = "integers may be divided by 0, or by -1 where that overflows"

_AXIS_READERS = {"Gather": 0, "GatherElements": 0, "ScatterElements": 0}
"""Operators whose second operand holds indices along `axis` of the first; maps to the default of `axis`."""

_NEVER_RAISE = frozenset({"OneHot", "RotaryEmbedding"})
"""These return something for any index, even in a runtime that otherwise raises if one is too large."""

_CLASS_READERS = frozenset({"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"})


def _lookups(node: onnx_ir.Node) -> Iterator[tuple[onnx_ir.Value | None, int | None]]:
    """The indices that a node takes, each with the size of the axis that they index."""
    data = node.inputs[0] if node.inputs else None
    if node.op_type in _AXIS_READERS:
        yield node.inputs[1], size_of(data, attribute(node, "axis", _AXIS_READERS[node.op_type]))
    elif node.op_type in _CLASS_READERS:
        yield node.inputs[1], size_of(data, 1)
    elif node.op_type == "OneHot":
        depth = constant_range(node.inputs[1]) if node.inputs[1] is not None else None
        yield data, None if depth is None else int(depth.low)
    elif node.op_type == "RotaryEmbedding" and len(node.inputs) > 3 and node.inputs[3] is not None:
        yield node.inputs[3], size_of(node.inputs[1], 0)
    elif node.op_type in ("GatherND", "ScatterND"):
        yield from _columns(node, attribute(node, "batch_dims", 0))


def _columns(node: onnx_ir.Node, first: int) -> Iterator[tuple[onnx_ir.Value | None, int | None]]:
    """The index columns, one per axis; if they are not separate values, all of them for each axis."""
    data, positions = node.inputs[0], node.inputs[1]
    count = size_of(positions, -1)
    if count is None:
        yield None, None
        return
    joined = None if positions is None else positions.producer()
    is_joined = joined is not None and joined.op_type == "Concat" and len(joined.inputs) == count
    for at in range(count):
        column = joined.inputs[at] if is_joined and joined is not None else positions
        yield column, size_of(data, first + at)


class _Search:
    """Goes over a model once and collects bounds and refusals."""

    def __init__(self, model: onnx_ir.Model, raises_above: bool) -> None:
        self.ranges = Ranges(model)
        self.raises_above = raises_above
        self.bounds: dict[str, Bounds] = {}
        self.refused: dict[onnx_ir.Node, str] = {}
        for node in model.graph:
            if node.domain:
                continue
            raises = self.raises_above and node.op_type not in _NEVER_RAISE
            if not all(self._fits(value, size, raises) for value, size in _lookups(node)):
                self.refused[node] = _OUTSIDE
            if node.op_type in ("Div", "Mod") and not self._divides(node):
                self.refused[node] = _DIVISION

    def _fits(self, value: onnx_ir.Value | None, size: int | None, raises_above: bool) -> bool:
        """Whether indices are in range as long as the inputs are; records the bounds of those inputs."""
        found = self.ranges.of(value)
        if value is None or found is None:
            return False
        if onnx_ir.convenience.get_const_tensor(value) is not None:
            # Capture has seen that PyTorch accepts them, including negative ones.
            return size is None or (-size <= found.low and found.high < size)
        if size is None and not raises_above:
            return False
        high = math.inf if size is None else size - 1
        is_possible = found.low <= found.high
        if is_possible and (found.low < 0 or (found.high > high and not raises_above)):
            return False
        self._bound(found, 0, high)
        return True

    def _divides(self, node: onnx_ir.Node) -> bool:
        """Whether the processor can do a division without trapping."""
        dividend, divisor = map(self.ranges.of, node.inputs)
        dtype = node.outputs[0].dtype
        if dtype is None or not dtype.is_integer():
            return True
        if divisor is None:
            return False
        constant = onnx_ir.convenience.get_const_tensor(node.inputs[1])  # type: ignore[arg-type]
        if constant is not None:
            numbers = constant.numpy()
            is_small = dividend is not None and dividend.is_known and dividend.low > dtype.min
            return bool((numbers != 0).all() and (is_small or (numbers != -1).all()))
        if divisor.low <= divisor.high and divisor.low < 1:
            return False
        self._bound(divisor, 1, math.inf)
        return True

    def _bound(self, found: Range, low: float, high: float) -> None:
        for name, (least, most) in found.inputs.items():
            known = self.bounds.get(name, (-math.inf, math.inf))
            self.bounds[name] = max(known[0], low - least), min(known[1], high - most)


def out_of_range(model: onnx_ir.Model, raises_above: bool) -> dict[onnx_ir.Node, str]:
    """The nodes that may get indices or divisors for which PyTorch raises, with reasons.

    Args:
        model: not modified.
        raises_above: whether the runtime itself raises if an index is too large.
    """
    return _Search(model, raises_above).refused


def bounds_of(model: onnx_ir.Model, raises_above: bool) -> Mapping[str, Bounds]:
    """The bounds of the elements of integer inputs, by name; see `out_of_range`."""
    return _Search(model, raises_above).bounds


def are_within(tensors: Sequence[torch.Tensor], bounds: Sequence[Bounds | None]) -> bool:
    """Whether all elements are within their bounds.

    Args:
        tensors: in CPU memory.
        bounds: of each tensor; None if there are none.
    """
    return all(_is_within(tensor, *each) for tensor, each in zip(tensors, bounds, strict=True) if each)


def _is_within(tensor: torch.Tensor, low: float, high: float) -> bool:
    if tensor.numel() == 0:
        return True
    # PyTorch's reductions would wake its threads, which then spin while the runtime computes.
    array = tensor.detach().numpy()
    return bool(low <= array.min() and array.max() <= high)
