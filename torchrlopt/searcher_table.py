"""The searchers: one row each, with its module.

`Options` and `plan.planning` read the valid names and the searchers from here. A module is imported only when
one of its searchers is requested. It defines `make_searcher(options, library)`, which returns a
`plan.search.Searcher`, and `digest(options)`, which identifies what its plans depend on in addition to the
`SearchOptions`.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any


@dataclasses.dataclass(frozen=True)
class SearcherRow:
    """One searcher.

    Attributes:
        name: as in `SearchOptions.searcher`.
        module: the module that defines it.
        does: human-readable description.
    """

    name: str
    module: str
    does: str


_CORE = "torchrlopt.plan.search"
_AGENT = "torchrlopt.agent.catalogue"

#: The searcher that uses the networks given by `SearchOptions.agent`.
AGENT = "agent"

ROWS: tuple[SearcherRow, ...] = (
    SearcherRow(AGENT, _AGENT, "local search, then episodes that the trained agent plays"),
    SearcherRow(
        "local", _CORE, "iterated local search on parts of the graph, equal ones once, then on all of it"
    ),
    SearcherRow("greedy", _CORE, "takes the cheapest candidate until none is cheaper"),
    SearcherRow("beam", _CORE, "keeps `beam_width` graphs"),
    SearcherRow("taso", _CORE, "cost-based backtracking with `alpha` (TASO, SOSP 2019, Algorithm 1)"),
    SearcherRow("annealing", _CORE, "simulated annealing"),
    SearcherRow("none", _CORE, "changes nothing"),
)


def names() -> tuple[str, ...]:
    """The names of all searchers: the values of `SearchOptions.searcher`."""
    return tuple(row.name for row in ROWS)


def module_of(name: str) -> Any:
    """Import and return the module that defines the searcher of that name."""
    return importlib.import_module(module_name(name))


def module_name(name: str) -> str:
    """The name of the module that defines the searcher of that name."""
    return next(row.module for row in ROWS if row.name == name)
