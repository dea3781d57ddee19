"""Graphs of the curriculum as PyTorch models with random weights and sizes of real models."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir
import torch
from torch import nn

from torchrlopt import _C
from torchrlopt.executors.lowering.onnx_to_aten import lower_model
from torchrlopt.machine.profiling import Source, trace
from torchrlopt.onnx.program import Program
from torchrlopt.onnx.writer import write
from training.graphs.curriculum import USUAL, Split, sample_graph

OPSET = 23
_VARIANCE = 4  # index of BatchNormalization's variance input


@dataclasses.dataclass(frozen=True)
class Subject:
    """A graph of the curriculum with realistic sizes, which runs for milliseconds.

    Attributes:
        split: of the curriculum.
        key: in it.
        progress: of the curriculum.
    """

    split: Split
    key: int
    progress: float

    def source(self) -> Source:
        """The graph traced as a model of PyTorch, with random weights."""
        sample = sample_graph(self.key, split=self.split, progress=self.progress, sizes=USUAL)
        (source,) = trace(*module_of(sample.graph, seed=self.key))
        return source


class _Held(nn.Module):
    """A lowered graph whose weights are parameters."""

    def __init__(self, graph: torch.fx.GraphModule, weights: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self.graph = graph
        self.places = tuple(weights)
        self.weights = nn.ParameterList(nn.Parameter(each, requires_grad=False) for each in weights.values())

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weights, given = dict(zip(self.places, self.weights, strict=True)), iter(inputs)
        count = len(weights) + len(inputs)
        results: tuple[torch.Tensor, ...] = self.graph(
            *(weights[i] if i in weights else next(given) for i in range(count))
        )
        return results


def module_of(graph: _C.Graph, seed: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Make a module of a graph with random weights, and random inputs for it.

    Args:
        graph: of float32 values and fixed sizes.
        seed: of weights and inputs.

    Raises:
        LoweringError: an operator has no converter.
    """
    leaves = [graph.node(leaf) for leaf in graph.inputs]
    shapes = [[int(dim) for dim in leaf["types"][0][1]] for leaf in leaves]
    lowered = lower_model(write(_program(graph, [leaf["name"] for leaf in leaves], shapes)))
    rng = torch.Generator().manual_seed(seed)
    variances = {
        node["inputs"][_VARIANCE][0]
        for node in map(graph.node, graph.topological_order())
        if node["op"] == "BatchNormalization"
    }
    weights: dict[int, torch.Tensor] = {}
    inputs: list[torch.Tensor] = []
    for position, (leaf, shape) in enumerate(zip(leaves, shapes, strict=True)):
        drawn = torch.randn(shape, generator=rng)
        if leaf["op"] == "Input":
            inputs.append(drawn)
        elif leaf["id"] in variances:
            weights[position] = 0.5 + drawn.abs()
        else:
            # A scale that preserves the magnitude of activations through the layers.
            fan_in = max(1, drawn.numel() // max(shape)) if len(shape) > 1 else 1
            weights[position] = drawn / fan_in**0.5
    return _Held(lowered, weights).eval(), tuple(inputs)


def _program(graph: _C.Graph, names: Sequence[str], shapes: Sequence[Sequence[int]]) -> Program:
    """The graph with a model that has only its inputs and outputs."""
    inputs = [
        onnx_ir.Value(name=name, type=onnx_ir.TensorType(onnx_ir.DataType.FLOAT), shape=onnx_ir.Shape(shape))
        for name, shape in zip(names, shapes, strict=True)
    ]
    outputs = [onnx_ir.Value(name=name) for name in graph.output_names]
    around = onnx_ir.Graph(inputs, outputs, nodes=[], opset_imports={"": OPSET})
    source = onnx_ir.Model(around, ir_version=10)
    return Program(graph, source, OPSET, {}, {}, frozenset())
