"""Graphs of the curriculum as PyTorch models: training/precision/subjects.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchrlopt import _C, _tools
from training.graphs.curriculum import Split, sample_graph
from training.precision.subjects import module_of


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
