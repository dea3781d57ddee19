"""Chooses which calls to lower: the least time whose predicted error is within a budget.

Time and squared error are sums over calls, plus those of the conversions between calls of different types. So
the choice is a knapsack with edges. Three starts (everything, contractions only, and nothing but integers)
are made exact, call by call or region by region, in the order of error saved per time lost, until the budget
is kept; then whatever still fits is lowered again, the most time per error first.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import math
from collections.abc import Callable, Collection, Iterable, Sequence

from torch import fx

from torchrlopt.executors.precision.retyped import CONTRACTIONS, owner_of, passes_on
from torchrlopt.precision.sensitivity import Sensitivities
from torchrlopt.precision.state import Flip, Integers, State, Times, Values

_LEAST_US = 1e-9
"""Less is no time saved: sums of the same times in another order differ by as much."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """Calls that compute in lower precision, and what is predicted of them.

    Attributes:
        lowered: names of those in bfloat16.
        quantised: names of those computed with 8-bit integers, in either type.
        error: of the outputs, relative.
        us: time of all calls that may be lowered, and of conversions, in microseconds.
    """

    lowered: frozenset[str]
    quantised: frozenset[str]
    error: float
    us: float

    @property
    def is_exact(self) -> bool:
        """Whether everything computes in float32."""
        return not (self.lowered or self.quantised)


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
        self.items = [each for each in calls if not passes_on(each)]
        self.values = Values(found, times)
        for item in self.items:
            for operand in item.all_input_nodes:
                error = found.edges.get((operand.name, item.name))
                if error is not None:
                    self.values.read(self._source_of(operand), item, error)
        for source in dict.fromkeys((*self.values.readers, *self.items)):
            if self._has_exact_readers(source):
                self.values.read(source, None, 0.0)
        self._regions = self._connected()
        self._lowable = self.items if times.low else []
        self._integers = [Integers(each) for each in self.items if each.name in times.quantised]

    def effect_of(self, item: fx.Node, choice: Choice) -> tuple[float, float]:
        """Time that a choice saves in a call, and the squared error that the call causes."""
        name, values = item.name, self.values
        high_us, _ = values.of_item(item, is_low=False)
        us, error = values.of_item(item, name in choice.lowered, name in choice.quantised)
        if name in choice.lowered:
            error += values.found.results.get(name, 0.0)
            read = (each for each in values.sources.get(item, ()) if each.name not in choice.lowered)
            error += sum(values.readers[each][item] for each in read)
        return high_us - us, error

    def of_all(self) -> Choice:
        """Everything in bfloat16, or with integers where it is no choice."""
        return self._choice(State(self.values, self.items, self._lowable or self._integers))

    def of(self, lowered: Collection[str], quantised: Collection[str]) -> Choice:
        """These calls in bfloat16 or computed with integers, by name."""
        low: list[Flip] = [each for each in self.items if each.name in lowered]
        integers = [Integers(each) for each in self.items if each.name in quantised]
        return self._choice(State(self.values, self.items, [*low, *integers]))

    def of_none(self) -> Choice:
        """Everything in float32."""
        return self._choice(State(self.values, self.items, ()))

    def within(self, budget: float) -> Choice:
        """Return the fastest choice found whose predicted error is at most `budget`."""
        contractions = [each for each in self._lowable if each.target in CONTRACTIONS]
        starts: list[list[Flip]] = [[*self._lowable], [*contractions]] if self._lowable else []
        found = []
        for start in [*starts, []] if self._integers else starts:
            state = State(self.values, self.items, [*start, *self._integers])
            self._raise(state, budget * budget)
            self._fill(state, budget * budget)
            found.append(self._choice(state))
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

    def _connected(self) -> list[list[fx.Node]]:
        """Items that are no contractions, in groups that exchange values without one in between."""
        group: dict[fx.Node, list[fx.Node]] = {}
        for item in self.items:
            if item.target in CONTRACTIONS:
                continue
            joined = [item]
            for source in self.values.sources.get(item, ()):
                if source in group and group[source] is not joined:
                    joined = group[source] + joined
                    group.update(dict.fromkeys(joined, joined))
            group[item] = joined
        return list({id(each): each for each in group.values()}.values())

    # ---- search

    def _raise(self, state: State, limit: float) -> None:
        """Make items exact, singly or by regions, in the order of error saved per time lost."""
        changes: list[Flip] = [*self._lowable, *self._integers]
        moves: list[Sequence[Flip]] = [[each] for each in changes]
        moves += self._regions

        def priced(move: Sequence[Flip]) -> float | None:
            us, error = state.change([each for each in move if each in state.low])
            return _price(us, -error) if error < 0 else None

        queue = _Queue(moves, priced)
        while state.error > limit:
            move = queue.pop()
            if move is None:
                state.flip(list(state.low))
                return
            queue.renew(state.flip([each for each in move if each in state.low]))

    def _fill(self, state: State, limit: float) -> None:
        """Change single items as long as that saves time within the limit."""
        waiting: list[Flip] = []  # do not fit until others have saved some error

        def priced(move: Sequence[Flip]) -> float | None:
            us, error = state.change(move)
            return us / max(error, 1e-30) if us < -_LEAST_US else None

        changes: list[Flip] = [*self._lowable, *self._integers]
        queue = _Queue([[each] for each in changes], priced)
        while (move := queue.pop()) is not None:
            error = state.change(move)[1]
            if state.error + error > limit:
                waiting += move
                continue
            stale = state.flip(move)
            if error < 0:
                stale, waiting = {*stale, *waiting}, []
            queue.renew(stale)

    def _choice(self, state: State) -> Choice:
        low = [each for each in state.low if not isinstance(each, Integers)]
        names = {each.name for each in low} | set(self._moved(low))
        quantised = {each.item.name for each in state.low if isinstance(each, Integers)}
        return Choice(frozenset(names), frozenset(quantised), math.sqrt(max(state.error, 0.0)), state.us)

    def _moved(self, lowered: Collection[fx.Node]) -> Iterable[str]:
        """Views and copies of values move what their readers read: one conversion serves all of them."""
        low = set(lowered)
        for move in reversed(self._moves):  # readers before what they read
            readers = _readers_of(move)
            num_low = sum(each in low for each in readers)
            if num_low and (num_low == len(readers) or self._source_of(move) in low):
                low.add(move)
                yield move.name


class _Queue:
    """Moves by price, the lowest first; those whose prices have changed are priced again.

    Args:
        moves: lists of changes.
        priced: the price of a move; None if it is not worth making.
    """

    def __init__(
        self, moves: Sequence[Sequence[Flip]], priced: Callable[[Sequence[Flip]], float | None]
    ) -> None:
        self._moves, self._priced = moves, priced
        self._of_item: dict[Flip, list[int]] = collections.defaultdict(list)
        for number, move in enumerate(moves):
            for item in move:
                self._of_item[item].append(number)
        self._prices: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []
        for number in range(len(moves)):
            self._price(number)

    def _price(self, number: int) -> None:
        price = self._priced(self._moves[number])
        if price is None:
            self._prices.pop(number, None)
        elif self._prices.get(number) != price:
            self._prices[number] = price
            heapq.heappush(self._heap, (price, number))

    def pop(self) -> Sequence[Flip] | None:
        """Remove the best move, and return it; None if there is none."""
        while self._heap:
            price, number = heapq.heappop(self._heap)
            if self._prices.get(number) == price:
                del self._prices[number]
                return self._moves[number]
        return None

    def renew(self, items: Iterable[Flip]) -> None:
        """Price the moves of these changes again."""
        for number in sorted({number for item in items for number in self._of_item.get(item, ())}):
            self._price(number)


def _readers_of(node: fx.Node) -> list[fx.Node]:
    found = []
    for reader in node.users:
        found += _readers_of(reader) if owner_of(reader) is not reader else [reader]
    return found


def _price(us: float, saved: float) -> float:
    """Time lost for an error saved; what even saves time comes first."""
    return us / saved if us > 0 else us * saved
