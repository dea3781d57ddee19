"""Estimates a graph's memory use on generated inputs from its types, before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from torchrlopt.capture.sampling import sampled_size
from torchrlopt.errors import UnsupportedError

MAX_BYTES = 8 << 30
"""Most memory that a graph from a user's file may use at a time, in float64, beyond its weights."""

_ELEMENT_BYTES = 8  # as in the reference, which runs in float64


def check_footprint(module: fx.GraphModule, what: str) -> None:
    """Refuse to run a graph whose values take more than `MAX_BYTES` at a time; `what` it is run for.

    Raises:
        UnsupportedError: the graph takes more.
    """
    peak = peak_bytes(module)
    if peak > MAX_BYTES:
        raise UnsupportedError(
            f"the model is too large for {what}",
            expected=f"up to {MAX_BYTES} bytes at a time",
            got=f"{peak} bytes",
        )


def peak_bytes(module: fx.GraphModule) -> int:
    """Bytes of inputs and intermediates that are needed at the same time; a view counts in full.

    Inputs belong to the caller, who keeps them.
    """
    inputs = sum(_num_bytes(node.meta.get("val")) for node in module.graph.find_nodes(op="placeholder"))
    return inputs + peak_of_calls(module.graph, lambda node: _num_bytes(node.meta.get("val")))


def peak_of_calls(graph: fx.Graph, num_bytes: Callable[[fx.Node], int]) -> int:
    """Most bytes that the results of calls take at a time, each from its call to its last reader."""
    last_reader = {source: node for node in graph.nodes for source in node.all_input_nodes}
    sizes = {node: num_bytes(node) for node in graph.nodes if node.op == "call_function"}
    alive = peak = 0
    for node in graph.nodes:
        alive += sizes.get(node, 0)
        peak = max(peak, alive)
        alive -= sum(sizes.get(source, 0) for source in node.all_input_nodes if last_reader[source] is node)
    return peak


def cpu_bytes_of_calls(graph: fx.Graph) -> int:
    """Most bytes of CPU memory that the results of calls take at a time, in their own dtypes.

    A view counts as if it had its own memory; a symbolic size counts as its hint.
    """
    return peak_of_calls(graph, lambda node: _num_cpu_bytes(node.meta.get("val")))


def _num_cpu_bytes(value: Any) -> int:
    """Bytes of the result of a call; 0 if it is not a tensor, or not in CPU memory."""
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return 0
    num_bytes = value.dtype.itemsize
    for size in value.shape:
        num_bytes *= size if isinstance(size, int) else int(size.node.hint) if size.node.has_hint() else 1
    return num_bytes


def _num_bytes(value: Any) -> int:
    if isinstance(value, tuple | list):
        return sum(_num_bytes(each) for each in value)
    if not isinstance(value, torch.Tensor):
        return 0
    return math.prod(sampled_size(size) for size in value.shape) * _ELEMENT_BYTES
