"""Graph neural networks with `torch_geometric` layers: nodes [N, 8] and edges [2, E] to [N, 4]."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
import torch_geometric.nn as geometric
from torch import Tensor, nn


class TwoLayers(nn.Module):
    """Two convolutions with an activation between them."""

    def __init__(self, make: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = make(8, 12), make(12, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(F.relu(self.first(x, edge_index)), edge_index)


class Pooled(nn.Module):
    """Convolutions with norms, and the mean over the nodes of each graph: [G, 4]."""

    def __init__(self, make: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = make(8, 12), make(12, 12)
        self.norm = geometric.BatchNorm(12)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x, edge_index)))
        x = F.elu(self.second(x, edge_index))
        return self.head(geometric.global_mean_pool(x, batch))


def _mlp(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(in_channels, out_channels), nn.BatchNorm1d(out_channels), nn.ReLU(),
        nn.Linear(out_channels, out_channels),
    )  # fmt: skip


#: Networks by name. With `Pooled` they take the graph of each node as well.
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: TwoLayers(geometric.GCNConv),  # Kipf and Welling 2017
    "gat": lambda: TwoLayers(lambda i, o: geometric.GATConv(i, o // 4, heads=4)),  # Velickovic et al. 2018
    "gat_v2": lambda: TwoLayers(  # Brody et al. 2022
        lambda i, o: geometric.GATv2Conv(i, o, heads=2, concat=False)
    ),
    "sage": lambda: TwoLayers(geometric.SAGEConv),  # Hamilton et al. 2017: the mean of the neighbours
    "gin": lambda: TwoLayers(  # Xu et al. 2019: a sum over the neighbours, and an MLP
        lambda i, o: geometric.GINConv(_mlp(i, o), train_eps=True)
    ),
    "graph_conv": lambda: Pooled(geometric.GraphConv),  # Morris et al. 2019
    "graph_transformer": lambda: TwoLayers(  # Shi et al. 2021
        lambda i, o: geometric.TransformerConv(i, o // 2, heads=2)
    ),
}
