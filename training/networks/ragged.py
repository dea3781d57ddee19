"""Segment reductions and softmax over groups of rows, for ragged batches of graphs and candidates."""

from __future__ import annotations

import torch
from torch import Tensor

from torchrlopt.agent.networks.encoder import segment_sum


def segment_mean(rows: Tensor, group: Tensor, num_groups: int) -> Tensor:
    """Return the mean of the rows [R, W] of each group, [G, W]; 0 for a group without rows."""
    counts = torch.bincount(group, minlength=num_groups).clamp(min=1)
    return segment_sum(rows, group, num_groups) / counts.to(rows.dtype).unsqueeze(-1)


def segment_max(rows: Tensor, group: Tensor, num_groups: int) -> Tensor:
    """Return the columnwise maximum of the rows [R, W] of each group, [G, W]; 0 for a group without rows."""
    index = group.unsqueeze(-1).expand_as(rows)
    start = rows.new_zeros(num_groups, *rows.shape[1:])
    return start.scatter_reduce(0, index, rows, "amax", include_self=False)


def segment_log_softmax(logits: Tensor, group: Tensor, num_groups: int) -> Tensor:
    """Return the log-probabilities of the members of each group.

    Args:
        logits: [R].
        group: [R], int64.
        num_groups: G.

    Returns:
        [R]; the exponentials of each group add up to 1.
    """
    largest = segment_max(logits.detach().unsqueeze(-1), group, num_groups).squeeze(-1)
    shifted = logits - largest[group]
    return shifted - segment_sum(shifted.exp(), group, num_groups).log()[group]


def segment_argmax(values: Tensor, group: Tensor, num_groups: int) -> Tensor:
    """Return the row of the first maximum of each group, [G]; -1 for a group without rows."""
    largest = values.new_full((num_groups,), -torch.inf).scatter_reduce(0, group, values, "amax")
    rows = torch.arange(len(values))
    candidates = torch.where(values == largest[group], rows, len(values))
    first = rows.new_full((num_groups,), len(values)).scatter_reduce(0, group, candidates, "amin")
    return torch.where(first == len(values), -1, first)
