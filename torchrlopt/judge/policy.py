"""`Policy`: every threshold that decides what is faster, each with its reason.

The number of samples for a verdict is in `timing.py`; how far numbers may be from float64, in
`tolerances.py`; by how much a runtime's price must be lower, in the executor's row.
"""

from __future__ import annotations

import dataclasses
import math

from torchrlopt.options import TimingOptions
from torchrlopt.report import Timing


@dataclasses.dataclass(frozen=True)
class Policy:
    """The thresholds. The user chooses the first two.

    Attributes:
        min_gain: smallest relative gain for which the original is replaced.
        limit_ms: wall-clock limit of one timing, in milliseconds; see `timing.measure`.
        good_enough_speedup: stop trying runtimes once one is this much faster than the original; infinite to
            try all. The default is 1.3: a second runtime seldom gains enough on top of that to pay for the
            seconds it takes to build.
        near: two candidates are timed against each other unless one is faster by this factor, both in its
            time and in its ratio to the original. Each was timed next to the original, some moments apart:
            the original may have been slower next to one of them, whose threads go on spinning, or the
            machine may have been slower in one of those moments.
        hopeless: an executor whose planned graph takes this many times as long as the best is not tried
            without the plan. On the suite no executor gained more than 4 % by leaving out a plan.
        least_predicted: an executor is left out if it is predicted to take this many times as long as the
            best, or longer. The worst of 75 predictions of inductor's times was 0.92 of the measured time.
        duel_margin: one of several plans replaces another if it is faster by this much: two builds of the
            same graph may differ by as much, since their weights lie elsewhere in memory.
        wrapper_saving_ms: if a graph saves more than this, AOTAutograd's wrapper around it cannot reverse the
            verdict: unwrapping hundreds of arguments takes tens of microseconds.
        guards_saving_ms: if a graph saves more than this, Dynamo's guards cannot reverse the verdict either:
            those of a thousand weights take half a millisecond.
        long_call_ms: nor can they if the original takes longer than this: they stay below `min_gain` of it.
        slower_ms: a smaller file is not refused for less than this. Calls of a few microseconds differ by a
            tenth of one from build to build, which is beyond the spread of their times.
    """

    min_gain: float = 0.02
    limit_ms: float = 500.0
    good_enough_speedup: float = 1.3
    near: float = 1.35
    hopeless: float = 1.15
    least_predicted: float = 0.9
    duel_margin: float = 0.02
    wrapper_saving_ms: float = 0.2
    guards_saving_ms: float = 1.0
    long_call_ms: float = 50.0
    slower_ms: float = 0.001

    @classmethod
    def of(cls, options: TimingOptions) -> Policy:
        """The policy with the user's two thresholds."""
        return cls(min_gain=options.min_gain, limit_ms=options.measure_ms)

    def is_faster(self, timing: Timing) -> bool:
        """Whether the second of two callables replaces the first, the original."""
        # min_gain <= 0 asks for no gain, so noise does not matter.
        return timing.gain >= self.min_gain and (self.min_gain <= 0 or timing.gain > noise_of(timing))

    def is_clearly_slower(self, timing: Timing) -> bool:
        """Whether the second of two callables takes longer than the first, beyond noise."""
        return timing.after_ms - timing.before_ms > self.slower_ms and -timing.gain > noise_of(timing)

    def shortfall(self, timing: Timing) -> tuple[str, str]:
        """Return how a candidate that is not chosen falls short, in words and in numbers."""
        if timing.gain >= self.min_gain:
            return "not clearly faster", f"gain {timing.gain:.3f}, noise {noise_of(timing):.3f}"
        return "not faster", f"gain {timing.gain:.3f}, min_gain {self.min_gain:g}"

    def is_contradicted(self, stored: Timing, new: Timing) -> bool:
        """Whether a new timing contradicts a stored one by more than the spreads of both.

        It does if it says the opposite, or another gain altogether: a program's own calls find other data in
        the caches than calls that were made for timing, so somewhat different gains are no contradiction.
        """
        noise = noise_of(new)
        if self.is_faster(stored) and new.gain + noise < self.min_gain:
            return True
        if not self.is_faster(stored) and self.is_faster(new):
            return True
        return abs(new.gain - stored.gain) > noise + noise_of(stored) + _OTHER

    def is_near_threshold(self, timing: Timing) -> bool:
        """Whether noise alone may have decided, so that another timing may say the opposite."""
        return abs(timing.gain - self.min_gain) <= noise_of(timing)

    def is_clearly_faster(self, timing: Timing) -> bool:
        """Whether one of many alternatives is better: the fastest of many equal ones is fastest by chance."""
        return timing.is_calm and timing.gain > max(self.duel_margin, noise_of(timing))

    def is_decided_without_wrapper(self, timing: Timing) -> bool:
        """Whether a graph saves so much that AOTAutograd's wrapper around it does not matter."""
        return timing.before_ms - timing.after_ms > self.wrapper_saving_ms

    def is_decided_without_guards(self, before_ms: float, saved_ms: float) -> bool:
        """Whether graphs take so long, or save so much, that Dynamo's guards around them do not matter."""
        return before_ms > self.long_call_ms or saved_ms >= self.guards_saving_ms


_SPREADS = {2: 6.0, 3: 3.0, 4: 2.0}
"""Spreads that the gain of equal callables may reach by chance, by the number of rounds; of more, see below.
About the 99 % quantiles of Student's t, over those of many rounds. `timing` has other factors for few
samples: they multiply the full range of plain times, not an interquartile range of ratios."""

_FEW_DISTURBED = 4

_OTHER = 0.1
"""Gains that differ by more than this, besides noise, are other verdicts: 1.3x is not 1.5x."""


def noise_of(timing: Timing) -> float:
    """The gain that noise alone may have produced: nothing is decided on less."""
    if timing.is_bound:  # the real gain is larger
        return 0.0
    if timing.is_calm:
        return timing.spread * _SPREADS.get(timing.num_rounds, 2 / math.sqrt(timing.num_rounds))
    if timing.num_rounds < _FEW_DISTURBED:
        return math.inf
    return timing.spread * 2 * _SPREADS.get(timing.num_rounds, 2 / math.sqrt(timing.num_rounds))


MAX_AGE_S = 90 * 86_400.0
"""A stored verdict expires after three months, the life of an image that it is part of: drivers, load and
temperature change the result, but then the first calls of a process contradict it."""

NOISY_SPREAD = 0.1
"""Above this spread the next verdict may be the opposite."""

NOISY_MAX_AGE_S = 3_600.0
"""A noisy verdict expires after an hour. Not at once: the noise may last, and every process would time
again."""
