"""A contest of executors for one graph: each is attempted and timed, and the fastest is kept.

What cannot win is left out, and two that are near each other run against each other once more.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Sequence

from torchrlopt.compile import fallback
from torchrlopt.compile.attempt import Attempt, Try
from torchrlopt.compile.fallback import recoverable_errors, told
from torchrlopt.executor_table import BASELINE
from torchrlopt.executors import registry
from torchrlopt.executors.registry import Lowered
from torchrlopt.options import Options
from torchrlopt.plan.planning import TRY_OTHERS
from torchrlopt.report import Choice, Report, Timing

logger = logging.getLogger("torchrlopt")

Duel = Callable[[Lowered, Lowered], Timing]
"""Times two graphs in alternation."""

PriceRatio = Callable[[str, str], float]
"""The price of the graph in one executor as a multiple of that in another, both by name."""

_NEAR = 1.35
"""Two graphs duel unless one is faster by this factor, by its time and by its ratio to the original.

Each was timed beside the original, some moments apart. The original may have been slower beside one of them,
whose threads go on spinning, and the machine in one of the moments.
"""

_HOPELESS = 1.15
"""An executor whose planned graph takes so many times as long as the best is not tried without the plan. On
the suite no executor gained more than 4 % by leaving out a plan."""

LEAST_FORETOLD = 0.9
"""An executor is left out where it is foretold to take so many times as long as the best, or longer: of
75 times inductor took 0.92 of what is foretold at least (`python -m baselines.foretold`)."""


class Contest:
    """Executors that enter one by one; what came of each, and the fastest so far.

    Args:
        attempt: builds, checks and times one of them.
        duel: decides between two that are about as fast.
        options: the user's.
        report: what is known so far; not changed.
        enough: no other one but eager PyTorch is tried where one is so many times as fast as the original.
        price_ratio: of the graph before any plan.

    Attributes:
        choices: one for each that entered or was left out, in order.
        best: the fastest so far of those that beat the original.
    """

    def __init__(
        self,
        attempt: Try,
        duel: Duel,
        options: Options,
        report: Report,
        enough: float,
        price_ratio: PriceRatio,
    ) -> None:
        self.choices: list[Choice] = []
        self.best: Attempt | None = None
        self._attempt, self._duel, self._options, self._report = attempt, duel, options, report
        self._enough, self._price_ratio = enough, price_ratio
        self._start, self._known_ms = time.perf_counter(), sum(report.phases_ms.values())
        self._attempted: list[Report] = []
        self._num_failed = 0
        self._error: Exception | None = None

    def enter(self, variant: Options) -> bool:
        """Attempt one; returns whether it was attempted, and not left out."""
        reason = self._left_out_for(variant)
        if reason is not None:
            self.choices.append(_left_out(variant, reason))
            return False
        own = copy.deepcopy(self._report)
        own.executor, own.searcher = variant.executor, variant.searcher
        begin = time.perf_counter()
        try:
            found = self._attempt(variant, own)
        except recoverable_errors(self._options) as error:
            self._num_failed += 1
            fallback.log_traceback(error)
            # The others go: their tracebacks hold what had been built. What eager PyTorch says concerns all.
            if self._error is None or variant.executor == BASELINE:
                self._error = error
            own.fallback_reason = told(error)
            found = Attempt(None, own)
        seconds = time.perf_counter() - begin
        if own.fallback_reason is not None:  # the others are being tried
            own.fallback_reason = own.fallback_reason.removesuffix(TRY_OTHERS)
        self.choices.append(
            Choice(variant.executor, variant.searcher, _ratio(own), seconds, own.fallback_reason)
        )
        self._attempted.append(own)
        if found.lowered is not None and (self.best is None or is_faster(found, self.best, self._duel)):
            self.best = found
        return True

    def _left_out_for(self, variant: Options) -> str | None:
        is_late = time.perf_counter() - self._start > self._options.autotune_s
        # Eager PyTorch is what is left where nothing else runs: it is tried whatever the time.
        if self.choices and is_late and variant.executor != BASELINE:
            return "the time was over"
        best = self.best
        # Eager PyTorch is built in a moment.
        if best is not None and variant.executor != BASELINE and _is_enough(best.report, self._enough):
            return f"{best.report.executor} is far faster than the original"
        if best is not None and _is_hopeless(variant, self._attempted[-1], best.report):
            return "with a plan far slower"
        foretold = None if best is None else self._foretold(variant, best.report)
        if foretold is not None and foretold[0] >= LEAST_FORETOLD:
            slowdown, other = foretold
            said = f"would take {slowdown:.2f} times as long as the best, by {other}'s time and prices"
            return f"{said}; tried below {LEAST_FORETOLD}"
        return None

    def _foretold(self, variant: Options, best: Report) -> tuple[float, str] | None:
        """How many times as long as the best one takes if its time is to another's as their prices are.

        Returns:
            The least of what others foretell, and the name of that one; None where none does.
        """
        found = [
            # The best has beaten it, by a duel if need be, whatever the single times say.
            (max(1.0, min(times)) * self._price_ratio(variant.executor, own.executor), own.executor)
            for own in self._attempted
            if own.executor in registry.row(variant.executor).foretold_by
            and not own.parts
            and _are_sound(best, own)
            and (times := _slowdowns(best, own)) is not None
        ]
        return min(found, default=None)

    def interrupt(self, rest: Sequence[Options]) -> None:
        """Ctrl-C: those that have not been through are left out, and the best one so far is kept."""
        assert self.best is not None, "there is one to keep"
        tried = {(each.executor, each.searcher) for each in self.choices}
        left = [each for each in rest if (each.executor, each.searcher) not in tried]
        self.choices += [_left_out(each, "interrupted") for each in left]
        logger.warning(
            "rlopt was interrupted: %s is the fastest so far and is kept", self.best.report.executor
        )

    def end(self) -> Attempt:
        """The best one, or the original; raises what eager PyTorch raised, else the first, if all failed."""
        assert self._attempted, "the first that enters is not left out"
        if self._error is not None and self._num_failed == len(self.choices):
            raise self._error
        found = self.best or Attempt(None, self._of_the_original())
        chosen = found.report
        chosen.choices = tuple(self.choices)
        if len(self._attempted) > 1:
            book_others(chosen, self._start, self._known_ms)
        if found.save is not None and chosen is not self._attempted[-1]:
            found.save()  # the others have left their files in the same place
        return found

    @property
    def has_times(self) -> bool:
        """Whether anything was timed: where all failed, another try may find what was missing."""
        return any(_ratio(each) is not None for each in self._attempted)

    def _of_the_original(self) -> Report:
        """What is told where nothing beats the original: how eager PyTorch did, else who has times."""
        timed = [each for each in self._attempted if _ratio(each) is not None]
        own = [each for each in timed if each.executor == BASELINE]
        return (own or timed or self._attempted)[0]


def _left_out(variant: Options, reason: str) -> Choice:
    return Choice(variant.executor, variant.searcher, None, 0.0, reason)


def _is_enough(best: Report, enough: float) -> bool:
    """Whether a report is of times so far below the original's that nothing else need be tried."""
    ratio = _ratio(best) if _are_sound(best) else None
    return ratio is not None and ratio * enough <= 1


def _is_hopeless(variant: Options, last: Report, best: Report) -> bool:
    """Whether leaving the plan out cannot be expected to make up for what the executor was slower with it."""
    times = _slowdowns(best, last) if _are_sound(best, last) else None
    return variant.executor == last.executor and times is not None and min(times) > _HOPELESS


def _are_sound(*reports: Report) -> bool:
    """Whether times can be compared with others: taken in calm, and what they are and not a bound of it."""
    return all(each.measured_is_calm and not each.measured_is_bound for each in reports)


def is_faster(found: Attempt, best: Attempt, duel: Duel) -> bool:
    """Whether an attempt's graph is faster than the best one so far."""
    assert found.lowered is not None
    assert best.lowered is not None
    slowdowns = _slowdowns(best.report, found.report)
    if slowdowns is None:
        return _ratio(found.report) is not None
    is_bound = found.report.measured_is_bound or best.report.measured_is_bound
    if not is_bound and (max(slowdowns) < 1 / _NEAR or min(slowdowns) > _NEAR):
        return max(slowdowns) < 1
    return duel(best.lowered, found.lowered).gain > 0


def _slowdowns(old: Report, new: Report) -> tuple[float, float] | None:
    """How many times as long the new graph takes as the old: by their times, and each beside the original."""
    ratios = _ratio(old), _ratio(new)
    if ratios[0] is None or ratios[1] is None or not old.measured_after_ms or not new.measured_after_ms:
        return None
    return new.measured_after_ms / old.measured_after_ms, ratios[1] / ratios[0]


def _ratio(report: Report) -> float | None:
    if report.measured_before_ms is None or report.measured_after_ms is None:
        return None
    return report.measured_after_ms / report.measured_before_ms


def add_others(report: Report, more_ms: float) -> None:
    """Add to a report the time, in milliseconds, that went into attempts other than its own."""
    report.phases_ms["other attempts"] = report.phases_ms.get("other attempts", 0.0) + more_ms


def book_others(report: Report, start: float, known_ms: float) -> None:
    """Add to a report the time since `start` that went into other attempts than its own."""
    own_ms = sum(report.phases_ms.values()) - known_ms
    report.phases_ms["other attempts"] = (time.perf_counter() - start) * 1e3 - own_ms
