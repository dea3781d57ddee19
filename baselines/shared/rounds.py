"""Runs the peers of one model in processes of their own, round by round in turn, and sums it up."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from baselines.peers.case import PEERS, Case, is_ours
from baselines.peers.kernel_times import KernelTime
from baselines.peers.process import PeerError, WorkerProcess
from baselines.shared.accuracy import error_limit, relative_error


@dataclass(frozen=True)
class Settings:
    """How long to measure.

    Attributes:
        rounds: Rounds of each peer, in turn.
        round_s: Seconds of timed calls in a round.
        timeout_s: Longest wait for any one answer of a peer, its compilation included.
        jobs: Peers that compile at the same time, of several models where they are so many. Calls are timed
            one after the other always; seconds of first calls can be compared with 1 only.
        with_kernels: Whether the kernels of each peer's calls are profiled behind the rounds; on CUDA.
    """

    rounds: int = 7
    round_s: float = 0.2
    timeout_s: float = 600.0
    jobs: int = 1
    with_kernels: bool = False


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
        kept: What torchrlopt has kept; empty for the others.
        reason: Empty where all is well.
        kernels: Of one call: name, launches, microseconds, those without what ran beside each other.
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
    kept: str = ""
    reason: str = ""
    kernels: tuple[KernelTime, ...] = ()


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
    kernels: tuple[KernelTime, ...] = ()


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    q1, median, q3 = np.percentile(values, [25, 50, 75])
    return float(q1), float(median), float(q3)


def _ratios(base: _Run, run: _Run) -> list[float]:
    """How many times faster than the base, round by round."""
    rounds = zip(base.rounds_ms, run.rounds_ms, strict=True)
    return [float(np.median(base_ms) / np.median(own_ms)) for base_ms, own_ms in rounds]


def _over_best(row: Row, run: _Run, best: _Run) -> Row:
    """With the ratio to the best peer, where the row is one of torchrlopt's and counts."""
    if row.reason or not is_ours(row.case.peer):
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
        row["max_error"] = error
        limit = error_limit(eager_error, run.case.dtype)
        if not error <= limit:
            reason = f"wrong result: error {error:.1e} of the largest output, limit {limit:.1e}"
    row |= {"peak_mb": run.peak_mb, "first_call_s": run.first_call_s, "kept": run.kept}
    row |= {"kernels": run.kernels}
    return Row(run.case, reason=reason, **row)


def measure_model(
    cases: Sequence[Case], settings: Settings, caches: Path, on_progress: Callable[[str], None]
) -> list[Row]:
    """Measures the peers of one model against each other; see `measure_models`."""
    return measure_models([cases], settings, caches, on_progress)[0]


def measure_models(
    groups: Sequence[Sequence[Case]], settings: Settings, caches: Path, on_progress: Callable[[str], None]
) -> list[list[Row]]:
    """Measures the peers of each model against each other.

    Peers are compiled one after the other, or as many at a time as the settings say. Then the models come one
    after the other, and every round times each peer of a model once, in turn, so that what disturbs the
    machine disturbs all of them.

    Args:
        groups: For each model one case for each peer, all of one setting; eager among them, as the base of
            ratios.
        settings: How long to measure.
        caches: A folder for the compilers' caches; give one that has never seen these models.
        on_progress: Told what is being done, once for each case's compilation and once for each round.

    Returns:
        For each model a row for each case, in order.

    Raises:
        ValueError: Eager is not among the cases.
    """
    if any(PEERS[0] not in [case.peer for case in cases] for cases in groups):
        raise ValueError(f"the ratios need the peer {PEERS[0]!r} among the cases")
    with ExitStack() as stack:

        def compiled(case: Case) -> _Run:
            on_progress(f"{case.model}: {case.label} compiles")
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
            worker = WorkerProcess(case, folder, caches, settings.timeout_s)
            stack.callback(worker.close)
            run = _Run(case, folder, worker, [])
            _attempt(run, _prepare)
            return run

        with ThreadPoolExecutor(settings.jobs) as pool:
            runs = [[pool.submit(compiled, case) for case in cases] for cases in groups]
        return [_measured([run.result() for run in own], settings, on_progress) for own in runs]


def _measured(runs: Sequence[_Run], settings: Settings, on_progress: Callable[[str], None]) -> list[Row]:
    """The rows of one model, whose peers are compiled; they end."""
    for index in range(settings.rounds):
        on_progress(f"{runs[0].case.model}: round {index + 1} of {settings.rounds}")
        for run in runs:
            _attempt(run, lambda run: _time(run, settings.round_s))
    eager = next(run for run in runs if run.case.peer == PEERS[0])
    for run in runs:
        _attempt(run, _note_peak)
        if settings.with_kernels and not run.reason:
            _note_kernels(run)
    reference: list[np.ndarray] | None = None
    _attempt(eager, lambda run: run.worker.ask("reference"))
    if not eager.reason:
        reference = _load(eager.folder / "reference.npz")
    rows = [_sum_up(run, eager, reference) for run in runs]
    for run in runs:
        run.worker.close()
    others = [i for i, row in enumerate(rows) if not row.reason and not is_ours(row.case.peer)]
    if not others:
        return rows
    best = runs[min(others, key=lambda i: rows[i].median_ms or float("inf"))]
    return [_over_best(row, run, best) for row, run in zip(rows, runs, strict=True)]


def _attempt(run: _Run, act: Callable[[_Run], object]) -> None:
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


def _note_kernels(run: _Run) -> None:
    """Profile the kernels; times count without them too."""
    try:
        run.kernels = tuple(KernelTime(*each) for each in run.worker.ask("kernels")["kernels"])
    except PeerError as failure:
        warnings.warn(f"{run.case.model}, {run.case.label}: no kernels: {failure}", stacklevel=2)


def _note_peak(run: _Run) -> None:
    run.peak_mb = run.worker.ask("peak")["peak_mb"]
