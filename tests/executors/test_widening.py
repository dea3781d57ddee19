"""Weight arithmetic in float64: torchrlopt/executors/weights/widening.py."""

from __future__ import annotations

import operator

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from torchrlopt.executors.weights.widening import compute_in_float64

aten = torch.ops.aten


def graph_of(build: object, *inputs: torch.Tensor) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output((build(graph, *(graph.placeholder(f"x{i}") for i in range(len(inputs)))),))  # type: ignore[operator]
    module = fx.GraphModule({}, graph)
    FakeTensorProp(module, FakeTensorMode(allow_non_fake_inputs=True)).propagate(*inputs)
    return module


def sum_of_scaled(graph: fx.Graph, x: fx.Node, w: fx.Node, v: fx.Node, s: fx.Node) -> fx.Node:
    scaled = graph.call_function(aten.mul.Tensor, (w, s))
    moved = graph.call_function(aten.t.default, (scaled,))
    total = graph.call_function(aten.add.Tensor, (moved, v))
    return graph.call_function(aten.mm.default, (x, total))


def test_a_folded_weight_is_rounded_once() -> None:
    generator = torch.Generator().manual_seed(0)
    x, w, v, s = (torch.randn(64, 64, generator=generator) for _ in range(4))
    module = graph_of(sum_of_scaled, x, w, v, s)
    compute_in_float64(module, {"x1", "x2", "x3"})
    exact = ((w.double() * s.double()).t() + v.double()).float()
    assert torch.equal(module(x, w, v, s)[0], x @ exact)
    # In float32 the two roundings show.
    assert not torch.equal((w * s).t() + v, exact)


def test_parts_of_a_computed_weight_keep_their_dtype() -> None:
    def parts(graph: fx.Graph, x: fx.Node, w: fx.Node) -> fx.Node:
        scaled = graph.call_function(aten.mul.Scalar, (w, 0.1))
        pieces = graph.call_function(aten.split_with_sizes.default, (scaled, [1, 3], 1))
        first = graph.call_function(operator.getitem, (pieces, 1))
        return graph.call_function(aten.mm.default, (x, first))

    x, w = torch.randn(4, 4), torch.randn(4, 4)
    module = graph_of(parts, x, w)
    compute_in_float64(module, {"x1"})
    expected = x @ (w.double() * 0.1).float()[:, 1:]
    result = module(x, w)[0]
    assert result.dtype == torch.float32
    assert torch.equal(result, expected)


def test_a_sum_that_names_its_dtype_is_widened_too() -> None:
    def summed(graph: fx.Graph, x: fx.Node, w: fx.Node, v: fx.Node) -> fx.Node:
        total = graph.call_function(aten.sum.dim_IntList, (w, [0], True), {"dtype": torch.float32})
        product = graph.call_function(aten.matmul.default, (total, v))
        return graph.call_function(aten.add.Tensor, (x, product))

    x, w, v = (torch.randn(4, 4) for _ in range(3))
    module = graph_of(summed, x, w, v)
    compute_in_float64(module, {"x1", "x2"})
    (result,) = module(x, w, v)
    assert result.dtype == torch.float32
    assert torch.equal(result, x + (w.double().sum(0, keepdim=True) @ v.double()).float())
