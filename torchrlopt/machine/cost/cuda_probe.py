"""The CUDA probe: a shared library of the package, built if nvcc was found, loaded on demand."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

LIBRARY = Path(__file__).resolve().parents[2] / "_cuda_probe.so"

Status = Literal["ok", "not built", "no driver", "no device", "failed"]
_STATUS: tuple[Status, ...] = ("ok", "no driver", "no device", "failed")

FIELDS = (
    "copy_bytes_per_us",
    "cache_bytes_per_us",
    "flops_per_us",
    "launch_us",
    "round_trip_us",
    "event_us",
    "flush_us",
    "l2_bytes",
)
"""Results of the probe in the order of `CudaProbe` in csrc/cuda/probe.cu."""


@dataclass(frozen=True)
class CudaProbe:
    """Result of the probe.

    Attributes:
        status: "ok", or why there are no results.
        message: error message of CUDA or of the loader.
        results: values by name in `FIELDS`; empty unless the status is "ok".
    """

    status: Status
    message: str = ""
    results: dict[str, float] = field(default_factory=dict)


def probe_cuda(device: int = 0, library: Path = LIBRARY) -> CudaProbe:
    """Probe a CUDA device; never raises if the machine has none."""
    if not library.exists():
        return CudaProbe("not built", "nvcc was not found when the package was built")
    try:
        probe = ctypes.CDLL(str(library)).rlopt_probe_cuda
    except (OSError, AttributeError) as error:
        return CudaProbe("failed", str(error))
    numbers = (ctypes.c_double * len(FIELDS))()
    message = ctypes.create_string_buffer(256)
    status = _STATUS[probe(device, numbers, message, len(message))]
    results = dict(zip(FIELDS, numbers, strict=True)) if status == "ok" else {}
    return CudaProbe(status, message.value.decode(errors="replace"), results)
