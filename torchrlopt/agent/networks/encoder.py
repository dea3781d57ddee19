"""The graph encoder: the graph-network blocks of the dissertation.

It returns an embedding per node and one per graph. Training runs the blocks with PyG's `MetaLayer`; this is
the same in plain torch, because importing PyG would cost users seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchrlopt.agent.observation import Observation, Schema


class NodeInput(nn.Module):
    """Operator embedding plus a linear map of the features.

    Operators are matched by name: observations use the indices of the running core, the embedding those of
    the schema.
    """

    rows: Tensor

    def __init__(self, schema: Schema, width: int) -> None:
        super().__init__()
        self.schema = schema
        self.embedding = nn.Embedding(len(schema.ops) + 1, width)
        self.linear = nn.Linear(schema.width("node"), width)
        self.register_buffer("rows", schema.rows_of_ops(Schema.current().ops), persistent=False)

    def forward(self, seen: Observation) -> Tensor:
        """Return [N, W], the embeddings of all nodes."""
        return torch.add(self.embedding(self.rows[seen.ops]), self.linear(self.schema.select(seen, "node")))


def mlp(in_width: int, width: int, out_width: int) -> nn.Sequential:
    """Return two linear layers with a ReLU in between."""
    return nn.Sequential(nn.Linear(in_width, width), nn.ReLU(), nn.Linear(width, out_width))


class EdgeModel(nn.Module):
    """Update of the edges in a graph-network block (Battaglia et al. 2018, Algorithm 1)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = mlp(4 * width, width, width)

    def forward(self, src: Tensor, dst: Tensor, edge_attr: Tensor, u: Tensor, batch: Tensor) -> Tensor:
        """Return [E, W]; `batch` [E] is the graph of each edge, `u` [B, W] the globals."""
        new: Tensor = self.net(torch.cat([src, dst, edge_attr, u[batch]], dim=-1))
        return new


class NodeModel(nn.Module):
    """Update of the nodes from the sum of their incoming edges."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = mlp(3 * width, width, width)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, u: Tensor, batch: Tensor) -> Tensor:
        """Return [N, W]; `batch` [N] is the graph of each node."""
        incoming = segment_sum(edge_attr, edge_index[1], len(x))
        new: Tensor = self.net(torch.cat([x, incoming, u[batch]], dim=-1))
        return new


class GlobalModel(nn.Module):
    """Update of the globals from the sums of all nodes and all edges of the graph."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = mlp(3 * width, width, width)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, u: Tensor, batch: Tensor) -> Tensor:
        """Return [B, W], the new globals."""
        nodes = segment_sum(x, batch, len(u))
        edges = segment_sum(edge_attr, batch[edge_index[0]], len(u))
        new: Tensor = self.net(torch.cat([u, nodes, edges], dim=-1))
        return new


class GraphNetworkBlock(nn.Module):
    """Updates edges, then nodes, then globals, like `torch_geometric.nn.MetaLayer` and with its keys."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.edge_model = EdgeModel(width)
        self.node_model = NodeModel(width)
        self.global_model = GlobalModel(width)

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, u: Tensor, batch: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return nodes [N, W], edges [E, W] and globals [B, W] after one block."""
        producer, reader = edge_index[0], edge_index[1]
        edge_attr = self.edge_model(x[producer], x[reader], edge_attr, u, batch[producer])
        x = self.node_model(x, edge_index, edge_attr, u, batch)
        return x, edge_attr, self.global_model(x, edge_index, edge_attr, u, batch)


class GraphNetworkEncoder(nn.Module):
    """The dissertation's encoder (section 3.3): graph-network blocks with sum aggregation.

    Args:
        schema: the columns.
        width: W.
        rounds: number of blocks, each with its own parameters.
    """

    def __init__(self, schema: Schema, width: int = 32, rounds: int = 5) -> None:
        super().__init__()
        self.schema = schema
        self.width = width
        self.node_input = NodeInput(schema, width)
        self.edge_input = nn.Linear(schema.width("edge"), width)
        self.global_input = nn.Linear(schema.width("global"), width)
        self.blocks = nn.ModuleList(GraphNetworkBlock(width) for _ in range(rounds))
        # Without normalisation, sums over hundreds of nodes and five rounds grow without bound.
        self.node_norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(rounds))
        self.global_norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(rounds))

    def forward(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Return embeddings of nodes [N, W] and graphs [B, W]."""
        x = self.node_input(observation)
        edge_attr = self.edge_input(self.schema.select(observation, "edge"))
        u = self.global_input(self.schema.select(observation, "global"))
        for block, node_norm, global_norm in zip(
            self.blocks, self.node_norms, self.global_norms, strict=True
        ):
            new_x, edge_attr, new_u = block(x, observation.edge_index, edge_attr, u, observation.node_episode)
            x, u = x + node_norm(new_x), u + global_norm(new_u)
        return x, u


def segment_sum(rows: Tensor, group: Tensor, num_groups: int) -> Tensor:
    """Return the sum of the rows of each group.

    Args:
        rows: [R, ...].
        group: [R], int64.
        num_groups: G.

    Returns:
        [G, ...]; 0 for a group without rows.
    """
    return rows.new_zeros(num_groups, *rows.shape[1:]).index_add(0, group, rows)
