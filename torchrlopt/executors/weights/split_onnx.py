"""Splits what depends on weights only off an ONNX model, as `prologue` does for an FX graph.

A runtime that is given the results reads plain weights: it need not fold anything, its engine is the same for
all sets of weights, and the arithmetic over weights is torch's in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import onnx_ir
import torch

from torchrlopt.executors.lowering.onnx_to_aten import lower_model
from torchrlopt.executors.weights.widening import compute_in_float64

_RANDOM = frozenset(
    {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
     "RandomUniformLike"}
)  # fmt: skip


def split_weights(
    model: onnx_ir.Model, static: Collection[str], device: torch.device, exact: bool
) -> WeightPrologue:
    """Take the expressions over weights out of a model; in place.

    Args:
        model: standard operators; afterwards it reads results of the prologue as graph inputs.
        static: names of the graph inputs that are the same at every call.
        device: where the weights are.
        exact: compute in the weights' dtype, not in float64.

    Returns:
        What computes the values of those graph inputs of the model that are weights or results.
    """
    graph = model.graph
    computed = _computed_from(graph, static)
    frontier = [
        output
        for node in graph
        if node in computed
        for output in node.outputs
        if output.is_graph_output() or any(use.node not in computed for use in output.uses())
    ]
    names = [str(value.name) for value in frontier]
    compute = _lowered(model, names, static, device, exact)
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
    """Computes what a model without expressions over weights reads.

    Args:
        direct: weights that the model reads as they are.
        results: names of the computed values.
        compute: the weights' values, by name, to the computed ones in order; None where there are none.

    Attributes:
        names: graph inputs of the model that this gives.
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


def _computed_from(graph: onnx_ir.Graph, static: Collection[str]) -> set[onnx_ir.Node]:
    """The nodes over weights and constants that read a weight, in whatever depth."""
    fixed: set[onnx_ir.Value] = {value for value in graph.inputs if value.name in static}
    weights = set(fixed)
    fixed |= set(graph.initializers.values())
    found: set[onnx_ir.Node] = set()
    kinds = (onnx_ir.AttributeType.GRAPH, onnx_ir.AttributeType.GRAPHS)
    for node in graph:
        if node.op_type in _RANDOM or any(a.type in kinds for a in node.attributes.values()):
            continue
        operands = [value for value in node.inputs if value is not None]
        if any(value not in fixed for value in operands):
            continue
        fixed.update(node.outputs)
        if any(value in weights for value in operands):
            weights.update(node.outputs)
            found.add(node)
    return found


def _lowered(
    model: onnx_ir.Model,
    results: list[str],
    static: Collection[str],
    device: torch.device,
    exact: bool,
) -> Callable[[dict[str, torch.Tensor]], tuple[Any, ...]] | None:
    """The torch graph of the nodes over weights; None where there are none."""
    if not results:
        return None
    copy = model.clone()
    graph = copy.graph
    by_name = {str(value.name): value for node in graph for value in node.outputs}
    graph.outputs.clear()
    graph.outputs.extend(by_name[name] for name in results)
    for node in reversed(list(graph)):
        if not any(output.uses() or output.is_graph_output() for output in node.outputs):
            graph.remove(node, safe=True)
    for value in [value for value in graph.inputs if not value.uses()]:
        graph.inputs.remove(value)
    inputs = [str(value.name) for value in graph.inputs]
    assert set(inputs) <= set(static), "an expression over weights reads an input"
    module = lower_model(copy, device)
    if not exact:
        compute_in_float64(module, inputs)
    return lambda weights: tuple(module.forward(*[weights[name] for name in inputs]))


def _make_input(graph: onnx_ir.Graph, value: onnx_ir.Value) -> str:
    """Give the value to the graph from outside; the name of the new graph input."""
    name = str(value.name)
    value.name = f"{name}.computed"
    given = onnx_ir.Value(name=name, type=value.type, shape=value.shape)
    if value.is_graph_output():
        # An output has to come from a node.
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
