"""Peak memory of this process."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_mb() -> float:
    """Largest resident size of this process since it started, or since `reset_peak`, in MB of 10^6 bytes."""
    if _STATUS.exists():
        # Not ru_maxrss: on Linux a child's value starts with its parent's.
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e6


def reset_peak() -> bool:
    """Restart from the current resident size; returns whether the system supports it."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True
