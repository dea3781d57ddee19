"""Compares the peers on a model: calls, first calls, memory, and accuracy of the results."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch

from baselines.peers.case import PEERS, Case
from baselines.peers.kernel_times import KernelTime
from baselines.shared.arrays import load_calls, save_calls
from baselines.shared.rounds import Contestant, Runner, alternated, started
from baselines.trained import table as tasks
from torchrlopt.judge.tolerances import TOLERANCES


@dataclass(frozen=True)
class Settings:
    """How long to measure.

    Attributes:
        rounds: Rounds of each peer; peers alternate.
        round_s: Seconds of timed calls in a round.
        timeout_s: Longest wait for any one answer of a peer, including its compilation.
        jobs: Number of concurrent compilations, over several models if needed. Calls are always timed one
            after the other; seconds of first calls are comparable only with 1.
        with_kernels: Whether the kernels of each peer's calls are profiled after the rounds; on CUDA.
    """

    rounds: int = 7
    round_s: float = 0.2
    timeout_s: float = 600.0
    jobs: int = 1
    with_kernels: bool = False


@dataclass
class Row:
    """Result of one case.

    Attributes:
        case: What was measured.
        reason: Why it does not count; empty if it does.
        rounds_ms: Milliseconds of each call, by round.
        processor_ms: Milliseconds of the processor, of all threads, by round: the median of the calls.
        peak_mb: Largest resident size of the peer's process, MB.
        first_call_s: Seconds from the built model to its first result, with cold caches.
        max_error: Largest error against float64, in units of the largest output.
        rms_error: Root mean square of the error over that of the output, of the worst output.
        figure: How well it does its task on inputs that were held out, and the unit; of trained models.
        kept: What torchrlopt chose; empty for the others.
        kernels: Of one call.
    """

    case: Case
    reason: str = ""
    rounds_ms: list[list[float]] = field(default_factory=list)
    processor_ms: list[float] = field(default_factory=list)
    peak_mb: float | None = None
    first_call_s: float | None = None
    max_error: float | None = None
    rms_error: float | None = None
    figure: tuple[float, str] | None = None
    kept: str = ""
    kernels: Sequence[KernelTime] = ()


def measure_models(
    groups: Sequence[Sequence[Case]], settings: Settings, caches: Path, on_progress: Callable[[str], None]
) -> Iterator[list[Row]]:
    """Measure the peers of each model against each other.

    Peers are compiled one after the other, or as many concurrently as the settings say. Then the models are
    timed one after the other; every round times each peer of a model once.

    Args:
        groups: For each model one case per peer, all with one setting; they include eager, the baseline of
            ratios.
        settings: How long to measure.
        caches: A folder for the compilers' caches; it must never have been used with these models.
        on_progress: Called with a description, once for each case's compilation and once for each round.

    Returns:
        For each model a row for each case, in order.

    Raises:
        ValueError: Eager is not among the cases.
    """
    if any(PEERS[0] not in [case.peer for case in cases] for cases in groups):
        raise ValueError(f"the ratios need the peer {PEERS[0]!r} among the cases")

    def prepare(runner: Runner, row: Row) -> None:
        on_progress(f"{row.case.model}: {row.case.label} compiles")
        reply = runner.ask("prepare") or {}
        row.first_call_s, row.kept = reply.get("first_call_s"), reply.get("kept", "")

    for some in together(groups, settings.jobs):
        rows = [Row(case) for group in some for case in group]
        contestants = [
            Contestant(row.case.label, "baselines.peers.worker:Subject", asdict(row.case), row.case.threads)
            for row in rows
        ]
        with started(contestants, caches, settings.timeout_s) as runners:
            with ThreadPoolExecutor(settings.jobs) as pool:
                list(pool.map(prepare, runners, rows))
            for group in some:
                count = len(group)
                yield _measured(runners[:count], rows[:count], settings, on_progress)
                runners, rows = runners[count:], rows[count:]


def together(groups: Sequence[Sequence[Case]], jobs: int) -> Iterator[Sequence[Sequence[Case]]]:
    """Group models in order, so that each group has at most `jobs` cases, but at least one model."""
    start = 0
    while start < len(groups):
        end = start + 1
        while end < len(groups) and sum(map(len, groups[start : end + 1])) <= jobs:
            end += 1
        yield groups[start:end]
        start = end


def _measured(
    runners: Sequence[Runner], rows: list[Row], settings: Settings, on_progress: Callable[[str], None]
) -> list[Row]:
    """Measure one model whose peers are compiled, then end their processes."""
    by_name = {runner.contestant.name: row for runner, row in zip(runners, rows, strict=True)}
    for number in range(settings.rounds):
        on_progress(f"{rows[0].case.model}: round {number + 1} of {settings.rounds}")
        for _, runner, (times_ms, processor_ms) in alternated(runners, 1, "time", seconds=settings.round_s):
            by_name[runner.contestant.name].rounds_ms.append(times_ms)
            by_name[runner.contestant.name].processor_ms.append(processor_ms)
    for runner, row in zip(runners, rows, strict=True):
        row.peak_mb = runner.ask("peak")
        if settings.with_kernels:
            row.kernels = runner.ask("kernels") or ()
    if rows[0].case.model in tasks.NAMES:
        _answer(runners, rows)
    eager = next(runner for runner in runners if by_name[runner.contestant.name].case.peer == PEERS[0])
    base = by_name[eager.contestant.name]
    eager.ask("reference")
    if not eager.reason:
        reference = _load(eager.folder / "reference.npz")
        base.max_error = relative_error(_load(eager.folder / "outputs.npz"), reference)
    for runner, row in zip(runners, rows, strict=True):
        if not runner.reason and base.max_error is not None:
            outputs = _load(runner.folder / "outputs.npz")
            row.max_error, row.rms_error = relative_error(outputs, reference), rms_error(outputs, reference)
            limit = error_limit(base.max_error, row.case.dtype)
            if not row.case.is_rounded and not row.max_error <= limit:
                error = f"error {row.max_error:.1e} of the largest output, limit {limit:.1e}"
                runner.reason = f"wrong result: {error}"
            elif not np.isfinite(row.rms_error) or row.rms_error > row.case.budget:
                error = f"error {row.rms_error:.1e} by root mean squares, limit {row.case.budget:.1e}"
                runner.reason = f"wrong result: {error}"
        row.reason = runner.reason
        runner.close()
    return rows


def _answer(runners: Sequence[Runner], rows: Sequence[Row]) -> None:
    """Find how well each peer does the task of a model with trained weights."""
    task = tasks.trained(rows[0].case.model)
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.npz"
        save_calls(inputs, [[x.numpy() for x in call] for call in task.held_out])
        for runner, row in zip(runners, rows, strict=True):
            runner.ask("answer", inputs=str(inputs))
            if not runner.reason:
                row.figure = task.figure(load_calls(runner.folder / "answers.npz")), task.unit


def _load(path: Path) -> list[np.ndarray]:
    with np.load(path) as arrays:
        return list(arrays.values())


def relative_error(outputs: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> float:
    """Largest error of any output, in units of that output's largest magnitude in the reference.

    Returns:
        The error; infinite if number, shapes or the positions of non-finite values differ.
    """
    if len(outputs) != len(reference):
        return float("inf")
    worst = 0.0
    for actual, expected in zip(outputs, reference, strict=True):
        if actual.shape != expected.shape or not np.array_equal(np.isfinite(actual), np.isfinite(expected)):
            return float("inf")
        known = np.isfinite(expected)
        exact = expected[known].astype(np.float64)
        difference = np.abs(actual[known].astype(np.float64) - exact).max(initial=0.0)
        scale = np.abs(exact).max(initial=0.0)
        worst = max(worst, float(difference / scale) if scale > 0 else float(difference))
    return worst


def rms_error(outputs: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> float:
    """Root mean square of the error over that of the reference, of the worst floating-point output.

    Returns:
        The error; infinite where `relative_error` is.
    """
    if not np.isfinite(relative_error(outputs, reference)):
        return float("inf")
    worst = 0.0
    for actual, expected in zip(outputs, reference, strict=True):
        known = np.isfinite(expected)
        if np.issubdtype(expected.dtype, np.floating) and known.any():
            exact = expected[known].astype(np.float64)
            error = np.linalg.norm(actual[known] - exact)
            scale = np.linalg.norm(exact)
            worst = max(worst, float(error / scale if scale > 0 else error))
    return worst


def error_limit(eager_error: float, dtype: str) -> float:
    """The largest error accepted as the same function, given eager's own; both against float64."""
    tolerance = TOLERANCES[getattr(torch, dtype)]
    return max(tolerance.max_factor * eager_error, tolerance.max_floor)
