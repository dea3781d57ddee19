"""Random images and weights for kernel tests."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def weight(*shape: int) -> Tensor:
    """[out, in, ...], scaled so that results are of the order of one."""
    return rand(*shape) / max(1, math.prod(shape[1:])) ** 0.5
