"""Which executor runs a graph: the one that is named, the first that pays, or the fastest of all.

`executor="auto"` plans for each executor, times all of them on the user's inputs and keeps the fastest. Which
one won is remembered in the plan store, so that the next process builds that one only.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import torch

from torchrlopt import executor_table
from torchrlopt.compile import fallback
from torchrlopt.compile.attempt import Attempt, Try
from torchrlopt.compile.contestant import Contestant, subject_of
from torchrlopt.compile.fallback import passed_over, told
from torchrlopt.compile.progress import progress
from torchrlopt.compile.timing import measure
from torchrlopt.executors import registry
from torchrlopt.executors.registry import Lowered
from torchrlopt.machine import device
from torchrlopt.options import Options
from torchrlopt.plan import verdicts
from torchrlopt.plan.planning import TRY_OTHERS, given_plan, plan_store, versions
from torchrlopt.plan.search import graph_hash
from torchrlopt.plan.store import make_key
from torchrlopt.report import Choice, Report, Timing
from torchrlopt.substitutions import load_library

logger = logging.getLogger("torchrlopt")

CHOICE_FORMAT = 3  # raised when the meaning of a stored choice changes

Duel = Callable[[Lowered, Lowered], Timing]
"""Times two graphs in alternation."""

_NEAR = 1.35
"""Two graphs duel unless one is faster by this factor, by its time and by its ratio to the original.

Each was timed beside the original, some moments apart. The original may have been slower beside one of them,
whose threads go on spinning, and the machine in one of the moments.
"""

_HOPELESS = 1.15
"""An executor whose planned graph takes so many times as long as the best is not tried without the plan, nor
one that another one outdoes unless the best is so many times as fast as that other one. On the suite no
executor gained more than 4 % by leaving out a plan."""


def choose(attempt: Try, contestant: Contestant, options: Options, report: Report) -> Attempt:
    """The attempt that is used, with the executor that the options name or leave open.

    Args:
        attempt: makes one.
        contestant: what is attempted.
        options: the user's.
        report: what is known so far. Is filled where there is one executor to try, else copied.

    Raises:
        RlOptError: every executor failed.
    """
    where = contestant.job.traced.device
    if options.plan is not None and options.executor == "default":
        given = given_plan(graph_hash(contestant.job.program.graph), options.plan)
        options = dataclasses.replace(options, executor=str(given.get("executor")))
        report.executor = options.executor
    if options.executor == "default":
        return first_that_pays(attempt, registry.defaults(where.type), options, report)
    if options.executor != "auto":
        return attempt(options, report)
    duel = functools.partial(
        measure, inputs=contestant.inputs, limit_ms=options.measure_ms, min_gain=0.0, settle=True
    )
    subject = subject_of(contestant.job)
    identity = {"graph": graph_hash(subject.program.graph), "content": subject.content}
    found = fastest(attempt, duel, dataclasses.replace(options, measure_plans=1), report, identity, where)
    if options.measure_plans > 1 and found.lowered is not None and found.report.searcher != "none":
        return _with_measured_plans(attempt, duel, options, report, found)
    return found


def _with_measured_plans(
    attempt: Try, duel: Duel, options: Options, report: Report, found: Attempt
) -> Attempt:
    """The attempt with the fastest plan for an executor that was found to be the fastest, or that one itself.

    Raises:
        RlOptError: the executor failed now, and the options ask for errors.
    """
    own, start = copy.deepcopy(report), time.perf_counter()
    own.executor, own.choices = found.report.executor, found.report.choices
    known_ms = sum(own.phases_ms.values())
    own.phases_ms["other attempts"] = sum(found.report.phases_ms.values()) - known_ms
    try:
        again = attempt(dataclasses.replace(options, executor=own.executor), own)
    except KeyboardInterrupt:
        logger.warning("rlopt was interrupted: the searched plan is kept")
        return found
    except passed_over(options) as error:
        fallback.log_traceback(error)
        logger.info("rlopt keeps the searched plan: %s", error)
        return found
    if again.lowered is None or not _is_faster(again, found, duel):
        found.report.measured_plans = own.measured_plans
        _add_others(found.report, (time.perf_counter() - start) * 1e3)
        return found
    return again


def first_that_pays(attempt: Try, names: Sequence[str], options: Options, report: Report) -> Attempt:
    """Try executors in order until one takes the graph and runs it faster than the original.

    Args:
        attempt: makes an attempt.
        names: of the executors.
        options: the user's; their executor does not count.
        report: what is known so far; is filled by the last attempt.

    Returns:
        The first attempt that pays; where none does, the first that could be made.

    Raises:
        RlOptError: every executor failed; this is the last one's reason.
    """
    start, known_ms = time.perf_counter(), sum(report.phases_ms.values())
    kept: Attempt | None = None
    for number, name in enumerate(names):
        is_last = name == names[-1]
        own = report if is_last and kept is None else copy.deepcopy(report)
        own.executor = name
        try:
            found = attempt(dataclasses.replace(options, executor=name), own)
        except passed_over(options) as error:
            if is_last and kept is None:
                raise
            logger.info("rlopt goes on without %s: %s", name, error)
            fallback.log_traceback(error)
            continue
        if found.lowered is not None:
            if number > 0:
                _book_others(found.report, start, known_ms)
            return found
        logger.info("rlopt goes on without %s: %s", name, found.report.fallback_reason)
        kept = kept or found
    assert kept is not None, "the last executor was tried, or raised"
    if len(names) > 1:
        _book_others(kept.report, start, known_ms)
    return kept


def _add_others(report: Report, more_ms: float) -> None:
    report.phases_ms["other attempts"] = report.phases_ms.get("other attempts", 0.0) + more_ms


def _book_others(report: Report, start: float, known_ms: float) -> None:
    """Add to a report the time since `start` that went into other attempts than its own."""
    own_ms = sum(report.phases_ms.values()) - known_ms
    report.phases_ms["other attempts"] = (time.perf_counter() - start) * 1e3 - own_ms


def fastest(
    attempt: Try,
    duel: Duel,
    options: Options,
    report: Report,
    identity: Mapping[str, str],
    where: torch.device,
) -> Attempt:
    """Try every executor and keep the fastest.

    Args:
        attempt: builds, checks and times one of them.
        duel: decides between two that are about as fast.
        options: the user's, with `executor="auto"`.
        report: what is known so far; not changed.
        identity: what the choice is remembered for: hash and content of the graph before any plan.
        where: the device of the graph's tensors.

    Returns:
        The fastest. One that keeps the original where nothing beats it. After Ctrl-C the fastest so far,
        where there is one that beats the original; it is not remembered.

    Raises:
        RlOptError: every executor failed; this is the first one's reason.
        KeyboardInterrupt: Ctrl-C, and nothing so far beats the original.
    """
    everything = _all_variants(options, where)
    key = _key_of(options, identity, where)
    remembered = _remembered(key, options, everything)
    todo = deque(remembered or everything)
    contest = _Contest(attempt, duel, options, report)
    is_whole = True
    with progress("rlopt tries executors", len(todo)) as tell:
        try:
            while todo:
                variant = todo.popleft()
                tell(f"{variant.executor}, {variant.searcher}")
                if not contest.enter(variant):
                    continue
                if todo or len(contest.choices) > 1:
                    gc.collect()  # the graph that has lost lies in cycles, with its packed weights
                if remembered and contest.best is None:  # what won once does not any more
                    todo, remembered = deque(each for each in everything if each not in remembered), []
        except KeyboardInterrupt:
            if contest.best is None:
                raise
            is_whole = False
            contest.interrupt((variant, *todo))
    found = contest.end()
    if options.cache and found.lowered is not None and not remembered and is_whole:
        _remember(key, found.report)
    return found


class _Contest:
    """Executors that enter one by one; what came of each, and the fastest so far.

    Args:
        attempt: as `fastest` is given it, like the others.
        duel: as above.
        options: as above.
        report: as above.

    Attributes:
        choices: one for each that entered or was left out, in order.
        best: the fastest so far of those that beat the original.
    """

    def __init__(self, attempt: Try, duel: Duel, options: Options, report: Report) -> None:
        self.choices: list[Choice] = []
        self.best: Attempt | None = None
        self._attempt, self._duel, self._options, self._report = attempt, duel, options, report
        self._start, self._known_ms = time.perf_counter(), sum(report.phases_ms.values())
        self._first: Report | None = None
        self._last: Report | None = None
        self._timed: list[Report] = []
        self._num_failed = 0
        self._reason: Exception | None = None

    def enter(self, variant: Options) -> bool:
        """Attempt one; returns whether it was attempted, and not left out."""
        reason = self._reason_to_leave_out(variant)
        if reason is not None:
            self.choices.append(_left_out(variant, reason))
            return False
        own = copy.deepcopy(self._report)
        own.executor, own.searcher = variant.executor, variant.searcher
        begin = time.perf_counter()
        try:
            found = self._attempt(variant, own)
        except passed_over(self._options) as error:
            self._num_failed += 1
            fallback.log_traceback(error)
            self._reason = self._reason or error  # the others go: their tracebacks hold what had been built
            own.fallback_reason = told(error)
            found = Attempt(None, own)
        seconds = time.perf_counter() - begin
        if own.fallback_reason is not None:  # the others are being tried
            own.fallback_reason = own.fallback_reason.removesuffix(TRY_OTHERS)
        self.choices.append(
            Choice(variant.executor, variant.searcher, _ratio(own), seconds, own.fallback_reason)
        )
        self._first, self._last = self._first or own, own
        self._timed.append(own)
        if found.lowered is not None and (self.best is None or _is_faster(found, self.best, self._duel)):
            self.best = found
        return True

    def _reason_to_leave_out(self, variant: Options) -> str | None:
        if self.choices and time.perf_counter() - self._start > self._options.autotune_s:
            return "the time was over"
        last, best = self._last, self.best
        if last is not None and best is not None and _is_hopeless(variant, last, best.report):
            return "with a plan far slower"
        for other in registry.row(variant.executor).outdone_by:
            if best is not None and any(_is_well_run(each, other, best.report) for each in self._timed):
                return (
                    f"{other} runs the whole graph, and this was the slower one wherever they were compared"
                )
        return None

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
        """The best one, or the original; raises the first failure where there was nothing else."""
        assert self._first is not None, "eager PyTorch is always there to try"
        if self._reason is not None and self._num_failed == len(self.choices):
            raise self._reason
        lowered, chosen = self.best or Attempt(None, self._first)
        chosen.choices = tuple(self.choices)
        if len(self.choices) > 1:
            _book_others(chosen, self._start, self._known_ms)
        return Attempt(lowered, chosen)


def _left_out(variant: Options, reason: str) -> Choice:
    return Choice(variant.executor, variant.searcher, None, 0.0, reason)


def _is_hopeless(variant: Options, last: Report, best: Report) -> bool:
    """Whether leaving the plan out cannot be expected to make up for what the executor was slower with it."""
    times = _slowdowns(best, last) if _are_sound(best, last) else None
    return variant.executor == last.executor and times is not None and min(times) > _HOPELESS


def _is_well_run(timed: Report, executor: str, best: Report) -> bool:
    """Whether a report is of that executor, with the whole graph, and of times near the best."""
    is_asked = timed.executor == executor and not timed.parts and _are_sound(best, timed)
    times = _slowdowns(best, timed) if is_asked else None
    return times is not None and max(times) <= _HOPELESS


def _are_sound(*reports: Report) -> bool:
    """Whether times can be compared with others: taken in calm, and what they are and not a bound of it."""
    return all(each.measured_is_calm and not each.measured_is_bound for each in reports)


def _is_faster(found: Attempt, best: Attempt, duel: Duel) -> bool:
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


def _all_variants(options: Options, where: torch.device) -> list[Options]:
    """Quick ones first: what is out of time is left out."""
    variants = []
    for name in registry.available(where.type):
        planned = dataclasses.replace(options, executor=name)
        variants.append(planned)
        # The original graph may suit another executor better than any plan for it.
        if name != executor_table.BASELINE and options.searcher != "none":
            variants.append(planned.with_searcher("none"))
    return variants


def _key_of(options: Options, identity: Mapping[str, str], where: torch.device) -> str:
    """Under which a choice is remembered."""
    return make_key(
        {
            "format": CHOICE_FORMAT,
            "graph": dict(identity),
            "library": load_library(with_generated=options.generated).hash,
            "options": options.search_key(),
            "device": device.fingerprint(where),
            "executors": versions(registry.available(where.type)),
        }
    )


def _remember(key: str, chosen: Report) -> None:
    noise = {"spread": chosen.measured_spread or 0.0, "is_calm": chosen.measured_is_calm}
    winner = {"executor": chosen.executor, "searcher": chosen.searcher, "taken_at": time.time()}
    plan_store().put(key, winner | noise)


def _remembered(key: str, options: Options, variants: Sequence[Options]) -> list[Options]:
    """The variant that won in an earlier process, where that verdict still holds."""
    entry = plan_store().get(key) if options.cache else None
    if entry is None or not verdicts.holds(entry.get("taken_at"), entry.get("spread"), entry.get("is_calm")):
        return []
    won = [entry.get("executor"), entry.get("searcher")]
    return [each for each in variants if [each.executor, each.searcher] == won]


def _ratio(report: Report) -> float | None:
    if report.measured_before_ms is None or report.measured_after_ms is None:
        return None
    return report.measured_after_ms / report.measured_before_ms
