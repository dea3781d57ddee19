"""Makes the cost model that a search uses for an executor on this machine.

It takes the best prices that there are: measured times of the nodes (`torchrlopt profile`), else rates and
overheads that the probe found (`torchrlopt device`), else constants of a typical machine. Nothing is measured
here, so on a machine where neither command was run, plans follow the constants.
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

# Taken from matrix products and streaming kernels on Zen 4 server cores. They fix the ratio of arithmetic to
# memory to dispatch; plans depend on ratios only.
_FLOPS_PER_US_AND_THREAD = 120e3
_CACHE_BYTES_PER_US_AND_THREAD = 50e3

# Kernels of cuDNN and cuBLAS in bfloat16 on an H100, one image: 3.4 us with 256 terms to a sum, 11.5 with
# 4,608, whatever the sizes beside that. Launches alone: 1.5 us of a small kernel, 3.3 of a small product.
# A convolution with two results for each of 88 single channels is 88 launches, of which some run beside each
# other (86 us); for one of 44 channels both operands and the result are padded (8 to 13 us); a part of an
# image's channels takes 2.2 us to be copied.
# They are what eager PyTorch's own calls take (baselines/results/gpu_kernels_bfloat16_h100.csv, nasnet_a);
# of the other executors, and other devices and dtypes, they are assumed.
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
        device_type: "cpu" or "cuda", where the user's inputs live.
        probe: what the probe found on the device; without it, those of a typical machine.
        threads: of the kernels on a CPU; None for those that torch has now.
        is_recorded: whether calls are replayed as CUDA graphs, so that nothing waits for Python.

    Returns:
        Rates per microsecond and overheads in microseconds.

    Raises:
        UnsupportedError: no prices are known for the executor.
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
        # Launches bind there: eager CUDA kernels cost about 5 us each to dispatch, products 10.
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
    """The analytic cost model of a typical machine: the same plan everywhere.

    Args:
        executor: name of the executor.
        device_type: "cpu" or "cuda".
        sizes: example sizes of symbols.
        threads: of the kernels on a CPU; None for those that torch has now.
    """
    return _C.CostModel(device_model(executor, device_type, threads=threads), sizes=dict(sizes or {}))


@dataclasses.dataclass(frozen=True)
class MachineProfile:
    """What is known about an executor on this machine.

    Attributes:
        executor: its name.
        device_type: "cpu" or "cuda".
        prices: measured prices.
        probe: what the probe found; None where it has not run.
        is_recorded: whether calls are replayed as CUDA graphs.
    """

    executor: str
    device_type: str
    prices: tuple[Price, ...] = ()
    probe: Mapping[str, Any] | None = None
    is_recorded: bool = False

    @property
    def digest(self) -> str:
        """Names what was measured: part of the key of plans, as `cuda_graphs` is; empty where nothing was."""
        if not self.prices and self.probe is None:
            return ""
        text = f"{digest_of(self.prices)} {json.dumps(self.probe, sort_keys=True)}"
        return hashlib.sha256(text.encode()).hexdigest()

    def cost_model(self, sizes: Mapping[str, int] | None = None) -> _C.CostModel:
        """Measured prices where there are any, else the analytic model brought to their level.

        Args:
            sizes: example sizes of symbols.
        """
        return _C.CostModel(self.device_model(), table(self.prices), self.factors(), dict(sizes or {}))

    def device_model(self) -> _C.DeviceModel:
        """Rates and overheads, those that the probe found where it has run."""
        return device_model(self.executor, self.device_type, self.probe, is_recorded=self.is_recorded)

    def factors(self) -> dict[str, float]:
        """On the analytic price of what was not measured, by operator."""
        return scales(self.prices, COST_CLASSES) if self.prices else {}


def machine_profile(executor: str, device: torch.device, store: ProfileStore | None = None) -> MachineProfile:
    """What a profile knows about an executor on a device; nothing is measured here.

    Args:
        executor: name of the executor.
        device: where the user's inputs live.
        store: the profile; None for that of this user.
    """
    store = store if store is not None else profile_store()
    where = fingerprint(device)
    prices = tuple(store.prices(where, executor).values())
    return MachineProfile(executor, device.type, prices, store.probe(where))


def profile_store() -> ProfileStore:
    """The profile of this user."""
    return _store_in(str(default_directory()))


@functools.cache
def _store_in(_: str) -> ProfileStore:
    return ProfileStore()
