"""Times contestants against each other: each in its own process, alternating round by round."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from torchrlopt.api.bench.contestants import BASE
from torchrlopt.api.bench.process import Worker, WorkerError


@dataclasses.dataclass(frozen=True)
class Settings:
    """Measurement settings.

    Attributes:
        rounds: of each contestant, alternating.
        round_s: seconds of timed calls in a round.
        threads: of each contestant.
        timeout_s: longest wait for one answer, including a compilation.
        max_error: the option of torchrlopt's contestants.
    """

    rounds: int = 5
    round_s: float = 0.2
    threads: int = 1
    timeout_s: float = 600.0
    max_error: float | str | None = None


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of one contestant; None for what was not measured.

    Attributes:
        name: of the contestant.
        min_ms: time of the fastest call, in milliseconds.
        median_ms: of all calls.
        spread: half the interquartile range of all calls, relative to the median.
        speedup: median over the rounds of eager's median time divided by this one's.
        first_call_s: seconds from the loaded model to its first result, without imports.
        difference: largest difference from eager's outputs, in units of the largest output.
        kept: the executor that torchrlopt has kept, or "original".
        reason: why there are no numbers; empty if there are.
    """

    name: str
    min_ms: float | None = None
    median_ms: float | None = None
    spread: float | None = None
    speedup: float | None = None
    first_call_s: float | None = None
    difference: float | None = None
    kept: str = ""
    reason: str = ""


@dataclasses.dataclass
class _Run:
    """A contestant being measured."""

    name: str
    folder: Path
    worker: Worker
    rounds_ms: list[list[float]] = dataclasses.field(default_factory=list)
    first_call_s: float | None = None
    kept: str = ""
    reason: str = ""

    def attempt(self, act: Callable[[], object]) -> None:
        """Run `act` unless the contestant has failed before; record a failure and end the process."""
        if self.reason:
            return
        try:
            act()
        except WorkerError as failure:
            self.reason = str(failure)
            self.worker.close()

    def prepare(self) -> None:
        reply = self.worker.ask("prepare")
        self.first_call_s, self.kept = reply["first_call_s"], reply["kept"]

    def time(self, seconds: float) -> None:
        self.rounds_ms.append(self.worker.ask("time", seconds=seconds)["times_ms"])


def measure(
    model: str, names: Sequence[str], settings: Settings, announce: Callable[[str], None]
) -> tuple[list[Row], bool]:
    """Compile the contestants one after the other, then time each of them in every round.

    Args:
        model: by name, see `cli.models.load_model`.
        names: of contestants, including eager.
        settings: of the measurement.
        announce: called with a description of what begins, once per compilation and per round.

    Returns:
        A row for each, in order; and False if Ctrl-C ended it before the last round.
    """
    with ExitStack() as stack:
        runs = [_started(name, model, settings, stack) for name in names]
        is_whole = True
        try:
            for run in runs:
                announce(f"{run.name} compiles")
                run.attempt(run.prepare)
            for number in range(settings.rounds):
                announce(f"round {number + 1} of {settings.rounds}")
                for run in runs:
                    run.attempt(lambda run=run: run.time(settings.round_s))  # type: ignore[misc]
        except KeyboardInterrupt:
            is_whole = False
        base = next(run for run in runs if run.name == BASE)
        return [_summed_up(run, base) for run in runs], is_whole


def _started(name: str, model: str, settings: Settings, stack: ExitStack) -> _Run:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
    threads = str(settings.threads)
    environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    given = (model, name, threads, str(folder), json.dumps({"max_error": settings.max_error}))
    command = [sys.executable, "-m", "torchrlopt.api.bench.worker", *given]
    worker = Worker(command, environment, folder, settings.timeout_s)
    stack.callback(worker.close)
    return _Run(name, folder, worker)


def _summed_up(run: _Run, base: _Run) -> Row:
    if run.reason:
        return Row(run.name, reason=run.reason)
    times = [ms for each in run.rounds_ms for ms in each]
    row = Row(run.name, first_call_s=run.first_call_s, kept=run.kept)
    if not times:
        return dataclasses.replace(row, reason="interrupted")
    quartiles = statistics.quantiles(times, n=4)
    pairs = zip(base.rounds_ms, run.rounds_ms, strict=False)  # one may be ahead after Ctrl-C
    ratios = [statistics.median(theirs) / statistics.median(own) for theirs, own in pairs]
    return dataclasses.replace(
        row,
        min_ms=min(times),
        median_ms=statistics.median(times),
        spread=(quartiles[2] - quartiles[0]) / 2 / statistics.median(times),
        speedup=statistics.median(ratios) if ratios and not base.reason else None,
        difference=None if base.reason else _difference(run.folder, base.folder),
    )


def _difference(own: Path, base: Path) -> float | None:
    """Return the largest difference of outputs, in units of the largest; None if their shapes differ."""
    found, expected = (torch.load(each / "outputs.pt", weights_only=True) for each in (own, base))
    if [tuple(each.shape) for each in found] != [tuple(each.shape) for each in expected]:
        return None
    worst = 0.0
    for mine, theirs in zip(found, expected, strict=True):
        if theirs.numel():
            mine, theirs = mine.double(), theirs.double()
            largest = float(theirs.abs().max()) or 1.0
            worst = max(worst, float((mine - theirs).abs().max()) / largest)
    return worst
