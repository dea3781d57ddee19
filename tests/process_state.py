"""The process-wide state as one comparable value."""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

_PLAIN = (bool, int, float, str, tuple, list, set, frozenset, dict)


def process_state() -> dict[str, Any]:
    """State as seen by the calling thread."""
    flags = torch.backends
    return {
        "threads": torch.get_num_threads(),
        "interop threads": torch.get_num_interop_threads(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "mkldnn": (flags.mkldnn.enabled, flags.mkldnn.deterministic),
        "anomaly": torch.is_anomaly_enabled(),
        "torch random": torch.get_rng_state().numpy().tobytes(),
        "numpy random": repr(np.random.get_state(legacy=True)),
        "python random": random.getstate(),
        "numpy errors": np.geterr(),
        "environment": dict(os.environ),
        "warnings": [each[:3] for each in warnings.filters],
        "logging": (logging.root.manager.disable, logging.root.level, list(logging.root.handlers)),
        "collector": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "limits": (sys.getrecursionlimit(), sys.getswitchinterval()),
        "signals": {each: signal.getsignal(each) for each in signal.valid_signals()},
        "hooks": (sys.excepthook, threading.excepthook, sys.gettrace(), sys.getprofile()),
        "files": (sys.stdin, sys.stdout, sys.stderr, Path.cwd()),
        "path": list(sys.path),
        "umask": next(line for line in _status() if line.startswith("Umask")),
        "affinity": os.sched_getaffinity(0),
        "dynamo": _settings(torch._dynamo.config),
        "inductor": _settings(torch._inductor.config),
        "functorch": _settings(torch._functorch.config),
    }


def loggers() -> dict[str, Any]:
    """Level, disabled flag, filters and handlers of every existing logger."""
    found = {}
    for name, each in list(logging.root.manager.loggerDict.items()):
        if isinstance(each, logging.Logger):
            found[name] = (each.level, each.disabled, each.propagate, list(each.filters), list(each.handlers))
    return found


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Differences between entries that both have: pairs, in dictionaries by name."""
    found: dict[str, Any] = {}
    for name in sorted(before.keys() & after.keys()):
        one, other = before[name], after[name]
        if one != other:
            is_dict = isinstance(one, dict) and isinstance(other, dict)
            found[name] = _differing(one, other) if is_dict else (one, other)
    return found


def _differing(one: dict[Any, Any], other: dict[Any, Any]) -> dict[Any, Any]:
    names = sorted(one.keys() | other.keys(), key=str)
    return {name: (one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)}


def _settings(config: Any) -> dict[str, Any]:
    found = config.get_config_copy()
    return {name: value for name, value in found.items() if value is None or isinstance(value, _PLAIN)}


def _status() -> list[str]:
    return Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
