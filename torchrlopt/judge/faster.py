"""Decides which of several callables is the fastest, and whether it replaces the original.

`against` times one candidate against the original. A `Race` keeps the fastest of several: each has been timed
against the original, and two that are about as fast are timed against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from torchrlopt.judge import timing
from torchrlopt.judge.policy import Policy
from torchrlopt.judge.timing import Callee
from torchrlopt.report import Timing


class Verdict(NamedTuple):
    """The timing verdict on a candidate.

    Attributes:
        is_faster: whether it replaces the original.
        timing: of both.
    """

    is_faster: bool
    timing: Timing


def against(
    original: Callee,
    candidate: Callee,
    inputs: Callable[[], Sequence[Any]],
    policy: Policy,
    *,
    settle: bool = False,
    is_warm: bool = False,
) -> Verdict:
    """Time a candidate against the original.

    Args:
        original: what runs without torchrlopt.
        candidate: what may replace it; already verified.
        inputs: makes the arguments of one call; see `timing.measure`, also for `settle` and `is_warm`.
        policy: thresholds and limits.
        settle: whether to wait for the runtime's threads to go to sleep.
        is_warm: whether both callables are already warmed up.
    """
    found = timing.measure(original, candidate, inputs, policy.limit_ms, policy.min_gain, settle, is_warm)
    return Verdict(policy.is_faster(found), found)


class Entrant(Protocol):
    """A candidate that has been built and timed, or has failed."""

    @property
    def name(self) -> str:
        """The candidate's name, which identifies it when prices are compared."""
        ...

    @property
    def run(self) -> Callee | None:
        """The callable; None if it does not replace the original."""
        ...

    @property
    def timing(self) -> Timing | None:
        """Against the original; None if it failed, or was not timed."""
        ...


class Standing(NamedTuple):
    """The record kept of an entrant that may have lost; no callable, since that would hold packed weights."""

    name: str
    timing: Timing | None


E = TypeVar("E", bound=Entrant)

Duel = Callable[[Callee, Callee], Timing]
"""Times two candidates against each other."""


class Race(Generic[E]):
    """Candidates that enter one by one; keeps the fastest so far of those that replace the original.

    Args:
        duel: times two that are about as fast against each other.
        policy: the thresholds.
        wins: whether a duel's timing lets the second replace the first.

    Attributes:
        policy: the thresholds.
        standings: of all entrants, in order of entry.
        best: the fastest so far; None while none replaces the original.
    """

    def __init__(self, duel: Duel, policy: Policy, wins: Callable[[Timing], bool]) -> None:
        self.standings: list[Standing] = []
        self.best: E | None = None
        self.policy = policy
        self._duel, self._wins = duel, wins

    def enter(self, entrant: E) -> bool:
        """Add an entrant; return whether it is now the fastest."""
        self.standings.append(Standing(entrant.name, entrant.timing))
        is_best = entrant.run is not None and (self.best is None or self.is_faster(entrant, self.best))
        if is_best:
            self.best = entrant
        return is_best

    def is_faster(self, new: E, old: E) -> bool:
        """Whether one candidate is faster than another; both replace the original."""
        assert new.run is not None
        assert old.run is not None
        if new.timing is None or old.timing is None:
            return new.timing is not None
        slowdowns = _slowdowns(old.timing, new.timing)
        is_bound = new.timing.is_bound or old.timing.is_bound
        if not is_bound and (max(slowdowns) < 1 / self.policy.near or min(slowdowns) > self.policy.near):
            return max(slowdowns) < 1
        return self._wins(self._duel(old.run, new.run))

    @property
    def is_good_enough(self) -> bool:
        """Whether the best is so much faster than the original that no other candidate need be tried."""
        timing = None if self.best is None else self.best.timing
        return (
            timing is not None
            and _is_exact(timing)
            and timing.after_ms * self.policy.good_enough_speedup <= timing.before_ms
        )

    @property
    def is_last_hopeless(self) -> bool:
        """Whether the last entrant is so far behind that a variation of it cannot be the fastest."""
        if self.best is None or self.best.timing is None:
            return False
        last = self.standings[-1].timing
        if last is None or not _is_exact(self.best.timing) or not _is_exact(last):
            return False
        return min(_slowdowns(self.best.timing, last)) > self.policy.hopeless

    def predicted(self, price_ratio: Callable[[str], float | None]) -> tuple[float, str] | None:
        """Predict a candidate's time as a multiple of the best's, assuming that times scale with prices.

        Args:
            price_ratio: the candidate's price as a multiple of a named entrant's; None if the two prices are
                not comparable.

        Returns:
            The smallest prediction from any entrant, and that entrant's name; None if there is none.
        """
        best = None if self.best is None else self.best.timing
        if best is None or not _is_exact(best):
            return None
        found = []
        for name, own in self.standings:
            ratio = price_ratio(name) if own is not None and _is_exact(own) else None
            if own is not None and ratio is not None:
                # The best has beaten it, in a duel if necessary, whatever the separate times say.
                found.append((max(1.0, min(_slowdowns(best, own))) * ratio, name))
        return min(found, default=None)


def _is_exact(timing: Timing) -> bool:
    """Whether a time can be compared with others: measured while the machine was calm, and not a bound."""
    return timing.is_calm and not timing.is_bound


def _slowdowns(old: Timing, new: Timing) -> tuple[float, float]:
    """How many times as long the new one takes: by absolute times, and by ratios to the original."""
    by_ratio = (new.after_ms / new.before_ms) / (old.after_ms / old.before_ms)
    return new.after_ms / old.after_ms, by_ratio
