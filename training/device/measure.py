"""Measure the device before a run starts: the probe, and node times of some models."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from baselines.models import NAMES, build
from torchrlopt import _C
from torchrlopt.agent.latency import LatencyModel, Parts, parts_of
from torchrlopt.capture.job import graph_of
from torchrlopt.errors import RlOptError
from torchrlopt.machine.cost import machine_profile, profile_store
from torchrlopt.machine.cost.probe import probe_device
from torchrlopt.machine.device import fingerprint
from torchrlopt.machine.profiling import profile, run_times, trace, variant
from torchrlopt.substitutions import load_library
from training.device.prices import Prices, cost_of, measured_prices
from training.progress import progress_bar

logger = logging.getLogger("torchrlopt")

RUN_S = 0.5  # seconds of running per graph
MAX_WALK = 32


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


def latency_of(
    device: str, executor: str, models: Sequence[str], prices: Prices, graphs: int
) -> tuple[LatencyModel, dict[str, float]]:
    """Run some variants of each model and fit a latency model to their times.

    Args:
        device: "cpu" or "cuda".
        executor: runs the graphs.
        models: names in the suite; at least one.
        prices: of the cost model to be corrected.
        graphs: per model.

    Returns:
        The latency model and its quality: error and rank correlation on models that it was not fitted to (on
        its own graphs if there is only one model), together with those of the cost model alone.
    """
    where, cost, library = torch.device(device), cost_of(prices), load_library()
    samples: dict[str, list[tuple[Parts, float]]] = {}
    with progress_bar() as progress:
        bar = progress.add_task("", total=len(models) * graphs)
        for name in models:
            progress.update(bar, description=f"running {name}")
            source = trace(*_built(name, where))[0]
            original = source.program.graph
            plan = _C.search(original, library, cost, searcher="greedy", budget_ms=5000)["steps"]
            for number in range(graphs):
                graph = variant(original, library, plan, number, MAX_WALK)[0] if number else original
                lowered = source.lower(graph, executor)
                run_us = run_times([lowered], source.inputs, source.device, RUN_S, min_rounds=5)[0]
                samples.setdefault(name, []).append((parts_of(graph, cost), run_us))
                progress.advance(bar)
    return _fitted([each for own in samples.values() for each in own]), _quality(samples)


def _fitted(samples: Sequence[tuple[Parts, float]]) -> LatencyModel:
    return LatencyModel.fit([parts for parts, _ in samples], [us for _, us in samples])


def _quality(samples: Mapping[str, Sequence[tuple[Parts, float]]]) -> dict[str, float]:
    """Mean relative error and mean Kendall correlation within a model, with and without the latency model."""
    from scipy import stats

    errors: dict[str, list[float]] = {"plain": [], "learned": []}
    ranks: dict[str, list[float]] = {"plain": [], "learned": []}
    for name, own in samples.items():
        others = [each for other, those in samples.items() if other != name for each in those]
        models = {"plain": LatencyModel(), "learned": _fitted(others or own)}
        measured = [us for _, us in own]
        for kind, model in models.items():
            expected = [model.latency_us(parts) for parts, _ in own]
            errors[kind] += [abs(a - b) / b for a, b in zip(expected, measured, strict=True)]
            ranks[kind].append(float(stats.kendalltau(expected, measured).statistic))
    quality = {f"{kind}_error": statistics.fmean(each) for kind, each in errors.items()}
    return quality | {f"{kind}_kendall": statistics.fmean(each) for kind, each in ranks.items()}
