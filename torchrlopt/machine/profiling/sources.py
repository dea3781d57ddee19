"""Loads and traces the models whose nodes are to be priced, and lowers the graphs that plans make of them."""

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
from torchrlopt.options import Options


@dataclasses.dataclass(frozen=True)
class Source:
    """One graph of a model, which can be lowered for any graph that a plan leads to.

    Attributes:
        job: the graph, with the inputs that it is run on.
    """

    job: Job

    @property
    def program(self) -> Program:
        """The graph as the reader gives it."""
        return self.job.program

    @property
    def sizes(self) -> Mapping[str, int]:
        """Sizes of the graph's symbols."""
        return self.job.traced.sizes

    @property
    def device(self) -> torch.device:
        """Where the graph's tensors are."""
        return self.job.traced.device

    @functools.cached_property
    def inputs(self) -> list[Any]:
        """Inputs of the captured graph, weights among them, in order; what a call may write to is a copy."""
        return self.job.traced.own_inputs()

    def lower(self, graph: _C.Graph, executor: str) -> Lowered:
        """The callable of a graph that was made from `program.graph` by substitutions.

        Raises:
            LoweringError: the executor cannot run it.
        """
        model = write(dataclasses.replace(self.program, graph=graph))
        return registry.get(executor).lower(model, self.job.captured, Options(executor=executor))

    def node_ids(self, graph: _C.Graph) -> dict[str, int]:
        """Ids of the nodes by the names they have in the written model."""
        nodes, prefix = map(graph.node, graph.topological_order()), fresh_prefix(self.program.source)
        return {node_name(node, prefix): int(node["id"]) for node in nodes}


def trace(model: torch.nn.Module | Callable[..., Any], inputs: ExampleInputs) -> list[Source]:
    """The graphs of a model, see `jobs_of`."""
    return [Source(job) for job in jobs_of(model, inputs)]
