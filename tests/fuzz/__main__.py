"""Fuzzes for wrong numbers, crashes and exceptions: `python -m tests.fuzz --help`.

Exits with status 1 if a case failed; each failure is stored as a small text case, which the tests replay.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from baselines.shared import terminal
from tests.fuzz import shards
from tests.fuzz.kept import keep
from tests.fuzz.outcome import FAILURES, Total, failure_bound
from tests.fuzz.subjects import SUBJECTS, Subject

_SHOWN = 20  # failures and reasons

WHATS = ", ".join([*SUBJECTS, "all"])


def main(
    what: Annotated[str, typer.Argument(help=f"What to fuzz: {WHATS}.")],
    cases: Annotated[int | None, typer.Option(min=1, help="Cases; default: what a whole run takes.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is random.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at a time.")] = 2,
    seconds: Annotated[
        float | None, typer.Option(min=1, help="End after that, with what has been found.")
    ] = None,
    only: Annotated[int | None, typer.Option(min=0, help="One case, by its number.")] = None,
    keep_cases: Annotated[
        bool, typer.Option("--keep/--no-keep", help="Write failures to tests/fuzz/cases/.")
    ] = True,
) -> None:
    """Run many random cases and compare what comes out.

    Example: python -m tests.fuzz rules --cases 2000 --seed 7
    """
    if what != "all" and what not in SUBJECTS:
        raise typer.BadParameter(f"there is no {what!r}; choose from: {WHATS}")
    console = terminal.console()
    chosen = SUBJECTS if what == "all" else {what: SUBJECTS[what]}
    num_failures = 0
    for name, subject in chosen.items():
        numbers = [only] if only is not None else range(cases or subject.num_cases)
        started = time.perf_counter()
        total = run(subject, numbers, seed, jobs, console, seconds)
        _show(console, name, seed, total, time.perf_counter() - started)
        num_failures += len(total.failures)
        for _, outcome in total.failures:
            if outcome.case and keep_cases:
                console.print(f"kept: {keep(outcome.case, outcome.reason)}", highlight=False)
    if num_failures:
        raise typer.Exit(1)


def run(
    subject: Subject, numbers: Iterable[int], seed: int, jobs: int, console: Console, seconds: float | None
) -> Total:
    """Run cases in processes, with a bar; Ctrl-C, or the end of the time, keeps what has been found."""
    end = time.monotonic() + (seconds or math.inf)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes: the others need theirs
    indices = list(numbers)
    total = Total()
    with terminal.progress(console) as bar:
        task = bar.add_task(subject.title, total=len(indices))
        found = shards.run(subject.make, seed, indices, jobs, subject.slice_size, subject.limit_s)
        with contextlib.suppress(KeyboardInterrupt), contextlib.closing(found):
            for index, outcome in found:
                total.add(index, outcome)
                bar.advance(task)
                if outcome.kind in FAILURES:  # at once: the rest may take hours
                    console.print(f"{outcome.kind}, case {index}: {outcome.reason}", soft_wrap=True)
                if time.monotonic() > end:
                    break
    return total


def _show(console: Console, name: str, seed: int, total: Total, seconds: float) -> None:
    console.print(_table(name, seed, total, seconds))
    for index, _ in total.failures[:_SHOWN]:
        console.print(f"again: python -m tests.fuzz {name} --seed {seed} --only {index}", highlight=False)
    for reason, count in total.skipped.most_common(_SHOWN):
        console.print(f"skipped {count}: {reason}", highlight=False, soft_wrap=True)
    if total.num_compared:
        console.print(bound_text(total.num_compared, len(total.failures)), highlight=False)


def bound_text(num_cases: int, num_failures: int) -> str:
    """What the run says about the rate of failures."""
    bound = failure_bound(num_cases, num_failures)
    rule = f" (rule of three: {3 / num_cases:.3%})" if num_failures == 0 else ""
    return (
        f"{num_failures} failures in {num_cases} cases: with 95 % confidence at most {bound:.3%} "
        f"of such cases fail{rule}"
    )


def _table(name: str, seed: int, total: Total, seconds: float) -> Table:
    table = Table(title=f"{name}, seed {seed}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    for kind in ("right", *FAILURES, "skipped"):
        table.add_row(kind, f"{total.kinds[kind]:,}")
    for what, count in sorted(total.counts.items()):
        table.add_row(what, f"{count:,}")
    table.add_row("time", f"{seconds:.0f} s, {total.kinds.total() / seconds:.1f} cases a second")
    return table


if __name__ == "__main__":
    typer.run(main)
