"""Searches, plans and replay: csrc/search/, torchrlopt/plan/search.py."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from baselines.graphs import graph_of
from tests.crosses import nightly_but
from torchrlopt import _C
from torchrlopt.errors import RlOptError, SearchError
from torchrlopt.machine.cost import cost_model
from torchrlopt.options import SearchOptions
from torchrlopt.plan.search import ClassicSearcher, Plan, graph_hash, replay
from torchrlopt.substitutions import load_library

# Merging pays at once; `split_relu` loses time by itself and only makes `cancel` possible.
LIBRARY = """
# family: merge
substitution merge_matmul
  y* = MatMul(x, w*)
=>
  w = Concat(w*; axis=-1)
  y = MatMul(x, w)
  y* = Split(y; axis=-1, sizes=dim(w*, -1))
where
  rank(w*) == 2
  is_static(w*)
proof tested

# family: clean
substitution double_neg
  t = Neg(x)
  y = Neg(t)
=>
  y = Identity(x)
proof tested

# family: algebra
substitution square_relu
  y = Relu(x)
=>
  t = Relu(x)
  y = Relu(t)
proof tested

substitution cancel_three
  a = Relu(x)
  b = Relu(a)
  y = Relu(b)
=>
  y = Identity(x)
proof tested
"""

THREE = (
    "graph (x: f32[128,768], %w0: f32[768,768], %w1: f32[768,256], %w2: f32[768,256]) {"
    " a = MatMul(x, %w0) b = MatMul(x, %w1) c = MatMul(x, %w2) return a, b, c }"
)
HILL = "graph (x: f32[1024,1024]) { y = Relu(x) return y }"


def run(text: str, **options: object) -> tuple[_C.Graph, Plan]:
    graph, library, cost = _C.parse_graph(text), _C.Library(LIBRARY), _C.CostModel()
    name = str(options.pop("searcher", "greedy"))
    plan = ClassicSearcher(name).search(
        graph, library, cost, SearchOptions(**{"budget_ms": 2000.0, **options})
    )
    result = replay(graph, library, plan)
    result.check()
    # The sum of the steps' differences is the difference of the totals.
    assert cost.total(result)["time_us"] / 1000 == pytest.approx(plan.cost_after_ms, rel=1e-9)
    assert cost.total(graph)["time_us"] / 1000 == pytest.approx(plan.cost_before_ms, rel=1e-9)
    return result, plan


# All of the core that search.
SEARCHERS = [
    "greedy", "chains", "restarts", "iterated", "local", "beam", "taso", "annealing", "best_known",
]  # fmt: skip


@pytest.mark.parametrize("searcher", SEARCHERS)
def test_every_searcher_merges_three_unequal_products_in_one_step(searcher: str) -> None:
    result, plan = run(THREE, searcher=searcher, budget_steps=40, budget_ms=1000.0)
    assert [name for name, _ in plan.steps] == ["merge_matmul"]
    assert plan.cost_after_ms < plan.cost_before_ms
    assert sum(result.node(i)["op"] == "MatMul" for i in result.topological_order()) == 1


def test_an_unknown_searcher_is_refused_though_there_is_no_time() -> None:
    graph = _C.parse_graph(THREE)
    names = "none, greedy, chains, restarts, iterated, local, beam, taso, annealing, best_known"
    with pytest.raises(RlOptError, match=f"unknown searcher 'gredy'; expected one of {names}"):
        _C.search(graph, _C.Library(LIBRARY), _C.CostModel(), searcher="gredy", budget_ms=1e-9)


def test_none_changes_nothing() -> None:
    result, plan = run(THREE, searcher="none")
    assert plan.steps == ()
    assert graph_hash(result) == plan.graph_hash


def test_backtracking_crosses_a_hill_that_greedy_does_not() -> None:
    # Each extra Relu costs; three of them cancel. (The rule is wrong on purpose: search knows costs only.)
    _, greedy = run(HILL, searcher="greedy")
    assert greedy.steps == ()
    _, taso = run(HILL, searcher="taso", alpha=5.0, budget_steps=200)
    assert [name for name, _ in taso.steps] == ["square_relu", "square_relu", "cancel_three"]
    _, tight = run(HILL, searcher="taso", alpha=1.0, budget_steps=200)
    assert tight.steps == ()


@pytest.mark.parametrize("searcher", ["chains", "restarts", "iterated", "local"])
def test_chains_cross_a_short_hill(searcher: str) -> None:
    _, plan = run(HILL, searcher=searcher, budget_steps=50)
    assert [name for name, _ in plan.steps] == ["square_relu", "square_relu", "cancel_three"]


@pytest.mark.parametrize("steps", [50, 100])
def test_chains_that_are_cut_leave_time_for_the_waves_after_them(steps: int) -> None:
    # Fusing comes last. Without that share of the budget the chains of an earlier wave take all of it.
    graph, library, cost = graph_of("toy_bert"), load_library(), cost_model("eager", threads=1)
    found = _C.search(graph, library, cost, searcher="chains", budget_ms=60e3, budget_steps=steps)
    assert not found["exhausted"]
    assert found["cost_after_us"] < 0.94 * found["cost_before_us"], "0.97 where later waves are left out"


@pytest.mark.parametrize("searcher", ["restarts", "iterated", "local"])
def test_repeated_searches_go_on_until_the_budget_ends_and_depend_on_the_seed_only(searcher: str) -> None:
    graph = _C.parse_graph(THREE)
    library = load_library()

    def found(seed: int) -> dict[str, object]:
        answer = _C.search(
            graph, library, _C.CostModel(), searcher=searcher, budget_ms=60e3, budget_steps=300, seed=seed
        )
        return {name: answer[name] for name in ("steps", "expansions", "cost_after_us", "exhausted")}

    one = found(0)
    assert one == found(0)
    assert one["expansions"] >= 300
    assert not one["exhausted"]


def test_iterated_local_search_ends_after_so_many_expansions_in_vain() -> None:
    graph, library = _C.parse_graph(THREE), load_library()
    counts = []
    for patience in (20, 200):
        found = _C.search(
            graph, library, _C.CostModel(), searcher="iterated", budget_ms=600e3, patience=patience
        )
        assert not found["exhausted"]
        counts.append(found["expansions"] - found["progress"][-1][0])
        assert counts[-1] >= patience
    assert counts[0] < 200


def test_iterated_local_search_goes_on_from_a_plan() -> None:
    graph, library = _C.parse_graph(THREE), load_library()
    greedy = _C.search(graph, library, _C.CostModel(), searcher="greedy", budget_ms=60e3)
    assert greedy["steps"]
    found = _C.search(
        graph,
        library,
        _C.CostModel(),
        searcher="iterated",
        budget_ms=60e3,
        budget_steps=1,
        first=greedy["steps"],
    )
    assert found["cost_after_us"] == greedy["cost_after_us"]
    assert found["steps"] == greedy["steps"]
    with pytest.raises(IndexError, match="no location"):
        _C.search(
            graph, library, _C.CostModel(), searcher="iterated", budget_ms=60e3, first=[*greedy["steps"]] * 2
        )


def test_best_known_crosses_the_hill_too() -> None:
    _, plan = run(HILL, searcher="best_known", budget_ms=300.0)
    assert [name for name, _ in plan.steps] == ["square_relu", "square_relu", "cancel_three"]


@pytest.mark.parametrize("searcher", SEARCHERS)
def test_progress_falls_from_the_start_to_the_result(searcher: str) -> None:
    found = _C.search(
        _C.parse_graph(THREE), _C.Library(LIBRARY), _C.CostModel(), searcher=searcher, budget_ms=200.0
    )
    steps, seconds, costs = zip(*found["progress"], strict=True)
    assert (steps[0], costs[0], costs[-1]) == (0, found["cost_before_us"], found["cost_after_us"])
    assert list(costs) == sorted(costs, reverse=True)
    assert list(steps) == sorted(steps)
    assert list(seconds) == sorted(seconds)


def test_commuting_steps_are_searched_in_one_order() -> None:
    # Twelve independent choices: 2^12 graphs, 12! orders. Each graph is expanded once.
    names = [f"x{i}" for i in range(12)]
    inputs = ", ".join(f"{name}: f32[64]" for name in names)
    lines = " ".join(f"a{name} = Neg({name}) y{name} = Neg(a{name})" for name in names)
    text = f"graph ({inputs}) {{ {lines} return {', '.join('y' + name for name in names)} }}"
    found = _C.search(
        _C.parse_graph(text), _C.Library(LIBRARY), _C.CostModel(), searcher="taso", alpha=10.0, budget_ms=60e3
    )
    assert found["exhausted"]
    assert found["expansions"] == 2**12
    assert len(found["steps"]) == 12


@pytest.mark.parametrize("budget", [{"budget_ms": 0.0}, {"budget_ms": 0.001}])
def test_no_budget_gives_a_valid_plan(budget: dict[str, object]) -> None:
    _, plan = run(THREE, **budget)
    assert plan.cost_after_ms <= plan.cost_before_ms


@pytest.mark.parametrize("searcher", ["annealing", "beam", "taso"])
def test_same_seed_same_plan(searcher: str) -> None:
    plans = [run(HILL, searcher=searcher, seed=7, budget_steps=60, budget_ms=5000.0)[1] for _ in range(2)]
    assert plans[0].steps == plans[1].steps
    assert plans[0].expansions == plans[1].expansions


def test_strict_numerics_uses_exact_substitutions_only() -> None:
    _, plan = run(THREE, numerics="strict")
    assert plan.steps == ()


def test_plan_survives_storage() -> None:
    _, plan = run(THREE)
    assert Plan.from_dict(plan.as_dict()) == plan


@pytest.mark.parametrize(
    "broken",
    [
        {"steps": 3},
        {"costs_ms": [1.0, 2.0]},
        {"cost_before_ms": "x"},
        {"steps": [["a"]]},
        {"steps": [["\ud800", 0]], "costs_ms": [1.0]},  # half a letter, which the core cannot be given
        {"found_by": "\ud800"},
    ],
)
def test_malformed_stored_plan_is_refused(broken: dict[str, object]) -> None:
    _, plan = run(THREE)
    with pytest.raises(SearchError, match="malformed"):
        Plan.from_dict({**plan.as_dict(), **broken})


def test_replay_refuses_another_graph_another_library_and_a_missing_step() -> None:
    graph, library = _C.parse_graph(THREE), _C.Library(LIBRARY)
    _, plan = run(THREE)
    with pytest.raises(SearchError, match="another graph"):
        replay(_C.parse_graph(HILL), library, plan)
    with pytest.raises(SearchError, match="another library"):
        replay(graph, _C.Library(LIBRARY.split("# family: clean")[0]), plan)
    with pytest.raises(SearchError, match="cannot be replayed"):
        _C.replay(graph, library, [("merge_matmul", 5)])
    with pytest.raises(SearchError, match="no substitution 'nothing'"):
        _C.replay(graph, library, [("nothing", 0)])


def chain(num_blocks: int) -> _C.Graph:
    lines = [
        f"  a{n} = MatMul(x{n}, w)\n  b{n} = Relu(a{n})\n  c{n} = Relu(b{n})\n"
        f"  d{n} = Transpose(c{n}; perm=[1,0])\n  x{n + 1} = Transpose(d{n}; perm=[1,0])\n"
        for n in range(num_blocks)
    ]
    return _C.parse_graph(f"graph (x0: f32[8,8], w: f32[8,8]) {{\n{''.join(lines)}return x{num_blocks}\n}}")


def test_a_graph_of_ten_thousand_operators_is_planned_to_its_end() -> None:
    found = _C.search(chain(2000), load_library(), _C.CostModel(), searcher="greedy", budget_ms=120_000.0)
    assert found["exhausted"]
    assert found["graph"].num_operators == 4000
    cut = _C.search(chain(2000), load_library(), _C.CostModel(), budget_ms=120_000.0, max_length=1500)
    assert len(cut["steps"]) == 1500
    assert not cut["exhausted"]


@pytest.mark.parametrize("searcher", nightly_but(["greedy", "local"], SEARCHERS))
def test_a_budget_is_kept_on_a_hundred_thousand_operators(searcher: str) -> None:
    found = _C.search(chain(20_000), load_library(), _C.CostModel(), searcher=searcher, budget_ms=50.0)
    assert not found["exhausted"]
    assert found["cost_after_us"] <= found["cost_before_us"]


def test_ctrl_c_ends_a_search_at_once() -> None:
    # In a process of its own: signals reach the main thread only, and tests may run in another.
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from torchrlopt import _C\n"
        f"graph, library = _C.parse_graph({HILL!r}), _C.Library({LIBRARY!r})\n"
        "print('ready', flush=True)\n"
        "_C.search(graph, library, _C.CostModel(), searcher='annealing', budget_ms=60000.0)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=20)
    finally:
        child.kill()
    assert "KeyboardInterrupt" in errors
