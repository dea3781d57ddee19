"""Rows with a model of the error: ask where it expects most, and refit it to the answers.

All models plan alike, by the cross-entropy method: assignments are drawn, and rungs of the best become more
likely. What is maximised is the expected improvement, the time that is saved times the probability that the
error is within the budget. Times are known, so only the error is modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from scipy import linalg, special
from torch import Tensor, nn

from training.precision.answers import RUNGS, Array, MeasuredGraph
from training.precision.questions import Questions, Row, drawn, neighbours

Answered = tuple[MeasuredGraph, Array, Array]
"""A graph, assignments [K, N], and the logarithms [K] of their errors."""

_ROUNDS, _DRAWN, _ELITE = 3, 96, 12  # of the cross-entropy method
_SMOOTHING = 0.05  # least probability of a rung
_BATCH = 20  # 1 + known // _BATCH questions between two fits
_LEAST_LOG = np.log(1e-8)  # errors of float32 and below count as one


class Surrogate(Protocol):
    """Predicts logarithms of errors on one graph."""

    def fit(self, rungs: Array, logs: Array) -> None:
        """Learn answers [K, N] and [K] about the graph, all that there are."""
        ...

    def predict(self, rungs: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation, [B] both, for assignments [B, N]."""
        ...


Make = Callable[[MeasuredGraph, int], Surrogate]


def by_surrogate(make: Make) -> Row:
    """A row that asks where a surrogate, made for the graph and a seed, expects most."""

    def row(ask: Questions, random: np.random.Generator) -> None:
        graph = ask.graph
        surrogate = make(graph, int(random.integers(2**31)))
        lowest = len(RUNGS) - 1 - graph.legal[:, ::-1].argmax(1)
        for first in (np.ones_like(lowest), lowest):
            ask(first)
        while True:
            keys = np.asarray(list(ask.known), np.int8)
            surrogate.fit(keys, logs_of(list(ask.known.values())))
            for each in _planned(ask, surrogate, random, 1 + len(keys) // _BATCH):
                ask(each)

    return row


def logs_of(errors: Sequence[float]) -> Array:
    """Logarithms of errors, without infinities."""
    return np.clip(np.log(np.maximum(errors, 1e-30)), _LEAST_LOG, 3.0)


def _planned(ask: Questions, surrogate: Surrogate, random: np.random.Generator, count: int) -> Array:
    """The assignments, not asked for yet, with the largest expected improvement."""
    graph, best = ask.graph, ask.graph.us(np.asarray([ask.best], np.int8))[0]

    def promise(rungs: Array) -> Array:
        mean, deviation = surrogate.predict(rungs)
        chance = special.log_ndtr((np.log(ask.budget) - mean) / deviation)
        # Where nothing saves time, what is nearest counts.
        return chance + np.log(np.maximum((best - graph.us(rungs)) / best, 1e-6))

    pool = [drawn(graph, random, _DRAWN), neighbours(graph, ask.best)]
    scores = [promise(each) for each in pool]
    for _ in range(_ROUNDS):
        rungs, ranked = np.concatenate(pool), np.concatenate(scores)
        elite = rungs[np.argsort(-ranked, kind="stable")[:_ELITE]]
        shares = np.eye(len(RUNGS))[elite].mean(0) + _SMOOTHING * graph.legal
        noise = random.gumbel(size=(_DRAWN, *shares.shape))
        with np.errstate(divide="ignore"):
            pool.append((np.log(shares * graph.legal) + noise).argmax(2).astype(np.int8))
        scores.append(promise(pool[-1]))
    rungs, ranked = np.concatenate(pool), np.concatenate(scores)
    order = dict.fromkeys(tuple(map(int, rungs[each])) for each in np.argsort(-ranked, kind="stable"))
    return np.asarray([each for each in order if each not in ask.known][:count], np.int8)


class GaussianProcess:
    """A linear part and one that falls with the number of calls that differ; their sizes by likelihood."""

    _CHOICES = tuple(
        (linear, near, length, noise)
        for linear in (0.3, 1.0) for near in (0.1, 1.0) for length in (0.1, 0.4) for noise in (0.01, 0.1)
    )  # fmt: skip

    def __init__(self, graph: MeasuredGraph, _: int) -> None:
        self._weights = 1.0 / len(graph.calls)

    def _kernel(self, a: Array, b: Array, choice: tuple[float, ...]) -> Array:
        linear, near, length, _ = choice
        one, other = (np.eye(len(RUNGS))[each].reshape(len(each), -1) for each in (a, b))
        same = one @ other.T * self._weights  # share of the calls that agree
        return linear * same + near * np.exp((same - 1) / length)

    def fit(self, rungs: Array, logs: Array) -> None:
        """See `Surrogate`."""
        self._mean, self._scale, self._known = logs.mean(), logs.std() + 1e-3, rungs
        y = (logs - self._mean) / self._scale
        fits = []
        for choice in self._CHOICES:
            factor = linalg.cholesky(
                self._kernel(rungs, rungs, choice) + choice[3] ** 2 * np.eye(len(y)), lower=True
            )
            half = linalg.solve_triangular(factor, y, lower=True)
            fits.append((-0.5 * half @ half - np.log(np.diagonal(factor)).sum(), choice, factor, half))
        _, self._choice, self._factor, self._half = max(fits, key=lambda each: each[0])

    def predict(self, rungs: Array) -> tuple[Array, Array]:
        """See `Surrogate`."""
        cross = linalg.solve_triangular(
            self._factor, self._kernel(self._known, rungs, self._choice), lower=True
        )
        variance = self._choice[0] + self._choice[1] - np.square(cross).sum(0)
        mean = self._mean + self._scale * (self._half @ cross)
        return mean, self._scale * np.sqrt(np.maximum(variance, 1e-8))


class Boosting:
    """Gradient-boosted trees over sums of features by rung, learned on other graphs and on the answers here.

    Args:
        graph: to predict for.
        seed: of the trees.
        others: graphs that are learned from.
    """

    _OWN = 10.0  # weight of an answer about this graph

    def __init__(self, graph: MeasuredGraph, seed: int, others: Sequence[Answered]) -> None:
        self._graph, self._seed = graph, seed
        self._x = np.concatenate([_summed(each, rungs) for each, rungs, _ in others])
        self._y = np.concatenate([logs for _, _, logs in others])

    def fit(self, rungs: Array, logs: Array) -> None:
        """See `Surrogate`."""
        # Imported here: it is of the extra `precision`.
        from sklearn.ensemble import HistGradientBoostingRegressor

        x, own = np.concatenate([self._x, _summed(self._graph, rungs)]), np.full(len(logs), self._OWN)
        self._trees = HistGradientBoostingRegressor(max_iter=60, random_state=self._seed)
        self._trees.fit(x, np.concatenate([self._y, logs]), np.concatenate([np.ones(len(self._y)), own]))
        self._deviation = max(0.05, float(np.std(logs - self._trees.predict(_summed(self._graph, rungs)))))

    def predict(self, rungs: Array) -> tuple[Array, Array]:
        """See `Surrogate`."""
        return self._trees.predict(_summed(self._graph, rungs)), np.full(len(rungs), self._deviation)


def _summed(graph: MeasuredGraph, rungs: Array) -> Array:
    """Features [B, F'] of assignments: sums over the calls of each rung, and means of the whole graph."""
    features = np.concatenate([np.ones((len(graph.calls), 1)), graph.features], 1)
    one_hot = np.eye(len(RUNGS))[rungs][:, :, 1:]
    sums = np.einsum("bnr,nf->brf", one_hot, features).reshape(len(rungs), -1) / len(graph.calls)
    whole = np.append(features.mean(0), np.log(len(graph.calls)))
    return np.concatenate([sums, np.broadcast_to(whole, (len(rungs), len(whole)))], 1)


def of_sensitivities(graph: MeasuredGraph, _: int) -> Additive:
    """The model of `max_error` as a surrogate: nothing in it is learned on other graphs."""
    return Additive(torch.from_numpy(graph.sensitivities).float())


class WorldModel:
    """A network that predicts what each call adds to the squared error in each rung, from sums alone.

    It learns on other graphs which calls matter; on the graph itself each call gets a correction, too, which
    the answers determine (as in Dyna, the model is refined while it is planned in).

    Args:
        others: graphs that are learned from.
        seed: of the weights.
        has_sensitivities: whether it reads those of two reverse passes.
    """

    _EPOCHS, _RATE = 60, 3e-3

    def __init__(self, others: Sequence[Answered], seed: int, has_sensitivities: bool) -> None:
        self._has_sensitivities = has_sensitivities
        rows = np.concatenate([self._read(graph) for graph, _, _ in others])
        self._mean, self._scale = rows.mean(0), rows.std(0) + 1e-6
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._net = nn.Sequential(
                nn.Linear(rows.shape[1], 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 3)
            )
        optimiser = torch.optim.Adam(self._net.parameters(), self._RATE)
        data = [(graph, torch.from_numpy(rungs).long(), torch.from_numpy(logs).float())
                for graph, rungs, logs in others]  # fmt: skip
        for _ in range(self._EPOCHS):
            for graph, rungs, logs in data:
                loss = (_log_error(self._parts(graph), rungs) - logs).square().mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()

    def _read(self, graph: MeasuredGraph) -> Array:
        more = [graph.sensitivities] if self._has_sensitivities else []
        return np.concatenate([graph.features, *more], 1)

    def _parts(self, graph: MeasuredGraph) -> Tensor:
        """Logarithms [N, 3] of what calls add to the squared error, by rung but float32."""
        features = (self._read(graph) - self._mean) / self._scale
        parts: Tensor = self._net(torch.from_numpy(features.clip(-5, 5)).float())
        return parts - 12.0 + torch.from_numpy(graph.sensitivities + 12.0).float() * self._has_sensitivities

    def on(self, graph: MeasuredGraph, _: int) -> Additive:
        """The surrogate for a graph."""
        return Additive(self._parts(graph).detach())


class Additive:
    """Squared errors as sums over calls, with a correction of each that the answers determine.

    Args:
        parts: logarithms [N, 3] of what calls add, by rung but float32, before any answer.
    """

    _STEPS, _SHRINKAGE = 60, 0.02

    def __init__(self, parts: Tensor) -> None:
        self._parts = parts
        self._shift = torch.zeros(parts.shape[1] + 1, requires_grad=True)  # of the rungs, and of all
        self._own = torch.zeros_like(parts, requires_grad=True)
        self._optimiser = torch.optim.Adam([self._shift, self._own], 0.05)
        self._deviation = 1.0

    def _corrected(self) -> Tensor:
        return self._parts + self._own + self._shift[:-1] + self._shift[-1]

    def fit(self, rungs: Array, logs: Array) -> None:
        """See `Surrogate`."""
        x, y = torch.from_numpy(rungs).long(), torch.from_numpy(logs).float()
        for _ in range(self._STEPS):
            off = _log_error(self._corrected(), x) - y
            loss = off.square().sum() + self._SHRINKAGE * len(y) ** 0.5 * self._own.square().sum()
            self._optimiser.zero_grad()
            loss.backward()
            self._optimiser.step()
        self._deviation = max(0.03, float(off.detach().square().mean().sqrt()))

    def predict(self, rungs: Array) -> tuple[Array, Array]:
        """See `Surrogate`."""
        with torch.no_grad():
            mean = _log_error(self._corrected(), torch.from_numpy(rungs).long()).double().numpy()
        return mean, np.full(len(mean), self._deviation)


def _log_error(parts: Tensor, rungs: Tensor) -> Tensor:
    """Logarithms [B] of errors from those of what calls add to their squares, [N, 3], by rungs [B, N]."""
    whole = torch.cat([torch.full((len(parts), 1), 2 * float(_LEAST_LOG) - 8.0), parts], 1)
    chosen = whole[torch.arange(len(parts)), rungs]
    return 0.5 * torch.logsumexp(chosen, 1).clamp(min=2 * float(_LEAST_LOG))
