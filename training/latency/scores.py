"""How good a forecast of latency is, beside its trivial rivals."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]

GREEDY = 1  # the place of greedy's graph among those of a base
COUNTS = (0, 1, 3, 7, 1000)  # see `Group.gain`; the last stands for all of them


@dataclasses.dataclass(frozen=True)
class Group:
    """Graphs that were measured together.

    Attributes:
        base: what they were made of, see `dataset.Row`.
        executor: what ran them.
        us: [V] measured; the first is the base, the second greedy's graph.
        again_us: [V] measured once more.
        noise: [V] shares of it.
        forecast_us: [V].
    """

    base: str
    executor: str
    us: Floats
    again_us: Floats
    noise: Floats
    forecast_us: Floats

    @property
    def errors(self) -> Floats:
        """[V] distances from the measured times, as shares of them."""
        return np.abs(self.forecast_us / self.us - 1)

    @property
    def pairs(self) -> tuple[int, int]:
        """Pairs that differ by more than three times their noise: in the right order, and all.

        A pair that is forecast to be equal counts as half.
        """
        right = total = 0.0
        for i, j in itertools.combinations(range(len(self.us)), 2):
            distance = self.us[i] / self.us[j] - 1
            if abs(distance) <= 3 * max(self.noise[i], self.noise[j]):
                continue
            total += 1
            difference = self.forecast_us[i] - self.forecast_us[j]
            right += 0.5 if difference == 0 else float((difference > 0) == (distance > 0))
        return int(2 * right), int(2 * total)

    def gain(self, count: int) -> float:
        """What is saved of the time of greedy's graph by measuring some graphs and taking the fastest.

        What is saved comes from other samples than the choice, else chance would be taken for a gain.

        Args:
            count: of the graphs that are forecast fastest, beside greedy's; with 0 the first of them is
                taken, and nothing is measured.
        """
        order = [int(i) for i in np.argsort(self.forecast_us, kind="stable")]
        if count == 0:
            chosen = order[0]
        else:
            others = [i for i in order if i != GREEDY][:count]
            chosen = min([GREEDY, *others], key=lambda i: self.us[i])
        return float(1 - self.again_us[chosen] / self.again_us[GREEDY])


@dataclasses.dataclass(frozen=True)
class Score:
    """What `score` found; each figure with its interval of 95 % over the bases.

    Attributes:
        error: median of the errors of all graphs.
        kendall: over the pairs of `Group.pairs`, from -1 to 1.
        gains: mean over the groups of `Group.gain`, for each of `COUNTS`.
        bases: groups that were scored.
    """

    error: tuple[float, float, float]
    kendall: tuple[float, float, float]
    gains: tuple[tuple[float, float, float], ...]
    bases: int


def score(groups: Sequence[Group], seed: int = 0) -> Score:
    """Scores of one forecast.

    Args:
        groups: of one executor; at least two.
        seed: of the bootstrap.
    """
    errors = [group.errors for group in groups]
    pairs = np.array([group.pairs for group in groups], dtype=float)
    gains = np.array([[group.gain(count) for count in COUNTS] for group in groups])

    def error(chosen: Floats) -> float:
        return float(np.median(np.concatenate([errors[int(i)] for i in chosen])))

    def kendall(chosen: Floats) -> float:
        right, total = pairs[chosen.astype(int)].sum(axis=0)
        return float(2 * right / total - 1) if total else float("nan")

    def interval(statistic: Callable[[Floats], float]) -> tuple[float, float, float]:
        places = np.arange(len(groups))
        found = stats.bootstrap(
            (places,), statistic, vectorized=False, n_resamples=500, method="percentile", rng=seed
        ).confidence_interval
        return statistic(places), float(found.low), float(found.high)

    return Score(
        error=interval(error),
        kendall=interval(kendall),
        gains=tuple(
            interval(lambda chosen, i=i: float(gains[chosen.astype(int), i].mean()))
            for i in range(len(COUNTS))
        ),
        bases=len(groups),
    )
