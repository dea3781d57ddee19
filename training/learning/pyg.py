"""The dissertation's graph-network block by PyG's `MetaLayer`: trained here, run without PyG."""

from __future__ import annotations

from torch import Tensor, nn

from torchrlopt.agent.networks.encoder import EdgeModel, GlobalModel, NodeModel


def meta_layer(width: int) -> nn.Module:
    """A `MetaLayer` with the keys and the arithmetic of `networks.encoder.GraphNetworkBlock`.

    Args:
        width: W, of edges, nodes and globals.
    """
    # Imported here: it takes seconds, and most of training does not need it.
    from torch_geometric.nn import MetaLayer

    class Block(MetaLayer):  # type: ignore[misc]
        """Takes its arguments in the order of `GraphNetworkBlock`, which is MetaLayer's own."""

        def forward(
            self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, u: Tensor, batch: Tensor
        ) -> tuple[Tensor, Tensor, Tensor]:
            new = super().forward(x, edge_index, edge_attr, u, batch)
            return new[0], new[1], new[2]

    return Block(EdgeModel(width), NodeModel(width), GlobalModel(width))
