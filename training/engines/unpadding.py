"""The inverse of `Padding.pad`: padded observations as the ragged batches that the networks take."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from torchrlopt.agent.observation import Observation


def unpadded(observation: Mapping[str, Tensor]) -> Observation:
    """Return what `Padding.pad` was given, but for rows that it dropped; locations are not known, and 0.

    Args:
        observation: the arrays of `Padding.space`, with a leading dimension B.
    """
    is_node, is_candidate = observation["ops"] >= 0, observation["substitutions"] >= 0
    is_edge = observation["edge_index"][:, 0] >= 0
    is_matched = observation["matched"] >= 0
    node_offsets = _offsets(is_node)
    first = node_offsets[:-1]
    edge_index = observation["edge_index"] + first[:, None, None]
    matched = observation["matched"] + first[:, None, None]
    substitutions = observation["substitutions"][is_candidate]
    return Observation(
        node_offsets=node_offsets,
        edge_offsets=_offsets(is_edge),
        candidate_offsets=_offsets(is_candidate),
        ops=observation["ops"][is_node],
        nodes=observation["nodes"][is_node],
        edge_index=edge_index.transpose(0, 1)[:, is_edge],
        edges=observation["edges"][is_edge],
        globals=observation["globals"],
        substitutions=substitutions,
        locations=torch.zeros_like(substitutions),
        candidates=observation["candidates"][is_candidate],
        matched_offsets=_offsets(is_matched[is_candidate]),
        matched=matched[is_matched],
    )


def _offsets(is_row: Tensor) -> Tensor:
    """Return [B + 1], offsets of the rows that are there, from [B, R]."""
    return F.pad(is_row.sum(1).cumsum(0), (1, 0))
