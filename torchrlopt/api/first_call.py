"""What the call that compiles leaves behind; it is repeated, for its time, only where that is nothing.

Dynamo tells of attributes, globals and elements of containers that a call sets; of tensors that were written
to, their versions tell.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import torch

from torchrlopt.torch_private.modules import has_hooks
from torchrlopt.torch_private.tensors import version_of


class FirstCall:
    """Notes the graphs of a call while it goes on; safe for threads."""

    def __init__(self) -> None:
        self._graphs: list[_Graph] = []
        self._is_over = False
        self._lock = threading.Lock()

    def note(self, only_computes: bool, inputs: Iterable[Any]) -> None:
        """One graph, before it runs.

        Args:
            only_computes: whether the call is this graph and does nothing but run it, as far as Dynamo tells.
            inputs: of the graph, weights among them.
        """
        with self._lock:
            if not self._is_over:
                self._graphs.append(_Graph(only_computes, inputs))

    def end(self, model: torch.nn.Module) -> bool:
        """Forget the graphs. Returns whether the call left nothing behind, and nobody counts the calls."""
        with self._lock:
            graphs, self._graphs, self._is_over = self._graphs, [], True
        return len(graphs) == 1 and graphs[0].has_left_nothing() and not has_hooks(model)


class _Graph:
    """One graph of the call, with what its inputs were.

    Args:
        only_computes: as above.
        inputs: as above.
    """

    def __init__(self, only_computes: bool, inputs: Iterable[Any]) -> None:
        self._only_computes = only_computes
        tensors = [each for each in inputs if isinstance(each, torch.Tensor)] if only_computes else []
        self._inputs = [(each, _state(each)) for each in tensors]

    def has_left_nothing(self) -> bool:
        return self._only_computes and all(_is_as_it_was(each, state) for each, state in self._inputs)


def _state(tensor: torch.Tensor) -> int | torch.Tensor:
    """The version; a copy of what has none."""
    return tensor.clone() if tensor.is_inference() else version_of(tensor)


def _is_as_it_was(tensor: torch.Tensor, state: int | torch.Tensor) -> bool:
    if isinstance(state, torch.Tensor):  # what holds NaN differs from itself, and is not repeated
        return tensor.shape == state.shape and torch.equal(tensor, state)
    return version_of(tensor) == state
