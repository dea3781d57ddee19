"""Executors in a report: those that were tried, and the parts of a graph that each runs."""

from __future__ import annotations

import dataclasses
from typing import Literal

State = Literal["waiting", "building", "checking", "live", "chosen", "dropped", "failed"]

OPEN: tuple[State, ...] = ("waiting", "building", "checking", "live")
"""The states of candidates about which nothing has been decided."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """One executor that "auto" or "default" tried or left out when choosing among several.

    Attributes:
        executor: its name.
        searcher: that made the plan for it; "none" for the original graph in this executor.
        ratio: measured time of its graph over the original's, both from one run; None if it failed.
        seconds: time of planning, building and checking.
        reason: why it was rejected; None if it could be used.
    """

    executor: str
    searcher: str
    ratio: float | None
    seconds: float
    reason: str | None

    def __str__(self) -> str:
        speed = "" if self.ratio is None else f" {1 / self.ratio:.2f}x"
        reason = "" if self.reason is None else f": {self.reason}"
        return f"{self.executor}, {self.searcher}{speed}, {self.seconds:.1f} s{reason}"


@dataclasses.dataclass
class Candidate:
    """One executor among which calls choose, see the option `executor`; it changes while they do.

    Attributes:
        executor: its name; "original" for the graph as it was.
        searcher: that made the plan for it; "none" for the original graph in this executor.
        state: of being built and tried.
        calls: that it has run and that were timed.
        median_ms: of the last of these calls, in milliseconds; None without any.
        chance: to be the fastest, once it has run.
        reason: why it was dropped, or failed.
    """

    executor: str
    searcher: str
    state: State = "waiting"
    calls: int = 0
    median_ms: float | None = None
    chance: float | None = None
    reason: str | None = None

    def __str__(self) -> str:
        ms = "" if self.median_ms is None else f", {self.median_ms:.3f} ms in {self.calls} calls"
        chance = "" if self.chance is None else f", the fastest by {self.chance:.0%}"
        reason = "" if self.reason is None else f": {self.reason}"
        return f"{self.executor}, {self.searcher}: {self.state}{ms}{chance}{reason}"


@dataclasses.dataclass(frozen=True)
class Part:
    """One part of a graph that is split between executors.

    Attributes:
        executor: that runs it.
        operators: their number.
        reason: why that executor.
    """

    executor: str
    operators: int
    reason: str

    def __str__(self) -> str:
        return f"{self.executor}, {self.operators} operators: {self.reason}"


@dataclasses.dataclass(frozen=True)
class MeasuredPlan:
    """A plan that was timed next to the fastest one so far.

    Attributes:
        belief: the assumption about the machine, or the library, that it was planned with.
        predicted_ms: its price.
        gain: fraction of the fastest plan's time that it saves; negative if it is slower.
        spread: half the interquartile range of the measured ratio, relative to the ratio.
        is_kept: whether it is the fastest from then on.
    """

    belief: str
    predicted_ms: float
    gain: float
    spread: float
    is_kept: bool

    def __str__(self) -> str:
        change = f"{abs(self.gain):.1%} {'less' if self.gain > 0 else 'more'} time"
        kept = ", kept" if self.is_kept else ""
        return (
            f"{self.belief}: {self.predicted_ms:.3f} ms predicted, {change}, spread {self.spread:.1%}{kept}"
        )
