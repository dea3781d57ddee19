"""Finds which of the tensors that a graph reads are the model's own weights, from Dynamo's sources.

`weights="frozen"` promises that these never change, and in eval mode no gradients are recorded for them. That
promise does not cover the weights of a module that is an argument or a global, or of another instance that
runs the same code. Dynamo records the source of every guard and every tensor; those that it reached through
the model are the model's own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from torchrlopt.torch_private.dynamo import current_translator, guard_identity, is_constant_source, source_of

_ON_IDENTITY = frozenset({"DUPLICATE_INPUT"})
"""Guards that two sources are the same object: the compiled code reads it from one of them."""


def are_inside(guards: Sequence[Any], model: str) -> list[bool]:
    """Return for each guard whether it is about the model's own attributes.

    Checking 1,300 weights, whose memory no cache holds any more, takes milliseconds.
    """
    return [
        guard.orig_guard.source.is_unspecialized_nn_module()
        and guard.guard_type not in _ON_IDENTITY
        and _is_inside(guard.orig_guard.originating_source, model)
        for guard in guards
    ]


def are_fixed(gm: torch.fx.GraphModule, static: Collection[int], num_lifted: int, model: str | None) -> bool:
    """Whether every weight of a graph is one of the model's own, so that it is the same in each call.

    Call it inside a backend; it is about the current graph.

    The first `num_lifted` inputs of the ATen graph are attributes of Dynamo's graph. `model` is None if there
    is no such place, as in code that serves all instances of a class.
    """
    if model is None:
        return not static
    placeholders = gm.graph.find_nodes(op="placeholder")
    passed = [placeholders[at - num_lifted] for at in static if at >= num_lifted]
    sources = [source_of(each) for each in passed]
    if num_lifted:
        sources += [source for source, _ in _attributes(gm)]
    return all(_is_inside(source, model) for source in sources)


def others(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], model: str) -> dict[str, torch.Tensor]:
    """Return the tensors that a graph reads and that are not parameters of the model, by source.

    Call it inside a backend; it is about the current graph.
    """
    placeholders = gm.graph.find_nodes(op="placeholder")
    read = [(source_of(node), value) for node, value in zip(placeholders, example_inputs, strict=True)]
    read += _attributes(gm)
    return {
        getattr(source, "name", f"input {at}"): value
        for at, (source, value) in enumerate(read)
        if isinstance(value, torch.Tensor)
        and not (isinstance(value, torch.nn.Parameter) and _is_inside(source, model))
    }


def pin_attributes(gm: torch.fx.GraphModule, model: str) -> None:
    """Make Dynamo guard the identity of the current graph's attributes.

    The model's own need no guard. Call it inside a backend, while the graph still accepts guards.
    """
    for source, _ in _attributes(gm):
        if not _is_inside(source, model):
            guard_identity(source)


def _attributes(gm: torch.fx.GraphModule) -> list[tuple[Any, Any]]:
    """Return (source, value) of the attributes of the current graph that have a source.

    Tensors that the code makes itself have none, and are not included.
    """
    found = current_translator().output.param_name_to_source or {}
    places = [(found.get(node.target), node.target) for node in gm.graph.find_nodes(op="get_attr")]
    return [
        (source, getattr(gm, name))
        for source, name in places
        if source is not None and not is_constant_source(source)
    ]


def _is_inside(source: Any, model: str) -> bool:
    """Whether Dynamo reached a value through the object at `model`."""
    while source is not None:
        if getattr(source, "name", None) == model:
            return True
        source = getattr(source, "base", None)
    return False
