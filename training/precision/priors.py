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

    def forward(self, nodes: Tensor, edges: Tensor, places: Tensor, kinds: Tensor) -> Tensor:
        """Take features [N, F], edges [2, E], places [P, 2] and kinds [P], return logarithms [P]."""
        state = self.first(nodes)
        for update in self.rounds:
            read = self.mean(state[edges[0]], edges[1], dim_size=len(state))
            reading = self.mean(state[edges[1]], edges[0], dim_size=len(state))
            state = state + update(torch.cat([state, read, reading], 1))
        return self.last(state[places].flatten(1)).gather(1, kinds[:, None])[:, 0]


class Learned:
    """A network that has learned.

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
