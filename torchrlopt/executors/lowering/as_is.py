"""Calls that run as they are, as the user excludes them: while they are hidden, no pass recognises them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import fx

AS_IS = "rlopt_as_is"
"""Key in a node's `meta`: the call is not to be changed."""


@dataclasses.dataclass(frozen=True)
class _Hidden:
    """Stands for the target of a call. Passes treat it as a function that they do not know."""

    target: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.target(*args, **kwargs)


def hide(graph: fx.Graph) -> None:
    """Hide the calls that run as they are."""
    for node in graph.nodes:
        if AS_IS in node.meta:
            node.target = _Hidden(node.target)


def show(graph: fx.Graph) -> None:
    """Undo `hide`, also in a graph that was made of a hidden one."""
    for node in graph.nodes:
        if isinstance(node.target, _Hidden):
            node.target = node.target.target
