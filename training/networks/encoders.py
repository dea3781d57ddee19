"""The graph encoders by name: a small local one, and the graph-network blocks that the shipped agent has.

Both return an embedding per node and one per graph.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchrlopt.agent.networks.encoder import GraphNetworkEncoder, NodeInput, mlp
from torchrlopt.agent.observation import Observation, Schema
from training.networks.ragged import segment_max, segment_mean


class LocalRound(nn.Module):
    """One round of message passing, separately from producers and readers; no global state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.from_producer = nn.Linear(width, width)
        self.from_reader = nn.Linear(width, width)
        self.update = nn.Linear(3 * width, width)

    def forward(self, nodes: Tensor, edges: Tensor, edge_index: Tensor) -> Tensor:
        """Return [N, W] from nodes [N, W], edges [E, W] and edge_index [2, E]."""
        producer, reader = edge_index[0], edge_index[1]
        normal = self.norm(nodes)
        down = torch.relu(self.from_producer(normal)[producer] + edges)
        up = torch.relu(self.from_reader(normal)[reader] + edges)
        count = len(nodes)
        heard = torch.cat(
            [normal, segment_mean(down, reader, count), segment_mean(up, producer, count)], dim=-1
        )
        return nodes + torch.relu(self.update(heard))


class LocalEncoder(nn.Module):
    """Rounds of `LocalRound`; the graph embedding reads mean and maximum over its nodes, and its globals.

    Args:
        schema: the columns.
        width: W.
        rounds: number of rounds: the receptive field of a node.
    """

    def __init__(self, schema: Schema, width: int = 48, rounds: int = 4) -> None:
        super().__init__()
        self.schema = schema
        self.width = width
        self.node_input = NodeInput(schema, width)
        self.edge_input = nn.Linear(schema.width("edge"), width)
        self.rounds = nn.ModuleList(LocalRound(width) for _ in range(rounds))
        self.readout = mlp(2 * width + schema.width("global"), width, width)

    def forward(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Return embeddings of nodes [N, W] and graphs [B, W]."""
        nodes = self.node_input(observation)
        edges = self.edge_input(self.schema.select(observation, "edge"))
        for each in self.rounds:
            nodes = each(nodes, edges, observation.edge_index)
        group, count = observation.node_episode, observation.num_episodes
        whole = self.schema.select(observation, "global")
        pooled = [segment_mean(nodes, group, count), segment_max(nodes, group, count), whole]
        return nodes, self.readout(torch.cat(pooled, dim=-1))


ENCODERS: dict[str, type[LocalEncoder] | type[GraphNetworkEncoder]] = {
    "local": LocalEncoder,
    "graph_network": GraphNetworkEncoder,
}
