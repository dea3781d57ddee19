"""What a choice of calls costs in time and error, kept up to date while single calls change.

Time and squared error are sums over calls and over the values between them. What a change adds depends on the
values that the changed calls read and compute, and on who else reads those.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from torch import fx

from torchrlopt.executors.lowering.fx_values import static_shape
from torchrlopt.precision.sensitivity import Sensitivities

_CONVERTED_PER_US = 8_000.0
"""Elements that one thread converts in a microsecond: a read of four bytes and a write of two, in cache."""

_CONVERSION_US = 1.0
"""Overhead of the call that converts."""


@dataclasses.dataclass(frozen=True)
class Times:
    """Time of each call, in microseconds.

    Attributes:
        high: in float32.
        low: in bfloat16; empty if none may be.
        quantised: with 8-bit integers, of those that may be.
    """

    high: Mapping[str, float]
    low: Mapping[str, float]
    quantised: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Integers(NamedTuple):
    """The change of whether a call is computed with 8-bit integers."""

    item: fx.Node


Flip: TypeAlias = fx.Node | Integers
"""A change of one item: of its type, or of whether it is computed with integers."""


class Values:
    """Who computes and who reads each value, and what rounding and conversion cost.

    Args:
        found: sensitivities.
        times: times of the calls.

    Attributes:
        found, times: as given.
        readers: of a value, with the errors of rounding it for them alone; None is a reader that stays exact.
        sources: of an item: the values that it reads.
    """

    def __init__(self, found: Sensitivities, times: Times) -> None:
        self.found, self.times = found, times
        self.readers: dict[fx.Node, dict[fx.Node | None, float]] = {}
        self.sources: dict[fx.Node, list[fx.Node]] = {}
        self._us: dict[fx.Node, float] = {}

    def read(self, source: fx.Node, reader: fx.Node | None, error: float) -> None:
        """Enter a reader of a value."""
        readers = self.readers.setdefault(source, {})
        if reader is not None and reader not in readers:
            self.sources.setdefault(reader, []).append(source)
        readers[reader] = readers.get(reader, 0.0) + error

    def of_item(self, item: fx.Node, is_low: bool, is_quantised: bool = False) -> tuple[float, float]:
        """Time of an item, and the error of rounding its weights, or both of its operands to integers."""
        if is_quantised:
            return self.times.quantised[item.name], self.found.quantised.get(item.name, 0.0)
        if not is_low:
            return self.times.high.get(item.name, 0.0), 0.0
        return self.times.low.get(item.name, 0.0), self.found.weights.get(item.name, 0.0)

    def of_value(self, source: fx.Node, is_low: bool, num_low: int, edge_error: float) -> tuple[float, float]:
        """Time of converting a value, and the error of rounding it.

        Args:
            source: that computes it.
            is_low: whether in bfloat16.
            num_low: how many readers are lowered.
            edge_error: of rounding the value for those.
        """
        is_converted = num_low < len(self.readers.get(source, ())) if is_low else num_low > 0
        us = self.conversion_us(source) if is_converted else 0.0
        return us, self.found.results.get(source.name, 0.0) if is_low else edge_error

    def conversion_us(self, source: fx.Node) -> float:
        """Time of converting a value once, for all who read it in the other type."""
        if source not in self._us:
            self._us[source] = _conversion_us(source)
        return self._us[source]


class State:
    """Which items are lowered, with the sums from which the effect of a change follows locally.

    Args:
        values: of the graph.
        items: all of them.
        low: what is changed: items in bfloat16, and those computed with integers.

    Attributes:
        low: what is changed.
        us: time of all items and conversions.
        error: squared.
    """

    def __init__(self, values: Values, items: Iterable[fx.Node], low: Iterable[Flip]) -> None:
        self._values = values
        self._num_low: dict[fx.Node, int] = collections.defaultdict(int)  # readers of each value
        self._edge_error: dict[fx.Node, float] = collections.defaultdict(float)
        self.low: dict[Flip, None] = {}  # in order
        self.us = sum(values.of_item(each, False)[0] for each in items)
        self.error = 0.0
        self.flip(list(low))

    def change(self, flipped: Iterable[Flip]) -> tuple[float, float]:
        """What changes in time and squared error by these changes."""
        values, low = self._values, self.low
        us = error = 0.0
        touched: dict[fx.Node, list[float]] = {}
        turned = set()
        all_flipped = dict.fromkeys(flipped)
        for item in dict.fromkeys(each.item if isinstance(each, Integers) else each for each in all_flipped):
            integers, is_low = Integers(item), item in low
            is_quantised = integers in low
            new = values.of_item(
                item, is_low ^ (item in all_flipped), is_quantised ^ (integers in all_flipped)
            )
            old = values.of_item(item, is_low, is_quantised)
            us, error = us + new[0] - old[0], error + new[1] - old[1]
            if item not in all_flipped:
                continue
            sign = -1 if is_low else 1
            turned.add(item)
            touched.setdefault(item, [0, 0.0])
            for source in values.sources.get(item, ()):
                sums = touched.setdefault(source, [0, 0.0])
                sums[0] += sign
                sums[1] += sign * values.readers[source][item]
        for source, (count, added) in touched.items():
            num_low, edge_error, is_low = self._num_low[source], self._edge_error[source], source in low
            old = values.of_value(source, is_low, num_low, edge_error)
            is_low ^= source in turned
            new = values.of_value(source, is_low, num_low + int(count), edge_error + added)
            us, error = us + new[0] - old[0], error + new[1] - old[1]
        return us, error

    def flip(self, flipped: Sequence[Flip]) -> set[Flip]:
        """Make these changes; returns the changes that have other effects since."""
        us, error = self.change(flipped)
        self.us, self.error = self.us + us, self.error + error
        stale: set[Flip | None] = set()
        for item in flipped:
            if isinstance(item, Integers):
                stale.update((item, item.item))
                if item in self.low:
                    del self.low[item]
                else:
                    self.low[item] = None
                continue
            sign = -1 if item in self.low else 1
            readers = self._values.readers.get(item, {})
            stale.update((item, Integers(item), *readers))
            for source in self._values.sources.get(item, ()):
                self._num_low[source] += sign
                self._edge_error[source] += sign * self._values.readers[source][item]
                stale.update((source, *self._values.readers[source]))
            if sign > 0:
                self.low[item] = None
            else:
                del self.low[item]
        return {each for each in stale if each is not None}


def _conversion_us(node: fx.Node) -> float:
    shape = static_shape(node)
    if shape is None:
        value = node.meta.get("val")
        first = value[0] if isinstance(value, tuple | list) and value else value
        shape = tuple(int(dim) for dim in getattr(first, "shape", ()) if isinstance(dim, int))
    return _CONVERSION_US + math.prod(shape) / _CONVERTED_PER_US
