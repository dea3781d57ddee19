"""Compute operators: the value of one element of the result."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from torchrlopt import _C
from torchrlopt.substitutions.proof.forms import (
    Apply,
    Form,
    Real,
    add,
    atom,
    count_of,
    fold_over,
    inverse,
    multiply,
    negate,
    number,
    scale,
    sum_over,
    where,
)
from torchrlopt.substitutions.proof.movement import MOVEMENT, with_shape
from torchrlopt.substitutions.proof.polynomial import Poly, as_poly, product
from torchrlopt.substitutions.proof.scope import Unsupported
from torchrlopt.substitutions.proof.tensors import (
    Call,
    Index,
    Number,
    Tensor,
    broadcast_shapes,
    read_broadcast,
    same_shapes,
    same_size,
)
from torchrlopt.substitutions.proof.windows import average_pool, conv, conv_transpose, max_pool

_POINTWISE = ("Elementwise", "Transcendental")
#: Functions that depend on other elements, or on several.
_NOT_REAL = {"BitwiseNot", "Cast", "CumSum", "IsInf", "IsNaN", "Not", "Trilu"}

#: Functions of one real number. A proof knows about them what the axioms say, and otherwise only that equal
#: arguments give equal results. The attributes of such an operator are further arguments.
UNARY = (
    frozenset(
        str(op["name"])
        for op in _C.ops()
        if op["cost_class"] in _POINTWISE and op["min_inputs"] == op["max_inputs"] == 1
    )
    - _NOT_REAL
)


def apply_unary(name: str, x: Form, attrs: dict[str, Any]) -> Form:
    """Applies a unary function to an element; string attributes become part of its name."""
    if name == "Neg":
        return negate(x)
    if name == "Reciprocal":
        return inverse(x)
    texts = "".join(f":{value}" for value in attrs.values() if isinstance(value, str))
    numbers = tuple(value.form for value in attrs.values() if isinstance(value, Number))
    return atom(Apply(name + texts, (x, *numbers)))


def unary(name: str) -> Callable[[Call], list[Tensor]]:
    def define(call: Call) -> list[Tensor]:
        x = call.tensor(0)
        attrs = dict(call.attrs)
        return _of_elements(call, [x], lambda forms: apply_unary(name, forms[0], attrs))

    return define


def _elementwise(call: Call, combine: Callable[[list[Form]], Form]) -> list[Tensor]:
    return _of_elements(call, [each for each in call.inputs if each is not None], combine)


def _of_elements(call: Call, operands: list[Tensor], combine: Callable[[list[Form]], Form]) -> list[Tensor]:
    """Combines one element of each operand; if all are reshaped alike, does so before the reshape."""
    first, inner = operands[0], [each.elements for each in operands if each.elements is not None]
    if len(inner) == len(operands) and all(
        same_shapes(call.scope, before.shape, inner[0].shape)
        and same_shapes(call.scope, after.shape, first.shape)
        for before, after in zip(inner, operands, strict=True)
    ):
        (result,) = _of_elements(call, inner, combine)
        return [with_shape(call.scope, result, first.shape)]
    shape = broadcast_shapes(call.scope, [each.shape for each in operands])

    def read(index: Index) -> Form:
        return combine([read_broadcast(call.scope, each, index) for each in operands])

    return [Tensor(operands[0].dtype, shape, read)]


def _sum(call: Call) -> list[Tensor]:
    return _elementwise(call, lambda forms: add(*forms))


def _mul(call: Call) -> list[Tensor]:
    return _elementwise(call, lambda forms: multiply(call.scope, *forms))


def _extreme(name: str) -> Callable[[Call], list[Tensor]]:
    """The maximum or minimum of the operands, two at a time."""

    def combine(forms: list[Form]) -> Form:
        result = forms[0]
        for form in forms[1:]:
            result = atom(Apply(name, (result, form)))
        return result

    return lambda call: _elementwise(call, combine)


def _pow(call: Call) -> list[Tensor]:
    return _elementwise(call, lambda forms: atom(Apply("Pow", (forms[0], forms[1]))))


def identity(call: Call) -> list[Tensor]:
    return [call.tensor(0)]


def cast(call: Call) -> list[Tensor]:
    x, to = call.tensor(0), call.attrs["to"]
    if x.dtype == to:
        return [x]
    return [Tensor(to, x.shape, lambda index: atom(Apply(f"Cast:{x.dtype}:{to}", (x.read(index),))))]


def matmul(call: Call) -> list[Tensor]:
    return [_matrix_product(call, call.tensor(0), call.tensor(1))]


def _matrix_product(call: Call, a: Tensor, b: Tensor) -> Tensor:
    scope = call.scope
    depth = same_size(scope, a.shape[-1], b.shape[-2] if b.rank > 1 else b.shape[0])
    batch = broadcast_shapes(scope, [a.shape[:-2] if a.rank > 1 else (), b.shape[:-2] if b.rank > 1 else ()])
    rows = a.shape[-2:-1] if a.rank > 1 else ()
    columns = b.shape[-1:] if b.rank > 1 else ()

    def read(index: Index) -> Form:
        outer = index[: len(batch)]
        row = index[len(batch) : len(batch) + len(rows)]
        column = index[len(batch) + len(rows) :]

        def part(k: Poly) -> Form:
            left = read_broadcast(scope, a, [*outer, *row, k])
            # The last two indices are not broadcast: both operands have them in full.
            right = read_broadcast(scope, b, [*outer, k, *column])
            return multiply(scope, left, right)

        return sum_over(scope, depth, part)

    return Tensor(a.dtype, (*batch, *rows, *columns), read)


def _plus(call: Call, x: Tensor, more: Tensor) -> Tensor:
    (result,) = _elementwise(Call(call.scope, [x, more], {}), lambda forms: add(*forms))
    return result


#: Attributes of a fused operator, by attribute of its activation.
_NUMBERS: dict[str, dict[str, str]] = {
    "LeakyRelu": {"alpha": "alpha"},
    "Elu": {"alpha": "alpha"},
    "Clip": {"min": "alpha", "max": "beta"},
    "HardSigmoid": {"alpha": "alpha", "beta": "beta"},
    "any": {"alpha": "alpha", "beta": "beta"},
}


def _with_epilogue(call: Call, x: Tensor) -> list[Tensor]:
    """Residual and activation of a fused operator."""
    if call.has(3):
        x = _plus(call, x, call.tensor(3))
    kind = call.attrs.get("activation", "")
    if not kind:
        return [x]
    numbers = {name: call.attrs[name] for name in ("alpha", "beta")}
    attrs: dict[str, Any] = {own: numbers[given] for own, given in _NUMBERS.get(kind, {}).items()}
    name = {"GeluTanh": "Gelu", "any": "AnyActivation"}.get(kind, kind)
    if name == "Gelu":
        attrs["approximate"] = "tanh" if kind == "GeluTanh" else "none"
    if name == "Swish":
        attrs["alpha"] = Number(number(1), 1.0)
    evaluate: Callable[[str, Tensor, dict[str, Any]], list[Tensor]] = call.attrs["evaluate"]
    return evaluate(name, x, attrs)


def fused_conv(call: Call) -> list[Tensor]:
    (x,) = conv(call)
    return _with_epilogue(call, x)


def fused_matmul(call: Call) -> list[Tensor]:
    x = _matrix_product(call, call.tensor(0), call.tensor(1))
    return _with_epilogue(call, _plus(call, x, call.tensor(2)) if call.has(2) else x)


def _reduce(name: str) -> Callable[[Call], list[Tensor]]:
    def define(call: Call) -> list[Tensor]:
        x, scope = call.tensor(0), call.scope
        axes = call.axes("axes", x.rank) or list(range(x.rank))
        keeps = call.fixed("keepdims")
        shape = [
            as_poly(1) if axis in axes else size
            for axis, size in enumerate(x.shape)
            if keeps or axis not in axes
        ]
        sizes = [x.shape[axis] for axis in sorted(axes)]

        def read(index: Index) -> Form:
            rest = iter([at for axis, at in enumerate(index) if axis not in axes] if keeps else index)
            source = [Poly({}) if axis in axes else next(rest) for axis in range(x.rank)]

            def value(position: list[Poly]) -> Form:
                for axis, at in zip(sorted(axes), position, strict=True):
                    source[axis] = at
                return x.read(list(source))

            if name not in ("ReduceSum", "ReduceMean"):
                return fold_over(scope, name, sizes, value)

            def nested(position: list[Poly]) -> Form:
                if len(position) == len(sizes):
                    return value(position)
                return sum_over(scope, sizes[len(position)], lambda k: nested([*position, k]))

            form = nested([])
            if name == "ReduceSum":
                return form
            return multiply(scope, form, inverse(count_of(scope, product(sizes))))

        return [Tensor(x.dtype, tuple(shape), read)]

    return define


def attention(call: Call) -> list[Tensor]:
    q, k, v, scope = call.tensor(0), call.tensor(1), call.tensor(2), call.scope
    if q.rank != 4:
        raise Unsupported("attention with packed heads")
    given: Number = call.attrs["scale"]
    if given.value <= 0:
        raise Unsupported("attention with a scale from the head's size")
    size = same_size(scope, q.shape[3], k.shape[3])
    keys = same_size(scope, k.shape[2], v.shape[2])
    for other in (k, v):
        same_size(scope, q.shape[0], other.shape[0])
    same_size(scope, k.shape[1], v.shape[1])
    repeats = scope.exact_quotient(q.shape[1], k.shape[1])
    is_causal = call.fixed("is_causal")
    cap: Number = call.attrs["softcap"]
    mask = call.tensor(3) if call.has(3) else None
    if mask is not None and mask.dtype == "bool":
        raise Unsupported("a mask of truth values")

    def read(index: Index) -> Form:
        image, head, row, column = index
        shared = scope.quotient(head, repeats)

        def score(j: Poly) -> Form:
            products = sum_over(
                scope, size,
                lambda d: multiply(scope, q.read([image, head, row, d]), k.read([image, shared, j, d])),
            )  # fmt: skip
            result = multiply(scope, products, given.form)
            if cap.value > 0:
                inner = multiply(scope, result, atom(Apply("Reciprocal", (cap.form,))))
                result = multiply(scope, atom(Apply("Tanh", (inner,))), cap.form)
            if mask is not None:
                result = add(result, read_broadcast(scope, mask, [image, head, row, j]))
            if is_causal:
                lowest = atom(Real("lowest"))
                result = add(where(scope, row - j, result), where(scope, j - row - 1, lowest))
            return result

        weights = softmax_row(call, keys, score)
        return sum_over(
            scope, keys, lambda j: multiply(scope, weights(j), v.read([image, shared, j, column]))
        )

    return [Tensor(q.dtype, (q.shape[0], q.shape[1], q.shape[2], v.shape[3]), read)]


def softmax_row(call: Call, size: Poly, value: Callable[[Poly], Form]) -> Callable[[Poly], Form]:
    """exp(x - max) / sum(exp(x - max)), as the kernels compute it."""
    scope = call.scope
    largest = fold_over(scope, "ReduceMax", [size], lambda at: value(at[0]))

    def power(j: Poly) -> Form:
        return atom(Apply("Exp", (add(value(j), negate(largest)),)))

    inverse = atom(Apply("Reciprocal", (sum_over(scope, size, power),)))
    return lambda j: multiply(scope, power(j), inverse)


def softmax(call: Call) -> list[Tensor]:
    x = call.tensor(0)
    axis = call.axis("axis", x.rank)

    def read(index: Index) -> Form:
        row = softmax_row(call, x.shape[axis], lambda k: x.read([*index[:axis], k, *index[axis + 1 :]]))
        return row(index[axis])

    return [Tensor(x.dtype, x.shape, read)]


def not_(call: Call) -> list[Tensor]:
    x = call.tensor(0)
    return [Tensor(x.dtype, x.shape, lambda index: add(number(1), scale(x.read(index), Fraction(-1))))]


OPERATORS: dict[str, Callable[[Call], list[Tensor]]] = {
    **MOVEMENT,
    **{name: unary(name) for name in UNARY},
    "AnyActivation": unary("AnyActivation"),
    "Identity": identity,
    "Not": not_,
    "Cast": cast,
    "Add": _sum,
    "Sum": _sum,
    "Mul": _mul,
    "Max": _extreme("Max"),
    "Min": _extreme("Min"),
    "Pow": _pow,
    "MatMul": matmul,
    "FusedMatMul": fused_matmul,
    "Conv": conv,
    "FusedConv": fused_conv,
    "ConvTranspose": conv_transpose,
    "AveragePool": average_pool,
    "MaxPool": max_pool,
    "Attention": attention,
    "Softmax": softmax,
    **{
        name: _reduce(name)
        for name in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1")
    },
}
