"""The guided search: torchrlopt/agent/search/searcher.py, undisturbed_torch.py."""

from __future__ import annotations

import dataclasses
import logging
import re
import threading

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.agent.agent_cases import COST, GRAPHS, LIBRARY, new_agent, new_network
from tests.core.test_search import HILL
from tests.core.test_search import LIBRARY as HILLS
from torchrlopt import _C
from torchrlopt.agent import catalogue
from torchrlopt.agent.catalogue import searcher_of
from torchrlopt.agent.search.first_plan import SearcherWithoutAgent, first_plan
from torchrlopt.agent.search.searcher import AgentSearcher
from torchrlopt.agent.undisturbed_torch import undisturbed_torch
from torchrlopt.machine.contention import own_time
from torchrlopt.options import SearchOptions
from torchrlopt.plan.search import ClassicSearcher, Plan, replay


def searcher(library: _C.Library = LIBRARY) -> AgentSearcher:
    return AgentSearcher(new_agent(library))


def options(**changes: object) -> SearchOptions:
    return SearchOptions(**{"budget_ms": 2000.0, "budget_steps": 40, **changes})


def run(graph: _C.Graph, library: _C.Library = LIBRARY, **changes: object) -> Plan:
    plan = searcher(library).search(graph, library, COST, options(**changes))
    result = replay(graph, library, plan)
    result.check()
    assert COST.total(result)["time_us"] / 1000 == pytest.approx(plan.cost_after_ms, rel=1e-9)
    assert COST.total(graph)["time_us"] / 1000 == pytest.approx(plan.cost_before_ms, rel=1e-9)
    return plan


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("budget_ms", [0.0, 5.0, 2000.0])
def test_never_worse_than_greedy(graph: _C.Graph, budget_ms: float) -> None:
    greedy = ClassicSearcher().search(graph, LIBRARY, COST, options(searcher="greedy", budget_ms=budget_ms))
    plan = run(graph, budget_ms=budget_ms)
    assert plan.searcher == "agent"
    if budget_ms in (0.0, 2000.0):  # the same work, however busy the machine is
        assert plan.cost_after_ms <= greedy.cost_after_ms
    if budget_ms == 2000.0:
        assert plan.expansions > greedy.expansions


def test_greedy_may_take_more_than_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, tiny = GRAPHS[1], options(budget_ms=1e-3, budget_steps=0)
    greedy = ClassicSearcher().search(graph, LIBRARY, COST, options(searcher="greedy", budget_steps=0))
    monkeypatch.setattr("torchrlopt.agent.search.first_plan.GREEDY_BUDGETS", 1.0)
    assert len(searcher().search(graph, LIBRARY, COST, tiny).steps) < len(greedy.steps)
    # As many as a machine needs that is so slow.
    monkeypatch.setattr("torchrlopt.agent.search.first_plan.GREEDY_BUDGETS", 1e9)
    assert searcher().search(graph, LIBRARY, COST, tiny).steps == greedy.steps
    assert SearcherWithoutAgent().search(graph, LIBRARY, COST, tiny).steps == greedy.steps
    nothing = searcher().search(graph, LIBRARY, COST, dataclasses.replace(tiny, budget_ms=0.0))
    assert nothing.steps == ()


def test_a_short_hill_is_crossed_by_chains() -> None:
    plan = run(_C.parse_graph(HILL), _C.Library(HILLS), budget_steps=100)
    assert [name for name, _ in plan.steps] == ["square_relu", "square_relu", "cancel_three"]
    assert plan.found_by == "chains"


def test_a_plan_says_when_greedy_found_it() -> None:
    plan = run(GRAPHS[0], budget_ms=0.0)
    assert plan.found_by == "greedy"
    assert plan.curve[0] == (0.0, plan.cost_before_ms)
    assert plan.curve[-1][1] == plan.cost_after_ms


def test_a_limit_of_expansions_gives_the_same_plan_twice() -> None:
    plans = [run(GRAPHS[1], budget_ms=60000.0, budget_steps=24) for _ in range(2)]
    assert plans[0].steps == plans[1].steps
    assert plans[0].expansions == plans[1].expansions


def test_strict_numerics_takes_exact_substitutions_only() -> None:
    plan = run(GRAPHS[0], numerics="strict")
    assert all(LIBRARY.is_exact(name) for name, _ in plan.steps)


def test_the_budget_is_kept() -> None:
    short = run(GRAPHS[1], budget_ms=1.0, budget_steps=0)
    long = run(GRAPHS[1], budget_ms=1_000.0, budget_steps=0)
    assert short.expansions < long.expansions
    assert not short.is_exhausted


def test_the_search_ends_when_nothing_new_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    monkeypatch.setattr("torchrlopt.agent.search.first_plan.PATIENCE", 0.01)
    for patience in (1, 100):  # for each second, of which there are a thousand
        monkeypatch.setattr("torchrlopt.agent.search.searcher.PATIENCE", patience / 1000)
        plan = run(GRAPHS[1], budget_ms=1_000_000.0, budget_steps=0)
        counts.append(plan.expansions)
        assert not plan.is_exhausted
    assert counts[0] < counts[1]


def test_a_search_that_was_cut_does_not_say_that_nothing_was_left() -> None:
    first = first_plan(own_time(), GRAPHS[1], LIBRARY, COST, options(budget_ms=60_000.0, budget_steps=24))
    assert not first.is_exhausted


def test_a_broken_network_is_no_broken_program(caplog: pytest.LogCaptureFixture) -> None:
    mine = searcher()
    mine._network.policy.key = torch.nn.Linear(3, 3)
    with caplog.at_level(logging.WARNING, "torchrlopt"):
        plan = mine.search(GRAPHS[0], LIBRARY, COST, options(budget_steps=400))
    assert "the agent failed" in caplog.text
    assert plan.cost_after_ms < plan.cost_before_ms


def test_the_networks_improve_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = Plan("", "", (), (), COST.total(GRAPHS[0])["time_us"] / 1000, "none", 0, 0, False, 0.0)
    monkeypatch.setattr("torchrlopt.agent.search.searcher.first_plan", lambda *given: nothing)
    plan = run(GRAPHS[0], budget_ms=60_000.0)
    assert plan.found_by == "networks"
    assert plan.cost_after_ms < plan.cost_before_ms
    costs = [cost_ms for _, cost_ms in plan.curve]
    assert costs[-1] == pytest.approx(plan.cost_after_ms)


class Loud(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        raise AssertionError(f"seen by a mode: {func}")


class LoudDispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        raise AssertionError(f"seen by a mode: {func}")


def test_modes_and_threads_are_off_inside(two_threads: None) -> None:
    with torch.device("meta"), LoudDispatch(), Loud():
        with undisturbed_torch():
            assert torch.zeros(2).sum().device.type == "cpu"
            assert torch.get_num_threads() == 1
            assert not torch.is_grad_enabled()
        with pytest.raises(AssertionError, match="seen by a mode"):
            torch.zeros(2).sum()
    assert torch.get_num_threads() == 2
    assert torch.is_grad_enabled()


def test_one_thread_is_one_thread_of_every_library(two_threads: None) -> None:
    def counts() -> set[int]:
        told = torch.__config__.parallel_info()  # of OpenMP and, where there is one, of MKL
        return {int(each) for each in re.findall(r"(?:get_num_threads|get_max_threads)\(\) : (\d+)", told)}

    assert counts() == {2}
    with undisturbed_torch():
        assert counts() == {1}
    assert counts() == {2}


def test_threads_that_are_born_meanwhile_have_all_threads(two_threads: None) -> None:
    counts: list[int] = []
    with undisturbed_torch():
        thread = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
        thread.start()
        thread.join()
    assert counts == [2]


def test_plans_depend_neither_on_the_default_dtype_nor_on_the_random_state() -> None:
    given = options(budget_ms=60_000.0)
    usual = searcher_of(given, LIBRARY).search(GRAPHS[1], LIBRARY, COST, given)
    catalogue._loaded.cache_clear()
    before = torch.get_rng_state()
    torch.manual_seed(99)
    state = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        found = searcher_of(given, LIBRARY).search(GRAPHS[1], LIBRARY, COST, given)
        assert torch.get_default_dtype() == torch.float64
        assert torch.equal(torch.get_rng_state(), state), "nothing is drawn from it"
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_rng_state(before)
        catalogue._loaded.cache_clear()
    assert (found.steps, found.costs_ms, found.expansions) == (usual.steps, usual.costs_ms, usual.expansions)


def test_new_networks_are_of_float32_and_draw_from_their_own_seed() -> None:
    state = torch.get_rng_state()
    usual = new_network(seed=4).state_dict()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            found = new_network(seed=4).state_dict()
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), state)
    assert found.keys() == usual.keys()
    for name, tensor in found.items():
        assert tensor.dtype == usual[name].dtype
        assert torch.equal(tensor, usual[name]), name


def test_inside_a_dynamo_call() -> None:
    plans: list[Plan] = []
    seen: list[object] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> object:
        before = (torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype())
        with torch._subclasses.FakeTensorMode():
            plans.append(run(GRAPHS[0]))
            assert isinstance(torch.zeros(1), torch._subclasses.FakeTensor)
        seen.append(before == (torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype()))
        return gm.forward

    torch._dynamo.reset()
    result = torch.compile(lambda x: torch.relu(x) + 1, backend=backend)(torch.ones(3))
    torch._dynamo.reset()
    assert result.tolist() == [2.0, 2.0, 2.0]
    assert seen == [True]
    assert plans[0].searcher == "agent"
