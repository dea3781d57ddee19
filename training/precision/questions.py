"""Rows that ask for the errors of assignments one by one, to find the fastest within a budget.

A row is a function that asks until its questions are spent. All rows know the times of the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from torchrlopt.precision.assignment import Assignment
from torchrlopt.precision.sensitivity import Sensitivities
from torchrlopt.precision.state import Times
from torchrlopt.precision.times import work_us
from torchrlopt.precision.tries import MARGIN, tried
from training.precision.answers import Array, MeasuredGraph

_MOST_REPEATED = 20  # questions in a row whose answers are known: the row has nothing left to ask
_INTEGERS = 16.0  # squared error of 8-bit integers over that of bfloat16: 7 for squeezenet1_1, 30 for vit_s16
_KICK = 3  # calls that change at once where local search finds nothing better


class SpentError(Exception):
    """No more questions are allowed."""


class Questions:
    """Answers a limited number of different questions about a graph.

    Args:
        graph: that they are about.
        most: how many.
        budget: largest error that counts.

    Attributes:
        graph, budget: as given.
        known: errors, by assignment.
        best: the fastest assignment within the budget; float32 before the first.
        curve: after each question, the time of the best as a share of that in float32.
    """

    def __init__(self, graph: MeasuredGraph, most: int, budget: float) -> None:
        self.graph, self.budget, self._most, self._repeated = graph, budget, most, 0
        self.known: dict[tuple[int, ...], float] = {}
        self.best = (0,) * len(graph.calls)
        self.curve: list[float] = []
        self._least = 1.0

    def __call__(self, rungs: Sequence[int]) -> float:
        """The error of an assignment.

        Raises:
            SpentError: it would be a question too many, or the row repeats itself.
        """
        key = tuple(map(int, rungs))
        self._repeated = self._repeated + 1 if key in self.known else 0
        if key not in self.known:
            if len(self.known) >= self._most:
                raise SpentError
            self.known[key] = self.graph.error(key)
            share = self.share(key)
            if self.known[key] <= self.budget and share < self._least:
                self.best, self._least = key, share
            self.curve.append(self._least)
        elif self._repeated > _MOST_REPEATED * self._most:
            raise SpentError
        return self.known[key]

    def after(self, count: int) -> float:
        """The share after so many questions; a row may ask for nothing."""
        return self.curve[min(count, len(self.curve)) - 1] if self.curve else 1.0

    def share(self, rungs: Sequence[int]) -> float:
        """Time of an assignment as a share of that in float32."""
        return float(self.graph.us(np.asarray([rungs], np.int8))[0]) / self.graph.float32_us


Row = Callable[[Questions, np.random.Generator], None]


def drawn(graph: MeasuredGraph, random: np.random.Generator, count: int) -> Array:
    """Random assignments [count, N], each with its own shares of the rungs."""
    shares = random.dirichlet(np.full(graph.legal.shape[1], 0.5), count)
    weights = shares[:, None, :] * graph.legal + 1e-9 * graph.legal
    noise = random.gumbel(size=weights.shape)
    with np.errstate(divide="ignore"):
        found: Array = (np.log(weights) + noise).argmax(2).astype(np.int8)
    return found


def neighbours(graph: MeasuredGraph, rungs: Sequence[int]) -> Array:
    """All assignments [K, N] that differ in one call."""
    places, other = np.nonzero(graph.legal & (np.arange(graph.legal.shape[1]) != np.asarray(rungs)[:, None]))
    found = np.tile(np.asarray(rungs, np.int8), (len(places), 1))
    found[np.arange(len(places)), places] = other
    return found


def random_row(ask: Questions, random: np.random.Generator) -> None:
    """Random assignments."""
    while True:
        ask(drawn(ask.graph, random, 1)[0])


def by_arithmetic(ask: Questions, _: np.random.Generator) -> None:
    """Lower call by call, the largest first, each to the fastest rung that keeps the budget; once."""
    graph, rungs = ask.graph, np.zeros(len(ask.graph.calls), np.int8)
    for place in np.argsort([-work_us(call) for call in graph.calls], kind="stable"):
        tries = [each for each in neighbours(graph, rungs) if each[place] != rungs[place]]
        for each in sorted(tries, key=ask.share):
            if ask.share(each) < ask.share(rungs) and ask(each) <= ask.budget:
                rungs = each
                break


def local_search(ask: Questions, random: np.random.Generator) -> None:
    """From the best known, change single calls where that saves time; where none does, a few at random."""
    rungs = np.asarray(ask.best, np.int8)
    while True:
        near = neighbours(ask.graph, rungs)
        us, own = ask.graph.us(near), ask.graph.us(rungs[None])[0]
        for place in random.permutation(np.flatnonzero(us < own)):
            if ask(near[place]) <= ask.budget:
                rungs = near[place]
                break
        else:
            rungs = np.asarray(ask.best, np.int8)
            for _ in range(_KICK):
                near = neighbours(ask.graph, rungs)
                rungs = near[random.integers(len(near))]
            if ask(rungs) > ask.budget:
                rungs = np.asarray(ask.best, np.int8)


def by_sensitivities(ask: Questions, _: np.random.Generator) -> None:
    """What `max_error` does: two reverse passes, a choice, and at most two more if it misses the budget."""
    _choose(ask, ask.graph.assignment.values.found)


def sensitivities_then_local_search(ask: Questions, random: np.random.Generator) -> None:
    """Local search from what `max_error` chooses."""
    by_sensitivities(ask, random)
    local_search(ask, random)


def constant(ask: Questions, _: np.random.Generator) -> None:
    """The same with equal sensitivities, whose scale is that of everything in bfloat16."""
    given = ask.graph.assignment.values.found
    results, edges, weights = (
        dict.fromkeys(each, 1.0) for each in (given.results, given.edges, given.weights)
    )
    found = Sensitivities(results, edges, weights, dict.fromkeys(given.quantised, _INTEGERS))
    _choose(ask, found, is_scaled=True)


def _choose(ask: Questions, found: Sensitivities, is_scaled: bool = False) -> None:
    graph = ask.graph
    times = graph.assignment.values.times
    if not graph.legal[:, -1].any():  # the package has no integers where their kernels do not read bfloat16
        times = Times(times.high, times.low)
    assignment = Assignment(graph.lowerable, found, times)
    whole = assignment.of_all()
    scale = ask(graph.rungs(whole)) / whole.error if is_scaled else 1.0
    tried(
        assignment.within,
        lambda choice: ask(graph.rungs(choice)),
        ask.budget,
        MARGIN * ask.budget / scale,
    )
