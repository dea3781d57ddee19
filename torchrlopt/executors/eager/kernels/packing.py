"""Tells which of oneDNN's pre-packed operators this machine supports and when packing is faster.

Packing reorders a weight once into the blocked layout that the kernel reads. The packed tensor is opaque, is
valid for any input size, and is created in the prologue. The limits below were measured on 2 cores (Zen 4,
AVX-512): a packed call costs 14 us (linear) or 27 us (convolution) before it computes anything, a plain call
3 to 9 us, so small problems stay with the plain kernels or use our own (indirect.py).
"""

from __future__ import annotations

import math

import torch

from torchrlopt.executors.eager.kernels.dtypes import KERNEL_DTYPES

CONVOLUTION = torch.ops.mkldnn._convolution_pointwise.default
CONVOLUTION_ADD = torch.ops.mkldnn._convolution_pointwise.binary
TRANSPOSED = torch.ops.mkldnn._convolution_transpose_pointwise.default
LINEAR = torch.ops.mkldnn._linear_pointwise.default
PACK_CONVOLUTION = torch.ops.mkldnn._reorder_convolution_weight.default
PACK_TRANSPOSED = torch.ops.mkldnn._reorder_convolution_transpose_weight.default
PACK_LINEAR = torch.ops.mkldnn._reorder_linear_weight.default

MOST_TRANSPOSED_STRIDE = 512
"""oneDNN's kernel for packed weights crashed from 4096 on, and did not up to 2048 (PyTorch 2.13, AVX-512)."""

# Below this, a convolution that ATen does not pass to oneDNN anyway is faster in ATen.
_MIN_CONVOLUTION_FLOP = 1.5e6
# ATen's own limit for its native kernel for one image (`use_mkldnn` in ConvUtils).
_NATIVE_CONVOLUTION_NUMEL = 20480
# A weight with this many elements does not stay in the first-level caches of a core.
_LARGE_LINEAR_WEIGHT = 1 << 17
_MIN_LINEAR_FLOP = 1.0e6
_MIN_SMALL_LINEAR_FLOP = 12.0e6


def can_pack(value: torch.Tensor | None) -> bool:
    """True if oneDNN has packed kernels for the dtype and device of this tensor on this machine."""
    if value is None or value.device.type != "cpu" or value.layout != torch.strided:
        return False
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False
    if torch.ops.mkldnn._is_mkldnn_acl_supported():
        return False  # the ACL build has no fused post-operations
    if value.dtype == torch.float32:
        return True
    if value.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return value.dtype == torch.float16 and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def packed_convolution_pays(
    x: tuple[int, ...] | None, y: tuple[int, ...] | None, weight: tuple[int, ...], groups: int
) -> bool:
    """Whether the packed convolution beats ATen's.

    Args:
        x: shape of the input; None if a size is symbolic.
        y: shape of the output; None if a size is symbolic.
        weight: [out channels, in channels / groups, *kernel].
        groups: of the convolution.
    """
    if x is None or y is None:
        return True
    flop = 2.0 * math.prod(y) * math.prod(weight[1:])
    is_small = math.prod(x) <= _NATIVE_CONVOLUTION_NUMEL and flop < _MIN_CONVOLUTION_FLOP
    return not (is_small and x[0] == 1 and groups == 1 and max(weight[2:]) <= 3)


def packed_linear_pays(rows: int | None, in_features: int, out_features: int, dtype: torch.dtype) -> bool:
    """Whether the packed linear beats `addmm` for this many rows (None: known only at run time)."""
    known = KERNEL_DTYPES.get(dtype)
    if known is not None and known.min_packed_linear_flop is not None:  # `addmm` calls oneDNN too, unpacked
        return 2.0 * (rows or 1) * in_features * out_features >= known.min_packed_linear_flop
    is_large = in_features * out_features >= _LARGE_LINEAR_WEIGHT
    if rows is None:
        return is_large
    flop = 2.0 * rows * in_features * out_features
    return flop >= (_MIN_LINEAR_FLOP if is_large else _MIN_SMALL_LINEAR_FLOP)
