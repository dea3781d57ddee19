"""From stored prices to the table of a cost model.

A node is looked up among its neighbours first, then on its own; what was never timed is priced by the
analytic model, brought to the level of what was: without that, a search would run after whatever the model
thinks too cheap.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from torchrlopt.machine.cost.store import Price

_MIN_NODES = 3  # distinct nodes of an operator from which its factor is taken
_MAX_SCALE = 30.0


def table(prices: Iterable[Price]) -> dict[int, float]:
    """Microseconds by key, contexts and nodes on their own alike.

    A node on its own costs the mean of its contexts, those left out in which another kernel does its work.
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
    """Factors on the analytic price by operator: the median of measured over analytic.

    Args:
        prices: what was measured.
        cost_class: class of every operator; an operator without enough nodes of its own takes the factor of
            its class, then that of all.
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
    """Median (of the logarithm) of measured over analytic, by group, of groups of enough distinct nodes."""
    ratios: dict[str, dict[int, float]] = defaultdict(dict)
    for price in prices:
        ratios[group(price)][price.own] = math.log(price.us / price.analytic_us)
    return {
        name: math.exp(statistics.median(each.values()))
        for name, each in ratios.items()
        if len(each) >= _MIN_NODES
    }
