"""The learned latency model: its measurements, the network and the fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from torchrlopt import _C, _tools
from torchrlopt.agent.observation import Schema
from torchrlopt.machine.cost import MachineProfile
from training.graphs.curriculum import Split, sample_graph
from training.papers.measuring.latency_fit import Measured, fit, forecast, measured_on
from training.papers.measuring.latency_network import LatencyNetwork, PricedGraphs
from training.papers.measuring.modules import module_of

COST = MachineProfile("eager", "cpu").cost_model({})


def graphs(count: int) -> list[_C.Graph]:
    """Small graphs of the curriculum."""
    return [sample_graph(key, progress=0.0).graph for key in range(count)]


def row(graph: _C.Graph, base: str, us: float) -> dict[str, Any]:
    return {"base": base, "executor": "eager", "threads": 1, "us": us, "noise": 0.01, "text": graph.text()}


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_a_graph_as_a_model_computes_what_the_graph_says(split: Split) -> None:
    for key in range(4):
        graph = sample_graph(key, split=split, progress=0.0).graph
        module, inputs = module_of(graph, seed=key)
        weights, given = iter(module.weights), iter(inputs)
        leaves = [graph.node(leaf) for leaf in graph.inputs]
        data = {leaf["name"]: next(given if leaf["op"] == "Input" else weights).numpy() for leaf in leaves}
        with torch.no_grad():
            found = module(*inputs)
        for mine, expected in zip(found, _tools.evaluate(graph, data), strict=True):
            np.testing.assert_allclose(mine, expected, rtol=1e-3, atol=1e-4)


def test_variances_are_positive() -> None:
    builder = _C.GraphBuilder()
    x = (builder.add_input("x", ("f32", [1, 3, 4, 4])), 0)
    norm = [(builder.add_input(f"w{i}", ("f32", [3]), is_weight=True), 0) for i in range(4)]
    builder.set_outputs([(builder.add_node("BatchNormalization", [x, *norm], {}), 0)], ["y"])
    module, inputs = module_of(builder.finish(), seed=0)
    with torch.no_grad():
        (y,) = module(*inputs)
    assert y.isfinite().all()


def test_an_untrained_network_forecasts_about_the_price() -> None:
    priced = PricedGraphs.joined([PricedGraphs.of(graph, COST) for graph in graphs(12)])
    torch.manual_seed(0)
    network = LatencyNetwork(Schema.current(), ["eager", "onnxruntime"])
    with torch.no_grad():
        found = network(priced, torch.tensor([0, 1] * 6)).exp()
    # A microsecond or two for the call and some hundredths for each node come on top.
    np.testing.assert_allclose(found, priced.price_us + 1.3, rtol=0.35, atol=2.0)


def test_together_and_alone_are_equal() -> None:
    alone = [PricedGraphs.of(graph, COST) for graph in graphs(3)]
    network = LatencyNetwork(Schema.current(), ["eager"]).eval()
    zero = torch.zeros(1, dtype=torch.int64)
    with torch.no_grad():
        together = network(PricedGraphs.joined(alone), torch.zeros(3, dtype=torch.int64))
        torch.testing.assert_close(torch.cat([network(each, zero) for each in alone]), together)


def made_up(count: int) -> list[Measured]:
    """Times in which products take three times their price: something to learn."""
    data = []
    for key in range(count):
        graph = sample_graph(key, progress=1.0).graph
        dear = [COST.node(graph, id_)["time_us"] for id_ in graph.topological_order()]
        products = sum(
            us
            for us, id_ in zip(dear, graph.topological_order(), strict=True)
            if graph.node(id_)["op"] in ("MatMul", "Gemm", "Linear", "Conv")
        )
        us = sum(dear) + 2 * products
        data.append(Measured.of(pd.DataFrame([row(graph, f"train {key}", us)] * 2)))
    return data


def test_a_fit_learns_what_a_kind_of_operator_costs() -> None:
    data = made_up(24)

    def error(networks: list[LatencyNetwork]) -> float:
        found = [forecast(networks, each) - each.log_us for each in data]
        return float(torch.cat(found).abs().mean())

    before = error([LatencyNetwork(Schema.current(), ["eager"])])
    networks = fit(data, ["eager"], members=2, epochs=25, seed=0)
    assert error(networks) < before / 3
    again = fit(data, ["eager"], members=2, epochs=25, seed=0)
    for one, other in zip(networks, again, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_committed_measurements_are_read_by_base() -> None:
    found = measured_on("eager", 3)
    assert len({each.base for each in found}) == 3
    assert all(len(each.log_us) > 1 for each in found)
