"""Polynomials with integer coefficients: sizes, attributes and tensor indices as symbols."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

Powers = tuple[str, ...]
"""A sorted product of variables; each name occurs once per power."""


class Poly:
    """An immutable polynomial; equal polynomials compare and hash equal."""

    def __init__(self, terms: Mapping[Powers, int]) -> None:
        self.terms = {powers: factor for powers, factor in terms.items() if factor}

    @staticmethod
    def number(value: int) -> Poly:
        """A constant."""
        return Poly({(): value})

    @staticmethod
    def variable(name: str) -> Poly:
        """One variable."""
        return Poly({(name,): 1})

    @cached_property
    def key(self) -> tuple[tuple[Powers, int], ...]:
        """The canonical form used for equality."""
        return tuple(sorted(self.terms.items()))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return self.constant == other
        return isinstance(other, Poly) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        parts = [
            "*".join([*([] if factor == 1 and powers else [str(factor)]), *powers])
            for powers, factor in self.key
        ]
        return " + ".join(parts) or "0"

    def __add__(self, other: Poly | int) -> Poly:
        terms = dict(self.terms)
        for powers, factor in as_poly(other).terms.items():
            terms[powers] = terms.get(powers, 0) + factor
        return Poly(terms)

    def __neg__(self) -> Poly:
        return Poly({powers: -factor for powers, factor in self.terms.items()})

    def __sub__(self, other: Poly | int) -> Poly:
        return self + -as_poly(other)

    def __mul__(self, other: Poly | int) -> Poly:
        terms: dict[Powers, int] = {}
        for powers, factor in self.terms.items():
            for more, times in as_poly(other).terms.items():
                both = tuple(sorted(powers + more))
                terms[both] = terms.get(both, 0) + factor * times
        return Poly(terms)

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names of the variables that occur."""
        return frozenset(name for powers in self.terms for name in powers)

    @property
    def constant(self) -> int | None:
        """The number, or None if variables remain."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    def substitute(self, values: Mapping[str, Poly]) -> Poly:
        """Substitutes polynomials for variables, all at once."""
        if self.variables.isdisjoint(values):
            return self
        total = Poly({})
        for powers, factor in self.terms.items():
            product = Poly({(): factor})
            for name in powers:
                product = product * values.get(name, Poly.variable(name))
            total = total + product
        return total

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The value for given values of the variables."""
        total = 0
        for powers, factor in self.terms.items():
            for name in powers:
                factor *= values[name]
            total += factor
        return total

    def without(self, powers: Powers) -> Poly:
        """The polynomial without one term."""
        return Poly({each: factor for each, factor in self.terms.items() if each != powers})

    def coefficient_of(self, name: str) -> tuple[Poly, Poly] | None:
        """`(a, b)` with self = a * name + b and neither reading `name`; None if it is not linear in it."""
        with_it: dict[Powers, int] = {}
        rest: dict[Powers, int] = {}
        for powers, factor in self.terms.items():
            count = powers.count(name)
            if count > 1:
                return None
            if count:
                with_it[tuple(each for each in powers if each != name)] = factor
            else:
                rest[powers] = factor
        return Poly(with_it), Poly(rest)

    def split_by(self, divisor: Poly) -> tuple[Poly, Poly]:
        """`(q, r)` with self = q * divisor + r, for a divisor of one term that divides no term of r."""
        ((powers, factor),) = divisor.terms.items()
        quotient: dict[Powers, int] = {}
        rest: dict[Powers, int] = {}
        for mine, times in self.terms.items():
            left = powers_without(mine, powers)
            if left is None:
                rest[mine] = times
                continue
            q, r = divmod(times, factor)
            quotient[left] = q
            rest[mine] = r
        return Poly(quotient), Poly(rest)


def as_poly(value: Poly | int) -> Poly:
    """An integer as a polynomial."""
    return value if isinstance(value, Poly) else Poly.number(value)


def product(values: Iterable[Poly | int]) -> Poly:
    """The product of all values; 1 if there are none."""
    total = Poly.number(1)
    for each in values:
        total = total * each
    return total


def total(values: Iterable[Poly | int]) -> Poly:
    """The sum of all values."""
    result = Poly({})
    for each in values:
        result = result + each
    return result


def powers_without(powers: Powers, divisor: Powers) -> Powers | None:
    """A product divided by another; None if it is not divisible."""
    left = list(powers)
    for name in divisor:
        if name not in left:
            return None
        left.remove(name)
    return tuple(left)
