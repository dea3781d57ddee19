"""Runs a lowered graph with each call in a type of its own, without building it anew.

Numbers in bfloat16 are those of the graph that `retyped` makes. Products of 8-bit integers are emulated in
float32, with operands rounded as csrc/kernels/int8.h rounds them; their integer sums are exact.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.precision.retyped import LOW, passes_on
from torchrlopt.executors.weights.static_part import static_nodes
from torchrlopt.precision.sensitivity import quantised_pixels, quantised_weight
from torchrlopt.torch_private.modes import without_dispatch_modes

Convert = Callable[[torch.Tensor], torch.Tensor]


class MixedRun:
    """A graph on fixed inputs.

    Args:
        module: the graph, in float32.
        inputs: its inputs.
        static: names of the placeholders that are the same in every call.
        calls: that may be lowered, see `lowerable`.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        inputs: Sequence[Any],
        static: Collection[str],
        calls: Collection[fx.Node],
    ) -> None:
        graph, self._calls = module.graph, frozenset(calls)
        self._fixed = static_nodes(graph, static)
        kept = set(self._fixed) | {node for node in graph.nodes if node.op in ("placeholder", "get_attr")}
        self._values = values_of(module, inputs, kept)
        self._steps = [node for node in graph.nodes if node.op == "call_function" and node not in kept]
        self._output = graph.output_node().args[0]
        self._weights: dict[tuple[fx.Node, fx.Node | None, bool], torch.Tensor] = {}

    def __call__(self, lowered: Collection[str], quantised: Collection[str]) -> tuple[Any, ...]:
        """Return the outputs with these calls in bfloat16, and these with 8-bit integers."""
        env: dict[fx.Node, Any] = dict(self._values)
        with torch.no_grad(), without_dispatch_modes():
            for node in self._steps:
                if node.target is operator.getitem or (node in self._calls and passes_on(node)):
                    read = env.__getitem__  # moves elements of whatever type
                else:
                    dtype = LOW if node.name in lowered else torch.float32
                    read = functools.partial(self._read, env, node, dtype, node.name in quantised)
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), read)
                env[node] = node.target(*args, **kwargs)
            exact = fx.node.map_arg(self._output, lambda node: _as(env[node], torch.float32))
        return tuple(exact)

    def _read(
        self,
        env: Mapping[fx.Node, Any],
        reader: fx.Node,
        dtype: torch.dtype,
        is_quantised: bool,
        node: fx.Node,
    ) -> Any:
        value = env[node]
        if not isinstance(value, torch.Tensor) or value.dtype not in (torch.float32, LOW):
            return value
        if node not in self._fixed:
            value = _as(value, dtype)
            return _as(quantised_pixels(_as(value, torch.float32), reader), dtype) if is_quantised else value
        key = node, reader if is_quantised else None, dtype is LOW
        if key not in self._weights:
            exact = quantised_weight(value, reader) if is_quantised else value
            self._weights[key] = _as(exact, dtype)
        return self._weights[key]


def _as(value: Any, dtype: torch.dtype) -> Any:
    is_number = isinstance(value, torch.Tensor) and value.dtype in (torch.float32, LOW)
    return value.to(dtype) if is_number else value


def values_of(
    module: fx.GraphModule, inputs: Sequence[Any], nodes: Collection[fx.Node]
) -> dict[fx.Node, Any]:
    """Run a graph; returns the values of some of its nodes, by node."""
    interpreter = fx.Interpreter(module, garbage_collect_values=False)
    with torch.no_grad(), without_dispatch_modes():
        interpreter.run(*inputs)
    return {node: value for node, value in interpreter.env.items() if node in nodes}
