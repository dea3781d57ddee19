"""The random operators around a pattern: producers of a value of a given type, and readers of a value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fuzz.rules.garden import Garden, Ref, Type

#: Smooth or piecewise linear, defined everywhere, and growing no faster than their argument.
UNARY = (
    "Neg", "Relu", "Tanh", "Sigmoid", "Abs", "Identity", "Gelu", "HardSwish", "HardSigmoid", "LeakyRelu",
    "Elu", "Softplus", "Softsign", "Swish", "Erf", "Sin", "Clip",
)  # fmt: skip
BINARY = ("Add", "Sub", "Mul", "Max", "Min")
_REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")
_WINDOWS = (1, 2, 3, 5)


def num_outputs(op: str, attrs: Mapping[str, Any]) -> int:
    """Number of outputs of a node."""
    return len(attrs["sizes"]) if op == "Split" else 2 if op == "TopK" else 1


def make(garden: Garden, type_: Type, is_weight: bool) -> Ref:
    """A value of a type, by an operator on fresh inputs."""
    ways: list[Callable[[], Ref]] = [
        lambda: _unary(garden, type_, is_weight),
        lambda: _binary(garden, type_, is_weight),
        lambda: _transposed(garden, type_, is_weight),
        lambda: _flat(garden, type_, is_weight),
        lambda: _part(garden, type_, is_weight),
        lambda: _joined(garden, type_, is_weight),
    ]
    if len(type_[1]) >= 2 and not is_weight:
        ways.append(lambda: _product(garden, type_))
    return garden.draw.choice(ways)()


def _unary(garden: Garden, type_: Type, is_weight: bool) -> Ref:
    return garden.node(garden.draw.choice(UNARY), [garden.input(type_, is_weight)], {})[0]


def _binary(garden: Garden, type_: Type, is_weight: bool) -> Ref:
    """Of two operands, one of which may be broadcast."""
    dtype, dims = type_
    drop = garden.draw.randrange(len(dims) + 1) if garden.draw.random() < 0.3 else 0
    small = tuple(1 if garden.draw.random() < 0.3 else dim for dim in dims[drop:])
    operands = [garden.input(type_, is_weight), garden.input((dtype, small), is_weight)]
    garden.draw.shuffle(operands)
    return garden.node(garden.draw.choice(BINARY), operands, {})[0]


def _transposed(garden: Garden, type_: Type, is_weight: bool) -> Ref:
    dtype, dims = type_
    perm = garden.draw.sample(range(len(dims)), len(dims))
    before = [0] * len(dims)
    for to, source in enumerate(perm):
        before[source] = dims[to]
    return garden.node("Transpose", [garden.input((dtype, tuple(before)), is_weight)], {"perm": perm})[0]


def _flat(garden: Garden, type_: Type, is_weight: bool) -> Ref:
    dtype, dims = type_
    source = garden.input((dtype, (math.prod(dims),)), is_weight)
    return garden.node("Reshape", [source], {"shape": list(dims), "allowzero": 1})[0]


def _part(garden: Garden, type_: Type, is_weight: bool) -> Ref:
    """A slice, counted from either end of the axis."""
    dtype, dims = type_
    if not dims:
        return _unary(garden, type_, is_weight)
    axis, start, rest = (
        garden.draw.randrange(len(dims)),
        garden.draw.choice((0, 1, 2)),
        garden.draw.choice((0, 1)),
    )
    whole = tuple(dim + start + rest if i == axis else dim for i, dim in enumerate(dims))
    shown = axis - len(dims) if garden.draw.random() < 0.5 else axis
    attrs = {"axes": [shown], "starts": [start], "ends": [start + dims[axis]], "steps": [1]}
    return garden.node("Slice", [garden.input((dtype, whole), is_weight)], attrs)[0]


def _joined(garden: Garden, type_: Type, is_weight: bool) -> Ref:
    dtype, dims = type_
    axes = [i for i, dim in enumerate(dims) if dim >= 2]
    if not axes:
        return _unary(garden, type_, is_weight)
    axis = garden.draw.choice(axes)
    first = garden.draw.randint(1, dims[axis] - 1)
    parts = [
        garden.input((dtype, tuple(size if i == axis else dim for i, dim in enumerate(dims))), is_weight)
        for size in (first, dims[axis] - first)
    ]
    shown = axis - len(dims) if garden.draw.random() < 0.5 else axis
    return garden.node("Concat", parts, {"axis": shown})[0]


def _product(garden: Garden, type_: Type) -> Ref:
    dtype, dims = type_
    inner = garden.draw.choice((1, 2, 3, 5))
    left = garden.input((dtype, (*dims[:-1], inner)))
    right = garden.input((dtype, (inner, dims[-1])), is_weight=garden.draw.random() < 0.7)
    return garden.node("MatMul", [left, right], {})[0]


def consume(garden: Garden, value: Ref) -> list[Ref]:
    """A random operator that reads a value."""
    return garden.draw.choice(_READERS)(garden, value)


def _read_unary(garden: Garden, value: Ref) -> list[Ref]:
    return garden.node(garden.draw.choice(UNARY), [value], {})


def _read_binary(garden: Garden, value: Ref) -> list[Ref]:
    """With another value of its type, with itself, or with a weight that is broadcast."""
    chance = garden.draw.random()
    other = value if chance < 0.15 else garden.partner(value) if chance < 0.7 else None
    if other is None:
        dtype, dims = garden.types[value]
        drop = garden.draw.randrange(len(dims) + 1)
        small = tuple(1 if garden.draw.random() < 0.3 else dim for dim in dims[drop:])
        other = garden.input((dtype, small), is_weight=garden.draw.random() < 0.6)
    operands = [value, other]
    garden.draw.shuffle(operands)
    return garden.node(garden.draw.choice(BINARY), operands, {})


def _read_transposed(garden: Garden, value: Ref) -> list[Ref]:
    rank = len(garden.types[value][1])
    return garden.node("Transpose", [value], {"perm": garden.draw.sample(range(rank), rank)})


def _read_reshaped(garden: Garden, value: Ref) -> list[Ref]:
    dims = garden.types[value][1]
    if garden.draw.random() < 0.5:
        return garden.node("Unsqueeze", [value], {"axes": [garden.draw.randint(0, len(dims))]})
    at = garden.draw.randint(0, len(dims))
    shape = [math.prod(dims[:at]), math.prod(dims[at:])]
    return garden.node("Reshape", [value], {"shape": shape, "allowzero": 1})


def _read_part(garden: Garden, value: Ref) -> list[Ref]:
    dims = garden.types[value][1]
    axes = [i for i, dim in enumerate(dims) if dim >= 2]
    if not axes:
        return _read_unary(garden, value)
    axis = garden.draw.choice(axes)
    first = garden.draw.randint(1, dims[axis] - 1)
    if garden.draw.random() < 0.5:
        return garden.node("Split", [value], {"axis": axis - len(dims), "sizes": [first, dims[axis] - first]})
    attrs = {"axes": [axis], "starts": [-first], "ends": [2**31 - 1], "steps": [1]}
    return garden.node("Slice", [value], attrs)


def _read_joined(garden: Garden, value: Ref) -> list[Ref]:
    dims = garden.types[value][1]
    if not dims:
        return _read_unary(garden, value)
    axis = garden.draw.randrange(-len(dims), len(dims))
    other = garden.partner(value) or value
    return garden.node("Concat", [value, other], {"axis": axis})


def _read_padded(garden: Garden, value: Ref) -> list[Ref]:
    rank = len(garden.types[value][1])
    pads = [garden.draw.choice((0, 0, 1, 2)) for _ in range(2 * rank)]
    return garden.node("Pad", [value], {"pads": pads})


def _read_reduced(garden: Garden, value: Ref) -> list[Ref]:
    dims = garden.types[value][1]
    if not dims or 0 in dims:
        return _read_unary(garden, value)
    axes = garden.draw.sample(range(-len(dims), 0), garden.draw.randint(1, len(dims)))
    attrs = {"axes": axes, "keepdims": garden.draw.randint(0, 1)}
    return garden.node(garden.draw.choice(_REDUCTIONS), [value], attrs)


def _read_normalised(garden: Garden, value: Ref) -> list[Ref]:
    dtype, dims = garden.types[value]
    if not dims or dims[-1] == 0:
        return _read_unary(garden, value)
    if garden.draw.random() < 0.5:
        return garden.node("Softmax", [value], {"axis": garden.draw.randrange(-len(dims), len(dims))})
    scale = garden.input((dtype, dims[-1:]), is_weight=True)
    shift = garden.input((dtype, dims[-1:]), is_weight=True)
    return garden.node("LayerNormalization", [value, scale, shift], {"axis": -1, "epsilon": 1e-3})


def _read_product(garden: Garden, value: Ref) -> list[Ref]:
    dtype, dims = garden.types[value]
    if len(dims) < 2:
        return _read_unary(garden, value)
    weight = garden.input((dtype, (dims[-1], garden.draw.choice((1, 2, 3, 5)))), is_weight=True)
    return garden.node("MatMul", [value, weight], {})


def _read_windows(garden: Garden, value: Ref) -> list[Ref]:
    """A convolution or a pool, of any stride, dilation and padding, grouped or not."""
    dtype, dims = garden.types[value]
    if len(dims) != 4 or 0 in dims:
        return _read_product(garden, value)
    kernel = [garden.draw.choice([k for k in _WINDOWS if k <= dim] or [1]) for dim in dims[2:]]
    strides = [garden.draw.choice((1, 1, 2, 3)) for _ in kernel]
    pads = [garden.draw.randrange(k) for k in (*kernel, *kernel)]
    if garden.draw.random() < 0.3:
        op = garden.draw.choice(("MaxPool", "AveragePool"))
        return garden.node(op, [value], {"kernel_shape": kernel, "strides": strides, "pads": pads})
    channels = dims[1]
    group = garden.draw.choice([g for g in (1, 2, channels) if channels % g == 0])
    weight = garden.input((dtype, (group * garden.draw.randint(1, 2), channels // group, *kernel)), True)
    attrs = {
        "strides": strides,
        "pads": pads,
        "dilations": [garden.draw.choice((1, 1, 2)), 1],
        "group": group,
    }
    return garden.node("Conv", [value, weight], attrs)


_READERS: tuple[Callable[[Garden, Ref], list[Ref]], ...] = (
    _read_unary, _read_unary, _read_binary, _read_binary, _read_transposed, _read_reshaped, _read_part,
    _read_joined, _read_padded, _read_reduced, _read_normalised, _read_product, _read_windows,
)  # fmt: skip
