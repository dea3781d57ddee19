"""Plans and the searchers that make them.

A `Plan` is the only stored result of the optimiser: a list of named steps, replayed by the same `apply` that
produced them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torchrlopt import _C
from torchrlopt.errors import SearchError
from torchrlopt.options import SearchOptions


@dataclasses.dataclass(frozen=True)
class Plan:
    """A sequence of substitutions for one graph.

    Attributes:
        graph_hash: SHA-256 of the canonical text of the original graph.
        library_hash: content hash of the substitution library.
        steps: (substitution name, location) in order.
        costs_ms: predicted time of the graph after each step, in milliseconds.
        cost_before_ms: predicted time of the graph before the first step, in milliseconds.
        searcher: the searcher that made the plan.
        expansions: number of graphs whose matches were enumerated.
        candidates: number of graphs that were priced.
        is_exhausted: False if a budget or early stopping (patience) ended the search.
        seconds: wall time of the search.
        found_by: the component that found it: "networks", "chains", or the name of a searcher.
        curve: (seconds, predicted time in milliseconds) of the best plan over the course of the search.
    """

    graph_hash: str
    library_hash: str
    steps: tuple[tuple[str, int], ...]
    costs_ms: tuple[float, ...]
    cost_before_ms: float
    searcher: str
    expansions: int
    candidates: int
    is_exhausted: bool
    seconds: float
    found_by: str = ""
    curve: tuple[tuple[float, float], ...] = ()

    @property
    def cost_after_ms(self) -> float:
        """Predicted time of the graph after the last step, in milliseconds."""
        return self.costs_ms[-1] if self.costs_ms else self.cost_before_ms

    def as_dict(self) -> dict[str, Any]:
        """Return a dict of numbers, strings and lists for the plan store."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Plan:
        """Invert `as_dict`; the data may have been tampered with.

        Raises:
            SearchError: a field is missing or has the wrong type.
        """
        try:
            steps = tuple((_text(name), int(location)) for name, location in given["steps"])
            costs = tuple(float(cost) for cost in given["costs_ms"])
            plan = cls(
                graph_hash=_text(given["graph_hash"]),
                library_hash=_text(given["library_hash"]),
                steps=steps,
                costs_ms=costs,
                cost_before_ms=float(given["cost_before_ms"]),
                searcher=_text(given["searcher"]),
                expansions=int(given["expansions"]),
                candidates=int(given["candidates"]),
                is_exhausted=bool(given["is_exhausted"]),
                seconds=float(given["seconds"]),
                found_by=_text(given.get("found_by", "")),
                curve=tuple((float(seconds), float(cost)) for seconds, cost in given.get("curve", ())),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise SearchError("a stored plan is malformed", got=repr(error)) from error
        curve = (number for point in plan.curve for number in point)
        if not all(map(math.isfinite, (*costs, plan.cost_before_ms, plan.seconds, *curve))):
            raise SearchError("a stored plan is malformed", expected="finite numbers", got=costs)
        if not all(0 <= location < 2**31 for _, location in steps):
            raise SearchError("a stored plan is malformed", expected="locations", got=steps)
        if len(steps) != len(costs):
            raise SearchError(
                "a stored plan is malformed", expected="one cost per step", got=(len(steps), len(costs))
            )
        return plan


def _text(given: Any) -> str:
    """Return text that is valid UTF-8; raise UnicodeEncodeError (a ValueError) for lone surrogates."""
    text = str(given)
    text.encode()
    return text


class Searcher(Protocol):
    """Chooses a sequence of substitutions."""

    def search(
        self, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, options: SearchOptions
    ) -> Plan:
        """Plan for `graph`; the result never costs more than the original."""
        ...


class ClassicSearcher:
    """The search algorithms of the C++ core.

    With a name, it is used instead of that in the options: "chains", a stage of the agent's search, or one in
    `searcher_table`. For "local", `patience` is the number of expansions without improvement after which a
    stage ends (0 for no limit), and `first` the steps to start from, instead of those of "chains".
    """

    def __init__(
        self, name: str | None = None, patience: int = 0, first: Sequence[tuple[str, int]] = ()
    ) -> None:
        self._name = name
        self._patience = patience
        self._first = first

    def search(
        self, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, options: SearchOptions
    ) -> Plan:
        """See `Searcher`. Ctrl-C raises KeyboardInterrupt."""
        name = self._name or options.searcher
        found = _C.search(
            graph,
            library,
            cost,
            searcher=name,
            budget_ms=options.budget_ms,
            budget_steps=options.budget_steps,
            alpha=options.alpha,
            beam_width=options.beam_width,
            seed=options.seed,
            exact_only=options.numerics == "strict",
            patience=self._patience,
            first=self._first,
        )
        return Plan(
            graph_hash=graph_hash(graph),
            library_hash=library.hash,
            steps=tuple(found["steps"]),
            costs_ms=tuple(cost_us / 1000 for cost_us in found["costs_us"]),
            cost_before_ms=found["cost_before_us"] / 1000,
            searcher=name,
            expansions=found["expansions"],
            candidates=found["candidates"],
            is_exhausted=found["exhausted"],
            seconds=found["seconds"],
            found_by=name,
            curve=((0.0, found["cost_before_us"] / 1000), (found["seconds"], found["cost_after_us"] / 1000)),
        )


def make_searcher(options: SearchOptions, library: _C.Library) -> Searcher:
    """See `torchrlopt.searcher_table`."""
    return ClassicSearcher()


def digest(options: SearchOptions) -> str:
    """See `torchrlopt.searcher_table`; plans depend on the options only."""
    return ""


def graph_hash(graph: _C.Graph) -> str:
    """Return the SHA-256 (hex) of the canonical text: structure, attributes, dtypes, shapes and symbols."""
    return hashlib.sha256(graph.canonical_text().encode()).hexdigest()


def search(graph: _C.Graph, library: _C.Library, cost: _C.CostModel, options: SearchOptions) -> Plan:
    """Plan with the searcher named in the options."""
    return ClassicSearcher().search(graph, library, cost, options)


def follow(
    graph: _C.Graph, library: _C.Library, cost: _C.CostModel, steps: Sequence[tuple[str, int]]
) -> tuple[_C.Graph, float, tuple[float, ...]]:
    """Apply steps and price the graph before the first and after each.

    Returns:
        The final graph, the cost of `graph`, and the cost after each step, in milliseconds.

    Raises:
        SearchError: a step does not apply.
    """
    state = _C.RewriteState(graph, library, cost)
    before_us, costs_ms = state.metrics["time_us"], []
    for name, location in steps:
        if not state.step(library.find(name), location):
            raise SearchError("a step of the plan does not apply", where=name, got=location)
        costs_ms.append(state.metrics["time_us"] / 1000)
    return state.graph, before_us / 1000, tuple(costs_ms)


def replay(graph: _C.Graph, library: _C.Library, plan: Plan, where: str = "") -> _C.Graph:
    """Return the graph that a plan produces; errors name `where` the plan is from.

    Raises:
        SearchError: the plan is for another graph or library, or a step does not apply.
    """
    if plan.library_hash != library.hash:
        raise SearchError(
            "the plan was made with another library",
            where=where,
            expected=library.hash,
            got=plan.library_hash,
            todo="plan anew with this version",
        )
    if plan.graph_hash != graph_hash(graph):
        raise SearchError(
            "the plan is for another graph", where=where, expected=graph_hash(graph), got=plan.graph_hash
        )
    return _C.replay(graph, library, plan.steps)
