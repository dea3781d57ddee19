"""The axioms of the prover: each is true by the exact evaluation that checks the library.

Also compares the definitions of operators in `proof/` with the core's reference interpreter.
"""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from torchrlopt import _C, _tools
from torchrlopt.substitutions.proof.case import Definitions, make_case
from torchrlopt.substitutions.proof.forms import Apply, Count, Element, Fold, Form, Real
from torchrlopt.substitutions.proof.polynomial import Poly
from torchrlopt.substitutions.proof.prover import load_axioms
from torchrlopt.substitutions.proof.records import AXIOMS
from torchrlopt.substitutions.proof.rule_text import parse_rule
from torchrlopt.substitutions.proof.scope import Scope
from torchrlopt.substitutions.proof.tensors import Tensor

TEXT = AXIOMS.read_text(encoding="utf-8")
LIBRARY = _C.Library(TEXT)


@pytest.mark.parametrize("name", LIBRARY.names)
def test_is_true(name: str) -> None:
    result = _tools.verify(LIBRARY, name, bindings=200)
    assert result["ok"], f"{LIBRARY.text(name)}\n{result['reason']}\n{result['counter_example']}"
    assert result["num_bindings"] >= 40, result["reason"]


def test_all_are_read() -> None:
    axioms = load_axioms()
    assert sum(len(each) for each in axioms.definitions.values()) + len(axioms.laws) == len(LIBRARY)
    assert {law.name for law in axioms.laws} == {name for name in LIBRARY.names if name.startswith("law_")}


def test_definitions_end() -> None:
    """No operator is defined by itself, however far round."""
    uses = {
        op: {line.op for rule in rules for line in rule.replacement if line.op}
        for op, rules in load_axioms().definitions.items()
    }
    for op in uses:
        seen: set[str] = set()
        todo = [op]
        while todo:
            for inner in uses.get(todo.pop(), set()) - seen:
                seen.add(inner)
                todo.append(inner)
        assert op not in seen, f"{op} is defined by itself"


# ---- the definitions of operators that are code

#: One operator each, on shapes with something in every corner: groups, strides, dilations, one-sided pads.
OPERATORS = [
    ("y = Conv(x, w, b; strides=s, pads=p, dilations=d, group=g)",
     {"x": (1, 4, 5, 4), "w": (4, 2, 2, 3), "b": (4,)},
     {"s": [2, 1], "p": [1, 0, 0, 2], "d": [1, 2], "g": 2}),
    ("y = ConvTranspose(x, w, b; strides=s, pads=p, dilations=d, group=g)",
     {"x": (1, 4, 3, 2), "w": (4, 2, 2, 3), "b": (4,)},
     {"s": [2, 1], "p": [1, 0, 0, 1], "d": [1, 2], "g": 2}),
    ("y = AveragePool(x; kernel_shape=k, strides=s, pads=p, ceil_mode=c, count_include_pad=i)",
     {"x": (1, 2, 5, 4)}, {"k": [2, 3], "s": [2, 2], "p": [1, 0, 0, 1], "c": 0, "i": 0}),
    ("y = AveragePool(x; kernel_shape=k, strides=s, pads=p, ceil_mode=c, count_include_pad=i)",
     {"x": (1, 2, 6, 5)}, {"k": [3, 2], "s": [2, 2], "p": [1, 0, 0, 1], "c": 1, "i": 1}),
    ("y = MatMul(x, w)", {"x": (2, 1, 3, 4), "w": (2, 4, 2)}, {}),
    ("y = FusedMatMul(x, w, b, z)", {"x": (2, 3, 4), "w": (4, 2), "b": (2,), "z": (2, 3, 2)}, {}),
    ("y = Gemm(x, w, b; alpha=p, beta=q, transB=1)",
     {"x": (3, 4), "w": (2, 4), "b": (2,)}, {"p": 0.5, "q": 2.0}),
    ("y = ReduceMean(x; axes=a, keepdims=k)", {"x": (2, 3, 4)}, {"a": [-1, 0], "k": 0}),
    ("y = ReduceSum(x; axes=a, keepdims=k)", {"x": (2, 3, 4)}, {"a": [1], "k": 1}),
    ("y = BatchNormalization(x, s, o, m, v; epsilon=e)",
     {"x": (2, 3, 2), "s": (3,), "o": (3,), "m": (3,), "v": (3,)}, {"e": 0.1}),
    ("y = LayerNormalization(x, w, b; axis=a, epsilon=e)",
     {"x": (2, 3, 4), "w": (4,), "b": (4,)}, {"a": -1, "e": 0.1}),
    ("y = RMSNormalization(x, w; axis=a, epsilon=e)", {"x": (2, 4), "w": (4,)}, {"a": -1, "e": 0.1}),
    ("y = Softmax(x; axis=a)", {"x": (2, 3, 4)}, {"a": 1}),
    ("y = Attention(q, k, v; scale=s)",
     {"q": (1, 4, 3, 2), "k": (1, 2, 5, 2), "v": (1, 2, 5, 3)}, {"s": 0.5}),
    ("y = Slice(x; axes=a, starts=s, ends=e, steps=t)",
     {"x": (5, 6)}, {"a": [1, 0], "s": [-5, 1], "e": [100, -1], "t": [2, 1]}),
    ("y = Slice(x; axes=a, starts=s, ends=e, steps=t)",
     {"x": (5, 6)}, {"a": [1, 0], "s": [9, -2], "e": [-100, 0], "t": [-2, -1]}),
    ("y = Pad(x; pads=p, value=v)", {"x": (2, 3)}, {"p": [1, 0, 2, 1], "v": 0.5}),
    ("y = Reshape(x; shape=s)", {"x": (2, 3, 4)}, {"s": [0, -1, 2]}),
    ("y = Reshape(x; shape=s)", {"x": (4, 6)}, {"s": [3, 8]}),
    ("y = Transpose(x; perm=p)", {"x": (2, 3, 4)}, {"p": [2, 0, 1]}),
    ("y = Concat(x, w; axis=a)", {"x": (2, 3), "w": (2, 2)}, {"a": -1}),
    ("y = Expand(x; shape=s)", {"x": (3, 1)}, {"s": [2, 1, 4]}),
    ("y = Trilu(x; upper=u, k=k)", {"x": (3, 4)}, {"u": 0, "k": 1}),
    ("y = Flatten(x; axis=a)", {"x": (2, 3, 2)}, {"a": 2}),
]  # fmt: skip
_FUNCTIONS = {
    "Exp": np.exp, "Sqrt": np.sqrt, "Reciprocal": lambda x: 1 / x, "Max": np.maximum, "Min": np.minimum,
}  # fmt: skip


@pytest.mark.parametrize(("line", "shapes", "attrs"), OPERATORS, ids=lambda value: str(value)[:30])
def test_definition_is_the_reference(line: str, shapes: dict[str, Any], attrs: dict[str, Any]) -> None:
    again = line.replace("y =", "r =")
    text = f"substitution one\n  {line}\n  last = Neg(y)\n=>\n  {again}\n  last = Neg(r)\n"
    library = _C.Library(text)
    rule = parse_rule(library.text("one"))
    instance = {
        "tensors": {name: ("f64", shape, None) for name, shape in shapes.items()},
        "attributes": attrs, "rests": {}, "num_members": 0,
    }  # fmt: skip
    case = make_case(rule, instance, Definitions(load_axioms().definitions))
    ((_, before, _),) = case.pairs
    rng = np.random.default_rng(0)
    data = {name: rng.uniform(0.5, 2.0, shape) for name, shape in shapes.items()}
    sizes = [case.scope.value_of(size) for size in before.shape]
    found = np.empty(sizes)
    for index in product(*map(range, sizes)):
        found[index] = _Value(case.scope, data, attrs).of(before.read([Poly.number(i) for i in index]))
    expected = -_reference(line, data, attrs)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def _reference(line: str, data: dict[str, Any], attrs: dict[str, Any]) -> np.ndarray[Any, Any]:
    """What the core's interpreter makes of one line."""
    for name, value in attrs.items():
        line = re.sub(rf"={name}\b", f"={value}", line)
    inputs = ", ".join(f"{name}: f64[{','.join(map(str, value.shape))}]" for name, value in data.items())
    graph = _C.parse_graph(f"graph ({inputs}) {{\n  {line}\n  return y\n}}\n")
    return _tools.evaluate(graph, data)[0]


class _Value:
    """Evaluates forms on data, by what they mean."""

    def __init__(self, scope: Scope, data: dict[str, Any], attrs: dict[str, Any]) -> None:
        self.scope = scope
        self.data = data
        self.numbers = {**attrs, "lowest": -1e300}

    def of(self, form: Form, at: dict[str, int] | None = None) -> float:
        at = at or {}
        total = 0.0
        for term in form:
            for values in self._positions([(n, s) for n, s in term.binders], at):
                if all(self._int(each, values) >= 0 for each in term.conditions):
                    total += float(term.factor) * float(
                        np.prod([self._atom(each, values) for each in term.atoms], initial=1.0)
                    )
        return total

    def _positions(self, binders: list[tuple[str, Poly]], at: dict[str, int]) -> list[dict[str, int]]:
        result = [dict(at)]
        for name, size in binders:
            result = [{**each, name: i} for each in result for i in range(self._int(size, each))]
        return result

    def _int(self, value: Poly, at: dict[str, int]) -> int:
        known = self.scope.norm(value)
        values = {**self.scope.values, **at}
        for high, parts in ((name, self.scope.split[name]) for name in self.scope.split):
            if high in at:  # an index that was taken apart
                size = self._int(self.scope.below[parts[1]], at)
                values[parts[0]], values[parts[1]] = divmod(at[high], size)
        for name in known.variables & self.scope.dividends.keys():
            a, b = self.scope.dividends[name]
            values[name] = self._int(a, at) // self._int(b, at)
        return known.evaluate(values)

    def _atom(self, value: Any, at: dict[str, int]) -> float:
        if isinstance(value, Element):
            return float(self.data[value.tensor][tuple(self._int(each, at) for each in value.index)])
        if isinstance(value, Real):
            return float(self.numbers[value.name])
        if isinstance(value, Count):
            return float(self._int(value.value, at))
        if isinstance(value, Apply):
            return float(_FUNCTIONS[value.function](*(self.of(arg, at) for arg in value.args)))
        assert isinstance(value, Fold)
        places = self._positions(list(zip(value.binders, value.sizes, strict=True)), at)
        return max(self.of(value.body, each) for each in places)


def test_evaluator_of_forms_sees_a_difference() -> None:
    """The test above would notice: a wrong factor is another value."""
    tensor = Tensor("f64", (), lambda index: ())
    assert _Value(Scope(), {}, {}).of(tensor.read(())) == 0.0
    form = load_axioms().laws[0].left
    names = dict.fromkeys(load_axioms().laws[0].variables, 0.5)
    right = _Value(Scope(), {}, names).of(load_axioms().laws[0].right)
    assert _Value(Scope(), {}, names).of(form) == pytest.approx(right)
    doubled = tuple(type(t)(t.factor * Fraction(2), t.atoms, t.conditions, t.binders) for t in form)
    assert _Value(Scope(), {}, names).of(doubled) == pytest.approx(2 * right)
