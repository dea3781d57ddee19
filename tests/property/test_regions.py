"""Partitions of random graphs: convex regions, in an order in which every value exists before it is read."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx

from torchrlopt.executors.lowering.fx_values import ORIGIN
from torchrlopt.executors.regions.cut import Cut, Prices
from torchrlopt.executors.regions.partition import rounds
from torchrlopt.torch_private.tensors import FakeTensorMode

Graph = tuple[list[bool], list[list[int]]]
"""Which nodes are taken, and what each of them reads."""

TAKEN, LEFT = True, False


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random graphs; diamonds, skips and parts that hang together by nothing among them."""
    count = draw(st.integers(1, 14))
    reads = [
        draw(st.lists(st.integers(0, at - 1), max_size=3, unique=True)) if at else [] for at in range(count)
    ]
    return [draw(st.sampled_from([TAKEN, TAKEN, LEFT])) for _ in range(count)], reads


def taken_of(kinds: Sequence[bool]) -> set[int]:
    return {node for node, is_taken in enumerate(kinds) if is_taken}


def regions_of(graph: Graph, size: Callable[[int], float] = lambda node: 1.0) -> list[set[int]]:
    kinds, reads = graph
    taken = taken_of(kinds)
    found = rounds(range(len(kinds)), reads.__getitem__, taken, size)
    members: dict[int, set[int]] = {}
    for node in taken:
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
    found = rounds(range(len(kinds)), reads.__getitem__, taken_of(kinds))
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


# ---- graphs of calls


@st.composite
def modules(draw: st.DrawFn) -> tuple[fx.GraphModule, set[str]]:
    """Graphs of sums, views and splits over an input and a weight, and the nodes that a runtime refuses."""
    graph, mode = fx.Graph(), FakeTensorMode()
    values = []
    for name in ("x", "weight"):
        values.append(graph.placeholder(name))
        with mode:
            values[-1].meta["val"] = torch.empty(4, 4)

    def call(target: object, *args: object) -> fx.Node:
        node = graph.call_function(target, args)  # type: ignore[arg-type]  # args are nodes
        fakes = fx.map_arg(args, lambda each: each.meta["val"])
        with mode:
            node.meta = {"val": target(*fakes), ORIGIN: (f"node_{len(graph.nodes)}",)}  # type: ignore[operator]
        return node

    for _ in range(draw(st.integers(1, 12))):
        read = draw(st.lists(st.sampled_from(values), min_size=2, max_size=2))
        match draw(st.sampled_from(["sum", "view", "split"])):
            case "sum":
                values.append(call(torch.ops.aten.add.Tensor, *read))
            case "view":
                values.append(call(torch.ops.aten.permute.default, read[0], [1, 0]))
            case _:
                parts = call(torch.ops.aten.split.Tensor, read[0], 2)
                halves = [call(operator.getitem, parts, at) for at in range(2)]
                for half in halves:
                    half.meta[ORIGIN] = parts.meta[ORIGIN]  # one node of ONNX has both results
                values.append(call(torch.ops.aten.cat.default, halves[::-1]))
    outputs = draw(st.lists(st.sampled_from(values[2:]), min_size=1, max_size=3, unique=True))
    graph.output(tuple(outputs))
    names = [node.meta[ORIGIN][0] for node in graph.nodes if node.op == "call_function"]
    refused = {name for name in names if draw(st.booleans())}
    return fx.GraphModule(torch.nn.Module(), graph), refused


def cut(module: fx.GraphModule, refused: set[str], static: set[str], crossing_us: float) -> Cut:
    prices = Prices(typical_us=1.0, crossing_us=crossing_us, bytes_per_us=1e12)
    parts = Cut(module, static, dict.fromkeys(refused, "it is refused"), {}, prices)
    for region in parts.regions:
        region.lowered = region.captured.aten.forward  # type: ignore[assignment]  # the original of the region
    return parts


@settings(max_examples=60, deadline=None)
@given(modules(), st.booleans())
def test_a_cut_graph_computes_the_same(drawn: tuple[fx.GraphModule, set[str]], is_static: bool) -> None:
    module, refused = drawn
    x, weight = torch.randn(4, 4), torch.randn(4, 4)
    expected = module(x, weight)
    parts = cut(module, refused, {"weight"} if is_static else set(), 0.5)
    for found, wanted in zip(parts.module(x, weight), expected, strict=True):
        assert torch.equal(found, wanted)
    for region in parts.regions:
        assert not any(refused.intersection(node.meta[ORIGIN]) for node in region.calls)
        held = {each.untyped_storage().data_ptr() for each in (x, weight)}
        given_values = [torch.randn(node.meta["val"].shape) for node in region.inputs]
        held |= {each.untyped_storage().data_ptr() for each in given_values}
        results = region(*given_values)
        assert held.isdisjoint(each.untyped_storage().data_ptr() for each in results)


@settings(max_examples=40, deadline=None)
@given(modules())
def test_regions_that_do_not_pay_are_given_up(drawn: tuple[fx.GraphModule, set[str]]) -> None:
    module, refused = drawn
    assert all(len(region.calls) >= 3 for region in cut(module, refused, set(), 2.5).regions)
    assert not cut(module, refused, set(), 1e6).regions
