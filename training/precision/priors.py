"""Priors: they predict from graph, shapes and weights what each rounding adds to the error of the outputs.

All learn logarithms of squared errors, relative to their mean over a graph: one run with everything in
bfloat16 gives the scale.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.nn import MeanAggregation

from training.precision.graphs import Table

Array = np.ndarray[Any, Any]
Prior = Callable[[Table], Array]
"""Returns logarithms of the squared errors of the parts of a table, up to a constant."""

_KINDS = ("result", "weight", "edge")
_RIDGE = 10.0


def _centred(table: Table) -> Array:
    return table.logs - table.logs.mean()


def _key(table: Table, number: int) -> tuple[str, str]:
    """Kind of a part, and the operator of its call."""
    return table.parts[number][0], table.operators[table.places[number][1]]


def by_operator(tables: Sequence[Table]) -> Prior:
    """The mean of all parts of the same kind and operator; of the kind, for operators that were not seen."""
    seen: dict[Any, list[float]] = collections.defaultdict(list)
    for table in tables:
        for number, value in enumerate(_centred(table)):
            seen[_key(table, number)].append(float(value))
            seen[table.parts[number][0]].append(float(value))
    means = {key: float(np.mean(values)) for key, values in seen.items()}

    def prior(table: Table) -> Array:
        keys = [_key(table, number) for number in range(len(table.parts))]
        return np.asarray([means.get(key, means[key[0]]) for key in keys])

    return prior


class Encoding:
    """Features of nodes, standardised, with the operator as one of those that were seen.

    Args:
        tables: that are learned from.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        counts = collections.Counter(name for table in tables for name in table.operators)
        self._at = {name: at for at, name in enumerate(each for each, count in counts.items() if count >= 5)}
        rows = np.concatenate([table.features for table in tables])
        self._mean, self._scale = rows.mean(0), rows.std(0) + 1e-6
        self.size = len(self._at) + 1 + rows.shape[1]

    def __call__(self, table: Table) -> Array:
        """Return float32 [N, size]."""
        one_hot = np.zeros((len(table.operators), len(self._at) + 1), np.float32)
        for row, name in enumerate(table.operators):
            one_hot[row, self._at.get(name, -1)] = 1.0
        numbers = ((table.features - self._mean) / self._scale).clip(-5, 5)
        return np.concatenate([one_hot, numbers], 1).astype(np.float32)


def ridge(tables: Sequence[Table]) -> Prior:
    """Linear in the features of the nodes that compute and read a part, for each kind of part."""
    encoding = Encoding(tables)

    def rows(table: Table, kind: str) -> tuple[Array, Array]:
        chosen = np.asarray([each[0] == kind for each in table.parts])
        nodes = encoding(table)[table.places[chosen]]
        both = nodes[:, 1] if kind != "edge" else nodes.reshape(len(nodes), 2 * nodes.shape[2])
        return chosen, np.concatenate([both, np.ones((len(both), 1), np.float32)], 1)

    solved = {}
    for kind in _KINDS:
        parts = [rows(table, kind) for table in tables]
        x = np.concatenate([each for _, each in parts]).astype(np.float64)
        y = np.concatenate(
            [_centred(table)[chosen] for table, (chosen, _) in zip(tables, parts, strict=True)]
        )
        solved[kind] = np.linalg.solve(x.T @ x + _RIDGE * np.eye(x.shape[1]), x.T @ y)

    def prior(table: Table) -> Array:
        found = np.zeros(len(table.parts))
        for kind in _KINDS:
            chosen, x = rows(table, kind)
            found[chosen] = x @ solved[kind]
        return found

    return prior


class Network(nn.Module):
    """Passes messages along the edges of a graph in both directions.

    Args:
        num_features: F, of a node.
        width: W, of its state.
        rounds: of messages.
    """

    def __init__(self, num_features: int, width: int = 48, rounds: int = 6) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(num_features, width), nn.SiLU(), nn.Linear(width, width))
        self.rounds = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(3 * width), nn.Linear(3 * width, width), nn.SiLU(), nn.Linear(width, width)
            )
            for _ in range(rounds)
        )
        self.mean = MeanAggregation()
        self.last = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, len(_KINDS)))

    def states(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Take features [N, F] and edges [2, E], return states [N, W]."""
        state = self.first(nodes)
        for update in self.rounds:
            read = self.mean(state[edges[0]], edges[1], dim_size=len(state))
            reading = self.mean(state[edges[1]], edges[0], dim_size=len(state))
            state = state + update(torch.cat([state, read, reading], 1))
        return state

    def forward(self, nodes: Tensor, edges: Tensor, places: Tensor, kinds: Tensor) -> Tensor:
        """Take features [N, F], edges [2, E], places [P, 2] and kinds [P], return logarithms [P]."""
        pairs = self.states(nodes, edges)[places].flatten(1)
        return self.last(pairs).gather(1, kinds[:, None])[:, 0]


class Learned:
    """A network, and how far it is off.

    Args:
        tables: that it learns from.
        seed: of its weights and batches.
        epochs: over all tables.
    """

    def __init__(self, tables: Sequence[Table], seed: int, epochs: int) -> None:
        self._encoding = Encoding(tables)
        torch.manual_seed(seed)
        self._network = Network(self._encoding.size)
        self._fit(tables, epochs)

    def _inputs(self, table: Table) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        kinds = torch.tensor([_KINDS.index(each[0]) for each in table.parts])
        places, edges = torch.from_numpy(table.places), torch.from_numpy(table.edges)
        return torch.from_numpy(self._encoding(table)), edges, places, kinds

    def _fit(self, tables: Sequence[Table], epochs: int, batch: int = 3) -> None:
        made = [(self._inputs(each), torch.from_numpy(_centred(each))) for each in tables]
        adam = torch.optim.AdamW(self._network.parameters(), 3e-3, weight_decay=1e-2)
        steps = epochs * math.ceil(len(made) / batch)
        schedule = torch.optim.lr_scheduler.OneCycleLR(adam, 3e-3, total_steps=steps)
        for _ in range(epochs):
            for chosen in torch.randperm(len(made)).split(batch):
                loss = torch.zeros(())
                for number in chosen.tolist():
                    inputs, target = made[number]
                    error = self._network(*inputs) - target
                    loss = loss + nn.functional.huber_loss(error - error.mean(), torch.zeros_like(error))
                adam.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self._network.parameters(), 1.0)
                adam.step()
                schedule.step()

    def __call__(self, table: Table) -> Array:
        """The prior."""
        with torch.no_grad():
            return np.asarray(self._network(*self._inputs(table)), np.float64)

    def states(self, table: Table) -> Array:
        """States of the nodes [N, W], of unit variance."""
        with torch.no_grad():
            nodes, edges, *_ = self._inputs(table)
            states = np.asarray(self._network.states(nodes, edges), np.float64)
        return (states - states.mean(0)) / (states.std(0) + 1e-6)


class Calls:
    """The parts of a table by calls: what one forward with a single lowered call measures.

    Args:
        table: of a graph.
    """

    def __init__(self, table: Table) -> None:
        self.names = sorted({name for _, _, name in table.parts})
        at = {name: number for number, name in enumerate(self.names)}
        self.of_part = np.asarray([at[name] for _, _, name in table.parts])
        node_of = {name: place[1] for (_, _, name), place in zip(table.parts, table.places, strict=True)}
        self.nodes = np.asarray([node_of[name] for name in self.names])

    def totals(self, logs: Array) -> Array:
        """Logarithm of the summed squared errors of each call."""
        return np.log(np.bincount(self.of_part, np.exp(logs), len(self.names)) + 1e-300)


class Posterior:
    """A linear-Gaussian correction of a prior: calls of like states and like operators are off alike.

    Args:
        prior: a network.
        tables: that it did not learn from; the shares of the covariance are those that make them most likely.
    """

    def __init__(self, prior: Learned, tables: Sequence[Table]) -> None:
        self._prior = prior
        shares = [(a, b, 1 - a - b) for a in (0.1, 0.3, 0.5, 0.7) for b in (0.05, 0.2, 0.4) if a + b < 0.95]
        grid = [(*share, reach) for share in shares for reach in (0.5, 1.0, 2.0)]
        known = [self._residuals(each) for each in tables]
        self._variance = float(np.mean(np.concatenate([each[1] for each in known]) ** 2))
        self._shares = max(grid, key=lambda share: sum(self._likelihood(share, *each) for each in known))

    def _residuals(self, table: Table) -> tuple[Table, Array]:
        calls = Calls(table)
        off = calls.totals(table.logs) - calls.totals(self._prior(table))
        return table, off - off.mean()

    def _covariance(self, table: Table, shares: tuple[float, ...]) -> Array:
        near, like, noise, reach = shares
        calls = Calls(table)
        states = self._prior.states(table)[calls.nodes]
        squares = (states**2).sum(1)
        distance = (squares[:, None] + squares - 2 * states @ states.T).clip(0) / states.shape[1]
        names = np.asarray([table.operators[each] for each in calls.nodes])
        same = (names[:, None] == names).astype(float)
        return self._variance * (
            near * np.exp(-distance / (2 * reach**2)) + like * same + noise * np.eye(len(names)) + 4.0
        )  # the scale of the graph is not known: a constant with a large variance

    def _likelihood(self, shares: tuple[float, ...], table: Table, off: Array) -> float:
        covariance = self._covariance(table, shares)
        chosen = np.random.default_rng(0).permutation(len(off))[:200]
        covariance, off = covariance[np.ix_(chosen, chosen)], off[chosen]
        _, log_determinant = np.linalg.slogdet(covariance)
        return -0.5 * float(off @ np.linalg.solve(covariance, off) + log_determinant)

    def corrected(self, table: Table, measure: Callable[[str], float], num_calls: int) -> Array:
        """Return the prior after measuring some calls, each where the error is least certain.

        Args:
            table: of the graph.
            measure: the squared error of the outputs with this call alone in bfloat16.
            num_calls: that are measured.
        """
        calls, logs = Calls(table), self._prior(table)
        logs = logs - logs.mean()
        totals, covariance = calls.totals(logs), self._covariance(table, self._shares)
        mean, variance = np.zeros(len(totals)), np.diag(covariance).copy()
        chosen: list[int] = []
        found: list[float] = []
        for _ in range(min(num_calls, len(totals))):
            order = np.argsort(-(totals + mean + 0.5 * np.log(variance.clip(1e-12))))
            chosen.append(next(int(each) for each in order if int(each) not in chosen))
            found.append(math.log(max(measure(calls.names[chosen[-1]]), 1e-20)) - totals[chosen[-1]])
            known = covariance[np.ix_(chosen, chosen)]
            gain = np.linalg.solve(known + 1e-6 * np.eye(len(chosen)), covariance[chosen]).T
            mean = gain @ np.asarray(found)
            variance = np.diag(covariance) - (gain * covariance[:, chosen]).sum(1)
        return np.asarray(logs + mean[calls.of_part])
