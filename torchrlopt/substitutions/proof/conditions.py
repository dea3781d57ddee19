"""Assumes the conditions of a substitution, which hold in the instance, for the symbols of its case."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from torchrlopt.substitutions.proof.expressions import Evaluator, Family, as_number
from torchrlopt.substitutions.proof.scope import Unsupported
from torchrlopt.substitutions.proof.tensors import Number, Tensor

_COMPARE: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], bool]]] = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
}
_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}

#: Properties that real numbers do not have: a tensor's origin and its users.
_OF_THE_GRAPH = {"is_static", "is_weight", "is_float", "is_constant", "is_scalar"}


class Assumer:
    """Walks a condition along the branches that decide it in the instance."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.scope = evaluator.scope

    def holds(self, node: ast.expr) -> bool:
        """Whether a condition holds in the instance."""
        if isinstance(node, ast.BoolOp):
            results = [self.holds(each) for each in node.values]
            return all(results) if isinstance(node.op, ast.And) else any(results)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self.holds(node.operand)
        if isinstance(node, ast.Compare):
            symbol, _ = _COMPARE[type(node.ops[0])]
            left, right = self.evaluator.evaluate(node.left), self.evaluator.evaluate(node.comparators[0])
            return all(self._compare_holds(symbol, a, b) for a, b in self._members(left, right))
        value = self.evaluator.evaluate(node)
        return all(self._call_holds(each) for each in (value.items if isinstance(value, Family) else [value]))

    def assume(self, node: ast.expr, expected: bool = True) -> None:
        """Assumes the parts that make the condition `expected` in the instance."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.assume(node.operand, not expected)
        elif isinstance(node, ast.BoolOp):
            if isinstance(node.op, ast.And) is expected:
                for each in node.values:
                    self.assume(each, expected)
            else:
                self.assume(next(each for each in node.values if self.holds(each) is expected), expected)
        elif isinstance(node, ast.Compare):
            symbol, _ = _COMPARE[type(node.ops[0])]
            left, right = self.evaluator.evaluate(node.left), self.evaluator.evaluate(node.comparators[0])
            for a, b in self._members(left, right):
                self._assume_compare(symbol if expected else _OPPOSITE[symbol], a, b)
        else:
            value = self.evaluator.evaluate(node)
            for each in value.items if isinstance(value, Family) else [value]:
                self._assume_call(each, expected)

    # ---- comparisons

    def _members(self, left: Any, right: Any) -> list[tuple[Any, Any]]:
        if isinstance(left, list) and isinstance(right, Family):
            right = right if isinstance(right.items[0], list) else right.items
        if isinstance(right, list) and isinstance(left, Family):
            left = left if isinstance(left.items[0], list) else left.items
        families = [each for each in (left, right) if isinstance(each, Family)]
        if not families:
            return [(left, right)]
        count = len(families[0].items)
        return list(
            zip(
                *(each.items if isinstance(each, Family) else [each] * count for each in (left, right)),
                strict=True,
            )
        )

    def _value(self, value: Any) -> Any:
        """The value in the instance."""
        if isinstance(value, list):
            return [self._value(each) for each in value]
        if isinstance(value, Number):
            return value.value
        return value if isinstance(value, str | bool | Tensor | tuple) else self.scope.value_of(value)

    def _compare_holds(self, symbol: str, a: Any, b: Any) -> bool:
        compare = next(function for name, function in _COMPARE.values() if name == symbol)
        return bool(compare(self._value(a), self._value(b)))

    def _assume_compare(self, symbol: str, a: Any, b: Any) -> None:
        if isinstance(a, list) and isinstance(b, list):
            if symbol == "==":
                if len(a) != len(b):
                    raise Unsupported("lists of different lengths that are to be equal")
                for x, y in zip(a, b, strict=True):
                    self._assume_compare("==", x, y)
            return  # unequal lists: assume nothing
        if isinstance(a, str) or isinstance(b, str):
            return
        if isinstance(a, Number) or isinstance(b, Number):
            x, y = as_number(self.scope, a), as_number(self.scope, b)
            if not (math.isinf(x.value) or math.isinf(y.value)):
                self.evaluator.real_facts.append((x.form, symbol, y.form))
            return
        if symbol == "==":
            self.scope.assume_equal(a, b)
        elif symbol == "!=":
            self.scope.assume_different(a, b)
        else:
            low, high = (a, b) if symbol in ("<", "<=") else (b, a)
            self.scope.assume_at_least(high - low, 1 if symbol in ("<", ">") else 0)

    # ---- conditions that are functions

    def _call_holds(self, value: Any) -> bool:
        name, *args = value
        if name in _OF_THE_GRAPH:
            return True
        if name == "same":
            return all(self._value(each) == self._value(args[0][0]) for each in args[0])
        if name == "same_shape":
            return bool(self._value(list(args[0].shape)) == self._value(list(args[1].shape)))
        if name == "contains":
            return self._value(args[1]) in self._value(args[0])
        if name == "all_equal":
            return all(self._value(each) == self._value(args[1]) for each in args[0])
        if name == "all_at_least":
            return all(self._value(each) >= self._value(args[1]) for each in args[0])
        if name == "all_at_most":
            return all(x <= y for x, y in zip(self._value(args[0]), self._value(args[1]), strict=True))
        if name == "close":
            return math.isclose(self._value(args[0]), self._value(args[1]), rel_tol=1e-6)
        if name == "broadcasts_to":
            shape, to = self._value(list(args[0].shape)), self._value(list(args[1].shape))
            return len(shape) <= len(to) and all(
                x in (1, y) for x, y in zip(shape[::-1], to[::-1], strict=False)
            )
        raise Unsupported(f"the function {name} in a condition")

    def _assume_call(self, value: Any, expected: bool) -> None:
        name, *args = value
        if name in _OF_THE_GRAPH:
            return
        if not expected:
            if name == "contains":
                for each in [*args[0], args[1]]:
                    self.scope.fixed(each)
            return  # other negated conditions: assume nothing
        if name == "same":
            for each in args[0][1:]:
                if not isinstance(each, Tensor):
                    self._assume_compare("==", each, args[0][0])
        elif name == "same_shape":
            self._assume_compare("==", list(args[0].shape), list(args[1].shape))
        elif name == "contains":
            for each in [*args[0], args[1]]:
                self.scope.fixed(each)
        elif name == "all_equal":
            for each in args[0]:
                self._assume_compare("==", each, args[1])
        elif name == "all_at_least":
            for each in args[0]:
                self._assume_compare(">=", each, args[1])
        elif name == "all_at_most":
            for x, y in zip(args[0], args[1], strict=True):
                self._assume_compare("<=", x, y)
        elif name == "close":
            # Single-precision rounding may separate constants that mean the same number.
            self._assume_compare("==", args[0], args[1])
        elif name == "broadcasts_to":
            for x, y in zip(args[0].shape[::-1], args[1].shape[::-1], strict=False):
                self.scope.assume_equal(x, y if self.scope.value_of(x) == self.scope.value_of(y) else 1)
        else:
            raise Unsupported(f"the function {name} in a condition")
