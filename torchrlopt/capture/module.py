"""The core's graph of a PyTorch module, captured as the backend captures it; nothing is rewritten or run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchrlopt import _C
from torchrlopt.capture import aot, capture
from torchrlopt.errors import CaptureError
from torchrlopt.onnx.reader import read


def graph_of(model: torch.nn.Module, inputs: Sequence[Any]) -> _C.Graph:
    """Captures one call of a model.

    Args:
        model: in eval mode.
        inputs: its positional arguments.

    Raises:
        CaptureError: Dynamo breaks the model into several graphs, or a graph could not be captured.
    """
    graphs: list[_C.Graph] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        def answer(aten: torch.fx.GraphModule, fakes: Any) -> None:
            static, _ = aot.input_roles()
            captured = capture(aten, fakes, static)
            graphs.append(read(captured.model, captured.static_inputs).graph)

        aot.trace(gm, example_inputs, answer, lambda: None)
        return gm.forward

    with torch.no_grad():
        torch.compile(model, backend=backend, dynamic=False)(*inputs)
    if len(graphs) != 1:
        raise CaptureError("the model is not one graph", expected="1 graph", got=f"{len(graphs)} graphs")
    return graphs[0]
