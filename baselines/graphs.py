"""The graphs of the suite as the search sees them: models are captured, but not lowered or run."""

from __future__ import annotations

import torch

from baselines.models import build
from torchrlopt import _C
from torchrlopt.capture import job


def graph_of(name: str, batch: int = 1) -> _C.Graph:
    """The inference graph of a model of the suite, before any substitution.

    Args:
        name: one of `baselines.models.NAMES`.
        batch: see `baselines.models.build`.

    Raises:
        ValueError: no such model.
        CaptureError: the model cannot be captured as one graph.
    """
    try:
        return job.graph_of(*build(name, batch))
    finally:
        torch._dynamo.reset()  # frees the model


def chain(length: int) -> _C.Graph:
    """A chain of `length` elementwise operators, some of which can be rewritten."""
    builder = _C.GraphBuilder()
    value: tuple[int, int] = (builder.add_input("x", ("f32", [1, 64, 32, 32])), 0)
    for i in range(length):
        op = ("Relu", "Relu", "Neg", "Abs", "Sigmoid")[i % 5]
        value = (builder.add_node(op, [value], {}), 0)
    builder.set_outputs([value], ["y"])
    return builder.finish()
