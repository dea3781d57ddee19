"""Gives tensors other strides, in calls of lowered graphs."""

from __future__ import annotations

from collections.abc import Collection

import torch


def reorder(x: torch.Tensor, order: Collection[int]) -> torch.Tensor:
    """A dense copy whose dimensions, from outermost to innermost, have this order in memory."""
    outer_first = list(order)
    return x.permute(outer_first).contiguous().permute([outer_first.index(axis) for axis in range(x.dim())])


def restride(x: torch.Tensor, stride: Collection[int]) -> torch.Tensor:
    """The same values with the given strides; `x` itself if its strides already match.

    Args:
        x: a tensor without overlap.
        stride: one step per dimension, 0 if the elements of `x` repeat, otherwise without overlap.
    """
    wanted = tuple(stride)
    if x.stride() == wanted:
        return x
    if all(size <= 1 or has == want for size, has, want in zip(x.shape, x.stride(), wanted, strict=True)):
        return x.as_strided(x.shape, wanted)
    if 0 in wanted:
        once = x[tuple(slice(0, 1) if want == 0 else slice(None) for want in wanted)]
        return restride(once, [want or 1 for want in wanted]).expand(x.shape)
    return torch.empty_strided(x.shape, wanted, dtype=x.dtype, device=x.device).copy_(x)
