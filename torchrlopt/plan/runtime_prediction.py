"""Predicts which executors run a graph clearly faster than eager PyTorch, from typical prices.

A runtime wins on graphs of small operators, where launch overhead dominates. The cost model knows launch
overheads and what a runtime fuses, but not the quality of its kernels. For the accuracy of the predictions
see docs/measuring.md, "Installed runtimes by default".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchrlopt import _C, executor_table
from torchrlopt.executors import registry
from torchrlopt.machine.cost import cost_model

LEAST_US = 1000.0
"""Graphs with a lower predicted eager time stay in eager PyTorch: nothing that small was measured."""


_THREADS = 1
"""Number of threads assumed by the predictions, regardless of PyTorch's setting: the bounds were chosen with
one. With more threads, arithmetic becomes cheaper but launch overhead does not, so nearly every network would
look like one of small operators; what wins there was not measured."""

RUNTIMES = tuple(row.name for row in executor_table.ROWS if row.clearly_below)
"""Executors that may be predicted to win."""


def predicted_winners(graph: _C.Graph, sizes: Mapping[str, int], device_type: str) -> tuple[str, ...]:
    """Return the installed executors that `executor="default"` tries before eager PyTorch, cheapest first."""
    installed = [
        name
        for name in registry.available(device_type)
        if name in RUNTIMES and not (sizes and registry.row(name).is_slow_with_new_sizes)
    ]
    return cheap(price_shares(graph, sizes, installed)) if installed else ()


def cheap(shares: Mapping[str, float]) -> tuple[str, ...]:
    """Return the executors whose share is at most the bound in their row, cheapest first."""
    found = [name for name, share in shares.items() if share <= registry.row(name).clearly_below]
    return tuple(sorted(found, key=shares.__getitem__))


def price_shares(graph: _C.Graph, sizes: Mapping[str, int], names: Sequence[str]) -> dict[str, float]:
    """Return predicted CPU costs of a call, as fractions of the eager PyTorch cost, by executor name.

    Typical prices are used even if measured ones exist: measurements of only one executor would bias the
    comparison.

    Returns:
        The fractions; empty if eager PyTorch takes less than `LEAST_US`.
    """
    eager_us = _price(graph, sizes, executor_table.BASELINE)
    if eager_us < LEAST_US:
        return {}
    return {name: _price(graph, sizes, name) / eager_us for name in names}


def price_ratio(graph: _C.Graph, sizes: Mapping[str, int], name: str, other: str) -> float:
    """Return the ratio of the typical CPU costs of a call in two executors."""
    return _price(graph, sizes, name) / _price(graph, sizes, other)


def _price(graph: _C.Graph, sizes: Mapping[str, int], executor: str) -> float:
    """Return the predicted time of a call, in microseconds."""
    us = cost_model(executor, sizes=sizes, threads=_THREADS).total(graph)["time_us"]
    return float(us) + registry.row(executor).crossing_us
