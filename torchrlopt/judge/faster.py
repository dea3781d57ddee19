"""Which of several callables is the fastest, and does it replace the original?

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
    """What the clock says of a candidate.

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
        original: what runs without us.
        candidate: what may run instead; it is right.
        inputs: makes the arguments of one call; see `timing.measure`, also for the two others.
        policy: thresholds and limits.
        settle: whether threads of a runtime have to come to rest.
        is_warm: whether both have nothing left to do that is not to be timed.
    """
    found = timing.measure(
        original, candidate, inputs, policy.limit_ms, policy.min_gain, settle=settle, is_warm=is_warm
    )
    return Verdict(policy.is_faster(found), found)


class Entrant(Protocol):
    """A candidate that has been built and timed, or has failed."""

    @property
    def name(self) -> str:
        """By which prices tell it from others."""
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
    """What is kept of an entrant that may have lost: no callable, which holds packed weights."""

    name: str
    timing: Timing | None


E = TypeVar("E", bound=Entrant)

Duel = Callable[[Callee, Callee], Timing]
"""Times two candidates against each other."""


class Race(Generic[E]):
    """Candidates that enter one by one; the fastest so far of those that replace the original.

    Args:
        duel: decides between two that are about as fast.
        policy: the thresholds.
        wins: whether a duel's timing lets the second replace the first.

    Attributes:
        policy: the thresholds.
        standings: of all that have entered, in order.
        best: the fastest so far; None while none replaces the original.
    """

    def __init__(self, duel: Duel, policy: Policy, wins: Callable[[Timing], bool]) -> None:
        self.standings: list[Standing] = []
        self.best: E | None = None
        self.policy = policy
        self._duel, self._wins = duel, wins

    def enter(self, entrant: E) -> bool:
        """Returns whether it is the fastest from now on."""
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
        """Whether the best is so much faster than the original that nothing else need be tried."""
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
        """How many times as long as the best a candidate will take, if times are to each other as prices.

        Args:
            price_ratio: the candidate's price as a multiple of that of another entrant, by name; None if the
                prices of the two say nothing about each other.

        Returns:
            The least that is predicted from any entrant, and the name of that one; None if there is none.
        """
        best = None if self.best is None else self.best.timing
        if best is None or not _is_exact(best):
            return None
        found = []
        for name, own in self.standings:
            ratio = price_ratio(name) if own is not None and _is_exact(own) else None
            if own is not None and ratio is not None:
                # The best has beaten it, by a duel if need be, whatever the single times say.
                found.append((max(1.0, min(_slowdowns(best, own))) * ratio, name))
        return min(found, default=None)


def _is_exact(timing: Timing) -> bool:
    """Whether times can be compared with others: taken in calm, and what they are and not a bound of it."""
    return timing.is_calm and not timing.is_bound


def _slowdowns(old: Timing, new: Timing) -> tuple[float, float]:
    """How many times as long the new one takes: by both times, and by both ratios to the original."""
    by_ratio = (new.after_ms / new.before_ms) / (old.after_ms / old.before_ms)
    return new.after_ms / old.after_ms, by_ratio
