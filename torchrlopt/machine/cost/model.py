"""Builds the cost model that a search uses for an executor on this machine.

It uses the best prices available: measured times of nodes (`torchrlopt profile`), else rates and overheads
found by the probe (`torchrlopt device`), else constants of a typical machine. Nothing is measured here, so
plans use the constants on a machine where neither command was run.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch

from torchrlopt import _C, executor_table
from torchrlopt.errors import UnsupportedError
from torchrlopt.machine.cost.prices import scales, table
from torchrlopt.machine.cost.store import Price, ProfileStore, digest_of
from torchrlopt.machine.device import fingerprint
from torchrlopt.storage.directory import default_directory

#: Cost class of every operator.
COST_CLASSES: dict[str, str] = {str(op["name"]): str(op["cost_class"]) for op in _C.ops()}

# Taken from matrix products and streaming kernels on Zen 4 server cores. They set the ratios of arithmetic,
# memory and dispatch; plans depend on these ratios only.
_FLOPS_PER_US_AND_THREAD = 120e3
_CACHE_BYTES_PER_US_AND_THREAD = 50e3

# cuDNN and cuBLAS kernels in bfloat16 on an H100, one image: 3.4 us for sums of 256 terms, 11.5 us for 4,608,
# independent of the other sizes. Launch only: 1.5 us for a small kernel, 3.3 us for a small matrix product. A
# depthwise convolution of 88 channels with multiplier 2 makes 88 launches, some of them concurrent (86 us); a
# convolution of 44 channels pads both operands and the result (8 to 13 us); copying a slice of an image's
# channels takes 2.2 us. These are times of eager PyTorch (baselines/results/gpu_kernels_bfloat16_h100.csv,
# nasnet_a); for other executors, devices and dtypes they are assumed.
_CUDNN_US = {"step_us": 0.002, "group_us": 1.0, "padding_us": 9.0, "cut_us": 2.2}
_RECORDED_US = {"launch_us": 1.5, "contraction_launch_us": 3.0, "view_us": 0.0}


def device_model(
    executor: str,
    device_type: str = "cpu",
    probe: Mapping[str, Any] | None = None,
    threads: int | None = None,
    is_recorded: bool = False,
) -> _C.DeviceModel:
    """Rates and overheads of an executor on a device.

    Args:
        executor: name of the executor that will run the graph.
        device_type: "cpu" or "cuda", the device of the user's inputs.
        probe: results of the probe on the device; None uses the constants of a typical machine.
        threads: of the kernels on a CPU; None for those that torch has now.
        is_recorded: whether calls are replayed as CUDA graphs, without Python overhead.

    Returns:
        Rates per microsecond and overheads in microseconds.

    Raises:
        UnsupportedError: the executor is unknown.
    """
    row = executor_table.row_of(executor)
    if row is None:
        raise UnsupportedError(
            "no prices for this executor",
            expected=f"one of {', '.join(executor_table.names())}",
            got=executor,
        )
    model = _C.DeviceModel()
    if device_type == "cuda":
        # Launch overhead dominates: dispatching an eager CUDA kernel costs about 5 us, a matrix product 10.
        model.flops_per_us = 20e6
        model.bytes_per_us = 1.5e6
        model.cache_bytes_per_us = 4e6
        model.launch_us = 5.0
        model.contraction_launch_us = 10.0
        model.view_us = 1.5
        for name, value in _CUDNN_US.items():
            setattr(model, name, value)
    else:
        threads = threads or torch.get_num_threads()
        model.flops_per_us = _FLOPS_PER_US_AND_THREAD * threads
        model.cache_bytes_per_us = _CACHE_BYTES_PER_US_AND_THREAD * threads
    for name, value in (probe or {}).get("model", {}).items():
        if isinstance(getattr(model, name, None), int | float):
            setattr(model, name, float(value))
    if is_recorded and device_type == "cuda":
        for name, value in _RECORDED_US.items():
            setattr(model, name, value)
    for name, value in row.prices.items():
        if device_type == "cpu" or isinstance(value, bool):
            setattr(model, name, value)
    return model


def cost_model(
    executor: str,
    device_type: str = "cpu",
    sizes: Mapping[str, int] | None = None,
    threads: int | None = None,
) -> _C.CostModel:
    """Return the analytic cost model of a typical machine, which gives the same plan everywhere."""
    return _C.CostModel(device_model(executor, device_type, threads=threads), sizes=dict(sizes or {}))


@dataclasses.dataclass(frozen=True)
class MachineProfile:
    """The prices known for an executor on this machine.

    `probe` has the results of the probe, if it has run; with `is_recorded`, calls are replayed as CUDA
    graphs.
    """

    executor: str
    device_type: str
    prices: tuple[Price, ...] = ()
    probe: Mapping[str, Any] | None = None
    is_recorded: bool = False

    @property
    def digest(self) -> str:
        """Hash of the measurements, for the plan store's key; empty if nothing was measured."""
        if not self.prices and self.probe is None:
            return ""
        text = f"{digest_of(self.prices)} {json.dumps(self.probe, sort_keys=True)}"
        return hashlib.sha256(text.encode()).hexdigest()

    def cost_model(self, sizes: Mapping[str, int] | None = None) -> _C.CostModel:
        """Return a cost model of measured prices, and of scaled analytic prices for unmeasured nodes."""
        return _C.CostModel(self.device_model(), table(self.prices), self.factors(), dict(sizes or {}))

    def device_model(self) -> _C.DeviceModel:
        """Return rates and overheads, from the probe if it has run."""
        return device_model(self.executor, self.device_type, self.probe, is_recorded=self.is_recorded)

    def factors(self) -> dict[str, float]:
        """Return factors on the analytic prices of unmeasured nodes, by operator."""
        return scales(self.prices, COST_CLASSES) if self.prices else {}


def machine_profile(executor: str, device: torch.device, store: ProfileStore | None = None) -> MachineProfile:
    """Return the stored prices of an executor on a device; nothing is measured here."""
    store = store if store is not None else profile_store()
    where = fingerprint(device)
    prices = tuple(store.prices(where, executor).values())
    return MachineProfile(executor, device.type, prices, store.probe(where))


def profile_store() -> ProfileStore:
    """Return this user's profile store."""
    return _store_in(str(default_directory()))


@functools.cache
def _store_in(_: str) -> ProfileStore:
    return ProfileStore()
