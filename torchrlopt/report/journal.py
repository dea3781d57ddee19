"""`Journal`: the events of one compilation, from which its report is made.

Stages return their results; the caller records them here. Nothing else writes a report. A journal is forked
when several executors are tried, so that facts of one do not appear in the report of another.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypedDict, Unpack

from torchrlopt.report.drawing import Record
from torchrlopt.report.executors import Choice, MeasuredPlan, Part
from torchrlopt.report.parts import Calls, Contribution, Environment, Profile
from torchrlopt.report.precision import PrecisionRecord
from torchrlopt.report.report import Report, Status, Timing
from torchrlopt.report.search import SearchRecord
from torchrlopt.report.steps import ReportStep


class Facts(TypedDict, total=False):
    """Facts that a stage may establish; the names are those of `Report`."""

    searcher: str
    executor: str
    steps: tuple[ReportStep, ...]
    cost_before_ms: float
    cost_after_ms: float
    measured_share: float
    numerical_error: float | None
    weight_bytes: int
    packed_bytes: int | None
    released_bytes: int
    is_cache_hit: bool
    num_nodes_before: int
    num_nodes_after: int
    opaque: tuple[str, ...]
    cut: str
    choices: tuple[Choice, ...]
    measured_plans: tuple[MeasuredPlan, ...]
    parts: tuple[Part, ...]
    calls: Calls | None
    split: tuple[Contribution, ...]
    profiles: tuple[Profile, ...]
    environment: Environment
    precision: tuple[PrecisionRecord, ...]
    graph_hash: str
    plans: tuple[dict[str, Any], ...]
    searches: tuple[SearchRecord, ...]
    records: tuple[Record, ...]


@dataclasses.dataclass(frozen=True)
class _Found:
    """Facts, which replace earlier ones with the same names."""

    facts: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class _Spent:
    """Wall time of a phase, which is added to its earlier time."""

    phase: str
    ms: float


@dataclasses.dataclass(frozen=True)
class _Noted:
    """A note, which is appended to earlier ones."""

    text: str


class Journal:
    """An append-only list of events.

    Args:
        **facts: known from the beginning.

    Attributes:
        watch: called with the name of each phase that begins.
    """

    def __init__(self, **facts: Unpack[Facts]) -> None:
        self._events: list[_Found | _Spent | _Noted] = [_Found(facts)]
        self.watch: Callable[[str], None] = lambda phase: None

    def add(self, **facts: Unpack[Facts]) -> None:
        """Record what a stage has established."""
        self._events.append(_Found(facts))

    def add_timing(self, timing: Timing) -> None:
        """Record a timing; it replaces an earlier one."""
        names = ("before_ms", "after_ms", "spread", "is_calm", "is_bound")
        self._events.append(_Found({f"measured_{name}": getattr(timing, name) for name in names}))

    def add_note(self, text: str) -> None:
        """Record a note; see `Report.notes`."""
        self._events.append(_Noted(text))

    def add_ms(self, phase: str, ms: float) -> None:
        """Record wall time of a phase, in milliseconds."""
        self._events.append(_Spent(phase, ms))

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
        """Return another journal with the events so far."""
        other = Journal()
        other._events = list(self._events)
        return other

    @property
    def total_ms(self) -> float:
        """Wall time of all phases so far, in milliseconds."""
        return sum(event.ms for event in self._events if isinstance(event, _Spent))

    def report(self, status: Status | None = None) -> Report:
        """Make the report from the events.

        Args:
            status: of the compiled graph; without one, the report says only that the original runs.
        """
        facts: dict[str, Any] = {}
        phases_ms: dict[str, float] = {}
        notes: dict[str, None] = {}
        for event in self._events:
            if isinstance(event, _Found):
                facts |= event.facts
            elif isinstance(event, _Spent):
                phases_ms[event.phase] = phases_ms.get(event.phase, 0.0) + event.ms
            else:
                notes[event.text] = None
        status = status or Status()
        precision = facts.pop("precision", ())
        status.precision = status.precision or precision  # calls may have changed it since
        return Report(status, **facts, phases_ms=phases_ms, notes=tuple(notes))
