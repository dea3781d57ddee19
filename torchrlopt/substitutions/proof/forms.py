"""Tensor elements in normal form: sums of products of atoms, under conditions, over ranges of indices.

A `Form` is a tuple of `Term`s. A term is a number times atoms if all its conditions hold, else 0, summed
over its binders. The laws of finite sums that normalise elements are the axioms of summation, all that
the prover knows about sums: sums are linear, sums commute, a product of sums is a sum of products, a range
can be cut in two, a range of a * b is one of a and one of b, a sum with one part is that part, and a sum of
equal parts is their number times one. Everything else is an atom; Z3 decides which atoms are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

from torchrlopt.substitutions.proof.polynomial import Poly
from torchrlopt.substitutions.proof.scope import Scope, Unsupported

MAX_TERMS = 600


@dataclass(frozen=True)
class Element:
    """An element of an input."""

    tensor: str
    index: tuple[Poly, ...]


@dataclass(frozen=True)
class Real:
    """A real number that is not an element: an attribute, or the value of a constant."""

    name: str


@dataclass(frozen=True)
class Count:
    """An integer as a real number."""

    value: Poly


@dataclass(frozen=True)
class Apply:
    """A function of real numbers, known only by its laws in the axioms."""

    function: str
    args: tuple[Form, ...]


@dataclass(frozen=True)
class Fold:
    """A function of all values that a form takes over ranges, such as their maximum."""

    function: str
    binders: tuple[str, ...]
    sizes: tuple[Poly, ...]
    body: Form


Atom = Element | Real | Count | Apply | Fold


@dataclass(frozen=True)
class Term:
    """factor * atoms if all conditions are >= 0, summed over the binders (name, size)."""

    factor: Fraction = Fraction(1)
    atoms: tuple[Atom, ...] = ()
    conditions: tuple[Poly, ...] = ()
    binders: tuple[tuple[str, Poly], ...] = ()


Form = tuple[Term, ...]

ZERO: Form = ()


def number(value: float | int | Fraction) -> Form:
    """A number."""
    return (Term(Fraction(value)),) if value else ZERO


def atom(value: Atom) -> Form:
    """One atom."""
    return (Term(atoms=(value,)),)


def add(*forms: Form) -> Form:
    """The sum; collects equal terms."""
    merged: dict[tuple[object, ...], Term] = {}
    for term in (term for form in forms for term in form):
        key = (tuple(sorted(term.atoms, key=repr)), frozenset(term.conditions), term.binders)
        known = merged.get(key)
        merged[key] = term if known is None else replace(known, factor=known.factor + term.factor)
    if len(merged) > MAX_TERMS:
        raise Unsupported("more terms than the prover looks at")
    return tuple(term for term in merged.values() if term.factor)


def negate(form: Form) -> Form:
    """The negated form."""
    return scale(form, Fraction(-1))


def scale(form: Form, factor: Fraction) -> Form:
    """The form times a number."""
    return tuple(replace(term, factor=term.factor * factor) for term in form) if factor else ZERO


def multiply(scope: Scope, *forms: Form) -> Form:
    """The product, with all sums moved to the front."""
    result = number(1)
    for form in forms:
        terms = []
        for a, b in product(result, form):
            if {name for name, _ in a.binders} & {name for name, _ in b.binders}:
                b = renamed(scope, b)
            conditions = tuple(dict.fromkeys(a.conditions + b.conditions))
            terms.append(Term(a.factor * b.factor, a.atoms + b.atoms, conditions, a.binders + b.binders))
        result = add(tuple(terms))
    return result


def where(scope: Scope, condition: Poly, form: Form) -> Form:
    """The form if condition >= 0, else 0."""
    condition = scope.norm(condition)
    if scope.is_at_least(condition):
        return form
    if scope.is_at_least(-condition - 1):
        return ZERO
    return tuple(replace(t, conditions=(*dict.fromkeys((*t.conditions, condition)),)) for t in form)


def choose(scope: Scope, condition: Poly, then: Callable[[], Form], otherwise: Callable[[], Form]) -> Form:
    """One form if condition >= 0, else the other."""
    condition = scope.norm(condition)
    if scope.is_at_least(condition):
        return then()
    if scope.is_at_least(-condition - 1):
        return otherwise()
    return add(where(scope, condition, then()), where(scope, -condition - 1, otherwise()))


def sum_over(scope: Scope, size: Poly | int, body: Callable[[Poly], Form]) -> Form:
    """The sum of body(i) for 0 <= i < size."""
    size = scope.norm(size)
    if size.constant is not None and size.constant <= 8:
        return add(*(body(Poly.number(i)) for i in range(size.constant)))
    name = scope.index(size)
    terms = body(Poly.variable(name))
    return add(tuple(replace(term, binders=((name, size), *term.binders)) for term in terms))


def fold_over(scope: Scope, function: str, sizes: Iterable[Poly], body: Callable[[list[Poly]], Form]) -> Form:
    """An uninterpreted function of all values of body over ranges."""
    given = tuple(scope.norm(size) for size in sizes)
    names = tuple(scope.index(size) for size in given)
    return atom(Fold(function, names, given, body([Poly.variable(name) for name in names])))


def inverse(form: Form) -> Form:
    """1 / form, factor by factor if it is a product."""
    if len(form) != 1 or form[0].conditions or form[0].binders:
        return atom(Apply("Reciprocal", (form,)))
    atoms = tuple(Apply("Reciprocal", (atom(each),)) for each in form[0].atoms)
    return (Term(1 / form[0].factor, atoms),)


# ---- substitution of indices


def substituted(scope: Scope, form: Form, values: Mapping[str, Poly]) -> Form:
    """Substitutes polynomials for indices, at any depth."""

    def put(value: Poly) -> Poly:
        return scope.substitute(value, values)

    def in_atom(value: Atom) -> Atom:
        if isinstance(value, Element):
            return Element(value.tensor, tuple(put(each) for each in value.index))
        if isinstance(value, Count):
            return Count(put(value.value))
        if isinstance(value, Apply):
            return Apply(value.function, tuple(substituted(scope, arg, values) for arg in value.args))
        if isinstance(value, Fold):
            sizes = tuple(put(size) for size in value.sizes)
            return Fold(value.function, value.binders, sizes, substituted(scope, value.body, values))
        return value

    return tuple(
        Term(
            term.factor,
            tuple(in_atom(each) for each in term.atoms),
            tuple(put(each) for each in term.conditions),
            tuple((name, put(size)) for name, size in term.binders),
        )
        for term in form
    )


def renamed(scope: Scope, term: Term) -> Term:
    """The same term with new binders."""
    names = {name: scope.index(size) for name, size in term.binders}
    (result,) = substituted(scope, (term,), {old: Poly.variable(new) for old, new in names.items()})
    return replace(result, binders=tuple((names[name], size) for name, size in result.binders))


def conditions_in(form: Form) -> Iterable[Poly]:
    """All conditions, including those inside atoms."""
    for term in form:
        yield from term.conditions
        for each in term.atoms:
            if isinstance(each, Apply):
                for arg in each.args:
                    yield from conditions_in(arg)
            elif isinstance(each, Fold):
                yield from conditions_in(each.body)


# ---- cutting ranges


def refined(scope: Scope, form: Form) -> Form:
    """Splits binders that divisions have split, and cuts them where a condition changes."""
    done: list[Term] = []
    todo = list(substituted(scope, form, {}))
    while todo:
        term = todo.pop()
        if len(done) + len(todo) > MAX_TERMS:
            raise Unsupported("more terms than the prover looks at")
        steps = _taken_apart(scope, term)
        if steps is None:
            steps = _at_one_point(scope, term)
        if steps is None:
            steps = _cut(scope, term)
        if steps is None:
            done.append(term)
        else:
            todo += steps
    return add(tuple(_reduced(each) for each in reversed(done)))


def _reduced(term: Term) -> Term:
    """Cancels pairs of a size and 1 / size; sizes are at least 1."""
    atoms = list(term.atoms)
    for each in term.atoms:
        inverse_atom = Apply("Reciprocal", (atom(each),))
        if isinstance(each, Count) and each in atoms and inverse_atom in atoms:
            atoms.remove(each)
            atoms.remove(inverse_atom)
    return replace(term, atoms=tuple(atoms))


def count_of(scope: Scope, value: Poly) -> Form:
    """An integer as a form, factor by factor if it is a product."""
    value = scope.norm(value)
    if len(value.terms) != 1:
        return atom(Count(value))
    ((powers, factor),) = value.terms.items()
    return (Term(Fraction(factor), tuple(Count(Poly.variable(name)) for name in powers)),)


def reads(form: Form, name: str) -> bool:
    """Whether an index occurs in a form."""

    def in_atom(value: Atom) -> bool:
        if isinstance(value, Element):
            return any(name in each.variables for each in value.index)
        if isinstance(value, Count):
            return name in value.value.variables
        if isinstance(value, Apply):
            return any(reads(arg, name) for arg in value.args)
        if isinstance(value, Fold):
            return any(name in size.variables for size in value.sizes) or reads(value.body, name)
        return False

    return any(
        any(name in each.variables for each in term.conditions)
        or any(name in size.variables for _, size in term.binders)
        or any(in_atom(each) for each in term.atoms)
        for term in form
    )


def _at_one_point(scope: Scope, term: Term) -> Form | None:
    """Eliminates a binder: an unused index becomes a factor, one fixed by conditions a single part."""
    for position, (name, size) in enumerate(term.binders):
        others = term.binders[:position] + term.binders[position + 1 :]
        bare = replace(term, binders=others)
        if not reads((bare,), name):
            return multiply(scope, count_of(scope, size), (bare,))
        for condition in term.conditions:
            if scope.norm(-condition) not in term.conditions:
                continue
            parts = condition.coefficient_of(name)
            if parts is None or parts[0].constant not in (1, -1):
                continue
            point = -parts[1] if parts[0].constant == 1 else parts[1]
            (moved,) = substituted(scope, (bare,), {name: point})
            inside = (*moved.conditions, point, scope.norm(size - point - 1))
            return with_conditions(scope, (replace(moved, conditions=tuple(dict.fromkeys(inside))),))
    return None


def _taken_apart(scope: Scope, term: Term) -> Form | None:
    """Replaces a binder split by a division by its two parts; expands one with few values to a sum."""
    for position, (name, size) in enumerate(term.binders):
        others = term.binders[:position] + term.binders[position + 1 :]
        if name in scope.split:
            parts = tuple((each, scope.norm(scope.below[each])) for each in scope.split[name])
            return (replace(term, binders=parts + others),)
        if size.constant is not None and size.constant <= 8:
            bare = replace(term, binders=others)
            return add(
                *(with_conditions(scope, substituted(scope, (bare,), {name: Poly.number(i)}))
                  for i in range(size.constant))
            )  # fmt: skip
    return None


def with_conditions(scope: Scope, form: Form) -> Form:
    """Drops conditions that hold and terms whose conditions fail, also inside atoms."""

    def in_atom(value: Atom) -> Atom:
        if isinstance(value, Apply):
            return Apply(value.function, tuple(with_conditions(scope, arg) for arg in value.args))
        if isinstance(value, Fold):
            return replace(value, body=with_conditions(scope, value.body))
        return value

    kept = []
    for term in form:
        conditions = [each for each in term.conditions if not scope.is_at_least(each)]
        if not any(scope.is_at_least(-each - 1) for each in conditions):
            atoms = tuple(in_atom(each) for each in term.atoms)
            kept.append(replace(term, conditions=tuple(conditions), atoms=atoms))
    return tuple(kept)


def cut_point(scope: Scope, condition: Poly, name: str, size: Poly) -> Poly | None:
    """The point at which an index changes the condition, if it depends on sizes only."""
    parts = scope.norm(condition).coefficient_of(name)
    if parts is None or parts[0].constant not in (1, -1):
        return None
    factor, rest = parts
    if not rest.variables.isdisjoint(scope.below):
        return None
    point = -rest if factor.constant == 1 else rest + 1
    if scope.is_at_least(point) and scope.is_at_least(size - point):
        return point
    return None


def _cut(scope: Scope, term: Term) -> Form | None:
    for position, (name, size) in enumerate(term.binders):
        others = term.binders[:position] + term.binders[position + 1 :]
        for condition in conditions_in((term,)):
            point = cut_point(scope, condition, name, size)
            if point is None:
                continue
            parts: list[Term] = []
            for start, length in ((Poly({}), point), (point, scope.norm(size - point))):
                if length == Poly({}):
                    continue
                new = scope.index(length)
                moved = substituted(
                    scope, (replace(term, binders=others),), {name: Poly.variable(new) + start}
                )
                moved = tuple(replace(each, binders=((new, length), *each.binders)) for each in moved)
                parts += with_conditions(scope, moved)
            return tuple(parts)
    return None
