"""Evaluates the expressions of a substitution in a case, and assumes its conditions for the symbols."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from torchrlopt.substitutions.proof.forms import (
    Count,
    Form,
    Real,
    add,
    atom,
    inverse,
    multiply,
    negate,
    number,
)
from torchrlopt.substitutions.proof.polynomial import Poly, as_poly, product, total
from torchrlopt.substitutions.proof.rule_text import EACH
from torchrlopt.substitutions.proof.scope import Scope, Unsupported
from torchrlopt.substitutions.proof.tensors import Number, Tensor, normal_axis


@dataclass
class Family:
    """One value per member."""

    items: list[Any]


def literal(value: float) -> Number:
    """A float in the text; infinities are numbers known only by name."""
    if math.isinf(value):
        return Number(atom(Real("inf" if value > 0 else "-inf")), value)
    return Number(number(Fraction(value)), value)


@dataclass
class Evaluator:
    """Evaluates expressions over the variables of one substitution in one case."""

    scope: Scope
    variables: Mapping[str, Any]
    real_facts: list[tuple[Form, str, Form]]

    # ---- values

    def evaluate(self, node: ast.expr) -> Any:
        """Returns a Poly, Number, bool, str, Tensor, a list, or a Family of them."""
        if isinstance(node, ast.Constant):
            if isinstance(node.value, float):
                return literal(node.value)
            if isinstance(node.value, int):
                return as_poly(node.value)
            return node.value
        if isinstance(node, ast.Name):
            if node.id == "_inf":
                return literal(math.inf)
            return self.variables[node.id[1:].replace(EACH, "*")]
        if isinstance(node, ast.List):
            return self._each(lambda *items: list(items), *(self.evaluate(each) for each in node.elts))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self._each(self._negated, self.evaluate(node.operand))
        if isinstance(node, ast.BinOp):
            operator = type(node.op)
            return self._each(
                lambda a, b: self._binary(operator, a, b), self.evaluate(node.left), self.evaluate(node.right)
            )
        if isinstance(node, ast.Subscript):
            container = self.evaluate(node.value)
            return self._each(self._item, self._listed(container), self.evaluate(node.slice))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self._call(node.func.id[1:], [self.evaluate(each) for each in node.args])
        raise Unsupported(f"the expression {ast.unparse(node)}")

    def _each(self, function: Callable[..., Any], *args: Any) -> Any:
        """Applies the function, per member if an argument is a Family."""
        families = [each for each in args if isinstance(each, Family)]
        if not families:
            return function(*args)
        count = len(families[0].items)
        return Family(
            [function(*(a.items[m] if isinstance(a, Family) else a for a in args)) for m in range(count)]
        )

    @staticmethod
    def _listed(value: Any) -> Any:
        """Converts a family of numbers to a list, for functions that expect a list."""
        if isinstance(value, Family) and not (value.items and isinstance(value.items[0], list)):
            return list(value.items)
        return value

    def _negated(self, value: Any) -> Any:
        return Number(negate(value.form), -value.value) if isinstance(value, Number) else -value

    def _item(self, values: list[Any], index: Poly) -> Any:
        at = normal_axis(self.scope.fixed(index), len(values))
        if not 0 <= at < len(values):
            raise Unsupported("an index outside its list")
        return values[at]

    def _binary(self, operator: type[ast.operator], a: Any, b: Any) -> Any:
        if isinstance(a, Number) or isinstance(b, Number):
            return self._real_binary(operator, as_number(self.scope, a), as_number(self.scope, b))
        if operator is ast.Add:
            return self.scope.norm(a + b)
        if operator is ast.Sub:
            return self.scope.norm(a - b)
        if operator is ast.Mult:
            return self.scope.norm(a * b)
        if operator is ast.Div:
            return self.scope.exact_quotient(a, b)
        return self.scope.norm(a - b * self.scope.quotient(a, b))

    def _real_binary(self, operator: type[ast.operator], a: Number, b: Number) -> Number:
        if operator is ast.Add:
            return Number(add(a.form, b.form), a.value + b.value)
        if operator is ast.Sub:
            return Number(add(a.form, negate(b.form)), a.value - b.value)
        if operator is ast.Mult:
            return Number(multiply(self.scope, a.form, b.form), a.value * b.value)
        if operator is ast.Div:
            return Number(multiply(self.scope, a.form, inverse(b.form)), a.value / b.value)
        raise Unsupported("a remainder of real numbers")

    def _call(self, name: str, args: list[Any]) -> Any:
        if name in ("num", "same"):
            members = args[0].items if isinstance(args[0], Family) else args[0]
            return as_poly(len(members)) if name == "num" else ("same", members)
        if name in _LISTS:
            args = [self._listed(a) if position in _LISTS[name] else a for position, a in enumerate(args)]
        return self._each(lambda *each: self._function(name, list(each)), *args)

    def _function(self, name: str, a: list[Any]) -> Any:
        scope = self.scope
        if name == "value":
            return value_of_constant(scope, a[0])
        if name in ("max", "min"):
            return _larger(scope, self.real_facts, a, name == "max")
        if name in _TENSOR_FUNCTIONS:
            return _TENSOR_FUNCTIONS[name](scope, a)
        if name in _FUNCTIONS:
            return _FUNCTIONS[name](scope, a)
        return (name, *a)  # a condition: see `assume`


def as_number(scope: Scope, value: Any) -> Number:
    """An integer as a real number."""
    if isinstance(value, Number):
        return value
    known = scope.norm(value)
    if known.constant is not None:
        return literal(float(known.constant))
    return Number(atom(Count(known)), float(scope.value_of(known)))


def value_of_constant(scope: Scope, tensor: Tensor) -> Number:
    """The number in a one-element constant."""
    if tensor.value is None:
        raise Unsupported("the value of what is no constant")
    tensor.as_number = True
    for size in tensor.shape:
        scope.assume_equal(size, 1)
    return Number(atom(Real(f"value of {tensor.name}")), tensor.value)


def _fixed_list(scope: Scope, values: list[Any]) -> list[int]:
    return [scope.fixed(each) for each in values]


def _clamped(values: list[Any], index: int) -> int:
    return max(0, min(index + len(values) if index < 0 else index, len(values)))


def _slice(scope: Scope, a: list[Any]) -> list[Any]:
    first, last = _clamped(a[0], scope.fixed(a[1])), _clamped(a[0], scope.fixed(a[2]))
    return list(a[0][first:last])


def _inverse_permutation(scope: Scope, a: list[Any]) -> list[Poly]:
    perm = _fixed_list(scope, a[0])
    return [as_poly(perm.index(axis)) for axis in range(len(perm))]


def _take(scope: Scope, a: list[Any]) -> list[Any]:
    return [a[0][at] for at in _fixed_list(scope, a[1])]


def _zip(function: Callable[[Poly, Poly], Poly]) -> Callable[[Scope, list[Any]], list[Poly]]:
    return lambda scope, a: [scope.norm(function(x, y)) for x, y in zip(a[0], a[1], strict=True)]


def _larger(scope: Scope, facts: list[tuple[Form, str, Form]], a: list[Any], is_max: bool) -> Any:
    """The larger or smaller of two numbers, as in the instance."""
    if any(isinstance(each, Number) for each in a):
        x, y = sorted((as_number(scope, each) for each in a), key=lambda each: each.value)
        if not (math.isinf(x.value) or math.isinf(y.value)):
            facts.append((x.form, "<=", y.form))
        return y if is_max else x
    x, y = sorted(a, key=scope.value_of)
    scope.assume_at_least(y, x)
    return y if is_max else x


#: Positions of list arguments, by function.
_LISTS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("sum", "prod", "len", "slice", "contains", "all_equal"), (0,)),
    **dict.fromkeys(("all_at_least", "norm_axes", "inverse"), (0,)),
    **dict.fromkeys(("perm_default", "default"), (0,)),
    **dict.fromkeys(("concat", "compose", "all_at_most"), (0, 1)),
    **dict.fromkeys(("zip_add", "zip_mul"), (0, 1)),
}

_TENSOR_FUNCTIONS: dict[str, Callable[[Scope, list[Any]], Any]] = {
    "rank": lambda scope, a: as_poly(a[0].rank),
    "dim": lambda scope, a: scope.norm(a[0].shape[normal_axis(scope.fixed(a[1]), a[0].rank)]),
    "shape": lambda scope, a: [scope.norm(size) for size in a[0].shape],
    "size": lambda scope, a: scope.norm(product(a[0].shape)),
    "dtype": lambda scope, a: a[0].dtype,
    "values": lambda scope, a: a[0].content if a[0].content is not None else _no_content(),
}


def _no_content() -> Any:
    raise Unsupported("the values of what is no constant of integers")


_FUNCTIONS: dict[str, Callable[[Scope, list[Any]], Any]] = {
    "sum": lambda scope, a: scope.norm(total(a[0])),
    "prod": lambda scope, a: scope.norm(product(a[0])),
    "len": lambda scope, a: as_poly(len(a[0])),
    "slice": _slice,
    "concat": lambda scope, a: [*a[0], *a[1]],
    "repeat": lambda scope, a: [a[0]] * scope.fixed(a[1]),
    "range": lambda scope, a: [as_poly(i) for i in range(scope.fixed(a[0]))],
    "compose": _take,
    "zip_add": _zip(lambda x, y: x + y),
    "zip_mul": _zip(lambda x, y: x * y),
    "norm_axis": lambda scope, a: as_poly(normal_axis(scope.fixed(a[0]), scope.fixed(a[1]))),
    "norm_axes": lambda scope, a: [
        as_poly(normal_axis(each, scope.fixed(a[1]))) for each in _fixed_list(scope, a[0])
    ],
    "inverse": _inverse_permutation,
    "perm_default": lambda scope, a: a[0] or [as_poly(i) for i in range(scope.fixed(a[1]))][::-1],
    "default": lambda scope, a: a[0] or [a[1]] * scope.fixed(a[2]),
    "to_float": lambda scope, a: as_number(scope, a[0]),
}
