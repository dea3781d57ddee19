"""Timing of nodes in their program: torchrlopt/machine/profiling, torchrlopt/executors/eager/stamps.py."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import onnx_ir
import pytest
import torch

from torchrlopt import _C
from torchrlopt.api.cli.models import load_model
from torchrlopt.errors import CaptureError, ModelFormatError, OptionsError, UnsupportedError
from torchrlopt.executors.device_clock import clock_of
from torchrlopt.executors.eager.stamps import Stamped
from torchrlopt.machine import profiling
from torchrlopt.machine.cost import ProfileStore, cost_model, machine_profile
from torchrlopt.machine.device import fingerprint
from torchrlopt.machine.profiling.session import fitted_prices
from torchrlopt.machine.profiling.timing import time_nodes
from torchrlopt.machine.profiling.walks import variant, walk
from torchrlopt.onnx import files
from torchrlopt.substitutions import load_library

CPU = torch.device("cpu")


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(16)
        self.head = torch.nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(self.norm(self.conv(x)))
        return torch.relu(self.head(y.mean((2, 3))))


def small() -> tuple[torch.nn.Module, tuple[Any, ...]]:
    """A model by name: `tests.machine.test_profiling:small`."""
    torch.manual_seed(0)
    return Small().eval(), (torch.randn(1, 3, 64, 64),)


def no_model() -> int:
    return 3


@pytest.fixture
def source() -> profiling.Source:
    (found,) = profiling.trace(*small())
    return found


@pytest.fixture
def store(tmp_path: Path) -> ProfileStore:
    return ProfileStore(tmp_path / "profile")


def names(graph: _C.Graph, ids: Any) -> list[str]:
    return [str(graph.node(id_)["op"]) for id_ in ids]


def test_every_call_of_a_lowered_graph_knows_its_nodes(source: profiling.Source) -> None:
    graph = source.program.graph
    stamped = Stamped(source.lower(graph, "eager"), clock_of(CPU))
    ids = source.node_ids(graph)
    ops = {name for origin in stamped.origins for name in names(graph, [ids[n] for n in origin if n in ids])}
    assert {"Conv", "BatchNormalization", "Sigmoid", "Relu"} <= ops


def test_stamped_graph_times_every_call(source: profiling.Source) -> None:
    stamped = Stamped(source.lower(source.program.graph, "eager"), clock_of(CPU))
    with torch.no_grad():
        calls, run = stamped(source.inputs)
    assert len(calls) == len(stamped.origins) == len(stamped.sources)
    assert all(ns > 0 for ns in calls)
    assert sum(calls) <= run


def test_only_the_eager_executor_is_stamped() -> None:
    with pytest.raises(UnsupportedError, match="call by call"):
        Stamped(lambda *args: args, clock_of(CPU))


def test_prices_add_up_to_the_run(source: profiling.Source) -> None:
    graph = source.program.graph
    analytic = cost_model("eager")
    timed = time_nodes(source, graph, source.lower(graph, "eager"), analytic, seconds=0.1)
    prices = {price.context: price for price in timed.prices}
    running = [
        i
        for i in graph.topological_order()
        if graph.node(i)["op"] == "Weight" or not graph.node(i)["is_static"]
    ]
    total = sum(prices[analytic.keys(graph, i)[1]].us for i in running)
    assert total == pytest.approx(timed.run_us, rel=1e-6)


def test_a_fused_activation_is_priced_with_its_convolution(source: profiling.Source) -> None:
    """After the batch norm is folded, oneDNN applies the sigmoid inside the convolution."""
    library = load_library()
    graph = source.program.graph
    name = next(m["name"] for m in library.matches(graph) if m["name"].startswith("fold_batchnorm"))
    graph = library.apply(graph, name, 0)
    timed = time_nodes(source, graph, source.lower(graph, "eager"), cost_model("eager"), seconds=0.05)
    by_op = {price.op: price for price in timed.prices}
    assert by_op["Conv"].us > 0
    assert by_op["Sigmoid"].us == 0


def test_profile_prices_the_original_whole(source: profiling.Source, store: ProfileStore) -> None:
    seen: list[profiling.Timed] = []
    count = profiling.profile(source, "eager", load_library(), store, 0, report=seen.append)
    assert count == 1
    assert [timed.what for timed in seen] == ["original"], "no time is enough for the original only"
    assert seen[0].num_new > 0
    cost = machine_profile("eager", CPU, store).cost_model(source.sizes)
    found = cost.metrics(source.program.graph)
    assert found["measured_us"] == found["time_us"] > 0


def test_profile_goes_on_where_it_ended(source: profiling.Source, store: ProfileStore) -> None:
    profiling.profile(source, "eager", load_library(), store, 0)
    seen: list[profiling.Timed] = []
    profiling.profile(source, "eager", load_library(), store, 3, report=seen.append)
    assert seen[0].what == "original"
    assert seen[0].num_new == 0, "known from the first run"
    known = store.prices(fingerprint(CPU), "eager").values()
    assert max(price.num_graphs for price in known) > 1
    assert all(price.is_plausible() for price in known)


def test_ctrl_c_keeps_what_was_timed(source: profiling.Source, store: ProfileStore) -> None:
    def interrupt(_: profiling.Timed) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profiling.profile(source, "eager", load_library(), store, 60, report=interrupt)
    assert store.prices(fingerprint(CPU), "eager")


def test_walks_repeat_and_differ(source: profiling.Source) -> None:
    library, graph = load_library(), source.program.graph
    first = [step.hash() for _, step in zip(range(5), walk(graph, library, 1), strict=False)]
    again = [step.hash() for _, step in zip(range(5), walk(graph, library, 1), strict=False)]
    assert first == again
    plan = _C.search(graph, library, cost_model("eager"))["steps"]
    ends = [variant(graph, library, plan, seed, 6) for seed in range(8)]
    assert len({end.hash() for end, _ in ends}) > 1
    assert all(steps <= 6 + len(plan) * (seed % 2) for seed, (_, steps) in enumerate(ends))


def test_a_walk_ends_where_nothing_applies() -> None:
    graph = _C.parse_graph("graph (x: f32[2]) { y = Relu(x) return y }")
    assert list(walk(graph, _C.Library(""), 0)) == []


def test_load_model_by_function_and_by_file(tmp_path: Path) -> None:
    model, inputs = load_model(f"{__name__}:small")
    assert isinstance(model, Small)
    assert inputs[0].shape == (1, 3, 64, 64)
    path = tmp_path / "model.onnx"
    text = '<ir_version: 10, opset_import: ["" : 18]> g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }'
    files.save_message(files.message(onnx_ir.from_onnx_text(text)), path)
    module, inputs = load_model(str(path))
    assert inputs[0].shape == (2, 3)
    assert torch.equal(module(*inputs)[0], inputs[0].relu())
    (found,) = profiling.trace(module, inputs)
    assert "Relu" in names(found.program.graph, found.program.graph.topological_order())


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("resnet50", OptionsError),
        ("no.such.module:f", OptionsError),
        (f"{__name__}:nothing", OptionsError),
        (f"{__name__}:no_model", ModelFormatError),
        ("/nowhere/model.onnx", OptionsError),
    ],
)
def test_what_is_no_model_is_refused(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        load_model(text)


def broken() -> tuple[Small, tuple[torch.Tensor]]:
    return Small().no_such_layer, (torch.ones(1),)


def needs_a_name(name: str) -> tuple[Small, tuple[torch.Tensor]]:
    raise AssertionError(name)


def one_tensor() -> tuple[Small, torch.Tensor]:
    return Small().eval(), torch.ones(1, 3, 64, 64)


def by_name() -> tuple[Small, dict[str, torch.Tensor]]:
    return Small().eval(), {"x": torch.ones(1, 3, 64, 64)}


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("broken", "no attribute 'no_such_layer'"),
        ("needs_a_name", "TypeError: needs_a_name() missing 1 required positional argument"),
        ("needs_a_name:resnet", "AssertionError: resnet"),
    ],
)
def test_a_function_that_fails_is_told_from_one_that_is_not_there(function: str, told: str) -> None:
    with pytest.raises(OptionsError, match="the function that makes the model failed") as error:
        load_model(f"{__name__}:{function}")
    assert told in str(error.value)
    assert error.value.where.startswith(f"{__name__}:{function}, ")


def test_a_single_tensor_is_taken_and_inputs_by_name_are_refused() -> None:
    _, inputs = load_model(f"{__name__}:one_tensor")
    assert [each.shape for each in inputs] == [(1, 3, 64, 64)]
    with pytest.raises(ModelFormatError, match="a tensor or the tuple of positional arguments"):
        load_model(f"{__name__}:by_name")


def test_a_model_without_an_inference_graph_is_refused() -> None:
    with pytest.raises(CaptureError):
        profiling.trace(lambda x: x + torch.rand(3), (torch.ones(3),))


def test_an_executor_that_runs_in_one_piece_is_priced_by_a_fit(
    source: profiling.Source, store: ProfileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = profiling.Source.lower

    def in_one_piece(self: profiling.Source, graph: _C.Graph, executor: str) -> Any:
        lowered = plain(self, graph, executor)
        return lambda *inputs: lowered(*inputs)

    monkeypatch.setattr(profiling.Source, "lower", in_one_piece)
    seen: list[profiling.Timed] = []
    profiling.profile(source, "eager", load_library(), store, 0, report=seen.append)
    cost = machine_profile("eager", CPU, store).cost_model(source.sizes)
    found = cost.metrics(source.program.graph)
    assert found["measured_us"] == found["time_us"]
    assert found["time_us"] == pytest.approx(seen[0].run_us, rel=0.5)


def test_a_fit_tells_classes_apart() -> None:
    """Products take twice, elementwise operators a quarter of what the model says."""
    text = "graph (x: f32[64,64], %w: f32[64,64]) {{ a = MatMul(x, %w) {} return r }}"
    chains = [
        " ".join(f"{out} = Relu({read})" for read, out in itertools.pairwise(["a", *"bcdefgh"[:count], "r"]))
        for count in range(8)
    ]
    graphs = [_C.parse_graph(text.format(chain)) for chain in chains]
    analytic = cost_model("eager")

    def true_us(graph: _C.Graph) -> float:
        factors = {"MatMul": 2.0, "Relu": 0.25}
        ops = {i: str(graph.node(i)["op"]) for i in graph.topological_order()}
        return sum(factors[op] * analytic.node(graph, i)["time_us"] for i, op in ops.items() if op in factors)

    prices = fitted_prices([(graph, true_us(graph)) for graph in graphs], analytic)
    ratios = {price.op: price.us / price.analytic_us for price in prices if price.analytic_us}
    assert ratios["MatMul"] == pytest.approx(2.0, rel=0.1)
    assert ratios["Relu"] == pytest.approx(0.25, rel=0.2)
