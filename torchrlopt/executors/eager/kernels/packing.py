"""Tells which of oneDNN's pre-packed operators this machine supports.

Packing reorders a weight once into the blocked layout that the kernel reads. The packed tensor is opaque, is
valid for any input size, and is created in the prologue. On 2 cores (Zen 4, AVX-512) a packed call costs 14
us (linear) or 27 us (convolution) before it computes anything, a plain call 3 to 9 us, so small products stay
with the plain kernel, and small problems of all kinds use our own (indirect.py).
"""

from __future__ import annotations

import torch

CONVOLUTION = torch.ops.mkldnn._convolution_pointwise.default
CONVOLUTION_ADD = torch.ops.mkldnn._convolution_pointwise.binary
TRANSPOSED = torch.ops.mkldnn._convolution_transpose_pointwise.default
LINEAR = torch.ops.mkldnn._linear_pointwise.default
PACK_CONVOLUTION = torch.ops.mkldnn._reorder_convolution_weight.default
PACK_TRANSPOSED = torch.ops.mkldnn._reorder_convolution_transpose_weight.default
PACK_LINEAR = torch.ops.mkldnn._reorder_linear_weight.default

MOST_TRANSPOSED_STRIDE = 512
"""oneDNN's kernel for packed weights crashed from 4096 on, and did not up to 2048 (PyTorch 2.13, AVX-512)."""


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
