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
