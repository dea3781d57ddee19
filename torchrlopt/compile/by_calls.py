"""Lets the calls of a program choose the executor of a graph, instead of a contest before the first call.

The first call runs what `executor="default"` chooses. What "auto" would try is built in the background,
checked, and then runs some of the calls that the program makes anyway; a `Bandit` says which. Once it is
certain, `Compiled` runs the fastest as if it had been chosen at first, and the next process begins with it.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch

from torchrlopt.capture import aot
from torchrlopt.capture.trace import Traced
from torchrlopt.compile import fallback
from torchrlopt.compile.attempt import Attempt
from torchrlopt.compile.background import BACKGROUND
from torchrlopt.compile.choice import Rest, remember
from torchrlopt.compile.compiled import Compiled
from torchrlopt.compile.fallback import WARNINGS, described
from torchrlopt.errors import WeightsError
from torchrlopt.executors import registry
from torchrlopt.executors.registry import Lowered
from torchrlopt.judge.bandit import Bandit
from torchrlopt.judge.own_calls import timed
from torchrlopt.judge.policy import Policy
from torchrlopt.options import Options
from torchrlopt.processes import renew_locks_in_forks
from torchrlopt.report import OPEN, Candidate, Journal, Timing
from torchrlopt.torch_private.modes import is_traced

ORIGINAL = "original"
_LATEST = 100
"""Calls of a candidate whose median is reported: the choice may go on for as long as the program does."""


def refusal(options: Options, traced: Traced) -> str | None:
    """Return why calls cannot choose the executor of a graph; None if they can."""
    if options.deterministic:
        return "later calls run what the first one runs (deterministic)"
    if traced.device.type != "cpu":
        return "CUDA graphs cannot be recorded while other threads compute"
    if any(isinstance(each, torch.SymInt) or type(each) is int for each in traced.inputs):
        return "times of calls of varying sizes do not compare"
    timing, lowering = options.timing, options.lowering
    if options.precision.max_error is not None or lowering.release_weights:
        return "max_error and release_weights depend on the executor"
    if timing.measure_plans > 1 or timing.measure_parts:
        return "measure_plans and measure_parts time in the first call"
    return None


def with_own_inputs(traced: Traced) -> Traced:
    """Return the graph with copies of the inputs of this call, which the program may overwrite."""

    def own(at: int, x: Any) -> Any:
        return x if at in traced.static or not isinstance(x, torch.Tensor) else aot.copy_of(x)

    return dataclasses.replace(traced, inputs=tuple(map(own, range(len(traced.inputs)), traced.inputs)))


class ByCalls:
    """Runs the calls of a graph until they have chosen its executor; thread-safe.

    While anything is built, calls run the best so far and are not timed: the builder slows down one executor
    more than another. Candidates are checked for the weights of the time when they are built: the first call
    with others gets the original's result and ends the choice, and `Compiled` checks what runs from then on.

    Args:
        found: what the first call runs; without a rewritten graph, that is the original.
        rest: what is to be built.
        compiled: runs the calls; `begin` puts this in the place of what it runs.
        original: computes the same as an ATen graph.
    """

    def __init__(self, found: Attempt, rest: Rest, compiled: Compiled, original: Lowered) -> None:
        assert found.timing is not None, "it was timed against the original"
        self._found, self._key, self._compiled = found.unbuilt, rest.key, weakref.ref(compiled)
        self._contest, self._status, self._original = rest.contest, compiled.status, original
        self._on_error, self._verify = found.options.on_error, found.options.verify
        self._enter(found)
        self._attempts: list[Attempt | None] = []
        self._rows: list[Candidate] = []
        self._runs: list[Lowered | None] = []
        self._evaluations: list[int] = []
        self._latest: list[deque[float]] = []
        self._bandit = Bandit(np.random.default_rng(found.options.search.seed))
        self._num_running = self._num_begun = 0
        self._is_frozen = False
        self._lock = threading.Lock()
        renew_locks_in_forks(self, "_lock")
        self._settled: Future[None] = Future()
        self._status.settled, self._status.by_calls = (self._settled,), "on"
        if found.run is not None:
            self._admit(_row(found.options), found.run, found)
        policy = Policy.of(found.options.timing)
        if found.run is None or not policy.is_decided_without_wrapper(found.timing):
            self._admit(Candidate(ORIGINAL, "none"), original, None)
        self._first_ms = found.timing.before_ms if found.run is None else found.timing.after_ms
        waiting = [(_row(each), each) for each in rest.variants]
        self._status.candidates = [*self._rows, *(row for row, _ in waiting)]
        # The times of the others may predict that they are not worth building.
        self._later = [each for each in waiting if registry.row(each[1].executor).predicted_from]
        self._todo = deque(each for each in waiting if each not in self._later)
        weakref.finalize(self, _give_up, self._settled, self._status.candidates).atexit = False

    def begin(self) -> None:
        """Run the calls from now on."""
        compiled = self._compiled()
        assert compiled is not None, "it is being made"
        compiled.replace(self, 0)
        with self._lock:
            self._build_rest()

    # What the builder calls.

    @property
    def starts_threads(self) -> bool:
        """See `Work`: runtimes do when they are built, if they may use several."""
        with self._lock:
            executor = self._todo[0][1].executor if self._todo else ""
        return torch.get_num_threads() > 1 and bool(executor) and registry.row(executor).needs_settling

    def step(self) -> bool:
        """Build and check the next candidate; see `Work`."""
        with self._lock:
            todo = self._todo[0] if self._todo else None
        if todo is not None:
            row, options = todo
            try:
                with torch.no_grad():  # as in the first call; each thread has its own mode
                    self._build(row, options)
            except Exception as error:  # noqa: BLE001  # nobody has asked for it: it never reaches a caller
                row.state, row.reason = "failed", described(error)
                fallback.log_traceback(error)
        with self._lock:
            if self._todo:
                self._todo.popleft()
            self._update()
            return bool(self._todo)

    def freeze(self) -> None:
        """In a forked child: run the best so far; see `Work`."""
        self._is_frozen = True
        _end(self._settled)

    def _build(self, row: Candidate, options: Options) -> None:
        reason = self._contest.left_out_for(options.executor)
        if reason is not None:
            row.state, row.reason = "dropped", reason
            return

        def watch(phase: str) -> None:
            BACKGROUND.pause()
            row.state = "checking" if phase == "check" else "building"

        journal = Journal()
        journal.watch = watch
        untimed = dataclasses.replace(options.timing, measure=False)
        found = self._contest.attempt(dataclasses.replace(options, timing=untimed), journal)
        assert found.run is not None, "nothing was timed that could be too slow"
        with self._lock:
            self._admit(row, found.run, found)

    def _enter(self, attempt: Attempt) -> None:
        """Let an attempt enter the race, which runs nothing: it would keep a built graph that is dropped."""
        self._contest.note(dataclasses.replace(attempt, run=attempt.run and self._original))

    def _admit(self, row: Candidate, run: Lowered, attempt: Attempt | None) -> None:
        row.state = "live"
        self._rows.append(row)
        self._runs.append(run)
        self._attempts.append(None if attempt is None else attempt.unbuilt)
        self._evaluations.append(_evaluations(run))
        self._latest.append(deque(maxlen=_LATEST))
        self._bandit.enter()

    # What calls do.

    @property
    def num_evaluations(self) -> int:
        """See `Lowered`: 0, since calls with new weights are answered by the original."""
        return 0

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Run on the inputs of the ATen graph; if a candidate fails, the original answers."""
        with self._lock:
            is_timed = self._num_running == 0 and not (self._is_frozen or BACKGROUND.is_busy or is_traced())
            which = self._bandit.choose() if is_timed else self._bandit.best
            run = self._runs[which]
            assert run is not None, "it is live"
            self._num_running += 1
            self._num_begun += 1
            number = self._num_begun
        try:
            outputs, sample = timed(lambda: run(*args), (), is_brief=True) if is_timed else (run(*args), None)
        except Exception as error:
            with self._lock:
                is_last = self._bandit.live == [which]
            if is_last or self._on_error == "raise" or isinstance(error, WeightsError):
                raise
            outputs = self._original(*args)  # raises, too, if the call is wrong
            self._drop(which, error)
            return outputs
        finally:
            with self._lock:
                self._num_running -= 1
        if self._verify and _evaluations(run) != self._evaluations[which]:
            with self._lock:
                self._end_early()
            return self._original(*args)
        with self._lock:
            if sample is None or number != self._num_begun:
                self._bandit.skip(which)
            elif which in self._bandit.live:
                self._note(which, sample.ms)
        return outputs

    def _build_rest(self) -> None:
        """Have what is to be built built; where no thread can start, end the choice."""
        try:
            BACKGROUND.add(self)
        except RuntimeError as error:
            fallback.log_traceback(error)
            self._end_early()

    def _end_early(self) -> None:
        """Let `Compiled` run the best so far; the next process chooses again."""
        compiled = self._compiled()
        if compiled is not None and compiled.lowered is self:
            self._key = None
            self._settle()

    def _note(self, which: int, ms: float) -> None:
        self._bandit.note(which, ms, time.monotonic() * 1e3)
        row = self._rows[which]
        self._latest[which].append(ms)
        row.calls, row.median_ms = row.calls + 1, statistics.median(self._latest[which])
        self._update()

    def _drop(self, which: int, error: Exception) -> None:
        """Drop a candidate that has failed in a call."""
        text = described(error)
        WARNINGS.warn(f"{type(error).__name__} in a call", text, "drops an executor")
        fallback.log_traceback(error)
        with self._lock:
            if which in self._bandit.live:
                self._bandit.leave(which)
                self._rows[which].state, self._rows[which].reason = "failed", text
                self._update()

    def _update(self) -> None:
        """Free what has lost, and end the choice if it is over."""
        live, chances, compiled = self._bandit.live, self._bandit.chances, self._compiled()
        if compiled is None or compiled.lowered is not self:  # a call has failed in all that there was
            self._todo.clear()
            _give_up(self._settled, self._status.candidates)
            return
        for which, row in enumerate(self._rows):
            row.chance = chances.get(which)
            if which not in live:
                self._runs[which] = None
                if row.state == "live":
                    row.state, row.reason = "dropped", "hardly the fastest"
        if self._todo or not self._bandit.is_over:
            return
        if self._later:
            self._todo, self._later = deque(self._later), []
            for which, attempt in enumerate(self._attempts):
                if which > 0 and attempt is not None and self._rows[which].calls:
                    run, timing = self._runs[which], self._timing(which)
                    self._enter(dataclasses.replace(attempt, run=run, timing=timing))
            self._build_rest()
        else:
            self._settle()

    def _timing(self, which: int) -> Timing:
        """A candidate's timing against the original, by the ratio of its times to the first candidate's."""
        timing, bandit = self._found.timing, self._bandit
        assert timing is not None, "as in the constructor"
        after_ms = self._first_ms * math.exp(bandit.log_ratio(which, 0))
        gain = 1 - after_ms / timing.before_ms
        return Timing(timing.before_ms, after_ms, gain, bandit.noise, max(1, self._rows[which].calls))

    def _settle(self) -> None:
        """Let `Compiled` run the best, and store the choice."""
        which, compiled = self._bandit.best, self._compiled()
        assert compiled is not None, "it runs us"
        attempt, run, row = self._attempts[which], self._runs[which], self._rows[which]
        row.state = "chosen"
        if attempt is None:
            is_certain = self._bandit.is_over
            reason = "calls of the original take less time" if is_certain else "the choice ended early"
            self._status.keep_original(reason)
        else:
            self._status.kept, self._status.fallback_reason = "rewritten", None
        compiled.replace(None if attempt is None else run, self._evaluations[which])
        if self._key is not None:
            try:
                self._store(self._key, which)
            except Exception as error:  # noqa: BLE001  # the next process has to choose again
                fallback.log_traceback(error)
        self._todo.clear()
        _give_up(self._settled, self._status.candidates)

    def _store(self, key: str, which: int) -> None:
        """Store the choice and its timing, from which the next process begins."""
        attempt, timing = self._attempts[which], self._timing(which)
        if attempt is None:
            remember(key, self._found)
            return
        if attempt.timing is None and attempt.correct is not None:
            attempt.correct(timing)
        remember(key, dataclasses.replace(attempt, run=self._runs[which], timing=timing))


def _row(options: Options) -> Candidate:
    return Candidate(options.executor, options.search.searcher)


def _evaluations(run: Lowered) -> int:
    """How often expressions over weights were evaluated."""
    return getattr(run, "num_evaluations", 0)


def _end(settled: Future[None]) -> None:
    if not settled.done():
        settled.set_result(None)


def _give_up(settled: Future[None], rows: Sequence[Candidate]) -> None:
    """End the wait for a choice that is over, or that nobody will make any more, and drop what is open."""
    for row in rows:
        if row.state in OPEN:
            row.state = "dropped"
    _end(settled)
