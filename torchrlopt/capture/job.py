"""A job: one graph of a model on its way through the stages. Immutable: stages only add to it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping

from torchrlopt import _C
from torchrlopt.capture.captured import Captured
from torchrlopt.capture.graph_to_onnx import capture
from torchrlopt.capture.sources import sources_of
from torchrlopt.capture.trace import ExampleInputs, Traced, visit
from torchrlopt.errors import CaptureError
from torchrlopt.onnx.program import Program
from torchrlopt.onnx.reader import read
from torchrlopt.report import Source


@dataclasses.dataclass(frozen=True)
class Job:
    """One graph, as all stages up to planning see it.

    Attributes:
        traced: the ATen graph and its real inputs.
        captured: the same as an ONNX model without weights.
        program: the same as a graph of the C++ core.
    """

    traced: Traced
    captured: Captured
    program: Program

    @functools.cached_property
    def labels(self) -> Mapping[str, str]:
        """The user's names of the inputs and weights, by their name in the program."""
        nodes = [node.name for node in self.captured.aten.graph.nodes if node.op == "placeholder"]
        return {node: name for node, name in zip(nodes, self.traced.names, strict=False) if name}

    @functools.cached_property
    def sources(self) -> Mapping[str, Source]:
        """Where the user's code defines the nodes of the program, by name."""
        return sources_of(self.captured)


def capture_traced(traced: Traced, exclude: Collection[str] = ()) -> Captured:
    """Return the ONNX model of a traced graph; see `capture`."""
    return capture(traced.aten, traced.static, exclude)


def read_captured(captured: Captured) -> Program:
    """Return the graph of a captured model. Large constants count as weights: they never change."""
    return read(captured.model, captured.static_inputs | captured.constants.keys())


def make_job(traced: Traced, exclude: Collection[str] = ()) -> Job:
    """Capture a traced graph and read the model; `exclude` as for `capture`.

    Raises:
        CaptureError: see `capture`.
    """
    captured = capture_traced(traced, exclude)
    return Job(traced, captured, read_captured(captured))


def jobs_of(model: Callable[..., object], example_inputs: ExampleInputs) -> list[Job]:
    """Return the graphs of one call of a module in eval mode or a function: several if Dynamo breaks it.

    Raises:
        UnsupportedError: the model is in training mode.
        CaptureError: a graph must not be rewritten, or there is none.
        RlOptError: a graph cannot be captured or read.
    """
    jobs: list[Job] = []

    def refuse(reason: str) -> None:
        raise CaptureError("the graph would be left alone", got=reason)

    visit(model, example_inputs, lambda traced: jobs.append(make_job(traced)), refuse)
    if not jobs:
        raise CaptureError("the model has no inference graph")
    return jobs


def graph_of(model: Callable[..., object], example_inputs: ExampleInputs) -> _C.Graph:
    """Return the core's graph of one call of a model, before any substitution.

    Raises:
        CaptureError: Dynamo breaks the model into several graphs; for other reasons see `jobs_of`.
    """
    jobs = jobs_of(model, example_inputs)
    if len(jobs) != 1:
        raise CaptureError("the model is not one graph", expected="1 graph", got=f"{len(jobs)} graphs")
    return jobs[0].program.graph
