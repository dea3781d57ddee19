"""The functions that are minimised (Mayer 2023, section 4.2.1): Sphere, Ackley and Rosenbrock, on [-1, 1]^2.

The second coordinate is the free parameter: it is given, and the first one has to be found for it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from training.episodes.random_keys import Purpose, generator

GROUND_TRUTH_POINTS = 100_000


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of two coordinates, scaled to [-1, 1]^2.

    Attributes:
        name: of it.
        bound: b of its own domain [-b, b]^2.
        formula: of the coordinates of that domain.
        is_logarithmic: whether errors are taken of logarithms, since its values range over decades.
    """

    name: str
    bound: float
    formula: Callable[[np.ndarray, np.ndarray], np.ndarray]
    is_logarithmic: bool = False

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """[...] of points [..., 2] in [-1, 1]."""
        scaled = points * self.bound
        return self.formula(scaled[..., 0], scaled[..., 1])

    def error(self, found: np.ndarray, best: np.ndarray) -> float:
        """Mean squared error of minima that were found, or of the logarithms of 1 + them (MSE, MSLE)."""
        if self.is_logarithmic:
            found, best = np.log1p(found), np.log1p(best)
        return float(np.mean((found - best) ** 2))


def _sphere(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(x**2 + y**2)


def _ackley(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    waves = np.exp(0.5 * (np.cos(2 * np.pi * x) + np.cos(2 * np.pi * y)))
    return np.asarray(-20 * np.exp(-0.2 * np.sqrt(0.5 * (x**2 + y**2))) - waves + np.e + 20)


def _rosenbrock(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray((1 - x) ** 2 + 100 * (y - x**2) ** 2)


FUNCTIONS = {
    each.name: each
    for each in (
        Function("sphere", 5.12, _sphere),
        Function("ackley", 32.768, _ackley),
        Function("rosenbrock", 2.048, _rosenbrock, is_logarithmic=True),
    )
}


def _random_points(name: str, count: int) -> np.ndarray:
    return generator(Purpose.GROUND_TRUTH, list(FUNCTIONS).index(name)).uniform(-1, 1, count)


@functools.cache
def minimum(name: str, parameter: float) -> float:
    """The least value for a free parameter, by random search as in the thesis (section 4.2.3)."""
    x = _random_points(name, GROUND_TRUTH_POINTS)
    points = np.stack([x, np.full_like(x, parameter)], axis=-1)
    return float(FUNCTIONS[name](points).min())


@functools.cache
def deviation(name: str) -> float:
    """Standard deviation over the domain: the unit in which returns are learnt."""
    points = _random_points(name, 2 * GROUND_TRUTH_POINTS).reshape(-1, 2)
    return float(FUNCTIONS[name](points).std())
