"""Measure the device before a run starts: the probe, and node times of some models."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch

from baselines.models import NAMES, build
from torchrlopt import _C
from torchrlopt.capture.job import graph_of
from torchrlopt.errors import RlOptError
from torchrlopt.machine.cost import machine_profile, profile_store
from torchrlopt.machine.cost.probe import probe_device
from torchrlopt.machine.device import fingerprint
from torchrlopt.machine.profiling import profile, trace
from torchrlopt.substitutions import load_library
from training.device.prices import Prices, measured_prices
from training.progress import progress_bar

logger = logging.getLogger("torchrlopt")


def check_names(models: Sequence[str]) -> None:
    """Raise ValueError for a model that is not in the suite."""
    for name in models:
        if name not in NAMES:
            raise ValueError(f"no model named {name!r}; choose from: {', '.join(NAMES)}")


def graphs_of(models: Sequence[str]) -> dict[str, _C.Graph]:
    """Inference graphs of models of the suite, by name."""
    found = {name: graph_of(*build(name)) for name in models}
    torch._dynamo.reset()  # frees the models
    return found


def _built(name: str, where: torch.device) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    """A model of the suite and its inputs, on a device."""
    model, inputs = build(name)
    moved = tuple(each.to(where) if isinstance(each, torch.Tensor) else each for each in inputs)
    return model.to(where), moved


def measure(device: str, executor: str, models: Sequence[str], seconds: float) -> Prices | None:
    """Probe the device and time the nodes of models; store everything in this user's profile.

    Args:
        device: "cpu" or "cuda".
        executor: runs the models.
        models: names in the suite.
        seconds: per model.

    Returns:
        Prices in the form used by planning; None if the device is missing.
    """
    where = torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        logger.warning("there is no CUDA device: the costs of a typical one are learnt")
        return None
    store, key = profile_store(), fingerprint(where)
    with progress_bar() as progress:
        bar = progress.add_task("probing the device", total=1 + len(models))
        if store.probe(key) is None:
            store.put_probe(key, probe_device(where))
        progress.advance(bar)
        for name in models:
            progress.update(bar, description=f"timing {name}")
            for source in trace(*_built(name, where)):
                try:
                    profile(source, executor, load_library(), store, seconds)
                except RlOptError as error:
                    logger.warning("%s cannot be timed: %s", name, error)
            progress.advance(bar)
    return measured_prices(machine_profile(executor, where, store))
