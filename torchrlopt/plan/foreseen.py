"""Which executors are foreseen to run a graph clearly faster than eager PyTorch, by their typical prices.

A runtime gains where operators are small: there PyTorch's calls, and its convolutions of few channels, take
as long as what they compute. What the price lists say of this is little, but goes with what was measured, see
"Installed runtimes by default" in docs/measuring.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchrlopt import _C, executor_table
from torchrlopt.executors import registry
from torchrlopt.machine.cost import cost_model

LEAST_US = 1000.0
"""Graphs that eager PyTorch is foreseen to run in less stay there: nothing so small was measured."""


def foreseen(graph: _C.Graph, sizes: Mapping[str, int], device_type: str) -> tuple[str, ...]:
    """The installed executors that `executor="default"` tries before eager PyTorch, the cheapest first.

    Args:
        graph: before any substitution.
        sizes: example sizes of its symbols.
        device_type: where its tensors are, "cpu" or "cuda".
    """
    names = [
        name
        for name in registry.available(device_type)
        if device_type == "cpu" and registry.row(name).clearly_below
    ]
    if not names:
        return ()
    eager_us = _price(graph, executor_table.BASELINE, sizes, device_type)
    if eager_us < LEAST_US:
        return ()
    prices = {name: _price(graph, name, sizes, device_type) for name in names}
    found = [name for name in names if prices[name] <= registry.row(name).clearly_below * eager_us]
    return tuple(sorted(found, key=prices.__getitem__))


def _price(graph: _C.Graph, executor: str, sizes: Mapping[str, int], device_type: str) -> float:
    """Of a call, in microseconds.

    Typical prices, also where some are measured: those of one executor alone would tip the scales.
    """
    model = cost_model(executor, device_type, sizes)
    return float(model.total(graph)["time_us"]) + registry.row(executor).crossing_us
