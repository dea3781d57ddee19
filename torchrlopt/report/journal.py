"""`Journal`: what is known of one compilation, from which its report is made.

Stages return their results; the caller records them here. Nothing else writes a report. A journal is forked
when several executors are tried, so that facts of one do not appear in the report of another.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torchrlopt.report.report import Report, Status, Timing

_FIELDS = frozenset({each.name for each in dataclasses.fields(Report)} | {"precision"})


class Journal:
    """What is known so far.

    Args:
        **facts: fields of `Report`, known from the beginning.

    Attributes:
        watch: called with the name of each phase that begins.
    """

    def __init__(self, **facts: Any) -> None:
        self._facts: dict[str, Any] = {}
        self._phases_ms: dict[str, float] = {}
        self._notes: dict[str, None] = {}
        self.watch: Callable[[str], None] = lambda phase: None
        self.add(**facts)

    def add(self, **facts: Any) -> None:
        """Record what a stage has established, as fields of `Report`; this replaces earlier facts."""
        unknown = facts.keys() - _FIELDS
        assert not unknown, f"no fields of a report: {unknown}"
        self._facts |= facts

    def add_timing(self, timing: Timing) -> None:
        """Record a timing; it replaces an earlier one."""
        names = ("before_ms", "after_ms", "spread", "is_calm", "is_bound")
        self.add(**{f"measured_{name}": getattr(timing, name) for name in names})

    def add_note(self, text: str) -> None:
        """Record a note; see `Report.notes`."""
        self._notes[text] = None

    def add_ms(self, phase: str, ms: float) -> None:
        """Add wall time to a phase, in milliseconds."""
        self._phases_ms[phase] = self._phases_ms.get(phase, 0.0) + ms

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record the block as a phase, even if it raises."""
        self.watch(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add_ms(name, (time.perf_counter() - start) * 1e3)

    def fork(self) -> Journal:
        """Return another journal with what is known so far."""
        other = Journal(**self._facts)
        other._phases_ms, other._notes = dict(self._phases_ms), dict(self._notes)
        return other

    @property
    def total_ms(self) -> float:
        """Wall time of all phases so far, in milliseconds."""
        return sum(self._phases_ms.values())

    def report(self, status: Status | None = None) -> Report:
        """Make the report.

        Args:
            status: of the compiled graph; without one, the report says only that the original runs.
        """
        facts, status = dict(self._facts), status or Status()
        precision = facts.pop("precision", ())
        status.precision = status.precision or precision  # calls may have changed it since
        return Report(status, **facts, phases_ms=dict(self._phases_ms), notes=tuple(self._notes))
