"""Prices: which cost model the search uses for an executor on this machine."""

from __future__ import annotations

import torch

from torchrlopt import _C
from torchrlopt.errors import UnsupportedError

# Taken from matrix products and streaming kernels on Zen 4 server cores. They fix the ratio of arithmetic to
# memory to dispatch; plans depend on ratios only.
_FLOPS_PER_US_AND_THREAD = 120e3
_CACHE_BYTES_PER_US_AND_THREAD = 50e3


# How executors differ from eager PyTorch on the same kernels: none of them runs Python between two calls.
_EXECUTORS: dict[str, dict[str, float | bool]] = {
    "eager": {},
    "inductor": {"launch_us": 0.5, "contraction_launch_us": 8.0, "view_us": 0.0, "views_are_free": True},
    "onnxruntime": {"launch_us": 1.0, "contraction_launch_us": 3.0, "view_us": 0.5},
}


def device_model(executor: str, device_type: str = "cpu") -> _C.DeviceModel:
    """Rates and overheads of an executor on a device.

    Args:
        executor: name of the executor that will run the graph.
        device_type: "cpu" or "cuda", where the user's inputs live.

    Returns:
        Rates per microsecond and overheads in microseconds.

    Raises:
        UnsupportedError: no prices are known for the executor.
    """
    if executor not in _EXECUTORS:
        raise UnsupportedError(
            "no prices for this executor", expected=f"one of {', '.join(_EXECUTORS)}", got=executor
        )
    model = _C.DeviceModel()
    for name, value in _EXECUTORS[executor].items():
        setattr(model, name, value)
    if device_type == "cuda":
        # Launches bind there: eager CUDA kernels cost about 5 us each to dispatch, products 10.
        model.flops_per_us = 20e6
        model.bytes_per_us = 1.5e6
        model.cache_bytes_per_us = 4e6
        model.launch_us = 5.0
        model.contraction_launch_us = 10.0
        model.view_us = 1.5
        return model
    threads = torch.get_num_threads()
    model.flops_per_us = _FLOPS_PER_US_AND_THREAD * threads
    model.cache_bytes_per_us = _CACHE_BYTES_PER_US_AND_THREAD * threads
    return model


def cost_model(executor: str, device_type: str = "cpu") -> _C.CostModel:
    """The analytic cost model of `device_model`."""
    return _C.CostModel(device_model(executor, device_type))
