"""Checks that tensors hold plain numbers only, for which a runtime computes the same as PyTorch.

Runtimes lose NaN and infinities that PyTorch keeps: OpenVINO's Relu and Clip turn NaN into a number. With
such inputs or weights the original graph runs instead. For NaN that arises inside the graph see
`arising_nan`; infinities that do are not detected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch

from torchrlopt.executors.eager.kernels import indirect


def are_plain(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether no tensor holds NaN or an infinity, except for masks of 0 and -inf.

    Args:
        tensors: in CPU memory.
    """
    return all(_is_plain(tensor) for tensor in tensors if tensor.is_floating_point())


_COMPARED = (torch.float32, torch.float64)  # numpy vectorises comparisons of these
_EXPONENT = {
    torch.float16: 0x7C00,
    torch.bfloat16: 0x7F80,
}  # exponent bits, all set if a number is not finite


def _is_plain(tensor: torch.Tensor) -> bool:
    # PyTorch's reductions would wake its threads, which then spin while the runtime computes.
    if tensor.numel() == 0:
        return True
    found = None
    if tensor.dtype is torch.float32 and (ours := indirect.kernels()) is not None:
        found = ours.is_finite(tensor)
    if found is not None:
        is_finite = found
    elif tensor.dtype in _COMPARED:
        array = tensor.detach().numpy()
        is_finite = math.isfinite(array.max()) and math.isfinite(array.min())
    elif (mask := _EXPONENT.get(tensor.dtype)) is not None:
        bits = tensor.detach().resolve_neg().view(torch.int16).numpy()
        is_finite = not np.any((bits & mask) == mask)
    else:
        tensor = tensor.float()
        is_finite = math.isfinite(tensor.sum())
    if is_finite:
        return True
    # A mask that is added to scores: models are checked with such masks.
    is_mask = ((tensor == 0) | (tensor == -math.inf)).all() & (tensor == 0).any()
    return bool(is_mask | tensor.isfinite().all())
