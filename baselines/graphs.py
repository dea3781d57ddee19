"""The graphs of the suite as the search sees them: models are captured, nothing is lowered or run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from baselines.models import build
from torchrlopt import _C, aot
from torchrlopt.capture import capture
from torchrlopt.onnx_reader import read


def graph_of(name: str, batch: int = 1) -> _C.Graph:
    """The inference graph of a model of the suite, before any substitution.

    Args:
        name: one of `baselines.models.NAMES`.
        batch: see `baselines.models.build`.

    Raises:
        ValueError: no such model, or it is not one graph.
    """
    model, inputs = build(name, batch)
    return capture_graph(model, inputs)


def capture_graph(model: torch.nn.Module, inputs: tuple[Any, ...]) -> _C.Graph:
    """The graph of any model in eval mode that has no graph breaks; ValueError where it has."""
    graphs: list[_C.Graph] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        def answer(aten: torch.fx.GraphModule, fakes: Any) -> None:
            static, _ = aot.input_roles()
            captured = capture(aten, fakes, static)
            graphs.append(read(captured.model, captured.static_inputs).graph)

        aot.trace(gm, example_inputs, answer, lambda: None)
        return gm.forward

    torch._dynamo.reset()
    try:
        with torch.no_grad():
            torch.compile(model, backend=backend, dynamic=False)(*inputs)
    finally:
        torch._dynamo.reset()
    if len(graphs) != 1:
        raise ValueError(f"expected one graph, Dynamo made {len(graphs)}")
    return graphs[0]


def chain(length: int) -> _C.Graph:
    """`length` elementwise operators one after another, some of which can be rewritten."""
    builder = _C.GraphBuilder()
    value: tuple[int, int] = (builder.add_input("x", ("f32", [1, 64, 32, 32])), 0)
    for i in range(length):
        op = ("Relu", "Relu", "Neg", "Abs", "Sigmoid")[i % 5]
        value = (builder.add_node(op, [value], {}), 0)
    builder.set_outputs([value], ["y"])
    return builder.finish()
