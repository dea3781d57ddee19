"""Builds a cost model's table from stored prices, and factors for nodes that were never timed.

The cost model looks a node up by its context (the node among its neighbours) first, then by the node alone.
If neither is found, it uses the analytic price times the ratio of measured to analytic time for that
operator. Without these factors, a search would prefer nodes that the analytic model underestimates.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from torchrlopt.machine.cost.store import Price

_MIN_NODES = 3  # distinct nodes required for an operator's own factor
_MAX_SCALE = 30.0


def table(prices: Iterable[Price]) -> dict[int, float]:
    """Return microseconds by key; a key denotes a context or a node alone.

    The price of a node alone is the mean over its contexts. Contexts in which it is fused into another node's
    kernel are ignored, unless there are no others.
    """
    found: dict[int, float] = {}
    contexts: dict[int, list[Price]] = defaultdict(list)
    for price in prices:
        found[price.context] = price.us
        contexts[price.own].append(price)
    for own, each in contexts.items():
        working = [price for price in each if price.us > 0] or each
        weight = sum(price.num_graphs for price in working)
        found[own] = sum(price.us * price.num_graphs for price in working) / weight
    return found


def scales(prices: Iterable[Price], cost_class: Mapping[str, str]) -> dict[str, float]:
    """Return factors on the analytic price by operator: the median ratio of measured to analytic.

    Args:
        prices: the measured prices.
        cost_class: class of every operator; an operator with too few nodes uses the factor of its class, or
            else of all operators.
    """
    working = [price for price in prices if price.us > 0 and price.analytic_us > 0]
    by_op = _medians(working, lambda price: price.op)
    by_class = _medians(working, lambda price: cost_class.get(price.op, ""))
    everything = _medians(working, lambda price: "")
    found = {}
    for op, kind in cost_class.items():
        factor = by_op.get(op, by_class.get(kind, everything.get("", 1.0)))
        found[op] = min(max(factor, 1 / _MAX_SCALE), _MAX_SCALE)
    return found


def _medians(prices: Iterable[Price], group: Callable[[Price], str]) -> dict[str, float]:
    """Return the median ratio of measured to analytic (in log space) of each group with enough nodes."""
    ratios: dict[str, dict[int, float]] = defaultdict(dict)
    for price in prices:
        ratios[group(price)][price.own] = math.log(price.us / price.analytic_us)
    return {
        name: math.exp(statistics.median(each.values()))
        for name, each in ratios.items()
        if len(each) >= _MIN_NODES
    }
