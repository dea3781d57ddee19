"""Foretells how long a graph runs on an executor: prices of its nodes, corrected by a graph network.

A price list adds up what operators cost by themselves. What a runtime fuses, keeps in a cache or lays out
anew depends on the operators around: each node's price gets a factor from what stands around it, and what a
node costs beside its price, a number of microseconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchrlopt import _C
from torchrlopt.agent.networks.encoder import LocalRound, NodeInput, mlp
from torchrlopt.agent.networks.ragged import segment_sum
from torchrlopt.agent.observation import Observation, Schema, collate, observe

_MOST = 3.0  # of the logarithm of a node's factor


@dataclasses.dataclass(frozen=True)
class PricedGraphs:
    """B graphs as the network takes them.

    Attributes:
        observation: nodes and edges, B episodes.
        price_us: [B], the price of each graph in microseconds.
    """

    observation: Observation
    price_us: Tensor

    @classmethod
    def of(cls, graph: _C.Graph, cost: _C.CostModel) -> PricedGraphs:
        """One graph with its prices."""
        env = _C.VecRewriteEnv([graph], _C.Library(""), cost)
        env.reset([0], [{}])
        return cls(observe(env), torch.tensor([float(cost.metrics(graph)["time_us"])]))

    @classmethod
    def joined(cls, graphs: Sequence[PricedGraphs]) -> PricedGraphs:
        """Several as one."""
        return cls(
            collate([each.observation for each in graphs]), torch.cat([each.price_us for each in graphs])
        )


class LatencyNetwork(nn.Module):
    """The logarithm of the microseconds of a run.

    Args:
        schema: the columns.
        executors: names; what runs a graph is known by its position here.
        width: W.
        rounds: how far a node sees.
    """

    def __init__(self, schema: Schema, executors: Sequence[str], width: int = 48, rounds: int = 4) -> None:
        super().__init__()
        self.schema, self.executors = schema, tuple(executors)
        self.share = schema.column("node", "cost_share")
        self.node_input = NodeInput(schema, width)
        self.edge_input = nn.Linear(schema.width("edge"), width)
        self.executor = nn.Embedding(len(self.executors), width)
        self.rounds = nn.ModuleList(LocalRound(width) for _ in range(rounds))
        self.head = mlp(width, width, 2)
        self.overhead = nn.Embedding(len(self.executors), 1)
        last = self.head[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():  # an untrained network gives the price
            last.weight.mul_(0.1)
            last.bias.copy_(torch.tensor([0.0, -3.0]))
            self.overhead.weight.fill_(1.0)

    def forward(self, graphs: PricedGraphs, executor: Tensor) -> Tensor:
        """[B], from B graphs and the positions of their executors [B], int64."""
        seen = graphs.observation
        group, count = seen.node_episode, seen.num_episodes
        nodes = self.node_input(seen) + self.executor(executor)[group]
        edges = self.edge_input(self.schema.select(seen, "edge"))
        for each in self.rounds:
            nodes = each(nodes, edges, seen.edge_index)
        factor, beside = self.head(nodes).unbind(-1)
        price_us = self.schema.select(seen, "node")[:, self.share] * graphs.price_us[group]
        us = price_us * (_MOST * torch.tanh(factor / _MOST)).exp() + nn.functional.softplus(beside)
        overhead_us = nn.functional.softplus(self.overhead(executor).squeeze(-1))
        return (segment_sum(us, group, count) + overhead_us).log()
