"""Derives the ranges of a model's integers from its operators.

An element is in a known range, or it is an element of a model input plus a known offset. The values of inputs
are checked when the model is called.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx_ir

from torchrlopt.ops.traits import ONNX_VIEWS

_MOVES = ONNX_VIEWS | {"Gather", "GatherElements", "GatherND", "ReduceMax", "ReduceMin", "Tile"}
_BOOLEAN = frozenset(
    {"And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor"}
)


@dataclasses.dataclass(frozen=True)
class Range:
    """The possible values of an element.

    Attributes:
        low: lower bound of the values that do not come from an input; above `high` if there are none.
        high: upper bound of these.
        inputs: the inputs that it may be an element of, by name, with the range of the added offset.
    """

    low: float = math.inf
    high: float = -math.inf
    inputs: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)

    def __or__(self, other: Range) -> Range:
        """Either of the two."""
        inputs = dict(self.inputs)
        for name, (low, high) in other.inputs.items():
            known = inputs.get(name, (low, high))
            inputs[name] = min(low, known[0]), max(high, known[1])
        return Range(min(self.low, other.low), max(self.high, other.high), inputs)

    def plus(self, low: float, high: float) -> Range:
        """The range after adding something between two numbers."""
        inputs = {name: (least + low, most + high) for name, (least, most) in self.inputs.items()}
        return Range(self.low + low, self.high + high, inputs)

    @property
    def is_known(self) -> bool:
        """Whether the range does not depend on inputs."""
        return not self.inputs


_NATURAL = Range(0, math.inf)


class Ranges:
    """The ranges of a model's integers, and of floats that cannot be NaN; other values may be anything.

    Args:
        model: values are typed if their types are known; it must not change meanwhile.
    """

    def __init__(self, model: onnx_ir.Model) -> None:
        self._inputs = set(model.graph.inputs)
        self._found: dict[onnx_ir.Value, Range | None] = {}
        for node in model.graph:
            rule = None if node.domain else RULES.get(node.op_type)
            for output in node.outputs:
                known = constant_range(output)
                self._found[output] = _finite(known or (rule(node, output, self) if rule else None), output)

    def of(self, value: onnx_ir.Value | None) -> Range | None:
        """The range of a value."""
        if value is None:
            return None
        if value not in self._found:
            given = Range(inputs={str(value.name): (0, 0)}) if value in self._inputs else None
            self._found[value] = _finite(constant_range(value) or given, value)
        return self._found[value]

    def known(self, value: onnx_ir.Value | None) -> Range | None:
        """The range of a value that depends on no input."""
        found = self.of(value)
        return found if found is not None and found.is_known else None

    def any_of(self, values: Iterable[onnx_ir.Value | None]) -> Range | None:
        """The union of the ranges of these values."""
        whole = Range()
        for value in values:
            found = self.of(value)
            if found is None:
                return None
            whole |= found
        return whole


def _finite(found: Range | None, value: onnx_ir.Value) -> Range | None:
    """The range, unless it is of floats that may be infinite: of two such, Sub and Mul may give NaN."""
    dtype = value.dtype
    if found is None or dtype is None or not dtype.is_floating_point():
        return found
    return found if dtype.min <= found.low and found.high <= dtype.max else None


def constant_range(value: onnx_ir.Value) -> Range | None:
    """The range of a constant's elements, or of its whole type if that is narrow."""
    tensor = onnx_ir.convenience.get_const_tensor(value)
    if tensor is not None and tensor.size == 0:
        return Range()
    if tensor is not None and tensor.dtype not in (onnx_ir.DataType.STRING, onnx_ir.DataType.BFLOAT16):
        array = tensor.numpy()
        low, high = float(np.min(array)), float(np.max(array))
        return Range(low, high) if low <= high else None
    return Range(0, 1) if value.dtype == onnx_ir.DataType.BOOL else None


def size_of(value: onnx_ir.Value | None, axis: int) -> int | None:
    """A size, if it is known."""
    if value is None or value.shape is None or not value.shape:
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) else None


def attribute(node: onnx_ir.Node, name: str, default: int) -> int:
    """An integer attribute."""
    found = node.attributes.get(name)
    return default if found is None else int(found.value)


Rule = Callable[[onnx_ir.Node, onnx_ir.Value, Ranges], "Range | None"]
RULES: dict[str, Rule] = {}


def _rule(*operators: str) -> Callable[[Rule], Rule]:
    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(operators, function))
        return function

    return enter


@_rule(*_MOVES)
def _moved(node: onnx_ir.Node, output: onnx_ir.Value, ranges: Ranges) -> Range | None:
    return ranges.of(node.inputs[0])


@_rule(*_BOOLEAN)
def _boolean(node: onnx_ir.Node, output: onnx_ir.Value, ranges: Ranges) -> Range | None:
    return Range(0, 1)


@_rule("Cast")
def _cast(node: onnx_ir.Node, output: onnx_ir.Value, ranges: Ranges) -> Range | None:
    source, wanted = node.inputs[0], output.dtype
    if source is None or source.dtype is None or wanted is None:
        return None
    if source.dtype.is_floating_point() or wanted.is_floating_point():
        found = ranges.known(source)
        if wanted.is_floating_point():
            is_integer = source.dtype.is_integer()
            return found or (Range(float(source.dtype.min), float(source.dtype.max)) if is_integer else None)
        if found is None or not _is_finite(found):
            return found
        # A float beyond the integers gives any of them.
        is_inside = wanted.min <= found.low and found.high <= wanted.max
        return Range(math.trunc(found.low), math.trunc(found.high)) if is_inside else None
    wide = (onnx_ir.DataType.INT64, onnx_ir.DataType.INT32)
    return ranges.of(source) if wanted in wide or source.dtype == onnx_ir.DataType.BOOL else None


def _is_finite(found: Range) -> bool:
    return math.isfinite(found.low) and math.isfinite(found.high)


@_rule("Floor", "Ceil", "Round")
def _rounded(node: onnx_ir.Node, output: onnx_ir.Value, ranges: Ranges) -> Range | None:
    found = ranges.known(node.inputs[0])
    return Range(math.floor(found.low), math.ceil(found.high)) if found and _is_finite(found) else None


@_rule("Concat")
def _joined(node: onnx_ir.Node, output: onnx_ir.Value, ranges: Ranges) -> Range | None:
    return ranges.any_of(node.inputs)


@_rule("Where")
def _chosen(node: onnx_ir.Node, output: onnx_ir.Value, ranges: Ranges) -> Range | None:
    return ranges.any_of(node.inputs[1:])


@_rule("ScatterElements", "ScatterND")
def _scattered(node: onnx_ir.Node, output: onnx_ir.Value, ranges: Ranges) -> Range | None:
    reduction = node.attributes.get("reduction")
    is_sum = reduction is not None and reduction.as_string() in ("add", "mul")
    return None if is_sum else ranges.any_of((node.inputs[0], node.inputs[2]))


@_rule("ConstantOfShape")
def _filling(node: onnx_ir.Node, output: onnx_ir.Value, ranges: Ranges) -> Range | None:
    value = node.attributes.get("value")
    number = 0.0 if value is None else float(value.as_tensor().numpy().reshape(-1)[0])
    return Range(number, number)


@_rule("Pad", "Trilu")
def _filled(node: onnx_ir.Node, output: onnx_ir.Value, ranges: Ranges) -> Range | None:
    found = ranges.of(node.inputs[0])
    fill = node.inputs[2] if node.op_type == "Pad" and len(node.inputs) > 2 else None
    other = Range(0, 0) if fill is None else ranges.of(fill)
    return None if found is None or other is None else found | other


@_rule("Add", "Sub")
def _sum(node: onnx_ir.Node, output: onnx_ir.Value, ranges: Ranges) -> Range | None:
    a, b = map(ranges.of, node.inputs)
    if a is None or b is None:
        return None
    if node.op_type == "Sub":
        return a.plus(-b.high, -b.low) if b.is_known else None
    if b.is_known:
        return a.plus(b.low, b.high)
    return b.plus(a.low, a.high) if a.is_known else None


@_rule("Mul")
def _product(node: onnx_ir.Node, output: onnx_ir.Value, ranges: Ranges) -> Range | None:
    a, b = map(ranges.known, node.inputs)
    if a is None or b is None:
        return None
    ends = [0.0 if 0 in (x, y) else x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return Range(min(ends), max(ends))


@_rule("Neg")
def _negated(node: onnx_ir.Node, output: onnx_ir.Value, ranges: Ranges) -> Range | None:
    found = ranges.known(node.inputs[0])
    return None if found is None else Range(-found.high, -found.low)


@_rule("Max", "Min", "Clip")
def _limited(node: onnx_ir.Node, output: onnx_ir.Value, ranges: Ranges) -> Range | None:
    if node.op_type == "Clip":
        low, high = (ranges.known(each) for each in [*node.inputs[1:3], None, None][:2])
        floors, ceilings = [low], [high]
    else:
        found = [ranges.known(each) for each in node.inputs]
        floors, ceilings = (found, []) if node.op_type == "Max" else ([], found)
    least = max((each.low for each in floors if each), default=-math.inf)
    most = min((each.high for each in ceilings if each), default=math.inf)
    whole = ranges.any_of(node.inputs) if node.op_type != "Clip" else ranges.of(node.inputs[0])
    if whole is None and (output.dtype is None or output.dtype.is_floating_point()):
        return None  # NaN passes the bounds
    if math.isfinite(least) and math.isfinite(most):
        own = ranges.known(node.inputs[0]) or Range(-math.inf, math.inf)
        return Range(min(max(own.low, least), most), max(min(own.high, most), least))
    if whole is None or not whole.is_known:
        # Only one side is known of values that come from inputs, and calls do not check those inputs.
        return Range(least, most) if math.isfinite(least) or math.isfinite(most) else None
    return Range(max(whole.low, least), min(whole.high, most))


@_rule("Mod")
def _remainder(node: onnx_ir.Node, output: onnx_ir.Value, ranges: Ranges) -> Range | None:
    divisor = ranges.known(node.inputs[1])
    if divisor is None or divisor.low < 1 or attribute(node, "fmod", 0):
        return None
    return Range(0, divisor.high - 1)


@_rule("Div")
def _quotient(node: onnx_ir.Node, output: onnx_ir.Value, ranges: Ranges) -> Range | None:
    found, divisor = map(ranges.known, node.inputs)
    is_integer = output.dtype is not None and output.dtype.is_integer()
    if found is None or divisor is None or divisor.low < 1 or not is_integer:
        return None
    # Truncated towards zero; the largest divisor gives the result nearest to zero.
    ends = [end if math.isinf(end) else math.trunc(end / divisor.low) for end in (found.low, found.high)]
    return Range(ends[0], ends[1]) if divisor.low == divisor.high else Range(min(ends[0], 0), max(ends[1], 0))


@_rule("ArgMax", "ArgMin")
def _place(node: onnx_ir.Node, output: onnx_ir.Value, ranges: Ranges) -> Range | None:
    size = size_of(node.inputs[0], attribute(node, "axis", 0))
    return _NATURAL if size is None else Range(0, size - 1)


@_rule("TopK")
def _places(node: onnx_ir.Node, output: onnx_ir.Value, ranges: Ranges) -> Range | None:
    if output.index() == 0:
        return ranges.of(node.inputs[0])
    size = size_of(node.inputs[0], attribute(node, "axis", -1))
    return _NATURAL if size is None else Range(0, size - 1)


@_rule("Shape", "Size", "NonZero")
def _size(node: onnx_ir.Node, output: onnx_ir.Value, ranges: Ranges) -> Range | None:
    return _NATURAL


@_rule("Range")
def _counted(node: onnx_ir.Node, output: onnx_ir.Value, ranges: Ranges) -> Range | None:
    start, limit, step = map(ranges.of, node.inputs)
    if start is None or limit is None or step is None or not start.is_known or not step.is_known:
        return None
    high = limit.high - 1 if limit.is_known else math.inf
    return Range(start.low, max(high, start.low)) if step.low >= 1 else None


@_rule("CumSum", "ReduceSum")
def _added_up(node: onnx_ir.Node, output: onnx_ir.Value, ranges: Ranges) -> Range | None:
    x, found = node.inputs[0], ranges.known(node.inputs[0])
    if x is None or x.shape is None or found is None:
        return None
    axes = (
        onnx_ir.convenience.get_const_tensor(node.inputs[1])
        if len(node.inputs) > 1 and node.inputs[1]
        else None
    )
    over = range(len(x.shape)) if axes is None else axes.numpy().reshape(-1).tolist()
    count = math.prod(size if (size := size_of(x, axis)) is not None else math.inf for axis in over)
    # For any number of terms.
    low = 0.0 if found.low >= 0 else found.low * count
    return Range(low, 0.0 if found.high <= 0 else found.high * count)
