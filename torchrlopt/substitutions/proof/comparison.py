"""Compares two tensors of a case element by element."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from typing import Any

import z3

from torchrlopt.substitutions.proof.arithmetic import REAL_LIMIT, Questions, check
from torchrlopt.substitutions.proof.case import Case
from torchrlopt.substitutions.proof.forms import (
    Apply,
    Atom,
    Count,
    Element,
    Fold,
    Form,
    Term,
    conditions_in,
    cut_point,
    negate,
    refined,
    substituted,
    with_conditions,
)
from torchrlopt.substitutions.proof.polynomial import Poly
from torchrlopt.substitutions.proof.tensors import Tensor, same_shapes

MAX_PIECES = 48
"""Maximum number of parts into which the index range of an output is cut."""
MAX_FRAMES = 48
"""Maximum number of ways tried to align the binders of several sums."""


class NotProved(Exception):  # noqa: N818
    """The two sides could not be shown to be equal; they may still be."""


@dataclass(frozen=True)
class Law:
    """An axiom about functions of real numbers: both sides are equal for all values of its variables.

    Attributes:
        triggers: functions whose arguments are tried as values of the variables.
    """

    name: str
    variables: tuple[str, ...]
    triggers: frozenset[str]
    left: Form
    right: Form


class Comparison:
    """Compares the outputs of one case."""

    def __init__(self, case: Case, laws: Sequence[Law]) -> None:
        self.case = case
        self.scope = case.scope
        self.laws = laws
        self.questions = Questions(case, self.same_form)
        self._open: set[tuple[Form, Form]] = set()
        self.scope.decide = lambda scope, value: self.questions.is_at_least_zero(value)

    def prove(self) -> None:
        """Raises NotProved if an output cannot be shown to stay the same."""
        for name, before, after in self.case.pairs:
            if before is not after:
                self._prove_tensor(name, before, after)

    def _prove_tensor(self, name: str, before: Tensor, after: Tensor) -> None:
        self.scope.merge_quotients()
        if before.rank != after.rank:
            raise NotProved(f"{name}: the ranks differ")
        for a, b in zip(before.shape, after.shape, strict=True):
            if self.scope.value_of(a) != self.scope.value_of(b):
                raise NotProved(f"{name}: the sizes {self.scope.norm(a)} and {self.scope.norm(b)} differ")
            # Substitutions that change the type of an output are never applied.
            self.scope.assume_equal(a, b)
        x, y = before.elements, after.elements
        if x is not None and y is not None and same_shapes(self.scope, x.shape, y.shape):
            self._prove_tensor(name, x, y)
            return
        start: list[Poly] = []
        for size in before.shape:
            known = self.scope.norm(size)
            if known == 1:
                start.append(Poly({}))
                continue
            start.append(self._free_index(known))
        todo = [tuple(start)]
        pieces = 0
        while todo:
            index = todo.pop()
            pieces += 1
            if pieces > MAX_PIECES:
                raise NotProved(f"{name}: more parts than the prover looks at")
            left, right = self._elements(before, after, index)
            cut = self._cut(index, left, right)
            if cut is not None:
                todo += cut
                continue
            self.prove_forms(left, right, name)

    def _free_index(self, size: Poly) -> Poly:
        name = self.scope.index(size)
        self.scope.free.add(name)
        return Poly.variable(name)

    def _elements(self, before: Tensor, after: Tensor, index: Sequence[Poly]) -> tuple[Form, Form]:
        """Both elements, re-read if a division split an index."""
        while True:
            known = len(self.scope.free)
            at = [self.scope.norm(each) for each in index]
            left = refined(self.scope, before.read(at))
            right = refined(self.scope, after.read(at))
            if len(self.scope.free) == known:
                return with_conditions(self.scope, left), with_conditions(self.scope, right)

    def _cut(self, index: Sequence[Poly], left: Form, right: Form) -> list[tuple[Poly, ...]] | None:
        """Splits a range of the index where a condition changes."""
        scope = self.scope
        at = [scope.norm(each) for each in index]
        names = sorted(
            {name for each in at for name in each.variables if name in scope.free and name in scope.below}
        )
        for condition in (each for form in (left, right) for each in conditions_in(form)):
            for name in names:
                size = scope.norm(scope.below[name])
                point = cut_point(scope, condition, name, size)
                if point is None or not point.terms or not scope.norm(size - point).terms:
                    continue
                low, high = self._free_index(point), self._free_index(scope.norm(size - point))
                return [tuple(each.substitute({name: new}) for each in at) for new in (low, high + point)]
        return None

    # ---- forms

    def same_form(self, left: Form, right: Form) -> bool:
        """Whether both can be shown to be equal for all indices in range."""
        key = (left, right)
        if left == right:
            return True
        if key in self._open:  # circular: the question depends on itself, so the answer is no
            return False
        self._open.add(key)
        try:
            self.prove_forms(refined(self.scope, left), refined(self.scope, right), "")
        except NotProved:
            return False
        finally:
            self._open.discard(key)
        return True

    def prove_forms(self, left: Form, right: Form, name: str) -> None:
        """Raises NotProved unless both are equal for all indices in range."""
        rest_left, rest_right = self._without_pairs(left, right)
        if not rest_left and not rest_right:
            return
        frames: dict[tuple[object, ...], list[Term]] = {}
        for term in (*rest_left, *negate(tuple(rest_right))):
            sizes = tuple(sorted(self.scope.norm(size).key for _, size in term.binders))
            frames.setdefault(sizes, []).append(term)
        for terms in frames.values():
            if not any(self._is_zero(each) for each in self._frames(terms)):
                raise NotProved(f"{name}: {show(tuple(terms))} is not shown to be 0")

    def _without_pairs(self, left: Form, right: Form) -> tuple[list[Term], list[Term]]:
        """The remaining terms after removing equal pairs."""
        rest_left: list[Term] = []
        rest_right = list(right)
        for term in left:
            found = self._equal_term(term, rest_right)
            if found is None:
                rest_left.append(term)
            else:
                rest_right.remove(found)
        return rest_left, rest_right

    def _equal_term(self, term: Term, others: Iterable[Term]) -> Term | None:
        mine = heads(term)
        alike = [each for each in others if each.factor == term.factor and heads(each) == mine]
        for is_quick in (True, False):
            for other in alike:
                for laid in self._laid_over(term, other):
                    looks_equal = canonical(self.scope, laid) == canonical(self.scope, term)
                    # Try terms that look equal first; Z3 decides for those as well.
                    if looks_equal is is_quick and self._is_zero(_difference(term, laid)):
                        return other
        return None

    def _laid_over(self, term: Term, other: Term) -> Iterator[Term]:
        """The other term with the binders of the first, in all ways that their sizes allow."""
        if len(term.binders) != len(other.binders):
            return
        for order in permutations(other.binders):
            if any(self.scope.norm(a - b).terms for (_, a), (_, b) in zip(term.binders, order, strict=True)):
                continue
            names = {old: Poly.variable(new) for (new, _), (old, _) in zip(term.binders, order, strict=True)}
            (laid,) = substituted(self.scope, (replace(other, binders=()),), names)
            yield replace(laid, binders=term.binders)

    def _frames(self, terms: Sequence[Term]) -> Iterator[Form]:
        """All terms over the binders of the first, with the binders removed."""
        first, *others = terms
        ways = [list(self._laid_over(first, each)) for each in others]
        for count, laid in enumerate(product(*ways)):
            if count >= MAX_FRAMES:
                return
            yield tuple(replace(each, binders=()) for each in (first, *laid))

    def _is_zero(self, form: Form) -> bool:
        """Queries Z3 whether a form without sums is 0 for all indices, elements and numbers."""
        questions = self.questions
        outer, questions.applied = questions.applied, {}
        try:
            return self._asks_zero(form)
        finally:
            questions.applied = outer

    def _asks_zero(self, form: Form) -> bool:
        questions = self.questions
        term = questions.real(form)
        facts = questions.real_facts()
        facts += self._laws()
        facts += questions.integer_facts({name for each in integers_in(form) for name in each.variables})
        solver = z3.Solver()
        solver.set("rlimit", REAL_LIMIT)
        solver.add(*facts, term != 0)
        return bool(check(solver) == z3.unsat)

    def _laws(self) -> list[Any]:
        """The laws, instantiated with all occurring arguments of their functions."""
        questions = self.questions
        facts = []
        for law in self.laws:
            args = list(
                {each[0].sexpr(): each[0] for name in law.triggers
                 for each in questions.applied.get(name, {}).values()}.values()
            )  # fmt: skip
            if not law.triggers <= questions.applied.keys() or len(args) ** len(law.variables) > 64:
                continue
            for chosen in product(args, repeat=len(law.variables)):
                values = [
                    (z3.Real(f"real {name}"), arg) for name, arg in zip(law.variables, chosen, strict=True)
                ]
                left, right = (questions.real(side) for side in (law.left, law.right))
                facts.append(z3.substitute(left, *values) == z3.substitute(right, *values))
        for arg, *_ in list(questions.applied.get("Reciprocal", {}).values()):
            function = z3.Function("Reciprocal 1", z3.RealSort(), z3.RealSort())
            facts.append(z3.Implies(arg != 0, arg * function(arg) == 1))
        return facts


def _difference(a: Term, b: Term) -> Form:
    """The difference of two terms over the same binders, with the binders removed."""
    return (replace(a, binders=()), replace(b, factor=-b.factor, binders=()))


# ---- how forms look


def heads(term: Term) -> Counter[str]:
    """The atoms of a term without their indices."""

    def head(value: Atom) -> str:
        if isinstance(value, Element):
            return f"element {value.tensor}"
        if isinstance(value, Apply | Fold):
            return f"{type(value).__name__} {value.function}"
        return type(value).__name__

    return Counter(head(each) for each in term.atoms)


def canonical(scope: Any, term: Term) -> object:
    """Equal for terms that differ only in order or in the names of binders inside their atoms."""

    def of_form(form: Form, depth: int) -> object:
        return tuple(sorted((of_term(each, depth) for each in form), key=repr))

    def of_term(value: Term, depth: int) -> object:
        names = {name: Poly.variable(f"bound {depth}.{i}") for i, (name, _) in enumerate(value.binders)}
        (bare,) = substituted(scope, (replace(value, binders=()),), names)
        sizes = tuple(repr(scope.norm(size)) for _, size in value.binders)
        atoms = tuple(sorted((of_atom(each, depth + 1) for each in bare.atoms), key=repr))
        return (str(bare.factor), sizes, atoms, tuple(sorted(map(repr, bare.conditions))))

    def of_atom(value: Atom, depth: int) -> object:
        if isinstance(value, Apply):
            return (value.function, *(of_form(arg, depth) for arg in value.args))
        if isinstance(value, Fold):
            names = {name: Poly.variable(f"bound {depth}.f{i}") for i, name in enumerate(value.binders)}
            sizes = tuple(repr(scope.norm(size)) for size in value.sizes)
            return (value.function, sizes, of_form(substituted(scope, value.body, names), depth + 1))
        return repr(value)

    return of_term(replace(term, binders=()), 0)


def integers_in(form: Form) -> Iterator[Poly]:
    """All integers in a form, including those inside atoms."""
    for term in form:
        yield from term.conditions
        yield from (size for _, size in term.binders)
        for each in term.atoms:
            if isinstance(each, Element):
                yield from each.index
            elif isinstance(each, Count):
                yield each.value
            elif isinstance(each, Apply):
                for arg in each.args:
                    yield from integers_in(arg)
            elif isinstance(each, Fold):
                yield from each.sizes
                yield from integers_in(each.body)


def show(form: Form) -> str:
    """Formats a form for messages."""

    def show_atom(value: Atom) -> str:
        if isinstance(value, Element):
            return f"{value.tensor}[{', '.join(map(repr, value.index))}]"
        if isinstance(value, Apply):
            return f"{value.function}({', '.join(show(arg) for arg in value.args)})"
        if isinstance(value, Fold):
            return f"{value.function}{list(value.binders)}({show(value.body)})"
        return value.name if isinstance(value, Count) is False and hasattr(value, "name") else repr(value)

    def show_term(term: Term) -> str:
        parts = [f"sum[{name} < {size}]" for name, size in term.binders]
        parts += [f"[{each} >= 0]" for each in term.conditions]
        return " ".join([*parts, str(term.factor), *(show_atom(each) for each in term.atoms)])

    return " + ".join(show_term(each) for each in form) or "0"
