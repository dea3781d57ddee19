"""What a report says of executors: those that were tried, and the parts of a graph that each runs."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Choice:
    """One executor that `executor="auto"` tried.

    Attributes:
        executor: its name.
        searcher: what made the plan for it; "none" for the original graph in this executor.
        ratio: measured time of its graph over the original's, both in one run; None where it failed.
        seconds: what planning, building and checking took.
        reason: why it is out; None for one that could be used.
    """

    executor: str
    searcher: str
    ratio: float | None
    seconds: float
    reason: str | None


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a graph that runs in parts.

    Attributes:
        executor: what runs it.
        operators: how many.
        reason: why there.
    """

    executor: str
    operators: int
    reason: str

    def __str__(self) -> str:
        return f"{self.executor}, {self.operators} operators: {self.reason}"


def told(choice: Choice) -> str:
    """One line on a choice."""
    speed = "" if choice.ratio is None else f" {1 / choice.ratio:.2f}x"
    reason = "" if choice.reason is None else f": {choice.reason}"
    return f"{choice.executor}, {choice.searcher}{speed}, {choice.seconds:.1f} s{reason}"
