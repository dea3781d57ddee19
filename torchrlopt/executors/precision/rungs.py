"""Which types of numbers a device computes faster than float32."""

from __future__ import annotations

import functools
from pathlib import Path

import torch

from torchrlopt.executors.eager.kernels import indirect

_SPEEDUPS = {"amx_bf16": 4.0, "avx512_bf16": 2.0}
"""Products of bfloat16 in the time of one of float32, by the flag of the processor: of a matrix unit as
measured (docs/kernels.md), of a vector unit by the width of its numbers."""


def has_bfloat16(device: torch.device) -> bool:
    """Whether a device has units for products of bfloat16 with sums of float32.

    Without them a processor emulates bfloat16 more slowly than it computes float32.
    """
    return bfloat16_speedup(device) > 1


def bfloat16_speedup(device: torch.device) -> float:
    """Products of bfloat16 that a device computes in the time of one of float32; 1 without units for it."""
    if device.type == "cuda":
        return 2.0 if torch.cuda.is_bf16_supported(including_emulation=False) else 1.0
    return _of_cpu() if device.type == "cpu" else 1.0


def has_int8(device: torch.device) -> bool:
    """Whether our kernels multiply 8-bit integers on a device, for operands in float32."""
    return device.type == "cpu" and indirect.has_int8(torch.float32)


@functools.cache
def _of_cpu() -> float:
    """Ask the system, since PyTorch only says whether its kernels run at all."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 1.0
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return max((speedup for flag, speedup in _SPEEDUPS.items() if flag in flags), default=1.0)
