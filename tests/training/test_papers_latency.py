"""The learned latency model: its measurements, the network, the fit and its scores."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from torchrlopt import _C, _tools
from torchrlopt.agent.observation import Schema
from torchrlopt.machine.cost import MachineProfile
from torchrlopt.machine.profiling import trace
from training.graphs.curriculum import USUAL, Split, sample_graph
from training.papers.latency import __main__ as command
from training.papers.latency import collect, many
from training.papers.latency.__main__ import gain, pairs, score
from training.papers.latency.dataset import COLUMNS, append, read, together
from training.papers.latency.fit import Measured, fit, forecast
from training.papers.latency.network import LatencyNetwork, PricedGraphs
from training.papers.latency.subjects import module_of, subject

COST = MachineProfile("eager", "cpu").cost_model({})


def graphs(count: int) -> list[_C.Graph]:
    """Small graphs of the curriculum."""
    return [sample_graph(key, progress=0.0).graph for key in range(count)]


def row(graph: _C.Graph, base: str, us: float, again_us: float | None = None) -> dict[str, Any]:
    times = us, us if again_us is None else again_us, 0.01, True
    return dict(zip(COLUMNS, (base, ("fragment",), "eager", 1, "some", 0, *times, graph.text()), strict=True))


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


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_a_subject_is_that_of_its_key_in_usual_sizes(split: Split) -> None:
    sample, source = subject(1, split)
    assert sample.graph.hash() == sample_graph(1, split=split, sizes=USUAL).graph.hash()
    assert len(source.program.graph.inputs) == len(sample.graph.inputs)


def test_variances_are_positive() -> None:
    builder = _C.GraphBuilder()
    x = (builder.add_input("x", ("f32", [1, 3, 4, 4])), 0)
    norm = [(builder.add_input(f"w{i}", ("f32", [3]), is_weight=True), 0) for i in range(4)]
    builder.set_outputs([(builder.add_node("BatchNormalization", [x, *norm], {}), 0)], ["y"])
    module, inputs = module_of(builder.finish(), seed=0)
    with torch.no_grad():
        (y,) = module(*inputs)
    assert y.isfinite().all()


def test_rows_come_back_without_a_line_that_was_cut_off(tmp_path: Path) -> None:
    rows = [row(graph, f"train {i // 2}", 10.0 + i) for i, graph in enumerate(graphs(4))]
    plain, packed = tmp_path / "rows.jsonl", tmp_path / "rows.jsonl.xz"
    append(plain, rows[:2])
    append(plain, rows[2:])
    packed.write_bytes(lzma.compress(plain.read_bytes()))
    for path in (plain, packed):
        found = read([path])
        assert found["us"].tolist() == [10.0, 11.0, 12.0, 13.0]
        assert [own["base"].iloc[0] for own in together(found)] == ["train 0", "train 1"]
        assert _C.parse_graph(found["text"][0]).hash() == graphs(1)[0].hash()
    whole = plain.read_text()
    plain.write_text(whole[:-20])
    assert len(read([plain])) == 3
    for damaged in ("{}\n", "{\n"):
        plain.write_text(damaged + whole)
        with pytest.raises(ValueError, match=r"rows\.jsonl"):
            read([plain])


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


def test_scores() -> None:
    us, again_us, noise = np.array([10.0, 8.0, 12.0]), np.array([10.0, 8.0, 6.0]), np.full(3, 0.01)
    right, wrong, flat = 2 * us, 1 / us, np.ones(3)
    assert [pairs(us, noise, each) for each in (right, wrong, flat)] == [(3, 3), (0, 3), (1.5, 3)]
    assert pairs(us, np.full(3, 0.2), right) == (0, 0)
    assert gain(us, again_us, right, 0) == gain(us, again_us, right, 1) == 0.0
    # Unmeasured the last one, by its other samples; measured, greedy's was faster when the choice was made.
    assert gain(us, again_us, wrong, 0) == pytest.approx(0.25)
    assert gain(us, again_us, wrong, 1) == 0.0
    rows = pd.DataFrame({"us": us, "again_us": again_us, "noise": noise})
    assert score([(rows, right), (rows, right), (rows, wrong)])[1].startswith("0.33 (")


def test_collect_goes_on_and_the_comparison_prints(tmp_path: Path) -> None:
    out, other = tmp_path / "rows.jsonl", tmp_path / "other.jsonl"
    for bases in (1, 2):
        collect.main(out, "eager", "train", bases, variants=2, seconds=0.1, threads=1, most_ms=1000)
    rows = read([out])
    assert rows[rows["steps"] == 0]["base"].tolist() == ["train 0", "train 1"]
    assert (rows["us"] > 0).all()
    first = together(rows.assign(is_calm=True))[0]
    for path, names in ((out, ("train 0", "train 9", "train 19")), (other, ("test 1", "test 2"))):
        path.unlink(missing_ok=True)
        for name in names:  # the last two of the first file are "dev"
            append(path, first.assign(base=name).to_dict("records"))
    arguments = [str(out), "--members", "1", "--epochs", "1"]
    app = command.typer.Typer()
    app.command()(command.main)
    assert "nothing changes" in CliRunner().invoke(app, arguments, catch_exceptions=False).output
    refused = CliRunner().invoke(app, [*arguments, "--scored", str(other)])
    assert refused.exit_code == 2
    assert "no measurements of dev; there are: test" in " ".join(refused.output.replace("│", " ").split())
    result = CliRunner().invoke(app, [*arguments, "--scored", str(other), "--test", "test"])
    assert "test, eager: 2 bases" in result.output


def test_where_greedy_finds_nothing_there_is_nothing_to_compare() -> None:
    (source,) = trace(torch.nn.Tanh().eval(), (torch.randn(4, 4),))
    assert collect._graphs(source, "eager", 4) == []


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    app = command.typer.Typer()
    app.command()(collect.main)
    for arguments in (["--executor", "abacus"], ["--split", "some"]):
        result = CliRunner().invoke(app, [str(tmp_path / "rows.jsonl"), *arguments])
        assert result.exit_code == 2


def test_what_is_lost_where_only_some_are_measured(tmp_path: Path) -> None:
    times_us, prices = [20.0, 10.0, 9.0, 12.0, 8.0], [5.0, 4.0, 3.0, 1.0, 2.0]  # the second is greedy's
    # Greedy's; then 12, 8, 9 and 20 in the order of their prices.
    assert many.losses(times_us, times_us, prices)[:4] == pytest.approx([0.25, 0.25, 0.0, 0.0])
    noisy = [100 - each for each in times_us]
    assert many.losses(times_us, noisy, prices)[0] == pytest.approx(90 / 92 - 1), "judged anew"
    out = tmp_path / "rows.jsonl"
    app = command.typer.Typer()
    app.command()(many.main)
    append(out, [row(graphs(1)[0], "test 0", us) for us in times_us])
    assert "fewer than two" in CliRunner().invoke(app, [str(out)]).output
    # All prices are equal, so the order of the file counts: greedy's is alone first.
    append(out, [row(graphs(1)[0], "test 1", us) for us in times_us])
    result = CliRunner().invoke(app, [str(out)], catch_exceptions=False)
    assert "2 graphs, 10 variants" in result.output
    assert "25.0%" in result.output
