"""Probes a device and converts the results to the parameters of the analytic cost model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from torchrlopt import _C
from torchrlopt.errors import UnsupportedError
from torchrlopt.machine.cost.cuda_probe import probe_cuda

# A blocked matrix product reaches about this fraction of the peak multiply-add rate.
_PRODUCT_SHARE = 0.8
_CALLS, _REPEATS = 200, 7


def probe_device(device: torch.device) -> dict[str, Any]:
    """Measure a device; takes under two seconds on a quiet machine.

    Returns:
        JSON-able: "model", the parameters of `DeviceModel` by name; "raw", the underlying measurements;
        "seconds".

    Raises:
        UnsupportedError: the device cannot be probed; the message says why.
    """
    start = time.perf_counter()
    found = _probe_cuda(device) if device.type == "cuda" else _probe_cpu()
    return {**found, "seconds": time.perf_counter() - start}


def _probe_cpu() -> dict[str, Any]:
    raw = _C.probe_cpu(torch.get_num_threads())
    # Middle sizes are typical of activations; the largest exceeds a core's private caches.
    cached, memory = raw["bandwidth"][2], raw["bandwidth"][-1]
    overheads = _dispatch_us()
    model = {
        "flops_per_us": raw["flops_per_us"][-1] * _PRODUCT_SHARE,
        "bytes_per_us": _both_ways(memory),
        "cache_bytes_per_us": max(_both_ways(cached), _both_ways(memory)),
        **overheads,
    }
    return {"model": model, "raw": raw}


def _both_ways(point: dict[str, float]) -> float:
    return max(point["copy_bytes_per_us"], point["triad_bytes_per_us"])


def _probe_cuda(device: torch.device) -> dict[str, Any]:
    found = probe_cuda(device.index or 0)
    if found.status != "ok":
        raise UnsupportedError(
            "the CUDA device cannot be probed", got=f"{found.status}: {found.message}", where=str(device)
        )
    raw = found.results
    model = {
        "flops_per_us": raw["flops_per_us"] * _PRODUCT_SHARE,
        "bytes_per_us": raw["copy_bytes_per_us"],
        "cache_bytes_per_us": raw["cache_bytes_per_us"],
        "cache_bytes": raw["l2_bytes"],
        # PyTorch's dispatch adds to the driver's launch overhead; kernels run asynchronously.
        "launch_us": max(raw["launch_us"], _dispatch_us()["launch_us"]),
    }
    return {"model": model, "raw": raw}


def _dispatch_us() -> dict[str, float]:
    """Measure the dispatch overhead of eager PyTorch from Python, with almost empty calls."""
    x, weight, bias = torch.ones(4, 4), torch.ones(4, 4), torch.ones(4)
    with torch.no_grad():
        found = {
            "launch_us": _call_us(lambda: torch.add(x, x)),
            "view_us": _call_us(lambda: x.view(16)),
            "contraction_launch_us": _call_us(lambda: torch.addmm(bias, x, weight)),
        }
        if torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight)
            linear = torch.ops.mkldnn._linear_pointwise.default
            found["contraction_launch_us"] = _call_us(lambda: linear(x, packed, bias, "none", [], ""))
    return found


def _call_us(call: Callable[[], object]) -> float:
    """Return the microseconds of one call: the median over a few loops."""
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        for _ in range(_CALLS):
            call()
        times.append((time.perf_counter() - start) / _CALLS * 1e6)
    return statistics.median(times)
