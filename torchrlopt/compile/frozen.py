"""Weights that are promised not to change: only the model's own, by the places that Dynamo finds them in.

A module that is an argument or in a global, and another instance that runs the same code, have weights that
nobody has promised anything about. Dynamo says of every guard and every tensor where it found it; what it
reached by looking into the model is the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from torchrlopt.capture import aot

_ON_IDENTITY = frozenset({"DUPLICATE_INPUT"})
"""Guards that two places hold one object: the code that was compiled reads it from one of them."""


def skip_guards_of(model: str) -> Callable[[Sequence[Any]], list[bool]]:
    """For `torch.compile(options={"guard_filter_fn": ...})`: nobody looks whether a model has changed.

    A look at each of 1,300 weights, whose memory no cache holds any more, takes milliseconds.

    Args:
        model: where Dynamo finds it, as an expression.
    """

    def is_kept(guard: Any) -> bool:
        is_skipped = (
            guard.orig_guard.source.is_unspecialized_nn_module()
            and guard.guard_type not in _ON_IDENTITY
            and _is_inside(guard.orig_guard.originating_source, model)
        )
        return not is_skipped

    return lambda guards: list(map(is_kept, guards))


def are_fixed(gm: torch.fx.GraphModule, static: Collection[int], num_lifted: int, model: str | None) -> bool:
    """Whether every weight of a graph is one of the model's own, so that it is the same in each call.

    Asked inside a backend, about the graph at hand.

    Args:
        gm: Dynamo's graph.
        static: positions of the weights among the inputs of the ATen graph.
        num_lifted: how many of the first inputs are attributes of Dynamo's graph.
        model: where Dynamo finds the model, as an expression; None where there is no such place, as in code
            that serves all instances of a class.
    """
    if model is None:
        return not static
    placeholders = gm.graph.find_nodes(op="placeholder")
    passed = [placeholders[at - num_lifted] for at in static if at >= num_lifted]
    sources = [getattr(each, "_dynamo_source", None) for each in passed]
    if num_lifted:
        sources += aot.attribute_sources(gm)
    return all(_is_inside(source, model) for source in sources)


def pin_attributes(gm: torch.fx.GraphModule, model: str) -> None:
    """Have Dynamo guard that attributes of the graph at hand are the very tensors they are now.

    The model's own are promised to be. Asked inside a backend, as long as the graph may get guards.

    Args:
        gm: Dynamo's graph.
        model: where Dynamo finds the model, as an expression.
    """
    for source in aot.attribute_sources(gm):
        if not _is_inside(source, model):
            aot.guard_identity(source)


def _is_inside(source: Any, model: str) -> bool:
    """Whether Dynamo found a value by looking into the object that it finds at `model`."""
    while source is not None:
        if getattr(source, "name", None) == model:
            return True
        source = getattr(source, "base", None)
    return False
