"""Runs one drawn instance of a substitution with symbols in place of its sizes and numbers."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torchrlopt import _C
from torchrlopt.substitutions.proof.conditions import Assumer
from torchrlopt.substitutions.proof.expressions import Evaluator, Family, literal
from torchrlopt.substitutions.proof.forms import Element, Form, Real, atom
from torchrlopt.substitutions.proof.operators import OPERATORS, UNARY
from torchrlopt.substitutions.proof.polynomial import Poly, as_poly
from torchrlopt.substitutions.proof.rule_text import Line, Rule
from torchrlopt.substitutions.proof.scope import Scope, Unsupported
from torchrlopt.substitutions.proof.tensors import Call, Index, Number, Tensor

MAX_DEPTH = 6
"""Maximum nesting of definitions."""


@cache
def operator_table() -> Mapping[str, dict[str, Any]]:
    """The operators of the core, by name."""
    return {op["name"]: op for op in _C.ops()}


@dataclass
class Definitions:
    """The axioms that define operators in terms of others: by operator, in file order.

    Attributes:
        by_op: pattern of one line => its meaning.
        opens_unary: whether to replace unary functions by their definitions; if not, they are uninterpreted
            functions, which suffices if they are only moved.
    """

    by_op: Mapping[str, Sequence[Rule]]
    opens_unary: bool = True


@dataclass
class Case:
    """Both sides of a substitution, evaluated on symbols.

    Attributes:
        pairs: (name, output of the pattern, its replacement).
        key: equal for instances that yield the same theorem.
    """

    scope: Scope
    real_facts: list[tuple[Form, str, Form]]
    pairs: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)
    key: str = ""


def make_case(
    rule: Rule, instance: Mapping[str, Any], definitions: Definitions, deadline: float = math.inf
) -> Case:
    """Runs an instance from `Library.instances` through the substitution on symbols.

    Raises:
        Unsupported: an operator, or a form of one, has no definition.
        OutOfTime: the deadline, in processor time, has passed.
    """
    scope = Scope(deadline=deadline)
    case = Case(scope, [])
    variables: dict[str, Any] = {}
    reads = {name for line in rule.pattern for name in line.ins if isinstance(name, str)}
    made = {name for line in rule.pattern for name in line.outs}
    for name in sorted(reads - made):
        given = instance["tensors"][name]
        if name.endswith("*"):
            stem = name[:-1]
            members = [_input(scope, f"{stem}{m}", each) for m, each in enumerate(given)]
            variables[name] = Family(members)
        else:
            variables[name] = _input(scope, name, given)
    activations = {
        node.id[1:]
        for line in rule.pattern
        for attr, node in line.attrs.items()
        if attr == "activation" and isinstance(node, ast.Name)
    }
    for name, value in instance["attributes"].items():
        if name in activations:
            variables[name] = "any"  # an arbitrary function of one number and two attributes
        elif name.endswith("*"):
            each = [_attribute(scope, f"{name[:-1]}{m}", one) for m, one in enumerate(value)]
            variables[name] = Family(each)
        else:
            variables[name] = _attribute(scope, name, value)
    for name, values in instance["rests"].items():
        variables["@" + name] = {
            attr: _attribute(scope, f"@{name}.{attr}", value) for attr, value in values.items()
        }
    runner = Runner(scope, variables, case.real_facts, instance["num_members"], definitions)
    runner.run(rule.pattern)
    assumer = Assumer(runner.evaluator)
    for condition in rule.conditions:
        assumer.assume(condition)
    if any(isinstance(each, Tensor) and each.elements for each in runner.variables.values()):
        runner.run(rule.pattern)  # again: with these assumptions, more tensors are known to be reshaped alike
    before = {name: runner.variables[name] for name in rule.outputs}
    runner.run(rule.replacement)
    for name in rule.outputs:
        old, new = before[name], runner.variables[name]
        if isinstance(old, Family):
            case.pairs += [
                (f"{name}{m}", a, b) for m, (a, b) in enumerate(zip(old.items, new.items, strict=True))
            ]
        else:
            case.pairs.append((name, old, new))
    scope.merge_quotients()
    case.key = _key(scope, variables)
    return case


def _key(scope: Scope, variables: Mapping[str, Any]) -> str:
    """Shapes, attributes and assumptions, in terms of the remaining symbols."""

    def show(value: Any) -> str:
        if isinstance(value, Family | list):
            return f"[{', '.join(map(show, value.items if isinstance(value, Family) else value))}]"
        if isinstance(value, Tensor):
            return f"{value.dtype}{[scope.norm(size) for size in value.shape]}"
        if isinstance(value, Number):
            return "number"
        if isinstance(value, dict):
            return str({name: show(each) for name, each in value.items()})
        return repr(scope.norm(value)) if isinstance(value, Poly) else repr(value)

    facts = sorted(repr(scope.norm(each)) for each in (*scope.equal, *scope.at_least))
    return "; ".join([f"{name}: {show(value)}" for name, value in sorted(variables.items())] + facts)


def _input(scope: Scope, name: str, given: tuple[str, tuple[int, ...], list[float] | None]) -> Tensor:
    dtype, dims, values = given
    shape = tuple(scope.size(f"{name}.{axis}", size) for axis, size in enumerate(dims))
    is_single = values is not None and len(values) == 1
    is_integer = dtype.startswith(("i", "u"))

    def read(index: Index) -> Form:
        if tensor.as_number:
            return atom(Real(f"value of {name}"))
        return atom(Element(name, tuple(scope.norm(at) for at in index)))

    tensor = Tensor(dtype, shape, read, name)
    if is_single and values is not None:
        tensor.value = float(values[0])
    if is_integer and values is not None:
        tensor.content = [scope.symbol(f"{name}[{i}]", int(value)) for i, value in enumerate(values)]
    return tensor


def _attribute(scope: Scope, name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_attribute(scope, f"{name}.{i}", each) for i, each in enumerate(value)]
    if isinstance(value, float):
        return Number(atom(Real(name)), value)
    return value if isinstance(value, str) else scope.symbol(name, value)


class Runner:
    """Evaluates lines; each variable is a Tensor, a Family, or an attribute value."""

    def __init__(
        self,
        scope: Scope,
        variables: dict[str, Any],
        real_facts: list[tuple[Form, str, Form]],
        num_members: int,
        definitions: Definitions,
        depth: int = 0,
    ) -> None:
        self.scope = scope
        self.variables = variables
        self.evaluator = Evaluator(scope, variables, real_facts)
        self.num_members = num_members
        self.definitions = definitions
        self.depth = depth

    def run(self, lines: Sequence[Line]) -> None:
        """Evaluates lines in order and assigns their results to variables."""
        for line in lines:
            if not line.op:
                self.variables[line.outs[0]] = self.variables[str(line.ins[0])]
                continue
            starred = [isinstance(name, str) and name.endswith("*") for name in line.ins]
            is_variadic = operator_table()[line.op]["num_outputs"] < 0
            if line.outs[0].endswith("*") and (any(starred) or not is_variadic):
                members = [self._apply(line, m) for m in range(self.num_members)]
                for position, out in enumerate(line.outs):
                    self.variables[out] = Family([each[position] for each in members])
            elif line.outs[0].endswith("*"):
                self.variables[line.outs[0]] = Family(self._apply(line, None))
            else:
                for out, tensor in zip(line.outs, self._apply(line, None), strict=False):
                    self.variables[out] = tensor

    def _apply(self, line: Line, member: int | None) -> list[Tensor]:
        inputs: list[Tensor | None] = []
        for name in line.ins:
            found = self.variables[name] if isinstance(name, str) else name
            if isinstance(found, Family):
                inputs += found.items if member is None else [found.items[member]]
            elif isinstance(found, float):
                inputs.append(_constant("", literal(found)))
            else:
                inputs.append(found)
        attrs = self._attributes(line, member)
        if line.op == "Constant":
            other = inputs[0]
            assert other is not None, "a constant has a tensor next to it"
            return [_constant(other.dtype, attrs["value"][0])]
        return self.apply(line.op, inputs, attrs, len(line.outs))

    def apply(
        self, op: str, inputs: list[Tensor | None], attrs: dict[str, Any], num_outputs: int = 1
    ) -> list[Tensor]:
        """Applies one operator, by its definition in the axioms or its built-in meaning."""
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        if op not in UNARY or self.definitions.opens_unary:
            for rule in self.definitions.by_op.get(op, ()):
                found = self._define(rule, inputs, attrs)
                if found is not None:
                    return found
        if op not in OPERATORS:
            raise Unsupported(f"no definition of {op}")

        def evaluate(name: str, x: Tensor, given: dict[str, Any]) -> list[Tensor]:
            return self.apply(name, [x], given)

        if op in ("FusedConv", "FusedMatMul"):
            attrs = {**attrs, "evaluate": evaluate}
        return OPERATORS[op](Call(self.scope, inputs, attrs, num_outputs))

    def _attributes(self, line: Line, member: int | None) -> dict[str, Any]:
        attrs: dict[str, Any] = {}
        for name, default in operator_table()[line.op]["attrs"].items():
            if default is not None:
                attrs[name] = _default(default)
        attrs |= self.variables.get("@" + line.rest, {})
        kinds = operator_table()[line.op]["attrs"]
        for name, node in line.attrs.items():
            value = self.evaluator.evaluate(node)
            if isinstance(value, Family):
                value = value.items if member is None else value.items[member]
            if isinstance(kinds.get(name), float) and isinstance(value, Poly):
                value = literal(float(self.scope.fixed(value)))
            attrs[name] = value
        return attrs

    def _define(
        self, rule: Rule, inputs: list[Tensor | None], attrs: Mapping[str, Any]
    ) -> list[Tensor] | None:
        """Applies the operator's axiom; None if it does not cover this form."""
        line = rule.pattern[0]
        names = list(line.ins)
        if self.depth > MAX_DEPTH or len(names) != len(inputs):
            return None
        variables: dict[str, Any] = {}
        for name, tensor in zip(names, inputs, strict=True):
            if (name is None) != (tensor is None):
                return None
            if isinstance(name, str):
                variables[name] = tensor
            elif isinstance(name, float) and (tensor is None or tensor.rank or tensor.value != name):
                return None
        schema = operator_table()[line.op]["attrs"]
        for name, value in attrs.items():
            node = line.attrs.get(name)
            if isinstance(node, ast.Name):
                variables[node.id[1:]] = value
                continue
            expected = (
                _default(schema[name]) if node is None else Evaluator(self.scope, {}, []).evaluate(node)
            )
            if not self._is_fixed_at(value, expected):
                return None
        runner = Runner(self.scope, variables, self.evaluator.real_facts, 0, self.definitions, self.depth + 1)
        assumer = Assumer(runner.evaluator)
        if line.outs[0] not in variables and not all(assumer.holds(each) for each in rule.conditions):
            return None
        for condition in rule.conditions:
            assumer.assume(condition)
        runner.run(rule.replacement)
        return [runner.variables[out] for out in line.outs]

    def _is_fixed_at(self, value: Any, expected: Any) -> bool:
        """Whether an attribute has this value, in the instance and by assumption."""
        if isinstance(value, list) or isinstance(expected, list):
            return (
                isinstance(expected, list)
                and len(value) == len(expected)
                and all(self._is_fixed_at(x, y) for x, y in zip(value, expected, strict=True))
            )
        if isinstance(value, str) or isinstance(expected, str):
            return bool(value == expected)
        if isinstance(value, Number):
            wanted = expected if isinstance(expected, Number) else literal(float(expected.constant))
            if value.value != wanted.value:
                return False
            if value.form != wanted.form:
                self.evaluator.real_facts.append((value.form, "==", wanted.form))
            return True
        if self.scope.value_of(value) != self.scope.value_of(expected):
            return False
        self.scope.assume_equal(value, expected)
        return True


def _default(value: Any) -> Any:
    if isinstance(value, list):
        return [_default(each) for each in value]
    if isinstance(value, float):
        return literal(value)
    return value if isinstance(value, str) else as_poly(value)


def _constant(dtype: str, value: Number) -> Tensor:
    return Tensor(dtype, (), lambda index: value.form, value=value.value)
