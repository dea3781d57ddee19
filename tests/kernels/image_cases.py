"""Random images and weights for kernel tests."""

from __future__ import annotations

import torch
from torch import Tensor


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def weight(*shape: int) -> Tensor:
    return rand(*shape) / (shape[1] * shape[2] * shape[3]) ** 0.5
