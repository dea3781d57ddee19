"""Measured prices in the cost model, and their keys: torchrlopt/machine/cost/prices.py."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from torchrlopt import _C
from torchrlopt.errors import ModelFormatError
from torchrlopt.machine.cost import Price
from torchrlopt.machine.cost.prices import scales, table
from torchrlopt.machine.profiling import walk
from torchrlopt.substitutions import load_library

GRAPH = """graph (x: f32[8,32], %w: f32[32,64]) {
  h = MatMul(x, %w)
  a = Sigmoid(h)
  b = Relu(a)
  return b
}"""


def keys(text: str, op: str, **sizes: int) -> tuple[int, int]:
    graph = _C.parse_graph(text)
    cost = _C.CostModel(sizes=sizes)
    (found,) = [i for i in graph.topological_order() if graph.node(i)["op"] == op]
    return cost.keys(graph, found)


def test_keys_are_the_same_in_another_process() -> None:
    code = (
        f"from torchrlopt import _C; g = _C.parse_graph({GRAPH!r}); "
        "print([_C.CostModel().keys(g, i) for i in g.topological_order()])"
    )
    graph = _C.parse_graph(GRAPH)
    here = [_C.CostModel().keys(graph, i) for i in graph.topological_order()]
    there = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert there.strip() == str(here)


def test_keys_are_the_same_in_another_version() -> None:
    """A change of the hash would make every stored price useless: raise the table's version with it."""
    assert keys("graph (x: f32[4]) { y = Relu(x) return y }", "Relu") == (
        0x2FFD2FD122827E19,
        0x433CAE0A2691F935,
    )


@pytest.mark.parametrize(
    "other",
    [
        GRAPH.replace("f32", "f64"),
        GRAPH.replace("8,32", "9,32"),
        GRAPH.replace("%w", "w"),
        GRAPH.replace("MatMul", "FusedMatMul"),
    ],
    ids=["dtype", "shape", "no weight", "operator"],
)
def test_whatever_changes_the_time_changes_the_key(other: str) -> None:
    op = "FusedMatMul" if "FusedMatMul" in other else "MatMul"
    assert keys(GRAPH, "MatMul")[0] != keys(other, op)[0]


def test_attributes_are_part_of_the_key() -> None:
    pool = "graph (x: f32[1,4,8,8]) {{ y = MaxPool(x; kernel_shape=[2,2], strides={}) return y }}"
    assert keys(pool.format("[1,1]"), "MaxPool") != keys(pool.format("[2,2]"), "MaxPool")


def test_names_and_distant_nodes_are_no_part_of_the_key() -> None:
    other = GRAPH.replace("return b", "c = Neg(b) d = Exp(c) return d").replace("  h =", "  p =")
    other = other.replace("(h)", "(p)")
    assert keys(other, "MatMul") == keys(GRAPH, "MatMul")
    assert keys(other, "Sigmoid") == keys(GRAPH, "Sigmoid")


def test_a_reader_that_may_be_fused_is_part_of_the_context_only() -> None:
    other = GRAPH.replace("Sigmoid", "Relu").replace("b = Relu(a)", "b = Neg(a)")
    assert keys(other, "MatMul")[0] == keys(GRAPH, "MatMul")[0]
    assert keys(other, "MatMul")[1] != keys(GRAPH, "MatMul")[1]


def test_a_symbolic_graph_has_the_keys_of_its_example() -> None:
    symbolic = GRAPH.replace("8,32", "s0,32")
    assert keys(symbolic, "MatMul", s0=8) == keys(GRAPH, "MatMul")
    assert keys(symbolic, "MatMul", s0=9) != keys(GRAPH, "MatMul")


def node(graph: _C.Graph, op: str) -> int:
    return next(i for i in graph.topological_order() if graph.node(i)["op"] == op)


def test_context_comes_before_the_node_and_the_node_before_the_model() -> None:
    graph = _C.parse_graph(GRAPH)
    matmul = node(graph, "MatMul")
    own, context = _C.CostModel().keys(graph, matmul)
    analytic = _C.CostModel().node(graph, matmul)["time_us"]

    def price(prices: dict[int, float], **scale: float) -> float:
        return _C.CostModel(prices=prices, scales=scale).node(graph, matmul)["time_us"]

    assert price({own: 5.0, context: 3.0}) == 3.0
    assert price({own: 5.0}) == 5.0
    assert price({}, MatMul=2.0) == pytest.approx(2 * analytic)
    assert price({own: 5.0}, MatMul=2.0) == 5.0, "a measured time is not scaled"


def test_measured_share() -> None:
    graph = _C.parse_graph(GRAPH)
    _, context = _C.CostModel().keys(graph, node(graph, "MatMul"))
    cost = _C.CostModel(prices={context: 30.0})
    found = cost.metrics(graph)
    assert found["measured_us"] == 30.0
    assert found["time_us"] > 30.0
    assert [cost.is_measured(graph, i) for i in graph.topological_order()].count(False) == 3


def test_a_weight_costs_its_check_and_an_expression_over_weights_nothing() -> None:
    graph = _C.parse_graph("graph (x: f32[4,4], %w: f32[4,4]) { u = Neg(%w) y = MatMul(x, u) return y }")
    _, context = _C.CostModel().keys(graph, node(graph, "Weight"))
    neg = _C.CostModel().keys(graph, node(graph, "Neg"))
    cost = _C.CostModel(prices={context: 0.25, **dict.fromkeys(neg, 9.0)})
    assert cost.node(graph, node(graph, "Weight"))["time_us"] == 0.25
    assert cost.node(graph, node(graph, "Neg"))["time_us"] == 0


def test_a_factor_for_an_unknown_operator_is_refused() -> None:
    with pytest.raises(ModelFormatError, match="Relux"):
        _C.CostModel(scales={"Relux": 2.0})


def made(
    own: int, context: int, us: float, op: str = "Relu", analytic_us: float = 1.0, graphs: int = 1
) -> Price:
    return Price(own, context, op, us, analytic_us, graphs)


def test_a_node_on_its_own_costs_the_mean_of_its_contexts_that_do_work() -> None:
    found = table([made(1, 10, 4.0), made(1, 11, 8.0, graphs=3), made(1, 12, 0.0), made(2, 20, 0.0)])
    assert found == {10: 4.0, 11: 8.0, 12: 0.0, 20: 0.0, 1: 7.0, 2: 0.0}


def test_factors_come_from_the_operator_then_its_class_then_all() -> None:
    classes = {"Relu": "Elementwise", "Neg": "Elementwise", "MaxPool": "Pool"}
    prices = [made(i, i, us) for i, us in enumerate((1.0, 2.0, 4.0))]
    assert scales(prices, classes) == pytest.approx({"Relu": 2.0, "Neg": 2.0, "MaxPool": 2.0})
    assert scales(prices[:2], classes) == {"Relu": 1.0, "Neg": 1.0, "MaxPool": 1.0}, "too few to tell"


def wiring(graph: _C.Graph) -> dict[int, tuple[object, ...]]:
    """For every node what a price may depend on: itself, what it reads, and who reads it."""
    nodes = {i: graph.node(i) for i in graph.topological_order()}
    readers: dict[int, list[int]] = {i: [] for i in nodes}
    for i, each in nodes.items():
        for value in each["inputs"]:
            if value is not None:
                readers[value[0]].append(i)
    outputs = [value[0] for value in graph.outputs if value is not None]
    return {i: (str(each), str(sorted(readers[i])), outputs.count(i)) for i, each in nodes.items()}


@pytest.mark.parametrize("seed", range(6))
def test_a_step_changes_the_keys_next_to_it_only(seed: int) -> None:
    """What keeps a search's prices right: only nodes next to a node whose wiring changed are priced again."""
    blocks = "".join(
        f" c{i} = Conv(x{i}, %w{i}; pads=[1,1,1,1]) n{i} = BatchNormalization(c{i}, %s, %b, %m, %v)"
        f" s{i} = Sigmoid(n{i}) r{i} = Relu(n{i}) x{i + 1} = Add(s{i}, r{i})"
        for i in range(3)
    )
    weights = ", ".join([*(f"%w{i}: f32[8,8,3,3]" for i in range(3)), *(f"%{n}: f32[8]" for n in "sbmv")])
    before = _C.parse_graph(f"graph (x0: f32[1,8,16,16], {weights}) {{{blocks} return x3 }}")
    cost = _C.CostModel()
    for after in itertools.islice(walk(before, load_library(), seed), 12):
        old, new = wiring(before), wiring(after)
        moved = {i for i in old.keys() | new.keys() if old.get(i) != new.get(i)}
        for i in old.keys() & new.keys():
            if cost.keys(before, i) == cost.keys(after, i):
                continue
            near = {i}
            for graph in (before, after):
                for j in graph.topological_order():
                    reads = {value[0] for value in graph.node(j)["inputs"] if value is not None}
                    near |= {j} if i in reads else set()
                    near |= reads if i == j else set()
            assert near & moved, (i, after.text())
        before = after
