"""Expands operators into forms that keep their accuracy in a runtime whose own kernel loses it.

Each form replaces one node by others that the runtime computes well. Dtypes narrower than float32 are widened
first, as in PyTorch's kernels, and rounded once. `conditioning.py` says which runtime needs which form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir

from torchrlopt.onnx.expansion import Expansion

_NARROW = (onnx_ir.DataType.FLOAT16, onnx_ir.DataType.BFLOAT16)


class _Form(Expansion):
    """An expansion whose values are as wide as PyTorch's kernels compute."""

    @property
    def attributes(self) -> list[onnx_ir.Attr]:
        """The node's attributes."""
        return list(self.node.attributes.values())

    @property
    def rest(self) -> list[onnx_ir.Value | None]:
        """The operands after the first."""
        return list(self.node.inputs[1:])

    def wide(self, index: int) -> onnx_ir.Value:
        """An operand, widened to at least float32."""
        value = self.operand(index)
        return self.cast(value, onnx_ir.DataType.FLOAT) if value.dtype in _NARROW else value

    def of(self, op: str, *operands: onnx_ir.Value | float) -> onnx_ir.Value:
        """An elementwise operator with the first operand's shape; numbers become constants of its dtype."""
        like = next(each for each in operands if isinstance(each, onnx_ir.Value))
        given = [each if isinstance(each, onnx_ir.Value) else self.scalar(each, like) for each in operands]
        result = self.add(op, given, like=like)
        result.shape = like.shape
        return result

    def vector(self, numbers: list[float], like: onnx_ir.Value) -> onnx_ir.Value:
        """A 1-d constant with the dtype of `like`."""
        assert like.dtype is not None
        return self._constant(np.asarray(numbers, dtype=like.dtype.numpy()), like.dtype)

    def finish(self, value: onnx_ir.Value) -> None:
        """Replace the node by this value, cast to the dtype of the node's result."""
        dtype = self.node.outputs[0].dtype
        if dtype is not None and value.dtype != dtype:
            self.cast(value, dtype)
        self.put_in_place()


def _number(node: onnx_ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else float(attribute.value)


def _expm1(form: _Form, x: onnx_ir.Value) -> onnx_ir.Value:
    """`exp(x) - 1` as `2 t / (1 - t)` with `t = tanh(x / 2)`: no cancellation for negative x."""
    t = form.of("Tanh", form.of("Mul", x, 0.5))
    return form.of("Div", form.of("Mul", t, 2.0), form.of("Sub", 1.0, t))


def elu(node: onnx_ir.Node) -> None:
    """Elu, Selu and Celu: `gamma * (max(x, 0) + alpha * expm1(min(x, 0) / scale))`."""
    form = _Form(node)
    x = form.wide(0)
    if node.op_type == "Selu":
        # The standard's defaults.
        alpha, gamma = (
            _number(node, "alpha", 1.67326319217681884766),
            _number(node, "gamma", 1.05070102214813),
        )
        scale = 1.0
    else:
        alpha, gamma = _number(node, "alpha", 1.0), 1.0
        scale = alpha if node.op_type == "Celu" else 1.0
    negative = form.of("Min", x, 0.0)
    bent = _expm1(form, negative if scale == 1.0 else form.of("Div", negative, scale))
    if alpha != 1.0:
        bent = form.of("Mul", bent, alpha)
    result = form.of("Add", form.of("Relu", x), bent)
    form.finish(result if gamma == 1.0 else form.of("Mul", result, gamma))


def sigmoid(node: onnx_ir.Node) -> None:
    """`1 / (1 + exp(-x))`, as PyTorch computes it."""
    form = _Form(node)
    form.finish(form.of("Reciprocal", form.of("Add", form.of("Exp", form.of("Neg", form.wide(0))), 1.0)))


def _polynomial(form: _Form, x: onnx_ir.Value, terms: Sequence[float]) -> onnx_ir.Value:
    """`terms[0] + terms[1] x + ...`, by Horner's rule."""
    sum_ = form.of("Mul", x, terms[-1])
    for term in reversed(terms[1:-1]):
        sum_ = form.of("Mul", form.of("Add", sum_, term), x)
    return form.of("Add", sum_, terms[0])


_ATANH_TERMS = [2 / (2 * k + 1) for k in range(9)]
"""Of `2 atanh(z) / z` in powers of `z^2`: up to 1/3 the remainder is below 1e-9 of the result."""


def softplus(node: onnx_ir.Node) -> None:
    """`max(x, 0) + log1p(e)` with `e = exp(-|x|)` and `log1p(e) = 2 atanh(z)`, `z = e / (2 + e)`.

    Uses a series, because OpenVINO's logarithm is inaccurate near 1 and its Atanh took five times as long.
    """
    form = _Form(node)
    x = form.wide(0)
    e = form.of("Exp", form.of("Neg", form.of("Abs", x)))
    z = form.of("Div", e, form.of("Add", e, 2.0))
    log1p = form.of("Mul", _polynomial(form, form.of("Mul", z, z), _ATANH_TERMS), z)
    form.finish(form.of("Add", form.of("Relu", x), log1p))


_ERF_TERMS = [2 / math.sqrt(math.pi) * (-1) ** k / (math.factorial(k) * (2 * k + 1)) for k in range(8)]
"""Of `erf(x) / x` in powers of `x^2`: below 1/2 the remainder is below 1e-10 of the result."""


def erf(node: onnx_ir.Node) -> None:
    """The first terms of the series for small x."""
    form = _Form(node)
    x = form.wide(0)
    near = form.of("Mul", _polynomial(form, form.of("Mul", x, x), _ERF_TERMS), x)
    is_near = form.of("Less", form.of("Abs", x), 0.5)
    is_near.type = onnx_ir.TensorType(onnx_ir.DataType.BOOL)
    far = form.of("Erf", x)
    form.finish(form.add("Where", [is_near, near, far], like=x))


def group_norm(node: onnx_ir.Node) -> None:
    """Instance normalisation with one channel per group, then scale and bias per channel."""
    form = _Form(node)
    x, scale, bias = form.wide(0), form.wide(1), form.wide(2)
    groups = int(_number(node, "num_groups", 1))
    rows = form.reshape(x, [0, groups, -1])
    one, zero = ([number] * groups for number in (1.0, 0.0))
    normal = form.add(
        "InstanceNormalization",
        [rows, form.vector(one, x), form.vector(zero, x)],
        [onnx_ir.AttrFloat32("epsilon", _number(node, "epsilon", 1e-5))],
        like=x,
    )
    sizes = form.add("Shape", [x], like=x)
    sizes.type = onnx_ir.TensorType(onnx_ir.DataType.INT64)
    whole = form.add("Reshape", [normal, sizes], like=x)
    columns = [-1, *[1] * (form.rank(x) - 2)]
    whole.shape = x.shape
    scaled = form.of("Mul", whole, form.reshape(scale, columns))
    form.finish(form.of("Add", scaled, form.reshape(bias, columns)))


def masked_attention(node: onnx_ir.Node) -> None:
    """Attention with a mask of all rows and columns, without numbers that ONNX Runtime takes for -inf.

    A row that has only the lowest number of float32 gives 0 there, as if it were -inf. PyTorch gives the mean
    of the values, because all keys are equally likely. So does the next number, which is too large for any
    score to change it. Narrow types are widened: ONNX Runtime would round the scores to them.
    """
    form = _Form(node)
    q, k, v, mask = (form.wide(index) for index in range(4))
    if mask.dtype != onnx_ir.DataType.BOOL:
        lowest = np.finfo(np.float32).min
        is_lowest = form.of("Equal", mask, float(lowest))
        is_lowest.type = onnx_ir.TensorType(onnx_ir.DataType.BOOL)
        mask = form.add("Where", [is_lowest, form.scalar(np.nextafter(lowest, 0), mask), mask], like=mask)
    given = form.operand(3).shape
    if given is None or [*given[-2:]] != [None if x.shape is None else x.shape[-2] for x in (q, k)]:
        sizes = [form.reshape(form.length(x, -2), [1]) for x in (q, k)]
        mask = form.add("Expand", [mask, form.concat(sizes, 0)], like=mask)
    form.finish(form.add("Attention", [q, k, v, mask, *node.inputs[4:]], form.attributes, like=v))


def in_double(node: onnx_ir.Node) -> None:
    """A sum in float64, as in PyTorch."""
    form = _Form(node)
    x = form.cast(form.operand(0), onnx_ir.DataType.DOUBLE)
    form.finish(form.add(node.op_type, [x, *form.rest], form.attributes, like=x))


def summed(node: onnx_ir.Node) -> None:
    """ReduceL1 and ReduceSumSquare as a plain sum, which runtimes add up in parts."""
    form = _Form(node)
    x = form.wide(0)
    terms = form.of("Abs", x) if node.op_type == "ReduceL1" else form.of("Mul", x, x)
    form.finish(form.add("ReduceSum", [terms, *form.rest], form.attributes, like=terms))


def centred_again(node: onnx_ir.Node) -> None:
    """The mean of squares of `c = x - mean(x)`, as that of `c - mean(c)`, which cancels the mean's error.

    The mean of numbers around 1e6 is rounded to a multiple of 0.06, and the variance is off by that error
    squared: 0.2 % of the variance of 4096 such numbers.
    """
    form = _Form(node)
    product = form.operand(0).producer()
    assert product is not None
    centred = product.inputs[0]
    assert centred is not None
    keepdims = [onnx_ir.AttrInt64("keepdims", 1)]
    again = form.add("ReduceMean", [centred, *form.rest], keepdims, like=centred)
    centred = form.of("Sub", centred, again)
    square = form.of("Mul", centred, centred)
    form.finish(form.add("ReduceMean", [square, *form.rest], form.attributes, like=square))


def with_infinities(node: onnx_ir.Node) -> None:
    """Correct a maximum (minimum) that the runtime starts from the lowest (highest) finite number.

    Computed over halves, the result equals that start value only if all elements are infinite.
    """
    form = _Form(node)
    x = form.operand(0)
    assert x.dtype is not None
    limit = float(x.dtype.max if node.op_type == "ReduceMin" else x.dtype.min)
    half = form.of("Mul", x, 0.5)
    found = form.add(node.op_type, [half, *form.rest], form.attributes, like=x)
    is_infinite = form.of("Equal", found, limit)
    is_infinite.type = onnx_ir.TensorType(onnx_ir.DataType.BOOL)
    infinity = form.scalar(math.copysign(math.inf, limit), x)
    form.finish(form.add("Where", [is_infinite, infinity, form.of("Mul", found, 2.0)], like=x))


def with_infinite_bounds(node: onnx_ir.Node) -> None:
    """A Clip whose missing bounds are infinite, not the largest finite numbers."""
    form = _Form(node)
    x = form.operand(0)
    given = [*form.rest, None, None]
    bounds = [
        form.scalar(infinity, x) if bound is None else bound
        for bound, infinity in zip(given[:2], (-math.inf, math.inf), strict=True)
    ]
    form.finish(form.add("Clip", [x, *bounds], like=x))


def keeping_nan(node: onnx_ir.Node) -> None:
    """An elementwise operator whose result is NaN where an operand is."""
    form = _Form(node)
    result = form.add(node.op_type, node.inputs, form.attributes, like=form.operand(0))
    for x in node.inputs:
        if x is not None and onnx_ir.convenience.get_const_tensor(x) is None:
            is_nan = form.add("IsNaN", [x], like=x)
            is_nan.type = onnx_ir.TensorType(onnx_ir.DataType.BOOL)
            result = form.add("Where", [is_nan, x, result], like=x)
    form.finish(result)


def swapped(node: onnx_ir.Node) -> None:
    """A comparison as its mirror image: `a > b` as `b < a`."""
    form = _Form(node)
    mirrored = {"Greater": "Less", "GreaterOrEqual": "LessOrEqual"}[node.op_type]
    form.finish(form.add(mirrored, [form.operand(1), form.operand(0)]))
