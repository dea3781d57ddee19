"""`Policy`: every threshold by which the package decides what is faster, each with its reason.

How many samples such a verdict takes is in `timing.py`; how far numbers may be from float64, in
`tolerances.py`; by how much a runtime's price must be lower, in the row of the executor.
"""

from __future__ import annotations

import dataclasses

from torchrlopt.options import Options
from torchrlopt.report import Timing


@dataclasses.dataclass(frozen=True)
class Policy:
    """The thresholds. The user chooses the first two.

    Attributes:
        min_gain: smallest relative gain for which the original is replaced.
        limit_ms: wall-clock limit of one timing, in milliseconds; see `timing.measure`.
        good_enough_speedup: stop trying runtimes once one is this much faster than the original; infinite to
            try all. By default 1.3: what a second runtime adds to that seldom pays for the seconds that
            building it takes.
        near: two candidates are timed against each other unless one is faster by this factor, by its time
            and by its ratio to the original. Each was timed next to the original, some moments apart: the
            original may have been slower next to one of them, whose threads go on spinning, and the machine
            in one of the moments.
        hopeless: an executor whose planned graph takes this many times as long as the best is not tried
            without the plan. On the suite no executor gained more than 4 % by leaving out a plan.
        least_predicted: an executor is left out if it is predicted to take this many times as long as the
            best, or longer. Of 75 predictions of inductor's times the worst was 0.92 of what it took.
        duel_margin: one of several plans replaces another if it is faster by this much: a graph that is
            built twice may differ by as much, since its weights lie elsewhere in memory.
        wrapper_saving_ms: if a graph saves more than this, what AOTAutograd does around it cannot turn the
            verdict: unwrapping hundreds of arguments takes tens of microseconds.
        guards_saving_ms: if a graph saves more than this, Dynamo's guards cannot turn the verdict either:
            those of a thousand weights take half a millisecond.
        long_call_ms: nor can they if the original takes longer than this, by more than `min_gain`.
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

    @classmethod
    def of(cls, options: Options) -> Policy:
        """The policy with the user's two thresholds."""
        return cls(min_gain=options.min_gain, limit_ms=options.measure_ms)

    def is_faster(self, timing: Timing) -> bool:
        """Whether the second of two callables replaces the first, the original."""
        return timing.gain >= self.min_gain

    def is_clearly_faster(self, timing: Timing) -> bool:
        """Whether one of many alternatives is better: the fastest of many equals is fastest by chance."""
        return timing.is_calm and timing.gain > max(self.duel_margin, timing.spread)

    def is_decided_without_wrapper(self, timing: Timing) -> bool:
        """Whether a graph saves so much that AOTAutograd's wrapper around it does not matter."""
        return timing.before_ms - timing.after_ms > self.wrapper_saving_ms

    def is_decided_without_guards(self, before_ms: float, saved_ms: float) -> bool:
        """Whether graphs take so long, or save so much, that Dynamo's guards around them do not matter.

        Args:
            before_ms: time of the originals of all graphs of a call, in milliseconds.
            saved_ms: what the graphs that were rewritten save of it.
        """
        return before_ms > self.long_call_ms or saved_ms >= self.guards_saving_ms


MAX_AGE_S = 7 * 86_400.0
"""A stored verdict is taken again after a week: drivers, load and temperature change what is true."""

NOISY_SPREAD = 0.1
"""Above this spread the next verdict may say the opposite."""

NOISY_MAX_AGE_S = 3_600.0
"""A noisy verdict is taken again after an hour. Not at once: the noise may last, and every process would time
again."""
