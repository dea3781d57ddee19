"""Ways to choose among candidates, replayed on recorded calls; see `baselines.traffic`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from torchrlopt.judge.bandit import Bandit

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


def bandit(replay: Replay, calls: int, rng: np.random.Generator) -> int:
    """Thompson sampling; see `Bandit`."""
    posterior = Bandit(rng, replay.times.shape[1])
    for _ in range(calls):
        which = posterior.choose()
        posterior.note(which, replay.call(which), replay.spent)
    return posterior.best


WAYS: Mapping[str, Way] = {"default": default, "contest": contest, "bandit": bandit}
