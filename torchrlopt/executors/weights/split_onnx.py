"""Splits off the part of an ONNX model that depends on weights only, to compute it once per set of weights.

A runtime that gets the results reads plain weights: it need not fold anything, its engine is the same for all
sets of weights, and the arithmetic over weights is torch's in float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from typing import Any

import onnx_ir
import torch

from torchrlopt.executors.lowering.onnx_to_aten import lower_model
from torchrlopt.executors.weights.overflow import refuse_overflows
from torchrlopt.executors.weights.static_part import Step, crossing, hoisted
from torchrlopt.executors.weights.widening import compute_in_float64
from torchrlopt.onnx.subgraphs import subgraphs

_NOT_AHEAD = frozenset(
    {"Bernoulli", "DequantizeLinear", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike",
     "RandomUniform", "RandomUniformLike"}
)  # fmt: skip
"""What is never evaluated ahead: random numbers, and weights of integers, which runtimes multiply as such."""


def split_weights(
    model: onnx_ir.Model, static: Collection[str], device: torch.device, exact: bool
) -> WeightPrologue:
    """Remove the expressions over weights from a model, in place.

    Args:
        model: standard operators; afterwards it reads results of the prologue as graph inputs.
        static: names of the graph inputs that are the same in every call.
        device: where the weights are.
        exact: compute in the weights' dtype, not in float64.

    Returns:
        A prologue that computes the model's graph inputs that are weights or results.
    """
    graph = model.graph
    steps = _hoisted_nodes(graph, static)
    computed = {step.node for step in steps}
    frontier = crossing(steps, readers)
    names = [str(value.name) for value in frontier]
    compute = lowered_prologue(model, names, static, device, exact)
    results = [_make_input(graph, value) for value in frontier]
    for node in reversed(list(graph)):
        is_unread = node.op_type == "Constant" and not node.outputs[0].uses()
        if node in computed or (is_unread and not node.outputs[0].is_graph_output()):
            graph.remove(node, safe=True)
    read = [value for value in graph.inputs if value.name in static and value.uses()]
    for value in [value for value in graph.inputs if value.name in static and not value.uses()]:
        graph.inputs.remove(value)
    return WeightPrologue([str(value.name) for value in read], results, compute)


class WeightPrologue:
    """Computes the weight inputs of a model whose expressions over weights were removed.

    Args:
        direct: weights that the model reads directly.
        results: names of the computed values.
        compute: maps the weights by name to the computed values in order; None if there are none.

    Attributes:
        names: graph inputs of the model that this provides.
    """

    def __init__(
        self,
        direct: Collection[str],
        results: Collection[str],
        compute: Callable[[dict[str, torch.Tensor]], tuple[Any, ...]] | None,
    ) -> None:
        self._direct = list(direct)
        self._results = list(results)
        self._compute = compute
        self.names = frozenset([*direct, *results])

    def __call__(self, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The values by name.

        Args:
            weights: every weight by name.
        """
        values = {name: weights[name] for name in self._direct}
        if self._compute is not None:
            values |= dict(zip(self._results, self._compute(weights), strict=True))
        return values


def _hoisted_nodes(graph: onnx_ir.Graph, static: Collection[str]) -> list[Step[onnx_ir.Node, onnx_ir.Value]]:
    """The nodes over weights and constants that depend on a weight, directly or indirectly."""
    weights = [value for value in graph.inputs if value.name in static]
    return hoisted(steps_of(graph), weights, graph.initializers.values())


def steps_of(graph: onnx_ir.Graph) -> list[Step[onnx_ir.Node, onnx_ir.Value]]:
    """The nodes of a graph as steps, in order."""
    return [
        Step(
            node,
            [value for value in node.inputs if value is not None],
            node.outputs,
            functools.partial(_is_repeatable, node),
        )
        for node in graph
    ]


def _is_repeatable(node: onnx_ir.Node) -> bool:
    return node.op_type not in _NOT_AHEAD and not subgraphs(node)


def readers(value: onnx_ir.Value) -> list[onnx_ir.Node | None]:
    """The nodes that read a value, and None if it is an output."""
    nodes: list[onnx_ir.Node | None] = [use.node for use in value.uses()]
    return [*nodes, None] if value.is_graph_output() else nodes


def lowered_prologue(
    model: onnx_ir.Model,
    results: list[str],
    static: Collection[str],
    device: torch.device,
    exact: bool,
) -> Callable[[dict[str, torch.Tensor]], tuple[Any, ...]] | None:
    """Lower the nodes over weights.

    Args:
        model: not changed; its weights are graph inputs.
        results: names of the values to compute.
        static: names of the graph inputs that are weights.
        device: where the weights are.
        exact: compute in the weights' dtype, not in float64.

    Returns:
        A function from the weights by name to the results in order; None if there are none.
    """
    if not results:
        return None
    copy = model.clone()
    graph = copy.graph
    by_name = {str(value.name): value for node in graph for value in node.outputs}
    graph.outputs.clear()
    graph.outputs.extend(by_name[name] for name in results)
    needed = _ancestors(graph.outputs)
    graph.remove([node for node in graph if node not in needed])  # bodies of some may go on reading values
    read = {value for node in graph for value in node.inputs}
    for value in [value for value in graph.inputs if value not in read]:
        graph.inputs.remove(value)
    inputs = [str(value.name) for value in graph.inputs]
    assert set(inputs) <= set(static), "an expression over weights reads an input"
    module = lower_model(copy, device)
    if not exact:
        placeholders = module.graph.find_nodes(op="placeholder")
        compute_in_float64(module, [str(node.target) for node in placeholders])  # all of them are weights
    refuse_overflows(module)
    return lambda weights: tuple(module.forward(*[weights[name] for name in inputs]))


def _ancestors(values: Iterable[onnx_ir.Value]) -> set[onnx_ir.Node]:
    """The nodes that values are computed by, directly or indirectly."""
    found: set[onnx_ir.Node] = set()
    left = [value.producer() for value in values]
    while left:
        node = left.pop()
        if node is not None and node not in found:
            found.add(node)
            left += [value.producer() for value in node.inputs if value is not None]
    return found


def _make_input(graph: onnx_ir.Graph, value: onnx_ir.Value) -> str:
    """Turn the value into a graph input; returns the name of the new input."""
    name = str(value.name)
    value.name = f"{name}.computed"
    given = onnx_ir.Value(name=name, type=value.type, shape=value.shape)
    if value.is_graph_output():
        # An output must be computed by a node.
        given.name = f"{name}.given"
        copied = onnx_ir.Value(name=name, type=value.type, shape=value.shape)
        onnx_ir.convenience.replace_all_uses_with(value, copied, replace_graph_outputs=True)
        graph.append(onnx_ir.Node("", "Identity", [given], outputs=[copied], name=f"{name}.output"))
        # Nodes before the new one may read the output.
        for use in list(copied.uses()):
            use.node.replace_input_with(use.idx, given)
    else:
        onnx_ir.convenience.replace_all_uses_with(value, given)
    graph.inputs.append(given)
    return str(given.name)
