"""Spaces of graphs, acquisition orders, and measured answers: training/papers/measuring/."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from torchrlopt import _C
from torchrlopt.agent.observation import observe
from torchrlopt.env import OUTCOMES
from torchrlopt.errors import EnvError
from torchrlopt.substitutions import load_library
from training.device.prices import cost_of, typical_prices
from training.episodes.answers import Answers, MeasuredEnv
from training.graphs.curriculum import USUAL, sample_graph
from training.graphs.fingerprint import fingerprint
from training.papers.measuring import asking
from training.papers.measuring.asking import FREE, ORDERS, Row, Space, ask, of_space

COST = cost_of(typical_prices("eager"))


@pytest.fixture(scope="module", autouse=True)
def short_searches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking, "EXPANSIONS", 300)
        yield


@pytest.fixture(scope="module")
def space() -> Space:
    """That of two branches that become one convolution, or do not."""
    graph = sample_graph(75, split="test", progress=0.1, sizes=USUAL).graph
    return Space.pool(graph, load_library(), COST, 1_000)


def order_of(row: Row, space: Space, times: Sequence[float]) -> list[int]:
    """Positions in the order in which a row measures all graphs."""
    places = {key: place for place, key in enumerate(map(fingerprint, space.graphs))}
    machine = Answers(dict(zip(places, times, strict=True)), load_library().names)
    ask(row, machine, len(places))
    return [places[key] for key in machine.asked]


def test_a_fingerprint_sees_operators_weights_and_wiring_but_no_order() -> None:
    def graph(joined: str, op: str = "Relu") -> _C.Graph:
        builder = _C.GraphBuilder()
        leaves = {name: (builder.add_input(name, ("f32", [2, 3])), 0) for name in "ab"}
        both = builder.add_node("Concat", [leaves[name] for name in joined], {"axis": 1})
        builder.set_outputs([(builder.add_node(op, [(both, 0)], {}), 0)], ["y"])
        return builder.finish()

    assert fingerprint(graph("ab")) == fingerprint(graph("ba"))
    assert graph("ab").hash() != graph("ba").hash()
    assert fingerprint(graph("ab")) != fingerprint(graph("aa"))
    assert fingerprint(graph("ab")) != fingerprint(graph("ab", op="Sigmoid"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Transpose(x; perm=[1,2,0])", "Transpose(x; perm=[2,0,1])"),
        ("Sub(x, %w)", "Sub(%w, x)"),
        ("MatMul(x, %w)", "MatMul(%w, x)"),
    ],
)
def test_a_fingerprint_sees_axes_and_the_order_of_operands_that_do_not_commute(one: str, other: str) -> None:
    def graph(value: str) -> _C.Graph:
        return _C.parse_graph(
            f"graph (x: f32[4,4,4], %w: f32[4,4,4]) {{\n  y = {value}\n  z = Add(y, %w)\n  return z\n}}"
        )

    assert fingerprint(graph(one)) != fingerprint(graph(other))
    assert fingerprint(graph("Mul(x, %w)")) == fingerprint(graph("Mul(%w, x)"))


def test_a_graph_that_was_read_from_its_text_has_the_same_fingerprint() -> None:
    graph = sample_graph(20, split="test", progress=0.1, sizes=USUAL).graph
    folded = _C.search(graph, load_library(), COST, searcher="greedy", budget_ms=1e9, budget_steps=99)[
        "graph"
    ]
    assert any(folded.node(node)["op"] == "Constant" for node in folded.topological_order())
    assert fingerprint(_C.parse_graph(folded.text())) == fingerprint(folded)


def test_episodes_earn_what_was_measured_and_each_graph_counts_once(space: Space) -> None:
    keys = list(map(fingerprint, space.graphs))
    times = {key: 1.0 + 0.01 * place for place, key in enumerate(keys)}
    answers = Answers(times, load_library().names)
    env = MeasuredEnv(space.graphs[0], load_library(), COST, answers, num_envs=2, has_macros=False)
    env.reset([0, 1], [{}, {}])
    assert list(answers.asked) == keys[:1]
    first = env.outcomes()
    assert first[:, OUTCOMES["cost_after_us"]].tolist() == [1.0, 1.0]
    after = env.step([0, 0])
    reached = fingerprint(env.graph(0))
    assert reached != keys[0]
    assert after[0, OUTCOMES["cost_before_us"]] == 1.0
    assert after[0, OUTCOMES["cost_after_us"]] == times[reached]
    assert after[0, OUTCOMES["best_us"]] == min(1.0, times[reached])
    assert after[0, OUTCOMES["initial_us"]] == 1.0
    assert list(answers.asked) == [keys[0], reached], "both episodes went the same way: one measurement"
    seen = observe(env)
    assert seen.column("global", "cost").tolist() == pytest.approx([times[reached]] * 2)
    assert seen.column("global", "best_cost").tolist() == pytest.approx([1.0] * 2)
    stop = len(env.hashes_after(0))
    env.step([stop, stop])
    before = len(answers.asked)
    assert env.step([0, 0])[:, OUTCOMES["cost_after_us"]].tolist() == [times[reached]] * 2
    assert len(answers.asked) == before, "an episode that is over asks for nothing"


def test_a_graph_that_was_not_measured_is_an_error(space: Space) -> None:
    env = MeasuredEnv(space.graphs[0], load_library(), COST, Answers({}, load_library().names))
    with pytest.raises(EnvError, match="not among those"):
        env.reset([0], [{}])


@pytest.mark.parametrize("row", [*ORDERS, "best_first"])
def test_each_row_asks_for_every_graph_once(row: str, space: Space) -> None:
    times = np.random.default_rng(0).uniform(0.5, 2, len(space.graphs)).tolist()
    rng = np.random.default_rng(1)
    if row in FREE:
        asked = FREE[row](space.graphs[0], load_library(), COST, rng)
    else:
        asked = of_space(ORDERS[row](space, COST, rng), space)
    order = order_of(asked, space, times)
    assert sorted(order) == list(range(len(space.graphs)))
    if row == "best_first":
        steps = [len(space.steps[place]) for place in order]
        assert steps[1 : 1 + steps.count(1)] == [1] * steps.count(1), "all that is one step from the first"
    if row == "price":
        costs = [COST.metrics(space.graphs[place])["time_us"] for place in order]
        assert costs == pytest.approx(sorted(costs))


def test_a_pool_is_of_distinct_graphs_around_the_cheapest() -> None:
    graph = sample_graph(3, split="test", progress=0.4, sizes=USUAL).graph
    pool = Space.pool(graph, load_library(), COST, 60)
    keys = list(map(fingerprint, pool.graphs))
    assert len(set(keys)) == len(keys) == 60
    assert keys[0] == fingerprint(graph)
    costs = [float(COST.metrics(each)["time_us"]) for each in pool.graphs]
    found = _C.search(graph, load_library(), COST, searcher="greedy", budget_ms=1e9, budget_steps=300)
    assert min(costs) <= float(COST.metrics(found["graph"])["time_us"]) < costs[0]
    few = Space.pool(graph, load_library(), COST, 3)
    assert min(float(COST.metrics(each)["time_us"]) for each in few.graphs) == min(costs), "ends come first"
    for each, steps in zip(pool.graphs, pool.steps, strict=True):
        assert fingerprint(_C.replay(graph, load_library(), steps)) == fingerprint(each)
