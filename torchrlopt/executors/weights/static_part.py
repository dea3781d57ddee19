"""Finds the part of a graph that depends on weights only: one algorithm for FX graphs and ONNX models.

A graph is described as steps that read and yield values, in topological order. `hoisted` finds the steps that
can run once per set of weights; `crossing` finds which of their values the other steps read.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from torch import fx

from torchrlopt.executors.lowering.fx_values import is_pure

if TYPE_CHECKING:
    from torchrlopt.capture.captured import Captured
    from torchrlopt.options import LoweringOptions

Node = TypeVar("Node", bound=Hashable)
Value = TypeVar("Value", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class Step(Generic[Node, Value]):
    """One node of a graph.

    Attributes:
        node: the node.
        reads: the values that it reads.
        gives: the values that it computes.
        is_repeatable: whether equal operands give equal results, without side effects; asked for few nodes.
    """

    node: Node
    reads: Sequence[Value]
    gives: Sequence[Value]
    is_repeatable: Callable[[], bool]


def hoisted(
    steps: Iterable[Step[Node, Value]], weights: Collection[Value], constants: Collection[Value] = ()
) -> list[Step[Node, Value]]:
    """The steps over weights: all operands are the same in every call, and one depends on a weight.

    Args:
        steps: all steps, in order.
        weights: values that are the same in every call.
        constants: likewise, but steps over constants alone are not returned.
    """
    over_weights = set(weights)
    fixed = over_weights | set(constants)
    found = []
    for step in steps:
        if not all(value in fixed for value in step.reads) or not step.is_repeatable():
            continue
        fixed.update(step.gives)
        if any(value in over_weights for value in step.reads):
            over_weights.update(step.gives)
            found.append(step)
    return found


def crossing(
    steps: Iterable[Step[Node, Value]], readers: Callable[[Value], Iterable[Node | None]]
) -> list[Value]:
    """The values of these steps that the rest of the graph reads, in order.

    Args:
        steps: the hoisted steps.
        readers: the nodes that read a value; None represents the caller, if the value is an output.
    """
    steps = list(steps)
    inside = {step.node for step in steps}
    return [
        value
        for step in steps
        for value in step.gives
        if any(reader not in inside for reader in readers(value))
    ]


def static_inputs(captured: Captured, options: LoweringOptions) -> frozenset[str]:
    """Names of the inputs that an executor may precompute from: none with live weights."""
    return captured.static_inputs if options.weights != "live" else frozenset()


# ---- FX graphs


def hoisted_calls(graph: fx.Graph, static: Collection[str]) -> list[Step[fx.Node, fx.Node]]:
    """The calls whose results stay the same as long as the placeholders named in `static` do.

    Excludes calls that draw random numbers, write to their arguments, or read no value at all.
    """
    steps = (
        Step(node, node.all_input_nodes, (node,), functools.partial(_reads_and_is_pure, node))
        for node in graph.nodes
        if node.op == "call_function"
    )
    return hoisted(steps, _static_sources(graph, static))


def _reads_and_is_pure(node: fx.Node) -> bool:
    return bool(node.all_input_nodes) and is_pure(node)


def static_nodes(graph: fx.Graph, static: Collection[str]) -> set[fx.Node]:
    """The placeholders named in `static`, the attributes, and the calls over them."""
    return _static_sources(graph, static) | {step.node for step in hoisted_calls(graph, static)}


def _static_sources(graph: fx.Graph, static: Collection[str]) -> set[fx.Node]:
    placeholders = graph.find_nodes(op="placeholder")
    named = {node for node in placeholders if node.name in static or node.target in static}
    return named | set(graph.find_nodes(op="get_attr"))
