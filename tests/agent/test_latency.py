"""The learned model of measured latency: torchrlopt/agent/latency.py and its use in searcher.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.agent.agent_cases import COST, GRAPHS, LIBRARY, new_network
from torchrlopt import _C
from torchrlopt.agent import checkpoint
from torchrlopt.agent.checkpoint import Agent
from torchrlopt.agent.latency import LatencyModel, parts_of
from torchrlopt.agent.search.explorer import Found
from torchrlopt.agent.search.searcher import AgentSearcher
from torchrlopt.errors import AgentError

TRUE = {"Conv": 0.5, "MatMul": 2.0, "elementwise": 3.0}


def test_the_parts_add_up_to_the_price() -> None:
    for graph in GRAPHS:
        assert sum(parts_of(graph, COST).values()) == pytest.approx(COST.total(graph)["time_us"], rel=1e-9)


def test_factors_are_found_from_a_few_whole_graphs() -> None:
    rng = np.random.default_rng(0)
    graphs = [{kind: float(rng.uniform(1, 100)) for kind in TRUE} for _ in range(24)]
    measured = [
        sum(TRUE[kind] * us for kind, us in parts.items()) * float(rng.normal(1, 0.01)) for parts in graphs
    ]
    model = LatencyModel.fit(graphs[:12], measured[:12])
    assert model.factors == pytest.approx(TRUE, rel=0.1)
    errors = [abs(model.latency_us(p) / us - 1) for p, us in zip(graphs[12:], measured[12:], strict=True)]
    plain = [abs(sum(p.values()) / us - 1) for p, us in zip(graphs[12:], measured[12:], strict=True)]
    assert float(np.mean(errors)) < 0.05 < float(np.mean(plain))


def test_one_measurement_gives_one_factor_for_all() -> None:
    model = LatencyModel.fit([{"Conv": 10.0}], [30.0])
    assert model.common == pytest.approx(3.0)
    assert model.latency_us({"Conv": 1.0, "movement": 1.0}) == pytest.approx(6.0, rel=1e-3)
    assert LatencyModel.fit([], []) == LatencyModel()


def test_it_lies_in_the_checkpoint(tmp_path: Path) -> None:
    model = LatencyModel(1.5, {"Conv": 0.5})
    controller = new_network()
    checkpoint.save(tmp_path / "a.safetensors", controller, LIBRARY, {"latency": model.as_dict()})
    assert checkpoint.load(tmp_path / "a.safetensors", LIBRARY).latency == model
    checkpoint.save(tmp_path / "b.safetensors", controller, LIBRARY, {})
    assert checkpoint.load(tmp_path / "b.safetensors", LIBRARY).latency is None
    checkpoint.save(tmp_path / "c.safetensors", controller, LIBRARY, {"latency": {"common": -1.0}})
    with pytest.raises(AgentError, match="latency model is malformed"):
        checkpoint.load(tmp_path / "c.safetensors", LIBRARY)


def test_it_decides_among_the_last_candidates() -> None:
    graph = GRAPHS[0]
    greedy = _C.search(graph, LIBRARY, COST, searcher="greedy", budget_ms=10_000.0)
    before, after = parts_of(graph, COST), parts_of(greedy["graph"], COST)
    new_kinds = set(after) - set(before)
    assert new_kinds, "the plan brings operators of another kind"

    def chosen(latency: LatencyModel | None) -> Found:
        found = Found(float(COST.total(graph)["time_us"]), [])
        found.note(greedy["cost_after_us"], greedy["steps"])
        agent = Agent(new_network().eval(), {}, latency)
        AgentSearcher(agent)._choose(found, graph, LIBRARY, COST)
        return found

    assert chosen(None).steps == greedy["steps"]
    assert chosen(LatencyModel()).steps == greedy["steps"]
    dear = chosen(LatencyModel(1.0, dict.fromkeys(new_kinds, 1e3)))
    assert dear.steps == []
    assert dear.cost_us == pytest.approx(COST.total(graph)["time_us"])
