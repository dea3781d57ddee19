"""Works through commands in slices of time: what is done is kept, and the next run goes on behind it."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from baselines.shared import csv_files

COLUMNS = ("step", "status", "seconds")
TABLE, LOG, TIMES = "steps.csv", "log.txt", "times.csv"
_PART = "part.csv"
_LEAST_S = 20.0
"""No step is begun with less time than this."""

TOO_LONG = "longer than a slice"


@dataclasses.dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
        name: by which it is known from one run to the next.
        command: what runs; `{csv}` in it stands for a file whose rows are kept in `TIMES`.
    """

    name: str
    command: tuple[str, ...]


def done(folder: Path) -> dict[str, str]:
    """The steps that need not run again, with their exit status."""
    path = folder / TABLE
    return {row["step"]: row["status"] for row in csv_files.read(path, COLUMNS)} if path.is_file() else {}


def run_slice(steps: Sequence[Step], folder: Path, seconds: float) -> list[str]:
    """Run the steps that are not done, in order, until the time is up.

    A step that the end of the slice cuts off runs again in the next one, unless it had a slice to itself.

    Args:
        steps: all of them, in every run the same.
        folder: of the table of steps, their outputs and their times.
        seconds: of the slice.

    Returns:
        The names of those that are left.
    """
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    is_first = True
    for step in steps:
        if step.name in done(folder):
            continue
        left = end - time.monotonic()
        if left < _LEAST_S and not is_first:
            break
        start = time.monotonic()
        status = _run(step, folder, left)
        if status is not None or is_first:
            row = (step.name, TOO_LONG if status is None else str(status), f"{time.monotonic() - start:.1f}")
            _keep(folder, row)
        is_first = False
    return [step.name for step in steps if step.name not in done(folder)]


def _run(step: Step, folder: Path, seconds: float) -> int | None:
    """The exit status of the command; None where the time was up before."""
    part = folder / _PART
    part.unlink(missing_ok=True)
    command = [word.replace("{csv}", str(part)) for word in step.command]
    with (folder / LOG).open("a", encoding="utf-8") as log:
        log.write(f"\n==== {step.name}: {' '.join(command)}\n")
        log.flush()
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the processes of its peers
                process.wait()
    if part.is_file():
        header, *rows = part.read_text(encoding="utf-8").splitlines()
        times = folder / TIMES
        known = times.read_text(encoding="utf-8").splitlines() if times.is_file() else [header]
        times.write_text("\n".join([*known, *rows]) + "\n", encoding="utf-8")
        part.unlink()
    return status


def _keep(folder: Path, row: tuple[str, str, str]) -> None:
    path = folder / TABLE
    rows = [tuple(each.values()) for each in csv_files.read(path, COLUMNS)] if path.is_file() else []
    csv_files.write(path, COLUMNS, [*rows, row])
