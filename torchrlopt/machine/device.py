"""Describes the machine and computes the fingerprint that plans and prices are stored under.

A plan found on one machine is valid on every other, but was chosen by the prices and timings of the first.
The fingerprint therefore covers everything that affects prices and nothing else (no host name, no serial
number).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
from pathlib import Path

import torch

from torchrlopt import _C


def describe(device: torch.device) -> dict[str, str | int]:
    """Name and speed-relevant properties of `device` and of the process.

    Returns:
        JSON-serialisable properties; "threads" is the number that PyTorch currently uses.
    """
    found: dict[str, str | int] = {
        "machine": platform.machine(),
        "torch": torch.__version__,
        "device": device.type,
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["name"] = properties.name
        found["capability"] = f"{properties.major}.{properties.minor}"
        found["memory_bytes"] = properties.total_memory
    else:
        found["name"] = cpu_name()
        found["capability"] = torch.backends.cpu.get_cpu_capability()
        found["kernels"] = ", ".join([_C.kernel_instructions(), *_C.kernel_dtypes()[1:]])
        found["cores"] = num_usable_cores()
    return found


def fingerprint(device: torch.device) -> str:
    """SHA-256 of `describe(device)` in hexadecimal; equal across processes of one machine and set-up."""
    return hashlib.sha256(json.dumps(describe(device), sort_keys=True).encode()).hexdigest()


@functools.cache
def cpu_name() -> str:
    """Return the model name of the processor, if the operating system reports it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def num_usable_cores() -> int:
    """Return the number of cores that this process may use (containers and taskset can restrict it)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
