"""Chooses which calls to lower: the least time whose predicted error is within a budget.

Time and squared error are sums over calls, plus those of the conversions between calls of different types. So
the choice is a knapsack with edges. Two starts (everything, and contractions only) are made exact, call by
call or region by region, in the order of error saved per time lost, until the budget is kept; then whatever
still fits is lowered again, the most time per error first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from torch import fx

from torchrlopt.executors.lowering.fx_values import static_shape
from torchrlopt.executors.precision.retyped import CONTRACTIONS, owner_of, passes_on
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
        low: in bfloat16.
    """

    high: Mapping[str, float]
    low: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Choice:
    """Calls that compute in bfloat16, and what is predicted of them.

    Attributes:
        lowered: their names.
        error: of the outputs, relative.
        us: time of all calls that may be lowered, and of conversions, in microseconds.
    """

    lowered: frozenset[str]
    error: float
    us: float


class Assignment:
    """The choice for one graph.

    Args:
        calls: that may be lowered, see `lowerable`.
        found: their sensitivities.
        times: their times.
    """

    def __init__(self, calls: Sequence[fx.Node], found: Sensitivities, times: Times) -> None:
        self._all = frozenset(calls)
        self._moves = [each for each in calls if passes_on(each)]
        self._items = [each for each in calls if not passes_on(each)]
        self._found, self._times = found, times
        self._readers: dict[fx.Node, dict[fx.Node | None, float]] = {}  # None: a reader that stays exact
        for item in self._items:
            for operand in item.all_input_nodes:
                source = self._source_of(operand)
                edges = self._readers.setdefault(source, {})
                error = found.edges.get((operand.name, item.name))
                if error is not None:
                    edges[item] = edges.get(item, 0.0) + error
        for source in {*self._readers, *self._items}:
            if self._has_exact_readers(source):
                self._readers.setdefault(source, {})[None] = 0.0
        self._us = {source: _conversion_us(source) for source in {*self._readers, *self._items}}
        self._sources = {
            item: {self._source_of(each) for each in item.all_input_nodes} & self._readers.keys()
            for item in self._items
        }
        self._regions = self._connected()

    @property
    def items(self) -> Collection[fx.Node]:
        """The calls that are chosen; moves follow them."""
        return self._items

    def effect_of(self, item: fx.Node, lowered: Collection[str]) -> tuple[float, float]:
        """Time that a call saves in bfloat16, and the squared error that it causes if these are lowered."""
        name = item.name
        saved = self._times.high.get(name, 0.0) - self._times.low.get(name, 0.0)
        if name not in lowered:
            return saved, 0.0
        found = self._found
        rounded = sum(
            self._readers[source].get(item, 0.0)
            for source in self._sources[item]
            if source.name not in lowered
        )
        return saved, found.weights.get(name, 0.0) + found.results.get(name, 0.0) + rounded

    def of_all(self) -> Choice:
        """Everything lowered."""
        return self._choice(set(self._items))

    def of(self, lowered: Collection[str]) -> Choice:
        """These calls lowered, by name."""
        return self._choice({each for each in self._items if each.name in lowered})

    def of_none(self) -> Choice:
        """Nothing lowered."""
        return self._choice(set())

    def within(self, budget: float) -> Choice:
        """Return the fastest choice found whose predicted error is at most `budget`."""
        contractions = {each for each in self._items if each.target in CONTRACTIONS}
        starts = (set(self._items), contractions)
        found = [self._choice(self._fitted(set(start), budget * budget)) for start in starts]
        return min((self.of_none(), *found), key=lambda each: each.us)

    # ---- graph

    def _source_of(self, node: fx.Node) -> fx.Node:
        """The call or input whose value this is, moved or not."""
        node = owner_of(node)
        while node in self._all and passes_on(node):
            node = owner_of(node.all_input_nodes[0])
        return node

    def _has_exact_readers(self, node: fx.Node) -> bool:
        for reader in node.users:
            if owner_of(reader) is node or (reader in self._all and passes_on(reader)):
                if self._has_exact_readers(reader):
                    return True
            elif reader not in self._all:
                return True
        return False

    def _connected(self) -> list[set[fx.Node]]:
        """Items that are no contractions, in groups that exchange values without one in between."""
        group: dict[fx.Node, set[fx.Node]] = {}
        for item in self._items:
            if item.target in CONTRACTIONS:
                continue
            joined = {item}
            for source in self._sources[item]:
                joined |= group.get(source, set())
            for each in joined:
                group[each] = joined
        return list({id(each): each for each in group.values()}.values())

    # ---- time and error

    def _of_item(self, item: fx.Node, lowered: Collection[fx.Node]) -> tuple[float, float]:
        if item not in lowered:
            return self._times.high.get(item.name, 0.0), 0.0
        return self._times.low.get(item.name, 0.0), self._found.weights.get(item.name, 0.0)

    def _of_value(self, source: fx.Node, lowered: Collection[fx.Node]) -> tuple[float, float]:
        """Time of converting a value, and the error of rounding it."""
        readers = self._readers.get(source, {})
        low = [each for each in readers if each is not None and each in lowered]
        if source in lowered:
            is_converted = len(low) < len(readers)
            return is_converted * self._us[source], self._found.results.get(source.name, 0.0)
        return bool(low) * self._us.get(source, 0.0), sum(readers[each] for each in low)

    def _totals(self, lowered: Collection[fx.Node]) -> tuple[float, float]:
        parts = [self._of_item(each, lowered) for each in self._items]
        parts += [self._of_value(each, lowered) for each in {*self._readers, *self._items}]
        return sum(us for us, _ in parts), sum(error for _, error in parts)

    def _change(self, flipped: Collection[fx.Node], lowered: set[fx.Node]) -> tuple[float, float]:
        """What changes in time and squared error if these items change their types."""
        values = {*flipped}.union(*(self._sources[each] for each in flipped))
        after = lowered.symmetric_difference(flipped)
        us = error = 0.0
        for sign, state in ((-1, lowered), (1, after)):
            for parts in (
                *(self._of_item(each, state) for each in flipped),
                *(self._of_value(each, state) for each in values),
            ):
                us, error = us + sign * parts[0], error + sign * parts[1]
        return us, error

    def _fitted(self, lowered: set[fx.Node], limit: float) -> set[fx.Node]:
        error = self._totals(lowered)[1]
        while error > limit and lowered:
            moves = [[each] for each in self._items if each in lowered]
            moves += [one for group in self._regions if (one := [each for each in group if each in lowered])]
            changes = [(move, *self._change(move, lowered)) for move in moves]
            saving = [each for each in changes if each[2] < 0]
            if not saving:
                return set()
            move, _, saved = min(saving, key=lambda each: _price(each[1], -each[2]))
            lowered.symmetric_difference_update(move)
            error += saved
        return self._filled(lowered, limit)

    def _filled(self, lowered: set[fx.Node], limit: float) -> set[fx.Node]:
        """Change single items as long as that saves time within the limit."""
        error = self._totals(lowered)[1]
        while True:
            changes = [([each], *self._change([each], lowered)) for each in self._items]
            fitting = [each for each in changes if each[1] < 0 and error + each[2] <= limit]
            if not fitting:
                return lowered
            move, _, added = min(fitting, key=lambda each: each[1] / max(each[2], 1e-30))
            lowered.symmetric_difference_update(move)
            error += added

    def _choice(self, lowered: set[fx.Node]) -> Choice:
        us, error = self._totals(lowered)
        names = {each.name for each in lowered} | set(self._moved(lowered))
        return Choice(frozenset(names), math.sqrt(max(error, 0.0)), us)

    def _moved(self, lowered: Collection[fx.Node]) -> Iterable[str]:
        """Views and copies of values move what their readers read: one conversion serves all of them."""
        low = set(lowered)
        for move in reversed(self._moves):  # readers before what they read
            readers = _readers_of(move)
            num_low = sum(each in low for each in readers)
            if num_low and (num_low == len(readers) or self._source_of(move) in low):
                low.add(move)
                yield move.name


def _readers_of(node: fx.Node) -> list[fx.Node]:
    found = []
    for reader in node.users:
        found += _readers_of(reader) if owner_of(reader) is not reader else [reader]
    return found


def _price(us: float, saved: float) -> float:
    """Time lost for an error saved; what even saves time comes first."""
    return us / saved if us > 0 else us * saved


def _conversion_us(node: fx.Node) -> float:
    shape = static_shape(node)
    if shape is None:
        value = node.meta.get("val")
        first = value[0] if isinstance(value, tuple | list) and value else value
        shape = tuple(int(dim) for dim in getattr(first, "shape", ()) if isinstance(dim, int))
    return _CONVERSION_US + math.prod(shape) / _CONVERTED_PER_US
