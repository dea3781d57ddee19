"""Predicts the latency of a graph on an executor: node prices, corrected by a graph network.

A price list adds up the costs of isolated operators. What a runtime fuses, caches or lays out differently
depends on the neighbouring operators: from each node's neighbourhood the network computes a factor on its
price and an additive cost in microseconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchrlopt import _C
from torchrlopt.agent.networks.encoder import NodeInput, mlp, segment_sum
from torchrlopt.agent.observation import Observation, Schema, collate, observe
from training.networks.encoders import LocalRound

_MOST = 3.0  # bound of the logarithm of a node's factor


@dataclasses.dataclass(frozen=True)
class PricedGraphs:
    """B graphs in the network's input format.

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
        """Concatenate several into one."""
        return cls(
            collate([each.observation for each in graphs]), torch.cat([each.price_us for each in graphs])
        )


class LatencyNetwork(nn.Module):
    """Predicts the logarithm of a run's microseconds.

    Args:
        schema: the columns.
        executors: names; an executor is identified by its position here.
        width: W.
        rounds: of message passing, the radius of a node's view.
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
        with torch.no_grad():  # an untrained network predicts the price
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
