"""Chooses the executor for a graph: the named one, or the fastest of several.

`executor="auto"` plans for each executor, times all of them on the user's inputs and keeps the fastest. The
plan store records which one won, so that the next process builds only that one. `executor="default"` does the
same with runtimes that are predicted to win clearly, and with eager PyTorch last, each with its plan; once
one is far faster than the original, no further runtime is tried. If none is predicted to win, it uses eager
PyTorch. On a GPU the runtime that its row prefers takes the place of the predicted ones.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeGuard

import torch

from torchrlopt import executor_table
from torchrlopt.compile import fallback
from torchrlopt.compile.attempt import Attempt, Try
from torchrlopt.compile.contestant import Contestant
from torchrlopt.compile.fallback import described, recoverable_errors
from torchrlopt.compile.progress import progress
from torchrlopt.executor_table import BASELINE
from torchrlopt.executors import registry
from torchrlopt.judge import stored
from torchrlopt.judge.policy import Policy
from torchrlopt.judge.timing import Callee, measure
from torchrlopt.machine import device
from torchrlopt.options import Options
from torchrlopt.plan.planning import given_plan, plan_store, versions
from torchrlopt.plan.runtime_prediction import predicted_winners, price_ratio
from torchrlopt.plan.store import make_key
from torchrlopt.report import Choice, Journal, Timing
from torchrlopt.substitutions import library_without

logger = logging.getLogger("torchrlopt")

Duel = Callable[[Callee, Callee], Timing]
"""Times two graphs against each other."""

CHOICE_FORMAT = 3  # incremented when the meaning of a stored choice changes

PriceRatio = Callable[[str, str], float]
"""The price of the graph in one executor as a multiple of that in another, both by name."""


def choose(attempt: Try, contestant: Contestant, options: Options, journal: Journal) -> Attempt:
    """Return the attempt to use, with the executor that the options name or leave open.

    Raises:
        RlOptError: every executor failed.
    """
    subject = contestant.subject
    where = subject.device
    if options.plan is not None and options.executor == "default":
        name = str(given_plan(subject.graph_hash, options.plan).get("executor"))
        # Steps are valid in any executor, and the one chosen elsewhere may not be installed here.
        is_missing = name in executor_table.names() and name not in registry.available(where.type)
        options = dataclasses.replace(options, executor=BASELINE if is_missing else name)
    if options.executor not in ("auto", "default"):
        return attempt(options, journal)
    single = dataclasses.replace(options, timing=dataclasses.replace(options.timing, measure_plans=1))
    policy = Policy.of(options.timing)
    if options.executor == "auto":
        variants = all_variants(single, where)
        policy = dataclasses.replace(policy, good_enough_speedup=math.inf)
    else:
        runtimes = registry.preferred(where.type)
        if not runtimes and _is_open(options):
            runtimes = predicted_winners(subject.program.graph, subject.sizes, where.type)
        if not runtimes:
            return attempt(dataclasses.replace(options, executor=BASELINE), journal)
        variants = [dataclasses.replace(single, executor=name) for name in runtimes]
        # Eager may pay only with a measured plan, so it keeps `measure_plans`.
        variants.append(dataclasses.replace(options, executor=BASELINE))
    duel = functools.partial(
        measure, inputs=contestant.inputs, limit_ms=policy.limit_ms, min_gain=0.0, settle=True
    )
    contest = contest_of(attempt, contestant, single, journal, policy, duel)
    found = fastest(contest, variants, _key(single, contestant))
    is_searched = found.run is not None and found.options.search.searcher != "none"
    if options.timing.measure_plans > 1 and is_searched and found.options.timing.measure_plans == 1:
        return _with_measured_plans(contest, options, journal, found)
    return found


@dataclasses.dataclass(frozen=True)
class Rest:
    """What calls may replace the attempt of the first call with."""

    contest: Contest
    variants: Sequence[Options]
    key: str | None


def choose_at_first(
    attempt: Try, contestant: Contestant, options: Options, journal: Journal
) -> tuple[Attempt, Rest | None]:
    """Return the attempt that an earlier process has chosen, or that of `executor="default"` and the rest.

    Raises:
        RlOptError: every executor failed.
    """
    auto = dataclasses.replace(options, executor="auto")  # the same choice, made in another way
    variants, key = all_variants(auto, contestant.subject.device), _key(auto, contestant)
    remembered, has_won = ([], False) if key is None else _remembered(key, variants)
    if key is not None and remembered:
        own = journal.fork()
        try:
            found = attempt(remembered[0], own)
        except recoverable_errors(options.on_error) as error:
            fallback.log_traceback(error)
        else:
            if not has_won:  # the first call's timing may say otherwise: calls contradicted it
                return dataclasses.replace(found, run=None, reason=found.reason or _LOST), None
            if found.run is not None:
                return _correcting(key, found), None
    found = choose(attempt, contestant, dataclasses.replace(options, executor="default"), journal)
    tried = {(each.executor, each.searcher) for each in found.journal.report().choices}
    tried.add((found.options.executor, found.options.search.searcher))
    rest = [each for each in variants if (each.executor, each.search.searcher) not in tried]
    return found, Rest(contest_of(attempt, contestant, auto, Journal(), _BY_CALLS, _no_duel), rest, key)


_LOST = "in an earlier process, calls of the original took less time"

_BY_CALLS = Policy(good_enough_speedup=math.inf, near=1.0)
"""What is left out by the times of calls: nobody is timed again."""


def _no_duel(*_: Any) -> Timing:
    return Timing(1.0, 1.0, 0.0, 0.0, 2)


def contest_of(
    attempt: Try, contestant: Contestant, options: Options, journal: Journal, policy: Policy, duel: Duel
) -> Contest:
    """Return a contest that nobody has entered; see `Contest`."""
    subject = contestant.subject
    ratio = functools.partial(price_ratio, subject.program.graph, subject.sizes)
    return Contest(attempt, duel, policy, options, journal, ratio)


def _key(options: Options, contestant: Contestant) -> str | None:
    """Return the key of the choice in the plan store; None if it is not to be used."""
    subject = contestant.subject
    key = key_of(options, subject.graph_hash, subject.content, subject.device)
    return key if options.cache else None


def _is_open(options: Options) -> bool:
    """Whether the options allow a graph to run in a runtime other than PyTorch.

    A runtime's results are not bit-identical, and it is fast only with weights that it may fold; without
    timing, nobody would notice a wrong prediction.
    """
    lowering, search = options.lowering, options.search
    asks_for_pytorch = (
        lowering.release_weights or lowering.cuda_graphs or lowering.executor_options is not None
    )
    is_bound = options.numerics == "strict" or lowering.weights == "live" or asks_for_pytorch
    asks_for_nothing = search.searcher == "none" or search.budget_ms == 0
    return options.timing.measure and not is_bound and not asks_for_nothing


def _with_measured_plans(contest: Contest, options: Options, journal: Journal, found: Attempt) -> Attempt:
    """Return the attempt with the fastest measured plan for the winning executor, or the winner itself.

    Raises:
        RlOptError: the executor failed this time, and the options ask for errors.
    """
    own, start = journal.fork(), time.perf_counter()
    own.add(choices=found.journal.report().choices)
    own.add_ms("other attempts", found.journal.total_ms - journal.total_ms)
    try:
        again = contest.attempt(dataclasses.replace(options, executor=found.options.executor), own)
    except KeyboardInterrupt:
        logger.warning("rlopt was interrupted: the searched plan is kept")
        return found
    except recoverable_errors(options.on_error) as error:
        fallback.log_traceback(error)
        logger.info("rlopt keeps the searched plan: %s", error)
        return found
    if again.run is None or not contest.is_faster(again, found):
        found.journal.add(measured_plans=again.journal.report().measured_plans)
        found.journal.add_ms("other attempts", (time.perf_counter() - start) * 1e3)
        if found.save is not None:
            found.save()
        return found
    return again


class Contest:
    """Executors that enter one by one, and the fastest so far. Those that cannot win are left out.

    Each is timed against the original; two that are about as fast are timed against each other.

    Attributes:
        attempt: as above.
        choices: one for each that entered or was left out, in order.
        best: the fastest so far of those that beat the original.
    """

    def __init__(
        self,
        attempt: Try,
        duel: Duel,
        policy: Policy,
        options: Options,
        journal: Journal,
        price_ratio: PriceRatio,
    ) -> None:
        self.attempt, self.choices = attempt, list[Choice]()
        self.best: Attempt | None = None
        self._duel, self._policy, self._price_ratio = duel, policy, price_ratio
        self._options, self._journal = options, journal
        self._start = time.perf_counter()
        self._attempts: list[Attempt] = []  # without their built graphs
        self._num_failed = 0
        self._error: Exception | None = None

    def enter(self, variant: Options) -> bool:
        """Attempt one; return False if it was left out."""
        reason = self.left_out_for(variant.executor)
        if reason is not None:
            self.choices.append(_left_out(variant, reason))
            return False
        own, begin = self._journal.fork(), time.perf_counter()
        try:
            found = self.attempt(variant, own)
        except recoverable_errors(self._options.on_error) as error:
            self._num_failed += 1
            fallback.log_traceback(error)
            # The other errors are dropped: their tracebacks hold built graphs. Eager PyTorch's concerns all.
            if self._error is None or variant.executor == BASELINE:
                self._error = error
            found = Attempt(variant, own, reason=described(error))
        seconds = time.perf_counter() - begin
        timing = found.timing
        ratio = None if timing is None else timing.after_ms / timing.before_ms
        self.choices.append(Choice(variant.executor, variant.search.searcher, ratio, seconds, found.reason))
        self.note(found)
        return True

    def note(self, found: Attempt) -> None:
        """Compare an attempt with the best so far."""
        self._attempts.append(found.unbuilt)
        if found.run is not None and (self.best is None or self.is_faster(found, self.best)):
            self.best = found

    def is_faster(self, new: Attempt, old: Attempt) -> bool:
        """Whether one attempt is faster than another; both replace the original."""
        assert new.run is not None
        assert old.run is not None
        if new.timing is None or old.timing is None:
            return new.timing is not None
        slowdowns, near = _slowdowns(old.timing, new.timing), self._policy.near
        is_bound = new.timing.is_bound or old.timing.is_bound
        if not is_bound and (max(slowdowns) < 1 / near or min(slowdowns) > near):
            return max(slowdowns) < 1
        return self._duel(old.run, new.run).gain > 0

    def left_out_for(self, executor: str) -> str | None:
        """Return why an executor cannot win, by the times of those that have entered; None if it may."""
        policy, leader = self._policy, self.best
        if leader is not None and leader.timing is None:
            return f"{leader.name} runs, and nothing is timed"
        best = leader.timing if leader is not None and _is_exact(leader.timing) else None
        last = self._attempts[-1] if self._attempts else None
        # Eager PyTorch is the last resort, and is built in a moment: it is always tried.
        if executor != BASELINE and last is not None:
            if time.perf_counter() - self._start > self._options.timing.autotune_s:
                return "the time was over"
            if leader and best and best.after_ms * policy.good_enough_speedup <= best.before_ms:
                return f"{leader.name} is far faster than the original"
        if best is None or last is None:
            return None
        is_variation = last.name == executor
        if is_variation and _is_exact(last.timing) and min(_slowdowns(best, last.timing)) > policy.hopeless:
            return "with a plan far slower"
        slowdown, other = min(self._predictions(executor, best), default=(0.0, ""))
        if slowdown >= policy.least_predicted:
            why = f"would take {slowdown:.2f} times as long as the best, by {other}'s time and prices"
            return f"{why}; tried below {policy.least_predicted}"
        return None

    def _predictions(self, executor: str, best: Timing) -> Iterator[tuple[float, str]]:
        """Yield times as multiples of the best's, if times scale with prices, and whose time says so."""
        for each in self._attempts:
            is_comparable = each.name in registry.row(executor).predicted_from
            if is_comparable and _is_exact(each.timing) and not each.journal.report().parts:
                # The best has beaten it, in a duel if necessary, whatever the separate times say.
                slowdown = max(1.0, min(_slowdowns(best, each.timing)))
                yield slowdown * self._price_ratio(executor, each.name), each.name

    def interrupt(self, rest: Sequence[Options]) -> None:
        """After Ctrl-C: leave out those not yet tried, and keep the best so far."""
        assert self.best is not None, "there is one to keep"
        tried = {(each.executor, each.searcher) for each in self.choices}
        left = [each for each in rest if (each.executor, each.search.searcher) not in tried]
        self.choices += [_left_out(each, "interrupted") for each in left]
        logger.warning(
            "rlopt was interrupted: %s is the fastest so far and is kept", self.best.options.executor
        )

    def end(self) -> Attempt:
        """Return the best, or the original; if all failed, raise eager PyTorch's error, else the first."""
        assert self._attempts, "the first that enters is not left out"
        if self._error is not None and self._num_failed == len(self.choices):
            raise self._error
        found = self.best or self._of_the_original()
        found.journal.add(choices=tuple(self.choices))
        if len(self._attempts) > 1:
            _add_others(found.journal, self._start, self._journal.total_ms)
        if found.save is not None and found.journal is not self._attempts[-1].journal:
            found.save()  # the others have written their files to the same place
        return found

    @property
    def has_times(self) -> bool:
        """Whether anything was timed: if all failed, another try may succeed."""
        return any(each.timing is not None for each in self._attempts)

    def _of_the_original(self) -> Attempt:
        """What to report if nothing beats the original: eager PyTorch's attempt, else one with times."""
        timed = [each for each in self._attempts if each.timing is not None]
        own = [each for each in timed if each.options.executor == BASELINE]
        return (own or timed or self._attempts)[0]


def _is_exact(timing: Timing | None) -> TypeGuard[Timing]:
    """Whether a time can be compared with others: measured while the machine was calm, and not a bound."""
    return timing is not None and timing.is_calm and not timing.is_bound


def _slowdowns(old: Timing, new: Timing) -> tuple[float, float]:
    """How many times as long the new one takes: by absolute times, and by ratios to the original."""
    by_ratio = (new.after_ms / new.before_ms) / (old.after_ms / old.before_ms)
    return new.after_ms / old.after_ms, by_ratio


def _left_out(variant: Options, reason: str) -> Choice:
    return Choice(variant.executor, variant.search.searcher, None, 0.0, reason)


def _add_others(journal: Journal, start: float, known_ms: float) -> None:
    """Add the time since `start` that was spent on attempts other than this journal's."""
    own_ms = journal.total_ms - known_ms
    journal.add_ms("other attempts", (time.perf_counter() - start) * 1e3 - own_ms)


def fastest(contest: Contest, variants: Sequence[Options], key: str | None) -> Attempt:
    """Try several executors and keep the fastest.

    Without a key, no choice is read from the plan store or written there.

    Returns:
        The fastest; it keeps the original if nothing beats that. After Ctrl-C the fastest so far, if one
        beats the original; it is not stored.

    Raises:
        RlOptError: every executor failed; see `Contest.end`.
        KeyboardInterrupt: Ctrl-C, and nothing so far beats the original.
    """
    remembered, has_won = _remembered(key, variants) if key is not None else ([], False)
    todo = deque(remembered or variants)
    is_whole = True
    with progress("rlopt tries executors", len(todo)) as advance:
        try:
            while todo:
                variant = todo.popleft()
                advance(f"{variant.executor}, {variant.search.searcher}")
                if not contest.enter(variant):
                    continue
                if todo or len(contest.choices) > 1:
                    gc.collect()  # reference cycles keep the losing graph alive, with its packed weights
                if remembered and has_won != (contest.best is not None):  # it is not as it was stored
                    todo, remembered = deque(each for each in variants if each not in remembered), []
        except KeyboardInterrupt:
            if contest.best is None:
                raise
            is_whole = False
            contest.interrupt((variant, *todo))
    found = contest.end()
    if key is not None and not remembered and is_whole and contest.has_times:
        remember(key, found)
    return found if key is None else _correcting(key, found)


def _correcting(key: str, found: Attempt) -> Attempt:
    """Return the attempt; if calls contradict its stored timing, the choice is forgotten, too."""
    if found.correct is None:
        return found
    return dataclasses.replace(found, correct=functools.partial(_correct, key, found.correct))


def _correct(key: str, correct: Callable[[Timing], None], timing: Timing) -> None:
    """Store another timing of the winner, and let the next process choose anew."""
    correct(timing)
    plan_store().put(key, {})


def all_variants(options: Options, where: torch.device) -> list[Options]:
    """Return what `executor="auto"` tries: quick ones first, as those after the time limit are left out."""
    variants = []
    for name in registry.available(where.type):
        planned = dataclasses.replace(options, executor=name)
        variants.append(planned)
        # The original graph may suit another executor better than any plan for it.
        if name != BASELINE and options.search.searcher != "none":
            variants.append(dataclasses.replace(planned, search=options.search.with_searcher("none")))
    return variants


def key_of(options: Options, graph: str, content: str, where: torch.device) -> str:
    """Return the key of a choice in the plan store."""
    return make_key(
        {
            "format": CHOICE_FORMAT,
            "graph": {"graph": graph, "content": content},
            "library": library_without(options.exclude).hash,
            "options": options.search_key(),
            "precision": [str(options.precision.max_error), str(options.precision.error_metric)],
            "device": device.fingerprint(where),
            "executors": versions(registry.available(where.type)),
        }
    )


def remember(key: str, found: Attempt) -> None:
    """Store the winner; if the original won, the reported attempt, so that only that is tried again."""
    timing, chosen = found.timing, found.options
    noise = {"spread": 0.0 if timing is None else timing.spread, "is_calm": timing is None or timing.is_calm}
    winner = {"executor": chosen.executor, "searcher": chosen.search.searcher, "taken_at": time.time()}
    plan_store().put(key, winner | noise | {"has_won": found.run is not None})


def _remembered(key: str, variants: Sequence[Options]) -> tuple[list[Options], bool]:
    """Return the variant stored by an earlier process, if that still holds, and whether it won."""
    entry = plan_store().get(key)
    if entry is None or not stored.holds(entry.get("taken_at"), entry.get("spread"), entry.get("is_calm")):
        return [], False
    won = [entry.get("executor"), entry.get("searcher")]
    found = [each for each in variants if [each.executor, each.search.searcher] == won]
    return found, bool(found) and entry.get("has_won") is not False
