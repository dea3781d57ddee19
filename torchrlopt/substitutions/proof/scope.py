"""Facts about the integers of one case: sizes, attributes, and indices with their ranges.

A case is the path of one drawn instance through a substitution. Each integer is a polynomial over symbols,
and each symbol has its value in that instance. If a definition branches, the value decides, and the decision
becomes an assumption about the symbols: the proof then holds for all integers that take the same path.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from torchrlopt.substitutions.proof.polynomial import Poly, as_poly


class Unsupported(Exception):  # noqa: N818  (it says what is so, not that something broke)
    """The prover has no definition for something that the substitution uses."""


class OutOfTime(Exception):  # noqa: N818
    """The safeguard timeout ended a proof; Z3's own limits count steps."""


@dataclass
class Scope:
    """Symbols of one case.

    Attributes:
        values: each symbol's value in the instance (indices have none).
        low: lower bound of each symbol; None if it can be negative.
        below: exclusive upper bound of each index.
        solved: symbols expressed in others by an assumption.
        equal: assumptions p = 0 that eliminate no symbol.
        at_least: assumptions p >= 0.
        split: for each index that a division split, the two resulting indices.
        dividends: (a, b) of each symbol for floor(a / b).
        deadline: processor time after which a proof is given up.
        free: indices of an output; the others are bound by a sum or a fold.
    """

    values: dict[str, int] = field(default_factory=dict)
    low: dict[str, int | None] = field(default_factory=dict)
    below: dict[str, Poly] = field(default_factory=dict)
    solved: dict[str, Poly] = field(default_factory=dict)
    equal: list[Poly] = field(default_factory=list)
    at_least: list[Poly] = field(default_factory=list)
    different: list[Poly] = field(default_factory=list)
    split: dict[str, tuple[str, str]] = field(default_factory=dict)
    deadline: float = math.inf
    free: set[str] = field(default_factory=set)
    decide: Callable[[Scope, Poly], bool] | None = None
    dividends: dict[str, tuple[Poly, Poly]] = field(default_factory=dict)
    _quotients: dict[tuple[Poly, Poly], str] = field(default_factory=dict)
    _ids: count[int] = field(default_factory=count)

    # ---- symbols

    def size(self, name: str, value: int) -> Poly:
        """A new symbol for a size of at least 1."""
        return self.symbol(name, value, 1)

    def symbol(self, name: str, value: int, low: int | None = None) -> Poly:
        """A symbol; the same name returns the same symbol."""
        self.values.setdefault(name, value)
        self.low.setdefault(name, low)
        return self.norm(Poly.variable(name))

    def index(self, size: Poly) -> str:
        """A new index with range 0 to `size`, exclusive."""
        name = f"i{next(self._ids)}"
        self.low[name] = 0
        self.below[name] = size
        return name

    def norm(self, value: Poly | int) -> Poly:
        """The value with all solved symbols substituted."""
        result = as_poly(value)
        if time.process_time() > self.deadline:
            raise OutOfTime
        while not result.variables.isdisjoint(self.solved):
            result = result.substitute(self.solved)
        return result

    def substitute(self, value: Poly, values: Mapping[str, Poly], busy: frozenset[str] = frozenset()) -> Poly:
        """Substitutes polynomials for symbols, including those inside quotient symbols.

        `busy` contains the quotients being expanded: a size can be a quotient of itself.
        """
        known = self.norm(value)
        changed = dict(values)
        for name in (known.variables & self.dividends.keys()) - busy:
            a, b = self.dividends[name]
            inside = busy | {name}
            new_a, new_b = self.substitute(a, values, inside), self.substitute(b, values, inside)
            if (new_a, new_b) != (self.norm(a), self.norm(b)):
                changed[name] = self.quotient(new_a, new_b)
        return self.norm(known.substitute(changed))

    def value_of(self, value: Poly | int) -> int:
        """Its value in the instance."""
        return self.norm(value).evaluate(self.values)

    def fixed(self, value: Poly | int) -> int:
        """The value in the instance, which becomes an assumption."""
        number = self.value_of(value)
        self.assume_equal(value, number)
        return number

    # ---- assumptions

    def assume_equal(self, a: Poly | int, b: Poly | int) -> None:
        """Assumes a = b; if this expresses a symbol in others, substitutes it from now on."""
        difference = self._without_common_factor(self.norm(as_poly(a) - b))
        if not difference.terms:
            return
        if difference.evaluate(self.values) != 0:
            raise Unsupported(f"an assumption that does not hold: {difference} = 0")
        solutions = list(self._solutions(difference))
        # Prefer a symbol whose range is implied by the ranges of the others.
        for name, rest, low in solutions:
            if low is None or self._is_plainly_at_least(rest - low):
                self.solved[name] = rest
                return
        for name, rest, low in solutions:
            self.solved[name] = rest
            if low is not None:
                self.at_least.append(rest - low)
            return
        self.equal.append(difference)

    def _solutions(self, difference: Poly) -> Iterator[tuple[str, Poly, int | None]]:
        """Symbols that difference = 0 expresses in others, with the expression and their lower bound."""
        for powers, factor in reversed(difference.key):
            if len(powers) == 1 and abs(factor) == 1 and powers[0] not in self.below:
                rest = difference.without(powers) * -factor
                if powers[0] not in rest.variables:
                    yield powers[0], rest, self.low[powers[0]]

    def assume_at_least(self, a: Poly | int, b: Poly | int = 0) -> None:
        """Assumes a >= b."""
        difference = self.norm(as_poly(a) - b)
        if difference.evaluate(self.values) < 0:
            raise Unsupported(f"an assumption that does not hold: {difference} >= 0")
        if self._is_plainly_at_least(-difference):  # bounded from both sides
            self.assume_equal(difference, 0)
        elif not self._is_plainly_at_least(difference):
            self.at_least.append(difference)

    def assume_positive(self, value: Poly | int) -> Poly:
        """Assumes that a number is at least 1, as the operator requires."""
        known = self.norm(value)
        self.assume_at_least(known, 1)
        for name in known.variables:
            if known == Poly.variable(name) and self.low.get(name, 1) is None:
                self.low[name] = 1
        return known

    def assume_different(self, a: Poly | int, b: Poly | int) -> None:
        """Assumes a != b."""
        self.different.append(self.norm(as_poly(a) - b))

    def _without_common_factor(self, value: Poly) -> Poly:
        """Divides out sizes that occur in all terms; sizes are at least 1."""
        for name in sorted(value.variables):
            if self.low.get(name) == 1 and all(name in powers for powers in value.terms):
                quotient, _ = value.split_by(Poly.variable(name))
                return self._without_common_factor(quotient)
        return value

    # ---- divisions

    def exact_quotient(self, a: Poly | int, b: Poly | int) -> Poly:
        """The quotient a / b if b divides a, in the instance and by assumption."""
        a, b = self.norm(a), self.norm(b)
        if self.value_of(b) == 0 or self.value_of(a) % self.value_of(b) != 0:
            raise Unsupported(f"{a} is not divisible by {b}")
        quotient = self._quotient_by_terms(a, b)
        if quotient is not None:
            return quotient
        name = f"q{next(self._ids)}"
        result = self.symbol(name, self.value_of(a) // self.value_of(b), 1)
        self.assume_equal(a, result * b)
        return self.norm(result)

    def _quotient_by_terms(self, a: Poly, b: Poly) -> Poly | None:
        if len(b.terms) == 1:
            quotient, rest = a.split_by(b)
            return quotient if not rest.terms else None
        # (p + q) * c / (p + q): try the terms of a as multiples of b's first term.
        if not a.terms or not b.terms:
            return None
        first = Poly(dict([max(b.terms.items())]))
        quotient, rest = Poly({}), a
        for _ in range(8):
            if not rest.terms:
                return quotient
            step, _left = rest.split_by(first)
            if not step.terms:
                return None
            quotient, rest = quotient + step, rest - step * b
        return None

    def quotient(self, a: Poly | int, b: Poly | int) -> Poly:
        """floor(a / b) for b >= 1; splits an index if necessary."""
        a, b = self.norm(a), self.norm(b)
        if b.constant == 1:
            return a
        whole, rest = (Poly({}), a)
        if len(b.terms) == 1:
            whole, rest = a.split_by(b)
        if not rest.terms or (
            self._is_plainly_at_least(rest) and self._is_plainly_at_least(self.norm(b - rest - 1))
        ):
            return whole
        known = self._dividend_of(rest)
        if known is not None:  # a nested floor
            return self.norm(whole + self.quotient(known[0], known[1] * b))
        scaled = self._quotient_of_scaled(rest, b)
        if scaled is not None:
            return self.norm(whole + scaled)
        return whole + self._opaque_quotient(rest, b)

    def _quotient_of_scaled(self, a: Poly, b: Poly) -> Poly | None:
        """For a = s * v + r, 0 <= r < s, b = s * t: floor(v / t), with v an index below m * t."""
        for powers, factor in a.key:
            names = [name for name in powers if name in self.below]
            if factor < 1 or len(names) != 1:
                continue
            name = names[0]
            scale = Poly({tuple(each for each in powers if each != name): factor})
            if self._quotient_by_terms(b, scale) is None:
                continue
            rest = a.without(powers)
            if not (self._is_plainly_at_least(rest) and self._is_plainly_at_least(scale - rest - 1)):
                continue
            divisor = self._quotient_by_terms(b, scale)
            times = self._quotient_by_terms(self.norm(self.below[name]), divisor) if divisor else None
            if divisor is None or times is None:
                continue
            high, low = self.index(times), self.index(divisor)
            self.solved[name] = Poly.variable(high) * divisor + Poly.variable(low)
            self.split[name] = (high, low)
            if name in self.free:
                self.free |= {high, low}
            return Poly.variable(high)
        return None

    def _dividend_of(self, value: Poly) -> tuple[Poly, Poly] | None:
        """Returns a and b if the value is the symbol for their quotient."""
        for (a, b), name in self._quotients.items():
            if value == Poly.variable(name):
                return self.norm(a), self.norm(b)
        return None

    def merge_quotients(self) -> None:
        """Eliminates quotient symbols that later assumptions have made equal or exact."""
        changed = True
        while changed:
            changed = False
            for (a, b), name in list(self._quotients.items()):
                known = (self.norm(a), self.norm(b))
                if known == (a, b):
                    continue
                del self._quotients[a, b]
                value = self.quotient(*known)
                # An assumption already expressed it, or something in terms of it.
                if name in self.solved or name in value.variables:
                    self.assume_equal(Poly.variable(name), value)
                elif value != Poly.variable(name):
                    self.solved[name] = value
                changed = True
                break

    def _opaque_quotient(self, a: Poly, b: Poly) -> Poly:
        key = (a, b)
        if key not in self._quotients:
            name = f"d{next(self._ids)}"
            self._quotients[key] = name
            self.dividends[name] = key
            is_positive = self._is_plainly_at_least(a)
            self.low[name] = 0 if is_positive else None
            if a.variables.isdisjoint(self.below):
                self.values[name] = self.value_of(a) // self.value_of(b)
        return self.norm(Poly.variable(self._quotients[key]))

    @property
    def quotients(self) -> list[tuple[Poly, Poly, Poly]]:
        """(q, a, b) with b q <= a < b q + b."""
        return [
            (self.norm(Poly.variable(name)), self.norm(a), self.norm(b))
            for (a, b), name in self._quotients.items()
        ]

    # ---- bounds

    def is_at_least(self, value: Poly | int, low: int = 0) -> bool:
        """Whether value >= low is known to hold for all integers of this case."""
        difference = self.norm(as_poly(value) - low)
        if self._is_plainly_at_least(difference):
            return True
        return self.decide is not None and self.decide(self, difference)

    def _is_plainly_at_least(self, value: Poly, depth: int = 0) -> bool:
        """Quick check: puts indices at the worst end of their range, and sizes as 1 + something."""
        for name in sorted(value.variables):
            if name not in self.below:
                continue
            parts = value.coefficient_of(name)
            if parts is None or depth > 8:
                return False
            factor, rest = parts
            if self._is_plainly_at_least(factor, depth + 1):
                return self._is_plainly_at_least(rest, depth + 1)
            if self._is_plainly_at_least(-factor, depth + 1):
                end = self.norm(self.below[name]) - 1
                return self._is_plainly_at_least(rest + factor * end, depth + 1)
            return False
        for name in sorted(value.variables & self.dividends.keys()):
            # b q <= a: a negative multiple k of b q is at least k a.
            parts, (a, b) = value.coefficient_of(name), self.dividends[name]
            times = self._quotient_by_terms(parts[0], self.norm(b)) if parts else None
            if parts and times is not None and depth < 8 and self._is_plainly_at_least(-times, depth + 1):
                return self._is_plainly_at_least(self.norm(parts[1] + times * a), depth + 1)
        if self._has_no_negative_part(value):
            return True
        facts = [self.norm(each) for each in self.at_least]
        near = [each for each in facts if not each.variables.isdisjoint(value.variables)][:12]
        return any(self._has_no_negative_part(value - each) for each in near) or any(
            self._has_no_negative_part(value - x - y) for i, x in enumerate(near) for y in near[:i]
        )

    def _has_no_negative_part(self, value: Poly) -> bool:
        lows = {name: self.low.get(name) for name in value.variables}
        if any(low is None for low in lows.values()):
            return False
        shifted = value.substitute({n: Poly.variable(n) + low for n, low in lows.items() if low})
        return all(factor >= 0 for factor in shifted.terms.values())
