"""Ways to choose among candidates, replayed on recorded calls; see `baselines.traffic`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_ROUNDS = 9  # of the contest: what a timing takes if calls are calm
_MIN_GAIN = 0.02


@dataclass
class Replay:
    """A recording that is replayed from some moment on, and again from its beginning at its end.

    Attributes:
        at: [rounds], when each round began, in milliseconds.
        times: [rounds, candidates, 2], milliseconds of the first call behind another candidate's, and of the
            second. Candidate 0 is the original.
        begin: the moment, in milliseconds.
        spent: how long calls have taken so far.
        made: milliseconds of each call so far.
        last: the candidate of the last call.
    """

    at: Array
    times: Array
    begin: float = 0.0
    spent: float = 0.0
    made: list[float] = field(default_factory=list)
    last: int = -1

    def call(self, which: int) -> float:
        """Return the milliseconds of a call."""
        now = (self.begin + self.spent) % self.at[-1]
        row = int(np.searchsorted(self.at, now, side="right")) - 1
        ms = float(self.times[row, which, int(which == self.last)])
        self.spent, self.last = self.spent + ms, which
        self.made.append(ms)
        return ms


Way = Callable[[Replay, int, np.random.Generator], int]
"""Makes a number of calls, and returns the candidate that it would go on with."""


def default(replay: Replay, calls: int, rng: np.random.Generator) -> int:
    """Choose nothing: `eager` with its plan, if it is there."""
    which = min(1, replay.times.shape[1] - 1)
    for _ in range(calls):
        replay.call(which)
    return which


def contest(replay: Replay, calls: int, rng: np.random.Generator) -> int:
    """Time each candidate next to the original before the first call, and stay with the best."""
    ratios = [1.0 - _MIN_GAIN]
    for which in range(1, replay.times.shape[1]):
        samples: tuple[list[float], list[float]] = ([], [])
        for number in range(_ROUNDS):
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                replay.call((0, which)[side])  # settles the threads of the other
                samples[side].append(replay.call((0, which)[side]))
        before, after = (float(np.quantile(side, 0.25)) for side in samples)
        ratios.append(after / before)
    best = int(np.argmin(ratios))
    for _ in range(calls):
        replay.call(best)
    return best


def halving(replay: Replay, calls: int, rng: np.random.Generator) -> int:
    """Successive halving: calls alternate, and the slower half is left out, with twice as many samples."""
    live, made, samples = list(range(replay.times.shape[1])), 0, 4
    while made < calls:
        times: dict[int, list[float]] = {which: [] for which in live}
        for _ in range(samples if len(live) > 1 else calls):
            for which in live:
                for _ in range(2 if len(live) > 1 else 1):
                    if made == calls:
                        break
                    ms, made = replay.call(which), made + 1
                times[which].append(ms)
        live = sorted(live, key=lambda which: float(np.median(times[which])))[: max(1, len(live) // 2)]
        samples *= 2
    return live[0]


def bandit(replay: Replay, calls: int, rng: np.random.Generator) -> int:
    """Thompson sampling; see `Bandit`. A candidate's first call behind another's is not looked at."""
    posterior, last = Bandit(replay.times.shape[1], rng), -1
    for _ in range(calls):
        which = last if last >= 0 and not posterior.is_looked_at(last) else posterior.choose()
        ms = replay.call(which)
        posterior.note(which, math.log(ms), replay.spent, is_settled=which == last)
        last = which
    return posterior.best


WAYS: Mapping[str, Way] = {"default": default, "contest": contest, "halving": halving, "bandit": bandit}


class Bandit:
    """Posterior over the logarithms of candidates' times, with a shared term for slow phases of the machine.

    A Kalman filter: the state is each candidate's mean, constant, and the phase, which decays; an observation
    is the sum of a mean, the phase, and noise. Observations are clipped at three standard deviations, since
    interruptions only add time; the noise is estimated from what the filter did not predict.

    Args:
        count: candidates.
        rng: of the draws.
    """

    PRIOR, PHASE, PHASE_MS, NOISE = 0.35, 0.15, 2000.0, 0.05
    SAME, CERTAIN, HOPELESS = 0.01, 0.95, 0.01
    """Logarithm of a ratio that does not matter; probabilities for which the choice ends, and below which a
    candidate is left out."""

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self._mean = np.zeros(count + 1)
        self._cov = np.diag([self.PRIOR**2] * count + [self.PHASE**2])
        self._noise, self._rng = self.NOISE**2, rng
        self._seen, self._live = [0] * count, list(range(count))
        self._at: float | None = None
        self._waiting = -1
        self.is_over = False

    def is_looked_at(self, which: int) -> bool:
        """Whether the last call of a candidate counted; if not, the next one should be its own as well."""
        return self._waiting != which

    def choose(self) -> int:
        """The candidate for the next call."""
        if self.is_over:
            return self.best
        unseen = [which for which in self._live if not self._seen[which]]
        if unseen:
            return unseen[0]
        cov = self._cov[np.ix_(self._live, self._live)]
        drawn = self._rng.multivariate_normal(self._mean[self._live], cov, method="cholesky")
        return self._live[int(np.argmin(drawn))]

    @property
    def best(self) -> int:
        """The candidate with the least expected time."""
        known = [which for which in self._live if self._seen[which]] or self._live
        return min(known, key=lambda which: float(self._mean[which]))

    def note(self, which: int, log_ms: float, at: float, is_settled: bool) -> None:
        """Take a call into account.

        Args:
            which: the candidate.
            log_ms: logarithm of its time.
            at: when, in milliseconds.
            is_settled: whether the call before was the same candidate's.
        """
        if self.is_over:
            return
        if not is_settled and self._seen[which] < 3:  # its code and weights are not in the caches
            self._waiting = which
            return
        self._waiting = -1
        if self._at is None:
            self._mean[:-1] = log_ms
        self._decay(at)
        gains = self._cov[:, which] + self._cov[:, -1]
        predicted = gains[which] + gains[-1]
        total = predicted + self._noise
        error = log_ms - self._mean[which] - self._mean[-1]
        if self._seen[which]:
            bound = 3 * math.sqrt(total)
            error = max(-bound, min(bound, error))
            self._noise = max(1e-4, self._noise + 0.1 * (error * error - predicted - self._noise))
        self._mean += gains / total * error
        self._cov -= np.outer(gains / total, gains)
        self._seen[which] += 1
        self._leave_out()

    def _decay(self, at: float) -> None:
        """Let the phase return to normal."""
        if self._at is not None:
            rest = math.exp(-(at - self._at) / self.PHASE_MS)
            self._mean[-1] *= rest
            self._cov[-1] *= rest
            self._cov[:, -1] *= rest
            self._cov[-1, -1] += self.PHASE**2 * (1 - rest * rest)
        self._at = at

    def _leave_out(self) -> None:
        best = self.best
        chances = {which: self._chance(which, best) for which in self._live if which != best}
        self._live = [
            which
            for which in self._live
            if which == best or not self._seen[which] or chances[which] > self.HOPELESS
        ]
        is_all_seen = all(self._seen[which] for which in self._live)
        rest = sum(chances[which] for which in self._live if which != best)
        self.is_over = is_all_seen and rest < 1 - self.CERTAIN

    def _chance(self, which: int, best: int) -> float:
        """Probability that a candidate is faster than the best, by more than does not matter."""
        variance = self._cov[which, which] + self._cov[best, best] - 2 * self._cov[which, best]
        ahead = self._mean[best] - self._mean[which] - self.SAME
        return 0.5 * math.erfc(-ahead / math.sqrt(2 * max(variance, 1e-12)))
