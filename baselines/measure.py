"""Runs the peers of one model in processes of their own, round by round in turn, and sums it up."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from baselines.peers import OURS, PEERS, Case

_ROOT = Path(__file__).resolve().parent.parent


class PeerError(Exception):
    """A peer could not do what it was asked; the message says why, on one line."""


@dataclass(frozen=True)
class Settings:
    """How long to measure.

    Attributes:
        rounds: Rounds of each peer, in turn.
        round_s: Seconds of timed calls in a round.
        timeout_s: Longest wait for any one answer of a peer, its compilation included.
    """

    rounds: int = 7
    round_s: float = 0.2
    timeout_s: float = 600.0


@dataclass(frozen=True)
class Row:
    """The result of one case; `reason` says why there are no numbers, or why they do not count.

    Attributes:
        case: What was measured.
        median_ms: Median time of a call over all rounds, milliseconds; `q1_ms` and `q3_ms` are its quartiles.
        ratio: Median over the rounds of eager's median time by this peer's; above 1 is faster than eager.
        ratio_q1: First quartile of that; `ratio_q3` is the third.
        over_best: The same ratio to the peer whose median is the smallest, torchrlopt not counted, with its
            quartiles `over_best_q1` and `over_best_q3`; for torchrlopt only.
        peak_mb: Largest resident size of the peer's process, MB.
        first_call_s: Seconds from the model in hand to its first result; it was in no cache.
        max_error: Largest error against float64, in units of the largest output.
        eager_error: The same of eager PyTorch.
        kept: What torchrlopt has kept; empty for the others.
        reason: Empty where all is well.
    """

    case: Case
    median_ms: float | None = None
    q1_ms: float | None = None
    q3_ms: float | None = None
    ratio: float | None = None
    ratio_q1: float | None = None
    ratio_q3: float | None = None
    over_best: float | None = None
    over_best_q1: float | None = None
    over_best_q3: float | None = None
    peak_mb: float | None = None
    first_call_s: float | None = None
    max_error: float | None = None
    eager_error: float | None = None
    kept: str = ""
    reason: str = ""


class WorkerProcess:
    """A `baselines.worker`; stopped when closed.

    Args:
        case: The peer and model that it serves.
        folder: An empty folder for its files.
        caches: Where compilers keep what they have compiled.
        timeout_s: Longest wait for an answer.
    """

    def __init__(self, case: Case, folder: Path, caches: Path, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._log = (folder / "log.txt").open("w+")
        own = caches / case.label
        # OpenMP threads wait as by default. Sleeping at once (OMP_WAIT_POLICY=PASSIVE) would spare the
        # others milliseconds of spinning, but was seen to make eager PyTorch itself up to 1.8 times slower.
        environment = os.environ | {
            "OMP_NUM_THREADS": str(case.threads),
            "MKL_NUM_THREADS": str(case.threads),
            "PYTHONPATH": os.pathsep.join([str(_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]),
            "TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": str(case.threads),
            "TORCHRLOPT_CACHE_DIR": str(own / "torchrlopt"),
        }
        command = [sys.executable, "-m", "baselines.worker", json.dumps(asdict(case)), str(folder)]
        # A session of its own, so that compilers it has started end with it.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Sends a command and waits for the reply.

        Raises:
            PeerError: The peer raised, died, or took too long.
        """
        commands, replies = self._process.stdin, self._process.stdout
        if commands is None or replies is None:
            raise PeerError("the worker's pipes are closed")
        try:
            commands.write(json.dumps({"do": do, **arguments}) + "\n")
            commands.flush()
        except BrokenPipeError:
            raise PeerError(self._obituary()) from None
        is_ready, _, _ = select.select([replies], [], [], self._timeout_s)
        if not is_ready:
            raise PeerError(f"no answer to {do!r} within {self._timeout_s:g} s")
        line = replies.readline()
        if not line:
            raise PeerError(self._obituary())
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise PeerError(reply["error"])
        return reply

    def _obituary(self) -> str:
        """How the process ended and the last thing it said."""
        code = self._process.wait()
        ending = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        self._log.seek(0)
        lines = self._log.read().split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        return f"process {ending}: {last[:300]}"

    def close(self) -> None:
        """Ends the process and all that it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what was written to a dead process
                    pipe.close()
        self._log.close()


def relative_error(outputs: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> float:
    """Largest error of any output, in units of that output's largest magnitude in the reference.

    Returns:
        The error; infinite where number, shapes or the positions of non-finite values differ.
    """
    if len(outputs) != len(reference):
        return float("inf")
    worst = 0.0
    for actual, expected in zip(outputs, reference, strict=True):
        if actual.shape != expected.shape or not np.array_equal(np.isfinite(actual), np.isfinite(expected)):
            return float("inf")
        difference = np.abs(np.where(np.isfinite(expected), actual - expected, 0.0)).max(initial=0.0)
        scale = np.abs(np.where(np.isfinite(expected), expected, 0.0)).max(initial=0.0)
        worst = max(worst, float(difference / scale) if scale > 0 else float(difference))
    return worst


def error_limit(eager_error: float, dtype: str) -> float:
    """The largest error that counts as the same function, given eager's own, both against float64."""
    import torch

    from torchrlopt.compile.check import TOLERANCES

    tolerance = TOLERANCES[getattr(torch, dtype)]
    return max(tolerance.max_factor * eager_error, tolerance.max_floor)


def _load(path: Path) -> list[np.ndarray]:
    with np.load(path) as arrays:
        return [array.astype(np.float64) for array in arrays.values()]


@dataclass
class _Run:
    """A peer while it is measured."""

    case: Case
    folder: Path
    worker: WorkerProcess
    rounds_ms: list[list[float]]
    first_call_s: float | None = None
    peak_mb: float | None = None
    kept: str = ""
    reason: str = ""


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    q1, median, q3 = np.percentile(values, [25, 50, 75])
    return float(q1), float(median), float(q3)


def _ratios(base: _Run, run: _Run) -> list[float]:
    """How many times faster than the base, round by round."""
    rounds = zip(base.rounds_ms, run.rounds_ms, strict=True)
    return [float(np.median(base_ms) / np.median(own_ms)) for base_ms, own_ms in rounds]


def _over_best(row: Row, run: _Run, best: _Run) -> Row:
    """With the ratio to the best peer, where the row is one of torchrlopt's and counts."""
    if row.case.peer != OURS or row.reason:
        return row
    q1, median, q3 = _quartiles(_ratios(best, run))
    return replace(row, over_best=median, over_best_q1=q1, over_best_q3=q3)


def _sum_up(run: _Run, eager: _Run, reference: list[np.ndarray] | None) -> Row:
    """The row of a peer that was measured, or of its failure."""
    if run.reason:
        return Row(run.case, reason=run.reason)
    q1, median, q3 = _quartiles([ms for times in run.rounds_ms for ms in times])
    row: dict[str, Any] = {"median_ms": median, "q1_ms": q1, "q3_ms": q3}
    if not eager.reason:
        row["ratio_q1"], row["ratio"], row["ratio_q3"] = _quartiles(_ratios(eager, run))
    reason = ""
    if reference is not None:
        error = relative_error(_load(run.folder / "outputs.npz"), reference)
        eager_error = relative_error(_load(eager.folder / "outputs.npz"), reference)
        row |= {"max_error": error, "eager_error": eager_error}
        limit = error_limit(eager_error, run.case.dtype)
        if not error <= limit:
            reason = f"wrong result: error {error:.1e} of the largest output, limit {limit:.1e}"
    row |= {"peak_mb": run.peak_mb, "first_call_s": run.first_call_s, "kept": run.kept}
    return Row(run.case, reason=reason, **row)


def measure_model(
    cases: Sequence[Case], settings: Settings, caches: Path, on_progress: Callable[[str], None]
) -> list[Row]:
    """Measures the peers of one model against each other.

    Peers are compiled one after the other; then every round times each of them once, in turn, so that what
    disturbs the machine disturbs all of them.

    Args:
        cases: One case for each peer, all of one model and setting; eager among them, as the base of ratios.
        settings: How long to measure.
        caches: A folder for the compilers' caches; give one that has never seen these models.
        on_progress: Told what is being done, once for each case's compilation and once for each round.

    Returns:
        A row for each case, in order.

    Raises:
        ValueError: Eager is not among the cases.
    """
    if PEERS[0] not in [case.peer for case in cases]:
        raise ValueError(f"the ratios need the peer {PEERS[0]!r} among the cases")
    with ExitStack() as stack:
        runs: list[_Run] = []
        for case in cases:
            on_progress(f"{case.model}: {case.label} compiles")
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
            worker = WorkerProcess(case, folder, caches, settings.timeout_s)
            stack.callback(worker.close)
            run = _Run(case, folder, worker, [])
            runs.append(run)
            _attempt(run, _prepare)
        for index in range(settings.rounds):
            on_progress(f"{cases[0].model}: round {index + 1} of {settings.rounds}")
            for run in runs:
                _attempt(run, lambda run: _time(run, settings.round_s))
        eager = next(run for run in runs if run.case.peer == PEERS[0])
        for run in runs:
            _attempt(run, _note_peak)
        reference: list[np.ndarray] | None = None
        if not eager.reason:
            eager.worker.ask("reference")
            reference = _load(eager.folder / "reference.npz")
        rows = [_sum_up(run, eager, reference) for run in runs]
        others = [i for i, row in enumerate(rows) if row.case.peer != OURS and not row.reason]
        if not others:
            return rows
        best = runs[min(others, key=lambda i: rows[i].median_ms or float("inf"))]
        return [_over_best(row, run, best) for row, run in zip(rows, runs, strict=True)]


def _attempt(run: _Run, act: Callable[[_Run], None]) -> None:
    """Acts, unless the peer has failed before; a failure is noted and the peer stopped."""
    if run.reason:
        return
    try:
        act(run)
    except PeerError as failure:
        run.reason = str(failure)
        run.worker.close()


def _prepare(run: _Run) -> None:
    reply = run.worker.ask("prepare")
    run.first_call_s, run.kept = reply["first_call_s"], reply["kept"]


def _time(run: _Run, seconds: float) -> None:
    run.rounds_ms.append(run.worker.ask("time", seconds=seconds)["times_ms"])


def _note_peak(run: _Run) -> None:
    run.peak_mb = run.worker.ask("peak")["peak_mb"]
