"""Which executors are predicted to run a graph clearly faster than eager PyTorch, by their typical prices.

A runtime gains where operators are small: there most of the time goes into starting them. Price lists know
how long a start takes and what a runtime fuses, not how good its kernels are. How well they predict what
wins is in docs/measuring.md, "Installed runtimes by default".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchrlopt import _C, executor_table
from torchrlopt.executors import registry
from torchrlopt.machine.cost import cost_model

LEAST_US = 1000.0
"""Graphs that eager PyTorch is predicted to run in less stay there: nothing so small was measured."""


_THREADS = 1
"""For which graphs are priced, whatever PyTorch has: the bounds were chosen with one. With more threads
arithmetic costs less and starting an operator does not, so that nearly every network would be taken for one
of small operators; what wins there was not measured."""

RUNTIMES = tuple(row.name for row in executor_table.ROWS if row.clearly_below)
"""Those of which it may be predicted."""


def predicted_winners(graph: _C.Graph, sizes: Mapping[str, int], device_type: str) -> tuple[str, ...]:
    """The installed executors that `executor="default"` tries before eager PyTorch, the cheapest first.

    Args:
        graph: before any substitution.
        sizes: example sizes of its symbols.
        device_type: where its tensors are, "cpu" or "cuda".
    """
    installed = [
        name
        for name in registry.available(device_type)
        if name in RUNTIMES and not (sizes and registry.row(name).is_slow_with_new_sizes)
    ]
    return cheap(price_shares(graph, sizes, installed)) if installed else ()


def cheap(shares: Mapping[str, float]) -> tuple[str, ...]:
    """The executors whose share is at most what their row says, the cheapest first.

    Args:
        shares: see `price_shares`.
    """
    found = [name for name, share in shares.items() if share <= registry.row(name).clearly_below]
    return tuple(sorted(found, key=shares.__getitem__))


def price_shares(graph: _C.Graph, sizes: Mapping[str, int], names: Sequence[str]) -> dict[str, float]:
    """Prices of a call on the CPU in other executors, as shares of that in eager PyTorch, by name.

    They are typical prices, also where some are measured: those of one executor alone would tip the scales.

    Args:
        graph: before any substitution.
        sizes: example sizes of its symbols.
        names: of the executors.

    Returns:
        Nothing where eager PyTorch takes less than `LEAST_US`.
    """
    eager_us = _price(graph, sizes, executor_table.BASELINE)
    if eager_us < LEAST_US:
        return {}
    return {name: _price(graph, sizes, name) / eager_us for name in names}


def price_ratio(graph: _C.Graph, sizes: Mapping[str, int], name: str, other: str) -> float:
    """The typical price of a call on the CPU in one executor, as a multiple of that in another.

    Args:
        graph: before any substitution.
        sizes: example sizes of its symbols.
        name: of the first.
        other: of the second.
    """
    return _price(graph, sizes, name) / _price(graph, sizes, other)


def _price(graph: _C.Graph, sizes: Mapping[str, int], executor: str) -> float:
    """Of a call, in microseconds."""
    us = cost_model(executor, sizes=sizes, threads=_THREADS).total(graph)["time_us"]
    return float(us) + registry.row(executor).crossing_us
