"""The graph-network encoder is trained with PyG's `MetaLayer`, and runs without PyG."""

from __future__ import annotations

from torch import nn

from torchrlopt.agent.networks.encoder import GraphNetworkEncoder


def with_meta_layers(encoder: nn.Module) -> None:
    """Let PyG run the blocks of a `GraphNetworkEncoder`, in place; any other encoder is left as it is.

    The modules in a block stay the same, and with them keys, weights and arithmetic: what is exported are
    weights of `torchrlopt.agent.networks.encoder.GraphNetworkBlock`.
    """
    if not isinstance(encoder, GraphNetworkEncoder):
        return
    # Imported here: it takes seconds, and the local encoder does not need it.
    from torch_geometric.nn import MetaLayer

    encoder.blocks = nn.ModuleList(
        MetaLayer(block.edge_model, block.node_model, block.global_model) for block in encoder.blocks
    )
