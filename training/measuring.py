"""What a run learns about the device before it begins: the probe, and the times of nodes of some models."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from baselines.models import NAMES, build
from torchrlopt import _C, module_graph
from torchrlopt.cost import machine_profile, profile_store
from torchrlopt.cost.probe import probe_device
from torchrlopt.device import fingerprint
from torchrlopt.errors import RlOptError
from torchrlopt.profiling import profile, trace
from torchrlopt.substitutions import load_library
from training.prices import Prices, measured_prices

logger = logging.getLogger("torchrlopt")


def check_names(models: Sequence[str]) -> None:
    """ValueError for a model that the suite does not have."""
    for name in models:
        if name not in NAMES:
            raise ValueError(f"no model named {name!r}; choose from: {', '.join(NAMES)}")


def graphs_of(models: Sequence[str]) -> dict[str, _C.Graph]:
    """Inference graphs of models of the suite, by name."""
    found = {}
    for name in models:
        torch._dynamo.reset()  # what differs between two models of one class would become dynamic
        found[name] = module_graph.graph_of(*build(name))
    torch._dynamo.reset()
    return found


def measure(device: str, executor: str, models: Sequence[str], seconds: float) -> Prices | None:
    """Probe the device and time the nodes of models; everything is kept in the profile of this user.

    Args:
        device: "cpu" or "cuda".
        executor: that runs the models.
        models: names in the suite.
        seconds: for each model.

    Returns:
        Prices as planning takes them; None where the device is not there.
    """
    where = torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        logger.warning("there is no CUDA device: the costs of a typical one are learnt")
        return None
    store, key = profile_store(), fingerprint(where)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        bar = progress.add_task("probing the device", total=1 + len(models))
        if store.probe(key) is None:
            store.put_probe(key, probe_device(where))
        progress.advance(bar)
        for name in models:
            progress.update(bar, description=f"timing {name}")
            model, inputs = build(name)
            model = model.to(where)
            moved = tuple(each.to(where) if isinstance(each, torch.Tensor) else each for each in inputs)
            for source in trace(model, moved):
                try:
                    profile(source, executor, load_library(), store, seconds)
                except RlOptError as error:
                    logger.warning("%s cannot be timed: %s", name, error)
            progress.advance(bar)
    return measured_prices(machine_profile(executor, where, store))
