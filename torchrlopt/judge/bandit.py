"""`Bandit`: which of several candidates the next call runs, by the times of the calls so far."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


class Bandit:
    """Thompson sampling: each candidate runs as often as it is likely to be the fastest.

    A Kalman filter holds the posterior over the logarithms of times. The state is the phase, a term that all
    candidates share, for slow phases of the machine, and that decays, and each candidate's mean, which is
    constant; an observation is the sum of a mean, the phase, and noise. Observations are clipped at three
    standard deviations, since interruptions only add time; the noise is estimated from what the filter did
    not predict.

    Args:
        rng: of the draws.
        count: candidates that are there from the beginning.

    Attributes:
        live: the candidates that may still be the fastest, by number.
        chances: of those with enough calls to be the fastest; the best has what the others, each compared
            with it, leave.
    """

    PRIOR, PHASE, PHASE_MS, NOISE = 0.35, 0.15, 2000.0, 0.05
    SAME, CERTAIN, HOPELESS = 0.01, 0.95, 0.01
    """Logarithm of a ratio that does not matter; probabilities for which the choice ends, and below which a
    candidate is left out."""
    FEW = 2
    """Calls of a candidate that must count before it is left out or chosen: the first are slower than later
    ones, and one that was interrupted says nothing. The first two count together, the lesser one first: what
    sets a mean cannot be clipped."""

    def __init__(self, rng: np.random.Generator, count: int = 0) -> None:
        self._mean: NDArray[np.float64] = np.zeros(1)
        self._cov = np.diag([self.PHASE**2])
        self._noise, self._rng = self.NOISE**2, rng
        self._seen: list[int] = []
        self._held: dict[int, float] = {}
        self._at: float | None = None
        self._last = self._waiting = -1
        self.live: list[int] = []
        self.chances: dict[int, float] = {}
        for _ in range(count):
            self.enter()

    def enter(self) -> int:
        """Add a candidate, which is expected to take as long as the best; return its number."""
        which = len(self._seen)
        self._mean = np.append(self._mean, self._mean[1 + self.best] if self.live else 0.0)
        self._cov = np.pad(self._cov, (0, 1))
        self._cov[-1, -1] = self.PRIOR**2
        self._seen.append(0)
        self.live.append(which)
        return which

    def leave(self, which: int) -> None:
        """Remove a candidate, one that has failed; at least one other is left."""
        self.live.remove(which)
        self._waiting = -1 if self._waiting == which else self._waiting
        self._leave_out()

    @property
    def is_over(self) -> bool:
        """Whether the best is so with the probability `CERTAIN`, or is the only one left."""
        others = [which for which in self.live if which != self.best]
        is_seen = not others or self._seen[self.best] >= self.FEW
        return is_seen and sum(self.chances.get(which, 1.0) for which in others) < 1 - self.CERTAIN

    @property
    def best(self) -> int:
        """The candidate with the least expected time."""
        known = [which for which in self.live if self._seen[which]] or self.live
        return min(known, key=lambda which: float(self._mean[1 + which]))

    @property
    def noise(self) -> float:
        """Standard deviation of the logarithm of a call's time."""
        return math.sqrt(self._noise)

    def log_ratio(self, which: int, other: int) -> float:
        """Logarithm of a candidate's expected time over another's, and 0 before the first call."""
        return float(self._mean[1 + which] - self._mean[1 + other])

    def choose(self) -> int:
        """Return the candidate for the next call."""
        if self._waiting >= 0:
            return self._waiting
        if self.is_over:
            return self.best
        few = [which for which in self.live if self._seen[which] < self.FEW]
        if few:
            return few[0]
        at = [1 + which for which in self.live]
        drawn = self._rng.multivariate_normal(self._mean[at], self._cov[np.ix_(at, at)], method="cholesky")
        return self.live[int(np.argmin(drawn))]

    def skip(self, which: int) -> None:
        """Take into account that a candidate ran, and nobody timed it."""
        self._last = which

    def note(self, which: int, ms: float, at_ms: float) -> None:
        """Take a call into account.

        A candidate's first calls behind another's count only if it is called once more: the code and the
        weights were not in the caches.

        Args:
            which: the candidate.
            ms: its time in milliseconds.
            at_ms: when, in milliseconds.
        """
        is_settled, self._last = which == self._last, which
        if which not in self.live or self.is_over:
            return
        if not is_settled and self._seen[which] < self.FEW:
            self._waiting = which
            return
        if not self._seen[which] and which not in self._held:
            self._held[which], self._waiting = ms, which
            return
        first, self._waiting = self._held.pop(which, None), -1
        for each in (ms,) if first is None else sorted((first, ms)):
            self._observe(which, math.log(each), at_ms)
        self._leave_out()

    def _observe(self, which: int, log_ms: float, at_ms: float) -> None:
        """Update the posterior."""
        here = 1 + which
        if self._at is None:
            self._mean[1:] = log_ms
        self._decay(at_ms)
        gains = self._cov[:, here] + self._cov[:, 0]
        predicted = gains[here] + gains[0]
        total = predicted + self._noise
        error = log_ms - self._mean[here] - self._mean[0]
        if self._seen[which]:
            bound = 3 * math.sqrt(total)
            error = max(-bound, min(bound, error))
            self._noise = max(1e-4, self._noise + 0.1 * (error * error - predicted - self._noise))
        self._mean += gains / total * error
        self._cov -= np.outer(gains / total, gains)
        self._seen[which] += 1

    def _decay(self, at_ms: float) -> None:
        """Let the phase return to normal."""
        if self._at is not None:
            rest = math.exp(-(at_ms - self._at) / self.PHASE_MS)
            self._mean[0] *= rest
            self._cov[0] *= rest
            self._cov[:, 0] *= rest
            self._cov[0, 0] += self.PHASE**2 * (1 - rest * rest)
        self._at = at_ms

    def _leave_out(self) -> None:
        best = self.best
        found = {which: self._chance(which, best) for which in self.live if which != best}
        self.live = [
            which
            for which in self.live
            if which == best or self._seen[which] < self.FEW or found[which] > self.HOPELESS
        ]
        others = [which for which in self.live if which != best and self._seen[which] >= self.FEW]
        self.chances = {which: found[which] for which in others}
        self.chances[best] = max(0.0, 1 - sum(self.chances.values()))

    def _chance(self, which: int, best: int) -> float:
        """Probability that a candidate is faster than the best, by more than does not matter."""
        at, of = 1 + which, 1 + best
        variance = self._cov[at, at] + self._cov[of, of] - 2 * self._cov[at, of]
        ahead = self._mean[of] - self._mean[at] - self.SAME
        return 0.5 * math.erfc(-ahead / math.sqrt(2 * max(variance, 1e-12)))
