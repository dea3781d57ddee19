"""Trains the graph-network encoder with PyG's `MetaLayer`; inference does not need PyG."""

from __future__ import annotations

from torch import nn

from torchrlopt.agent.networks.encoder import GraphNetworkEncoder


def with_meta_layers(encoder: nn.Module) -> None:
    """Let PyG run the blocks of a `GraphNetworkEncoder`, in place; other encoders are unchanged.

    The modules in a block stay the same, and so do keys, weights and arithmetic: the exported weights are
    those of `torchrlopt.agent.networks.encoder.GraphNetworkBlock`.
    """
    if not isinstance(encoder, GraphNetworkEncoder):
        return
    # Imported lazily: it takes seconds, and the local encoder does not need it.
    from torch_geometric.nn import MetaLayer

    encoder.blocks = nn.ModuleList(
        MetaLayer(block.edge_model, block.node_model, block.global_model) for block in encoder.blocks
    )
