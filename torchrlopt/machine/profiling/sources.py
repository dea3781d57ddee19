"""Traces models for profiling and lowers the graphs that are derived from them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchrlopt import _C
from torchrlopt.capture.job import Job, jobs_of
from torchrlopt.capture.trace import ExampleInputs
from torchrlopt.executors import registry
from torchrlopt.executors.registry import Lowered
from torchrlopt.onnx.program import Program
from torchrlopt.onnx.writer import fresh_prefix, node_name, write
from torchrlopt.options import LoweringOptions


@dataclasses.dataclass(frozen=True)
class Source:
    """One graph of a model; graphs derived from it by substitutions can be lowered."""

    job: Job

    @property
    def program(self) -> Program:
        """The graph as read, before any substitution."""
        return self.job.program

    @property
    def sizes(self) -> Mapping[str, int]:
        """Sizes of the graph's symbols."""
        return self.job.traced.sizes

    @property
    def device(self) -> torch.device:
        """Device of the graph's tensors."""
        return self.job.traced.device

    @functools.cached_property
    def inputs(self) -> list[Any]:
        """Inputs of the captured graph, including weights; those that a call may write to are copies."""
        return self.job.traced.own_inputs()

    def lower(self, graph: _C.Graph, executor: str) -> Lowered:
        """Lower a graph that was derived from `program.graph` by substitutions.

        Raises:
            LoweringError: the executor cannot run it.
        """
        model = write(dataclasses.replace(self.program, graph=graph))
        return registry.get(executor).lower(model, self.job.captured, LoweringOptions())

    def node_ids(self, graph: _C.Graph) -> dict[str, int]:
        """Return node ids by their names in the written model."""
        nodes, prefix = map(graph.node, graph.topological_order()), fresh_prefix(self.program.source)
        return {node_name(node, prefix): int(node["id"]) for node in nodes}


def trace(model: torch.nn.Module | Callable[..., Any], inputs: ExampleInputs) -> list[Source]:
    """Trace a model into its graphs, see `jobs_of`."""
    return [Source(job) for job in jobs_of(model, inputs)]
