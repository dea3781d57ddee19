"""Lists kernels of runtimes that are less accurate than PyTorch's, and replaces or rejects their nodes.

There is one row per runtime and operator. An error counts relative to its own element, not to the largest
one. Only results near underflow count by absolute error, unless a later operator magnifies them, as a
logarithm does. The rows were found with `tests/e2e/runtime_operators.py`, which tries every operator at nine
scales.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping

import onnx_ir

from torchrlopt.executors.onnx_runtimes import stable_forms
from torchrlopt.executors.onnx_runtimes.arising_nan import may_be_nan
from torchrlopt.onnx.opsets import ATEN_DOMAIN, STANDARD_DOMAINS
from torchrlopt.ops.traits import ONNX_MOVES, of_classes

Condition = Callable[[onnx_ir.Node], bool]

_SUMS = frozenset({"Add", "BatchNormalization", "Mean", "Sub", "Sum"})
"""Keep small numbers where all other terms are smaller: the decayed state of a recurrence, or an epsilon."""

_MAGNIFIES = frozenset({"Ceil", "Log", "Pow", "Reciprocal", "ReduceLogSum", "Sign", "Sqrt"})
"""Operators that map tiny numbers to ordinary ones; so does Div, by its divisor."""

_HIDES = frozenset(
    {
        "Acos", "Cos", "Cosh", "Equal", "Exp", "Greater", "GreaterOrEqual", "HardSigmoid", "Less",
        "LessOrEqual", "ReduceLogSumExp", "Sigmoid", "Softplus",
    }
)  # fmt: skip
"""Operators that map all tiny numbers to almost the same."""

_SCALES = (ONNX_MOVES | of_classes("Elementwise", "Transcendental")) - _SUMS - _MAGNIFIES - _HIDES
"""Operators that map small numbers to small numbers with the same relative error, such as Mul and Tanh."""

_KEEPS_SMALL = _SCALES | of_classes("Reduction") - _MAGNIFIES - _HIDES
"""With those that do so with many numbers at once, if all are small."""

_NORMALISES = frozenset(
    {
        "GroupNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "LpNormalization",
        "RMSNormalization",
    }
)
"""These divide many numbers by their size."""


def _always(node: onnx_ir.Node) -> bool:
    return True


def _is_float(node: onnx_ir.Node) -> bool:
    dtype = node.outputs[0].dtype
    return dtype is None or dtype.is_floating_point()


def _has_mask(node: onnx_ir.Node) -> bool:
    return len(node.inputs) > 3 and node.inputs[3] is not None


def _has_mask_in_double(node: onnx_ir.Node) -> bool:
    return _has_mask(node) and node.outputs[0].dtype == onnx_ir.DataType.DOUBLE


def _is_magnified(node: onnx_ir.Node) -> bool:
    """Whether a later operator or the caller sees the relative error of tiny results.

    One sum on the way hides nothing where its other terms are tiny as well. All terms of several sums, as of
    residual blocks, or of a mean or a norm of sums, are hardly ever tiny at once.
    """
    seen: set[tuple[onnx_ir.Value, bool]] = set()
    waiting = [(value, False) for value in node.outputs]
    while waiting:
        value, is_summed = waiting.pop()
        if (value, is_summed) in seen:
            continue
        seen.add((value, is_summed))
        if value.is_graph_output():
            return True
        for reader, slot in value.uses():
            if reader.op_type in _MAGNIFIES or (reader.op_type == "Div" and slot == 1):
                return True
            if reader.op_type in _NORMALISES and not is_summed:
                return True
            if reader.op_type in (_SCALES if is_summed else _KEEPS_SMALL) or reader.op_type == "Div":
                waiting += [(result, is_summed) for result in reader.outputs]
            elif reader.op_type in _SUMS and not is_summed:
                waiting += [(result, True) for result in reader.outputs]
    return False


_KEEPS_INFINITE = ONNX_MOVES | {"Add", "Cast", "Div", "Max", "Min", "Mul", "Neg", "Sub", "Sum"}


def _may_meet_infinity(node: onnx_ir.Node) -> bool:
    """Whether elements may be infinite, from a mask, a constant or a logarithm."""
    if not _is_float(node):
        return False
    seen: set[onnx_ir.Value] = set()
    waiting = [node.inputs[0]]
    while waiting:
        value = waiting.pop()
        if value is None or value in seen:
            continue
        seen.add(value)
        producer = value.producer()
        constant = onnx_ir.convenience.get_const_tensor(value)
        if producer is None and constant is None:
            return True  # an input, which may be a mask
        if constant is not None:
            if constant.dtype.is_floating_point() and not abs(constant.numpy().astype("float64")).max(
                initial=0
            ) < float("inf"):
                return True
        elif producer is not None and producer.op_type in ("Log", "LogSoftmax"):
            return True
        elif producer is not None and producer.op_type in _KEEPS_INFINITE:
            waiting.extend(producer.inputs)
    return False


def _is_variance(node: onnx_ir.Node) -> bool:
    """Whether it is the mean of the squares of `x - mean(x)`, over the same axes."""
    square = _maker(node.inputs[0], "Mul")
    if square is None or square.inputs[0] is not square.inputs[1] or not _is_float(node):
        return False
    centred = _maker(square.inputs[0], "Sub")
    mean = None if centred is None else _maker(centred.inputs[1], "ReduceMean")
    if centred is None or mean is None or mean.inputs[0] is not centred.inputs[0]:
        return False
    return _axes(mean) == _axes(node) is not None


def _maker(value: onnx_ir.Value | None, operator: str) -> onnx_ir.Node | None:
    """The node that computes a value, if it has this operator type."""
    producer = None if value is None else value.producer()
    return producer if producer is not None and producer.op_type == operator else None


def _axes(node: onnx_ir.Node) -> tuple[int, ...] | None:
    constant = _constant(node, 1)
    return None if constant is None else tuple(int(each) for each in constant.numpy().reshape(-1))


def _is_of_nothing(node: onnx_ir.Node) -> bool:
    """Whether it reduces an empty tensor."""
    x = node.inputs[0]
    return x is not None and x.shape is not None and 0 in x.shape


def _is_nearest(node: onnx_ir.Node) -> bool:
    mode = node.attributes.get("mode")
    return mode is not None and mode.as_string() == "nearest"


def _has_ties(node: onnx_ir.Node) -> bool:
    """Whether it picks the nearest element, and the rounding of a quotient may decide which that is."""
    x, result = node.inputs[0], node.outputs[0]
    mode = node.attributes.get("mode")
    if mode is not None and mode.as_string() != "nearest":
        return False
    constant = _constant(node, 2)
    factors = None if constant is None else constant.numpy().astype(float).tolist()
    if factors is None and x is not None and x.shape is not None and result.shape is not None:
        pairs = list(zip(x.shape, result.shape, strict=True))
        if all(isinstance(size, int) and isinstance(wanted, int) for size, wanted in pairs):
            factors = [int(wanted) / int(size) for size, wanted in pairs]  # type: ignore[arg-type]
    # A whole factor, or one over a whole number, makes all quotients exact.
    return not factors or not all(each.is_integer() or (1 / each).is_integer() for each in factors)


def _constant(node: onnx_ir.Node, slot: int) -> onnx_ir.TensorProtocol | None:
    """The value of an operand, if it is a constant."""
    value = node.inputs[slot] if len(node.inputs) > slot else None
    return None if value is None else onnx_ir.convenience.get_const_tensor(value)


@dataclasses.dataclass(frozen=True)
class Row:
    """What is known about an operator in a runtime.

    Attributes:
        operator: its type.
        wrong: what is wrong with the runtime's kernel, with numbers.
        form: replaces the node by a stable form; None: the node is refused, and PyTorch runs it.
        where: selects the nodes that this applies to.
    """

    operator: str
    wrong: str
    form: Callable[[onnx_ir.Node], None] | None = None
    where: Condition = _always


def _is_of_booleans(node: onnx_ir.Node) -> bool:
    return node.outputs[0].dtype == onnx_ir.DataType.BOOL


def _may_have_partial_windows_only(node: onnx_ir.Node) -> bool:
    """Whether rounding up may make the only window of an axis, which is then longer than the image."""
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    if "ceil_mode" not in node.attributes or not node.attributes["ceil_mode"].as_int():
        return False
    window = node.attributes["kernel_shape"].as_ints()
    sizes = [None] * len(window) if shape is None else list(shape)[2:]
    return any(not isinstance(size, int) or size < k for size, k in zip(sizes, window, strict=True))


def _lacks_a_bound(node: onnx_ir.Node) -> bool:
    return _is_float(node) and (len(node.inputs) < 3 or None in node.inputs[1:])


_EXP_MINUS_1 = "exp(x) - 1: no digit is right at -1e-8, 0.05 % is lost at -1e-3"
_FLOAT_SUMS = "summed in float32, one by one: 1e-5 of a sum of 4096, where PyTorch sums in float64"
_ONE_BY_ONE = "summed one by one: 3e-5 of 4096 numbers around 1e6, where a plain sum is off by 1e-7"
_TIES = "another element where two are equally near"
_NO_WINDOW = "empty where the window is longer than the image and sizes are free"
_NO_NAN = "a mean of nothing is not NaN"
_LOWEST = "-3.4e38 where all elements are -inf"
_FINITE = "an infinity becomes the largest finite number where there is no bound"

ROWS: Mapping[str, tuple[Row, ...]] = {
    # Seen in ONNX Runtime 1.31.1.
    "onnxruntime": (
        Row("Attention", "NaN where a mask leaves nothing", None, _has_mask_in_double),
        Row(
            "Attention",
            "0 where a whole row of the mask is the lowest number; no broadcasting of rows or columns",
            stable_forms.masked_attention,
            _has_mask,
        ),
        Row("Celu", _EXP_MINUS_1, stable_forms.elu),
        Row("Clip", _FINITE, stable_forms.with_infinite_bounds, _lacks_a_bound),
        Row("CumSum", _FLOAT_SUMS, stable_forms.in_double, _is_float),
        Row("Elu", _EXP_MINUS_1, stable_forms.elu),
        Row(
            "GroupNormalization",
            "mean(x^2) - mean(x)^2: 28 % are wrong of x + 1000, NaN of x + 10000",
            stable_forms.group_norm,
        ),
        Row("GridSample", _TIES, None, _is_nearest),
        Row("GRU", "0 where a gate is below -18", None, _is_magnified),
        Row("LSTM", "0 where a gate is below -18", None, _is_magnified),
        Row("MaxPool", _LOWEST, stable_forms.with_infinities, _may_meet_infinity),
        Row("ReduceMean", _NO_NAN, None, _is_of_nothing),
        Row("ReduceMean", "off by the mean's own error, squared", stable_forms.centred_again, _is_variance),
        Row("ReduceL1", _ONE_BY_ONE, stable_forms.summed, _is_float),
        Row("ReduceSumSquare", _ONE_BY_ONE, stable_forms.summed, _is_float),
        Row("Resize", _TIES, None, _has_ties),
        Row("Selu", _EXP_MINUS_1, stable_forms.elu),
        Row("Sigmoid", "0 below -18: its logarithm is -inf", stable_forms.sigmoid, _is_magnified),
    ),
    # Seen in OpenVINO 2026.4.1.
    "openvino": (
        Row("AveragePool", _NO_WINDOW, None, _may_have_partial_windows_only),
        Row("Celu", _EXP_MINUS_1, stable_forms.elu),
        Row("Clip", _FINITE, stable_forms.with_infinite_bounds, _lacks_a_bound),
        Row("CumSum", _FLOAT_SUMS, None, _is_float),
        Row("Elu", _EXP_MINUS_1, stable_forms.elu),
        Row("Erf", "a polynomial that is no 0 at 0: 0.4 % is lost at 1e-3, all below 1e-6", stable_forms.erf),
        Row("GridSample", _TIES, None, _is_nearest),
        Row("MaxPool", _NO_WINDOW, None, _may_have_partial_windows_only),
        Row("MaxPool", _LOWEST, stable_forms.with_infinities, _may_meet_infinity),
        Row("Mish", "0 below -18", None, _is_magnified),
        Row("ReduceMax", _LOWEST, stable_forms.with_infinities, _may_meet_infinity),
        Row("ReduceMean", _NO_NAN, None, _is_of_nothing),
        Row("ReduceMean", "off by the mean's own error, squared", stable_forms.centred_again, _is_variance),
        Row(
            "ReduceMin", "3.4e38 where all elements are inf", stable_forms.with_infinities, _may_meet_infinity
        ),
        Row("Resize", _TIES, None, _has_ties),
        Row("Selu", _EXP_MINUS_1, stable_forms.elu),
        Row("Softplus", "log(1 + exp(x)): -2e-6 at -20, 8e-6 where 0 is near", stable_forms.softplus),
    ),
}


_NAN = "NaN becomes a number"
_CHOICES = ("ArgMax", "ArgMin", "GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMin", "TopK")

ROWS_OF_NAN: Mapping[str, tuple[Row, ...]] = {
    "onnxruntime": (
        *(Row(each, _NAN) for each in _CHOICES),
        Row("ThresholdedRelu", _NAN, stable_forms.keeping_nan),
    ),
    "openvino": (
        *(Row(each, _NAN) for each in (*_CHOICES, "Attention", "LogSoftmax", "ReduceLogSumExp", "Softmax")),
        *(
            Row(each, _NAN, stable_forms.keeping_nan)
            for each in ("Clip", "Exp", "HardSigmoid", "Max", "Min", "Relu")
        ),
        Row("Cast", "NaN counts as false", None, _is_of_booleans),
        *(Row(each, "true for NaN", stable_forms.swapped) for each in ("Greater", "GreaterOrEqual")),
    ),
}
"""Likewise, of nodes that NaN from inside the graph may reach; the versions are the same."""


def _found(
    model: onnx_ir.Model, runtime: str, fixed: Collection[str], is_of_nan: bool
) -> Iterator[tuple[onnx_ir.Node, Row]]:
    rows = _rows_of(runtime, is_of_nan)

    def is_left(node: onnx_ir.Node) -> bool:
        known = rows.get(node.op_type, ())
        return node.domain == ATEN_DOMAIN or any(row.form is None and row.where(node) for row in known)

    reached = may_be_nan(model, fixed, is_left) if is_of_nan else set()
    for node in list(model.graph):
        if node.domain in STANDARD_DOMAINS and (not is_of_nan or not reached.isdisjoint(node.inputs)):
            yield from ((node, row) for row in rows.get(node.op_type, ()) if row.where(node))


@functools.cache
def _rows_of(runtime: str, is_of_nan: bool) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in (ROWS_OF_NAN if is_of_nan else ROWS)[runtime]:
        found.setdefault(row.operator, []).append(row)
    return found


def refused(model: onnx_ir.Model, runtime: str, fixed: Collection[str] = ()) -> dict[onnx_ir.Node, str]:
    """The nodes that lose accuracy or NaN in the runtime and have no stable form, with the reason for each.

    Args:
        model: not modified.
        runtime: a key of `ROWS`.
        fixed: names of the inputs that hold weights.
    """
    return {
        node: f"computed otherwise than by PyTorch: {row.wrong}"
        for is_of_nan in (False, True)
        for node, row in _found(model, runtime, fixed, is_of_nan)
        if row.form is None
    }


def make_stable(model: onnx_ir.Model, runtime: str, fixed: Collection[str] = ()) -> None:
    """Replace nodes by their stable forms, in place.

    Args:
        model: of standard operators; values are typed if their types are known.
        runtime: a key of `ROWS`.
        fixed: names of the inputs that hold weights.
    """
    for is_of_nan in (False, True):  # the other forms contain operators that lose NaN
        for node, row in list(_found(model, runtime, fixed, is_of_nan)):
            if row.form is not None:
                row.form(node)
