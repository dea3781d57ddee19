"""Compares some calls of a saved model in lower precision with the same graph in the types of the model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchrlopt.artefact.calls import Json, damaged, fields
from torchrlopt.artefact.graph import ReadTensor, StoredGraph
from torchrlopt.errors import UnsupportedError
from torchrlopt.options import ERROR_METRICS

logger = logging.getLogger("torchrlopt")

MetricOf = Callable[[str], Callable[[Sequence[Any], Sequence[Any]], float]]
"""Returns the metric of this name, which takes outputs and the exact ones."""


class Sampled:
    """Runs a graph; calls 2, 4, 8 and so on also run it exact, which takes over beyond the budget.

    Args:
        run: the graph.
        content: the budget and its metric, and the exact graph as `lowered.as_lowered` returns it; untrusted.
        num_given: how many tensors each call passes.
        tensor: reads the weights.
        metric_of: returns the metric.

    Raises:
        ModelFormatError: the content is malformed.
    """

    def __init__(
        self, run: StoredGraph, content: Json, num_given: int, tensor: ReadTensor, metric_of: MetricOf
    ) -> None:
        self._max_error, self._metric, exact = fields(content, max_error=float, metric=str, exact=dict)
        if self._metric not in ERROR_METRICS:
            raise damaged("there is no such metric", self._metric)
        self._run, self._metric_of, self._num_calls = run, metric_of, 0
        self._exact = StoredGraph({"run": exact, "apart": [], "watched": []}, num_given, tensor)
        self.num_outputs = run.num_outputs
        if self._exact.num_outputs != self.num_outputs:
            raise damaged("two forms of a graph have other numbers of outputs")

    def __call__(self, given: Sequence[torch.Tensor]) -> Sequence[Any]:
        """Run on the tensors of a call."""
        outputs = self._run(given)
        self._num_calls += 1  # a lost update of another thread does no harm
        is_sampled = self._num_calls > 1 and self._num_calls & (self._num_calls - 1) == 0
        if not is_sampled or self._run is self._exact:
            return outputs
        exact = self._exact(given)
        if any(
            x.shape != y.shape for x, y in zip(outputs, exact, strict=True) if isinstance(x, torch.Tensor)
        ):
            raise damaged("two forms of a graph have results of other sizes")
        try:
            error = self._metric_of(self._metric)(outputs, exact)
        except UnsupportedError:  # such as outputs that are not finite
            return outputs
        if error <= self._max_error:
            return outputs
        logger.warning(
            "a saved model computes in float32 from now on: the error is %.3g, the budget %.3g (%s)",
            error,
            self._max_error,
            self._metric,
        )
        self._run = self._exact
        return exact
