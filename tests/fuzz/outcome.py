"""Outcome of one fuzzer case, totals over many cases, and their statistical significance."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Literal, Protocol

from scipy import stats

Kind = Literal["right", "wrong", "raised", "crashed", "hung", "skipped"]
FAILURES: tuple[Kind, ...] = ("wrong", "raised", "crashed", "hung")


@dataclasses.dataclass
class Outcome:
    """Of one case.

    Attributes:
        kind: "skipped" says that the case is not ours: without us it does not work either.
        reason: why it failed or was skipped, on one line.
        case: the small text that is kept of a failure, see `kept`.
        counts: what happened on the way, by name; they are added up over all cases.
    """

    kind: Kind
    reason: str = ""
    case: str = ""
    counts: Counter[str] = dataclasses.field(default_factory=Counter)


class Fuzzer(Protocol):
    """What makes and runs cases. Lives in a process of its own, and may keep what it draws there."""

    def run(self, index: int) -> Outcome:
        """Make and run the case of that number: the same one for the same seed."""
        ...


@dataclasses.dataclass
class Total:
    """Of many cases.

    Attributes:
        kinds: number of cases by kind.
        counts: the sum of the counts of all cases.
        failures: number and outcome of each that failed.
        skipped: reasons, with how often each was given.
    """

    kinds: Counter[str] = dataclasses.field(default_factory=Counter)
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    failures: list[tuple[int, Outcome]] = dataclasses.field(default_factory=list)
    skipped: Counter[str] = dataclasses.field(default_factory=Counter)

    def add(self, index: int, outcome: Outcome) -> None:
        """Count one more case."""
        self.kinds[outcome.kind] += 1
        self.counts.update(outcome.counts)
        if outcome.kind in FAILURES:
            self.failures.append((index, outcome))
        elif outcome.kind == "skipped":
            self.skipped[outcome.reason] += 1

    @property
    def num_compared(self) -> int:
        """Cases that say something: all but the skipped ones."""
        return self.kinds.total() - self.kinds["skipped"]


def failure_bound(num_cases: int, num_failures: int, confidence: float = 0.95) -> float:
    """Upper end of the one-sided Clopper-Pearson interval of a failure rate.

    Without failures it is about 3 / n, the rule of three. It speaks of cases drawn as these were.
    """
    return float(stats.beta.ppf(confidence, num_failures + 1, max(num_cases - num_failures, 1e-9)))
