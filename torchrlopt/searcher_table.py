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
        follows_agent: whether it uses the networks given by `SearchOptions.agent`.
    """

    name: str
    module: str
    does: str
    follows_agent: bool = False


_CORE = "torchrlopt.plan.search"
_AGENT = "torchrlopt.agent.catalogue"

ROWS: tuple[SearcherRow, ...] = (
    SearcherRow("agent", _AGENT, "follows the trained agent, from greedy's plan to cheaper ones", True),
    SearcherRow("mf", _AGENT, "follows the agent that was trained without a model", True),
    SearcherRow("wm", _AGENT, "follows the agent trained in the mixture world model", True),
    SearcherRow("wm_plus", _AGENT, "follows the agent trained in the discrete world model", True),
    SearcherRow("plan", _AGENT, "follows the agent trained by search distillation", True),
    SearcherRow("greedy", _CORE, "takes the cheapest candidate until none is cheaper"),
    SearcherRow("chains", _CORE, "greedy, and short chains of steps of which the first may lose"),
    SearcherRow("restarts", _CORE, "chains again and again, from where random steps lead"),
    SearcherRow(
        "iterated", _CORE, "chains again and again, from where its plan is cut and random steps lead"
    ),
    SearcherRow("parts", _CORE, "iterated on parts of the graph, equal ones once, then on all of it"),
    SearcherRow("beam", _CORE, "keeps `beam_width` graphs"),
    SearcherRow("taso", _CORE, "cost-based backtracking with `alpha` (TASO, SOSP 2019, Algorithm 1)"),
    SearcherRow("annealing", _CORE, "walks at random, ever more rarely to dearer graphs, and keeps the best"),
    SearcherRow("random", _CORE, "walks uniformly at random and keeps the best"),
    SearcherRow("best_known", _CORE, "unites them all; worth a budget of minutes"),
    SearcherRow("none", _CORE, "changes nothing"),
)


def names() -> tuple[str, ...]:
    """The names of all searchers: the values of `SearchOptions.searcher`."""
    return tuple(row.name for row in ROWS)


def agent_names() -> tuple[str, ...]:
    """The names of the searchers that use an agent."""
    return tuple(row.name for row in ROWS if row.follows_agent)


def module_of(name: str) -> Any:
    """Import and return the module that defines the searcher of that name."""
    return importlib.import_module(module_name(name))


def module_name(name: str) -> str:
    """The name of the module that defines the searcher of that name."""
    return next(row.module for row in ROWS if row.name == name)
