"""How good a forecast of latency is, beside its trivial rivals."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Group:
    """Graphs that were measured together.

    Attributes:
        base: what they were made of, see `dataset.Row`.
        executor: what ran them.
        us: [V] measured; the first is the base, the second greedy's graph.
        noise: [V] shares of it.
        forecast_us: [V].
    """

    base: str
    executor: str
    us: Floats
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

    def regret(self, count: int = 1) -> float:
        """What the fastest of the `count` graphs that are forecast fastest takes more than the fastest."""
        first = np.argsort(self.forecast_us, kind="stable")[:count]
        return float(self.us[first].min() / self.us.min() - 1)


@dataclasses.dataclass(frozen=True)
class Score:
    """What `score` found; each figure with its interval of 95 % over the bases.

    Attributes:
        error: median of the errors of all graphs.
        kendall: over the pairs of `Group.pairs`, from -1 to 1.
        regret: mean over the groups, of the graph that is forecast fastest.
        regret_2: of the faster one of two.
        bases: groups that were scored.
    """

    error: tuple[float, float, float]
    kendall: tuple[float, float, float]
    regret: tuple[float, float, float]
    regret_2: tuple[float, float, float]
    bases: int


def score(groups: Sequence[Group], seed: int = 0) -> Score:
    """Scores of one forecast.

    Args:
        groups: of one executor; at least two.
        seed: of the bootstrap.
    """
    errors = [group.errors for group in groups]
    pairs = np.array([group.pairs for group in groups], dtype=float)
    regrets = np.array([(group.regret(1), group.regret(2)) for group in groups])

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
        regret=interval(lambda chosen: float(regrets[chosen.astype(int), 0].mean())),
        regret_2=interval(lambda chosen: float(regrets[chosen.astype(int), 1].mean())),
        bases=len(groups),
    )
