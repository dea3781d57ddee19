"""Partitions of random graphs: convex regions, in an order in which every value exists before it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx_ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrlopt.executors.regions.cut import Cut, Region, cut
from torchrlopt.executors.regions.partition import Kind, rounds

Graph = tuple[list[Kind], list[list[int]]]
"""Kinds of the nodes, and what each of them reads."""

TAKEN, LEFT, FREE = Kind.TAKEN, Kind.LEFT, Kind.FREE


@st.composite
def graphs(draw: st.DrawFn, kinds: Sequence[Kind] = (TAKEN, TAKEN, LEFT)) -> Graph:
    """Random graphs; diamonds, skips and parts that hang together by nothing among them."""
    count = draw(st.integers(1, 14))
    reads = [
        draw(st.lists(st.integers(0, at - 1), max_size=3, unique=True)) if at else [] for at in range(count)
    ]
    return [draw(st.sampled_from(list(kinds))) for _ in range(count)], reads


def regions_of(graph: Graph, size: Callable[[int], float] = lambda node: 1.0) -> list[set[int]]:
    kinds, reads = graph
    found = rounds(range(len(kinds)), reads.__getitem__, kinds.__getitem__, size)
    members: dict[int, set[int]] = {}
    for node, kind in enumerate(kinds):
        if kind is TAKEN:
            members.setdefault(found[node], set()).add(node)
    return [members[number] for number in sorted(members)]


def is_convex(region: set[int], reads: Sequence[Sequence[int]]) -> bool:
    """Whether no path leaves the region and comes back, found by following every edge."""
    behind: set[int] = set()  # outside, and reachable from inside
    for node, sources in enumerate(reads):
        if node not in region and any(each in region or each in behind for each in sources):
            behind.add(node)
    return not any(each in behind for node in region for each in reads[node])


def most_changes(graph: Graph) -> int:
    """The largest number of runs of taken nodes along one path: so many regions there have to be."""
    kinds, reads = graph
    runs: list[int] = []
    for node, kind in enumerate(kinds):
        here = [runs[each] + (kind is TAKEN and kinds[each] is not TAKEN) for each in reads[node]]
        runs.append(max(here, default=int(kind is TAKEN)))
    return max(runs)


@settings(max_examples=300, deadline=None)
@given(graphs())
def test_regions_are_convex_and_as_few_as_can_be(graph: Graph) -> None:
    regions = regions_of(graph)
    assert all(is_convex(region, graph[1]) for region in regions)
    assert len(regions) <= most_changes(graph)


@settings(max_examples=300, deadline=None)
@given(graphs())
def test_the_parts_can_run_one_after_the_other(graph: Graph) -> None:
    """Merged to one node each, the regions make no cycle."""
    kinds, reads = graph
    found = rounds(range(len(kinds)), reads.__getitem__, kinds.__getitem__)
    for node, sources in enumerate(reads):
        for each in sources:
            assert found[each] <= found[node]
            assert found[each] < found[node] or not (kinds[each] is TAKEN and kinds[node] is LEFT)


def test_a_diamond_whose_sides_would_make_a_cycle() -> None:
    # 0 -> 1 (left) -> 3, 0 -> 2 -> 4 (left) -> 5, 3 -> 5: to put all neighbours together would be a cycle.
    kinds = [TAKEN, LEFT, TAKEN, TAKEN, LEFT, TAKEN]
    graph = kinds, [[], [0], [0], [1], [2], [3, 4]]
    assert not is_convex({0, 2, 3, 5}, graph[1])
    assert regions_of(graph) == [{0, 2}, {3, 5}]


def test_what_only_a_later_region_reads_moves_there() -> None:
    # 0 (left) -> 1; 2 reads nothing, and nobody but 1 reads it.
    assert regions_of(([LEFT, TAKEN, TAKEN, TAKEN], [[], [0], [], [1, 2]])) == [{1, 2, 3}]
    first_has_work = [TAKEN, LEFT, TAKEN, TAKEN], [[], [0], [0], [1, 2]]
    assert regions_of(first_has_work, lambda node: float(node == 0)) == [{0, 2}, {3}]
    assert regions_of(first_has_work, lambda node: 1.0) == [{0}, {2, 3}]


@pytest.mark.parametrize("num_nodes", [1_000, 10_000])
def test_every_edge_is_looked_at_once_in_each_direction(num_nodes: int) -> None:
    reads = [
        [each for each in (node - 1, node - 7, node // 2) if 0 <= each < node] for node in range(num_nodes)
    ]
    kinds = [LEFT if node % 5 == 0 else FREE if node % 11 == 0 else TAKEN for node in range(num_nodes)]
    counts = {"reads": 0, "kind": 0, "size": 0}

    def counted(name: str, answer: Callable[[int], object]) -> Callable[[int], object]:
        def ask(node: int) -> object:
            counts[name] += 1
            return answer(node)

        return ask

    num_edges = sum(map(len, reads))
    rounds(
        range(num_nodes),
        counted("reads", reads.__getitem__),  # type: ignore[arg-type]
        counted("kind", kinds.__getitem__),  # type: ignore[arg-type]
        counted("size", lambda node: 1.0),  # type: ignore[arg-type]
    )
    assert counts["reads"] == num_nodes
    assert counts["kind"] <= 4 * num_nodes + num_edges
    assert counts["size"] <= num_nodes + num_edges


# ---- models


def value(name: str) -> onnx_ir.Value:
    kind = onnx_ir.TensorType(onnx_ir.DataType.FLOAT)
    return onnx_ir.Value(name=name, type=kind, shape=onnx_ir.Shape([4]))


@st.composite
def models(draw: st.DrawFn) -> tuple[onnx_ir.Model, set[onnx_ir.Node]]:
    """Models over an input, a weight and a constant, and the nodes that a runtime does not take."""
    x, weight = value("x"), value("weight")
    constant = onnx_ir.Node("", "Constant", [], outputs=[value("constant")], name="constant")
    values, nodes = [x, weight, constant.outputs[0]], [constant]
    for at in range(draw(st.integers(1, 12))):
        read = draw(st.lists(st.sampled_from(values), min_size=1, max_size=2))
        nodes.append(onnx_ir.Node("", "Sum", read, outputs=[value(f"v{at}")], name=f"n{at}"))
        values.append(nodes[-1].outputs[0])
    outputs = draw(st.lists(st.sampled_from(values[3:]), min_size=1, max_size=3, unique=True))
    graph = onnx_ir.Graph([x, weight], outputs, nodes=nodes, name="random", opset_imports={"": 20})
    left = {node for node in nodes[1:] if draw(st.booleans())}
    return onnx_ir.Model(graph, ir_version=10), left


def evaluated(nodes: Iterable[onnx_ir.Node], known: dict[onnx_ir.Value, int]) -> dict[onnx_ir.Value, int]:
    """What the nodes give for what is known; what is not known cannot be read."""
    known = dict(known)
    for node in nodes:
        known[node.outputs[0]] = hash((node.name, *(known[each] for each in node.inputs if each is not None)))
    return known


@settings(max_examples=200, deadline=None)
@given(models(), st.booleans())
def test_a_cut_model_computes_the_same(
    drawn: tuple[onnx_ir.Model, set[onnx_ir.Node]], are_weights_static: bool
) -> None:
    model, left = drawn
    static = {"weight"} if are_weights_static else set()
    parts = cut(model, left, static, (), lambda each: 1.0, lambda region: True)
    given_values = {model.graph.inputs[0]: 1, model.graph.inputs[1]: 2}
    expected = evaluated(model.graph, given_values)
    known = dict(given_values)
    for unit in parts.order:
        if isinstance(unit, Region):
            inside = evaluated(unit.nodes, {each: known[each] for each in unit.inputs})
            known |= {each: inside[each] for each in unit.outputs}
            assert not left.intersection(unit.nodes)
        else:
            known = evaluated([unit], known)
    assert [known[each] for each in model.graph.outputs] == [expected[each] for each in model.graph.outputs]
    assert_each_once(parts, model)


def assert_each_once(parts: Cut, model: onnx_ir.Model) -> None:
    """Constants aside, nothing that needs an input of the call is computed twice."""
    varying: set[onnx_ir.Value] = {model.graph.inputs[0]}
    for node in model.graph:
        if varying.intersection(node.inputs):
            varying.update(node.outputs)
            assert len(parts.places[node]) == 1


@settings(max_examples=100, deadline=None)
@given(models())
def test_regions_that_do_not_pay_are_given_up(drawn: tuple[onnx_ir.Model, set[onnx_ir.Node]]) -> None:
    model, left = drawn
    parts = cut(model, left, (), (), lambda each: 1.0, lambda region: len(region.taken) >= 3)
    assert all(len(region.taken) >= 3 for region in parts.regions)
    none = cut(model, left, (), (), lambda each: 1.0, lambda region: False)
    assert not none.regions
    assert all(isinstance(unit, onnx_ir.Node) for unit in none.order)
