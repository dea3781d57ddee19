"""Finds whether the compiling call has side effects; it is repeated for timing only if it has none.

Dynamo reports the attributes, globals and elements of containers that a call sets; versions of tensors show
whether they were written to.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, TypeAlias

import torch

from torchrlopt.torch_private.modules import has_hooks
from torchrlopt.torch_private.tensors import version_of

_State: TypeAlias = int | torch.Tensor


class FirstCall:
    """Records the graphs of a call while it runs; thread-safe."""

    def __init__(self) -> None:
        self._graphs: list[list[tuple[torch.Tensor, _State]] | None] = []
        self._is_over = False
        self._lock = threading.Lock()

    def note(self, only_computes: bool, inputs: Iterable[Any]) -> None:
        """Record one graph, before it runs.

        Args:
            only_computes: whether, as far as Dynamo knows, the call is this graph and only runs it.
            inputs: of the graph, including weights.
        """
        with self._lock:
            if not self._is_over:
                tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
                self._graphs.append([(each, _state(each)) for each in tensors] if only_computes else None)

    def end(self, model: torch.nn.Module) -> bool:
        """Forget the graphs. Return whether the call had no side effects, and no hooks see the calls."""
        with self._lock:
            graphs, self._graphs, self._is_over = self._graphs, [], True
        if len(graphs) != 1 or graphs[0] is None:
            return False
        return all(_is_as_it_was(each, state) for each, state in graphs[0]) and not has_hooks(model)


def _state(tensor: torch.Tensor) -> _State:
    """Return the version; a copy of a tensor without one."""
    return tensor.clone() if tensor.is_inference() else version_of(tensor)


def _is_as_it_was(tensor: torch.Tensor, state: _State) -> bool:
    if isinstance(state, torch.Tensor):  # NaN differs from itself: such a call is not repeated
        return tensor.shape == state.shape and torch.equal(tensor, state)
    return version_of(tensor) == state
