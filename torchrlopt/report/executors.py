"""What a report says of executors: those that were tried, and the parts of a graph that each runs."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Choice:
    """One executor that was tried, or left out, where "auto" or "default" chose among several.

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


@dataclasses.dataclass(frozen=True)
class MeasuredPlan:
    """A plan that was timed beside the fastest one so far.

    Attributes:
        belief: how the machine, or the library, was believed to be when it was planned.
        predicted_ms: its price.
        gain: part of the time that it saves of that of the fastest so far; negative where it is slower.
        spread: half the interquartile range of the measured ratio, relative to the ratio.
        is_kept: whether it is the fastest from there on.
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
