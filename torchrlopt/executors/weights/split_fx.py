"""Splits off the part of an FX graph that depends on weights only, to compute it once per set of weights."""

from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchrlopt.capture.sharing import gives_new_memory
from torchrlopt.executors.lowering.fx_values import ancestors
from torchrlopt.executors.lowering.lazy_code import lazy_module
from torchrlopt.executors.weights.static_part import crossing, hoisted_calls
from torchrlopt.torch_private.operators import OpOverload, is_composite, schema_of

aten = torch.ops.aten


@dataclass(frozen=True)
class Split:
    """A graph in two parts.

    Attributes:
        prologue: takes `weights` in order, returns the tuple of prologue values.
        main: takes `inputs` in order, then the prologue values in order.
        weights: positions, among the placeholders of the whole graph, of the prologue's arguments.
        inputs: positions of the placeholders that `main` takes, including weights it reads directly.
    """

    prologue: fx.GraphModule
    main: fx.GraphModule
    weights: tuple[int, ...]
    inputs: tuple[int, ...]


def split_prologue(module: fx.GraphModule, static: Collection[str], also: Collection[fx.Node] = ()) -> Split:
    """Split off the expressions over static placeholders.

    A prologue value is never an output of `main`, nor is a view of it: the caller may write to an output, and
    the value is kept for later calls.

    Args:
        module: the whole graph; not modified.
        static: names of the placeholders that are the same in every call.
        also: static calls without readers that become prologue values as well, placed last.
    """
    graph = module.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    returned = reaching_output(graph)
    steps = [step for step in hoisted_calls(graph, static) if step.node not in returned]
    ahead = {step.node for step in steps}
    frontier = [node for node in crossing(steps, lambda node: node.users) if not _is_tuple(node)]
    frontier += also
    needed = ancestors(frontier)
    prologue = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    weights = [node for node in placeholders if node in needed]
    for node in graph.nodes:
        if node in needed:
            env[node] = prologue.node_copy(node, env.__getitem__)
    prologue.output(tuple(env[node] for node in frontier))

    main = fx.Graph()
    inside: dict[fx.Node, fx.Node] = {}
    rest = [node for node in graph.nodes if node not in ahead]
    read = {source for node in rest for source in node.all_input_nodes}
    is_static = {node for node in placeholders if node.name in static or node.target in static}
    inputs = [node for node in placeholders if node in read or node not in is_static]
    for node in [*inputs, *frontier]:
        inside[node] = main.placeholder(node.name)
        inside[node].meta = dict(node.meta)
    for node in rest:
        if node.op != "placeholder":
            inside[node] = main.node_copy(node, inside.__getitem__)
    position = {node: index for index, node in enumerate(placeholders)}
    return Split(
        lazy_module(module, prologue),
        lazy_module(module, main),
        tuple(position[node] for node in weights),
        tuple(position[node] for node in inputs),
    )


def reaching_output(graph: fx.Graph) -> set[fx.Node]:
    """Calls whose result is an output or may share memory with one."""
    found: set[fx.Node] = set()
    waiting: list[Any] = list(next(iter(graph.find_nodes(op="output"))).all_input_nodes)
    while waiting:
        node = waiting.pop()
        if node in found or node.op != "call_function":
            continue
        found.add(node)
        if _may_alias(node):
            waiting.extend(node.all_input_nodes)
    return found


def _may_alias(node: fx.Node) -> bool:
    """True for a call whose result may share memory with an argument."""
    target = node.target
    if not isinstance(target, OpOverload):
        return not gives_new_memory(node)
    schema = schema_of(target)
    if any(argument.alias_info is not None for argument in schema.arguments):
        return True
    if target is aten._unsafe_view.default:
        return True  # shares memory although its schema does not say so
    if target is aten.linear.default:
        return False  # a composite that ends in a product
    return is_composite(target)


def _is_tuple(node: fx.Node) -> bool:
    """True for a call with several results: its projections cross the border, never the tuple."""
    return any(user.target is operator.getitem for user in node.users) and not isinstance(
        node.meta.get("val"), torch.Tensor
    )
