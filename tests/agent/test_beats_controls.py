"""The shipped agent beats greedy with chains, and its own search without training.

The graphs are of the held-out split, on which the search was chosen; limits are in expansions, never in time.
"""

from __future__ import annotations

import functools
import math

import pytest

pytest.importorskip("scipy", reason="the graphs are of the training package, which needs scipy")

from baselines.shared import controls
from torchrlopt import _C
from torchrlopt.agent import catalogue, checkpoint
from torchrlopt.machine.cost import cost_model
from torchrlopt.options import SearchOptions
from torchrlopt.plan.search import Searcher, search
from torchrlopt.substitutions import load_library
from training.scores.evaluate import held_out_graph

#: Number of the graph, and whether the composites are left out: what greedy leaves something to win on.
GRAPHS = ((33, True), (54, True), (55, True), (35, False))
#: The first plan of the core takes most of them; what is left is for the networks.
EXPANSIONS = 600
AGENT = "agent"


def _library(primitives_only: bool) -> _C.Library:
    return load_library(primitives_only=primitives_only)


@functools.cache
def _costs(name: str) -> tuple[float, ...]:
    """Cost of each graph as a fraction of the cost of greedy with chains, which may expand what it likes."""
    costs = []
    for number, primitives_only in GRAPHS:
        graph, library, cost = held_out_graph(number).graph, _library(primitives_only), cost_model("eager")
        free = SearchOptions(searcher="chains", budget_ms=600_000.0)
        chains = search(graph, library, cost, free).cost_after_ms
        limited = SearchOptions(searcher="greedy", budget_ms=600_000.0, budget_steps=EXPANSIONS)
        plan = _searcher(name, library).search(graph, library, cost, limited)
        costs.append(plan.cost_after_ms / chains)
    return tuple(costs)


def _searcher(name: str, library: _C.Library) -> Searcher:
    options = SearchOptions(searcher=AGENT)
    if name == AGENT:
        return catalogue.searcher_of(options, library)
    return controls.control(name, checkpoint.load(catalogue.path_of(options), library), library, seed=0)


def _mean(costs: tuple[float, ...]) -> float:
    return math.exp(sum(map(math.log, costs)) / len(costs))


def test_the_agent_beats_greedy_with_chains() -> None:
    costs = _costs(AGENT)
    assert sum(each < 0.999 for each in costs) >= 3, costs
    assert all(each <= 1 + 1e-9 for each in costs), costs


@pytest.mark.nightly
@pytest.mark.parametrize("name", controls.NAMES)
def test_the_agent_beats_its_search_without_training(name: str) -> None:
    agent, control = _mean(_costs(AGENT)), _mean(_costs(name))
    assert agent < 0.98 * control, (agent, control)
