"""Which types of numbers a device computes faster than float32."""

from __future__ import annotations

import functools
from pathlib import Path

import torch

_FLAGS = ("avx512_bf16", "amx_bf16")


def has_bfloat16(device: torch.device) -> bool:
    """Whether a device has units for products of bfloat16 with sums of float32.

    Without them a processor emulates bfloat16 more slowly than it computes float32.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and _cpu_has_bfloat16()


@functools.cache
def _cpu_has_bfloat16() -> bool:
    """Ask the system, since PyTorch only says whether its kernels run at all."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return any(flag in flags for flag in _FLAGS)
