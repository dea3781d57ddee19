"""Z3 queries: facts of a case, and terms for its integers and real numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import z3

from torchrlopt.substitutions.proof.case import Case
from torchrlopt.substitutions.proof.forms import (
    Apply,
    Atom,
    Count,
    Element,
    Fold,
    Form,
    Real,
    Term,
    substituted,
)
from torchrlopt.substitutions.proof.polynomial import Poly
from torchrlopt.substitutions.proof.scope import Scope

INTEGER_LIMIT = 40_000
"""Z3's step limit per integer query; steps rather than time give the same answer on every machine."""
REAL_LIMIT = 4_000_000
"""Z3's step limit per equation of elements."""


def check(solver: z3.Solver) -> z3.CheckSatResult:
    """Runs the solver; re-raises Ctrl-C, which Z3 reports as `unknown`."""
    result: z3.CheckSatResult = solver.check()
    if result == z3.unknown and "interrupt" in solver.reason_unknown():
        raise KeyboardInterrupt
    return result


@dataclass
class Questions:
    """Z3's view of one case.

    Attributes:
        same_form: returns whether two forms are equal for all indices; provided by the comparison.
        applied: arguments of each function that was translated.
    """

    case: Case
    same_form: Callable[[Form, Form], bool]
    _known: dict[tuple[object, ...], bool] = field(default_factory=dict)
    applied: dict[str, dict[str, tuple[Any, ...]]] = field(default_factory=dict)
    _stand_ins: list[tuple[Form, Any]] = field(default_factory=list)

    @property
    def scope(self) -> Scope:
        """The scope of the case."""
        return self.case.scope

    # ---- integers

    def integer(self, value: Poly) -> Any:
        """A polynomial as a Z3 term."""
        total = z3.IntVal(0)
        for powers, factor in self.scope.norm(value).key:
            product = z3.IntVal(factor)
            for name in powers:
                product = product * z3.Int(name)
            total = total + product
        return total

    def integer_facts(self, names: Iterable[str]) -> list[Any]:
        """All facts about these symbols and about symbols that occur with them."""
        scope = self.scope
        everything = [
            *((scope.norm(each), "==") for each in scope.equal),
            *((scope.norm(each), ">=") for each in scope.at_least),
            *((scope.norm(each), "!=") for each in scope.different),
        ]
        for quotient, a, b in scope.quotients:
            everything += [(a - quotient * b, ">="), (b - 1 - (a - quotient * b), ">=")]
        seen: set[str] = set()
        todo = list(names)
        facts: list[Any] = []
        left = everything
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            low = scope.low.get(name)
            if low is not None:
                facts.append(z3.Int(name) >= low)
            if name in scope.below:
                size = scope.norm(scope.below[name])
                facts.append(z3.Int(name) < self.integer(size))
                todo += size.variables
            touching = [each for each in left if name in each[0].variables]
            left = [each for each in left if name not in each[0].variables]
            for value, relation in touching:
                term = self.integer(value)
                facts.append(term == 0 if relation == "==" else term >= 0 if relation == ">=" else term != 0)
                todo += value.variables
        return facts

    def is_at_least_zero(self, value: Poly) -> bool:
        """Whether value >= 0 follows from the facts."""
        scope = self.scope
        if value.constant is not None:
            return value.constant >= 0
        if self._has_counter_example(value):
            return False
        key = (value, len(scope.solved), len(scope.equal), len(scope.at_least))
        if key not in self._known:
            solver = z3.Solver()
            solver.set("rlimit", INTEGER_LIMIT)
            solver.add(self.integer(value) < 0, *self.integer_facts(value.variables))
            self._known[key] = check(solver) == z3.unsat
        return self._known[key]

    def _has_counter_example(self, value: Poly) -> bool:
        """Tries the ends of the indices' ranges in the instance, which is cheaper than Z3."""
        scope = self.scope
        indices = sorted(name for name in value.variables if name in scope.below)
        for corner in range(min(16, 1 << len(indices))):
            values = dict(scope.values)
            try:
                for position, name in enumerate(indices):
                    end = scope.value_of(scope.below[name]) - 1
                    values[name] = end if corner >> position & 1 else 0
                if value.evaluate(values) < 0:
                    return True
            except KeyError:
                return False  # a quotient depends on an index
        return False

    # ---- real numbers

    def real(self, form: Form) -> Any:
        """Translates a form without sums outside its atoms."""
        total = z3.RealVal(0)
        for term in form:
            total = total + self._term(term)
        return total

    def _term(self, term: Term) -> Any:
        assert not term.binders, "a sum cannot be asked about"
        value = _rational(term.factor)
        for each in sorted(term.atoms, key=repr):
            value = value * self._atom(each)
        if not term.conditions:
            return value
        conditions = [self.integer(each) >= 0 for each in term.conditions]
        return z3.If(z3.And(*conditions), value, z3.RealVal(0))

    def _atom(self, value: Atom) -> Any:
        if isinstance(value, Element):
            index = [self.integer(each) for each in value.index]
            sorts = [z3.IntSort()] * len(index)
            return z3.Function(f"element {value.tensor} {len(index)}", *sorts, z3.RealSort())(*index)
        if isinstance(value, Real):
            return z3.Real(f"real {value.name}")
        if isinstance(value, Count):
            return z3.ToReal(self.integer(value.value))
        if isinstance(value, Apply):
            args = tuple(self.value(arg) for arg in value.args)
            if value.function in ("Max", "Min") and len(args) == 2:
                is_first = args[0] >= args[1] if value.function == "Max" else args[0] <= args[1]
                return z3.If(is_first, args[0], args[1])
            function = z3.Function(f"{value.function} {len(args)}", *[z3.RealSort()] * (len(args) + 1))
            self.applied.setdefault(value.function, {})[function(*args).sexpr()] = args
            return function(*args)
        return self._stand_in((Term(atoms=(value,)),))

    def value(self, form: Form) -> Any:
        """Translates any form; a number stands for all forms with sums that are equal to it."""
        return self._stand_in(form) if has_sums(form) else self.real(form)

    def _stand_in(self, form: Form) -> Any:
        for known, term in self._stand_ins:
            if self._same(known, form):
                return term
        term = z3.Real(f"stand-in {len(self._stand_ins)}")
        self._stand_ins.append((form, term))
        return term

    def _same(self, a: Form, b: Form) -> bool:
        folds = [form[0].atoms[0] for form in (a, b) if is_fold(form)]
        if len(folds) != 2:
            return not folds and self.same_form(a, b)
        x, y = folds
        assert isinstance(x, Fold)
        assert isinstance(y, Fold)
        return x.function == y.function and self._same_fold(x, y)

    def _same_fold(self, a: Fold, b: Fold) -> bool:
        if len(a.sizes) != len(b.sizes):
            return False
        if any(self.scope.norm(x - y).terms for x, y in zip(a.sizes, b.sizes, strict=True)):
            return False
        scope = self.scope
        # Map the binders of b, split or not, to those of a.
        values = {old: scope.norm(Poly.variable(new)) for old, new in zip(b.binders, a.binders, strict=True)}
        if any(name in scope.split for name in b.binders):
            return a.binders == b.binders and self.same_form(a.body, b.body)
        return self.same_form(a.body, substituted(scope, b.body, values))

    def real_facts(self) -> list[Any]:
        """Facts about real numbers from the conditions."""
        facts = []
        for left, relation, right in self.case.real_facts:
            a, b = self.real(left), self.real(right)
            facts.append(
                {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[relation]
            )
        return facts


def is_fold(form: Form) -> bool:
    """Whether a form is just a fold."""
    if len(form) != 1 or len(form[0].atoms) != 1 or form[0] != Term(atoms=form[0].atoms):
        return False
    return isinstance(form[0].atoms[0], Fold)


def has_sums(form: Form) -> bool:
    """Whether a form contains a sum or a fold, at any depth."""
    return any(
        term.binders
        or any(
            isinstance(each, Fold) or (isinstance(each, Apply) and any(has_sums(arg) for arg in each.args))
            for each in term.atoms
        )
        for term in form
    )


def _rational(value: Fraction) -> Any:
    return z3.Q(value.numerator, value.denominator)
