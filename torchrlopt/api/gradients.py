"""Detects calls that are differentiated: the original runs then, as the rewritten graph records no gradients.

Inputs in containers are found before the call. Those in other objects, in globals and in closures are found
by Dynamo when it traces the call: they are inputs of its graphs, and it guards whether they require grad. So
a graph that reads such a tensor refuses to run in a call that records gradients.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import torch

from torchrlopt.torch_private.modes import is_transformed
from torchrlopt.torch_private.pytree import tree_leaves

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
"""Types that hold no tensor."""

_IN_CONTAINERS = re.compile(r"L\['(args|kwargs)'\](\[[^\[\]]*\])*")
"""Where `is_differentiated` looks, in Dynamo's notation; it also looks into some other objects."""


_DIFFERENTIATED = (
    "gradients are recorded and {} requires them: call the model under torch.no_grad() where none are wanted"
)
_LOST = (
    "gradients with respect to {} were not recorded in a call, as graphs of it had run before that was read; "
    "later calls run the original"
)


_LOST_MEANWHILE = (
    "gradients with respect to {} were not recorded in calls of the original while another thread compiled"
)


class RecordedError(Exception):
    """A graph refuses to run in a call that records gradients with respect to one of its inputs."""


class _Call(threading.local):
    """The current call of this thread.

    Attributes:
        is_recorded: whether gradients are recorded around it; they never are inside.
    """

    is_recorded = False


_CALL = _Call()


class without_recording:  # noqa: N801  # a context manager, like torch.no_grad
    """Wrap a call of compiled code: gradients are off, and graphs know whether they were on before.

    A class, since a generator takes several times as long, in every call.
    """

    __slots__ = ("_before", "_is_recorded")

    def __enter__(self) -> None:
        self._before = _CALL.is_recorded
        self._is_recorded = _CALL.is_recorded = torch.is_grad_enabled()
        if self._is_recorded:
            torch.set_grad_enabled(False)

    def __exit__(self, *_: object) -> None:
        torch.set_grad_enabled(self._is_recorded)
        _CALL.is_recorded = self._before


def watching(run: Callable[..., Any], source: str, lose: Callable[[], None] | None) -> Callable[..., Any]:
    """Wrap a graph that reads a tensor which requires gradients, for calls that record them.

    Args:
        run: the graph.
        source: where in a call it finds the tensor.
        lose: called instead of raising RecordedError, if graphs of the call have already run: this one does
            too then, and the gradients are lost.
    """
    from torchrlopt.compile.fallback import WARNINGS  # heavy

    text = _DIFFERENTIATED if lose is None else _LOST

    def checked(*inputs: Any) -> Any:
        if _CALL.is_recorded:
            WARNINGS.warn(text, text.format(source))
            if lose is None:
                raise RecordedError
            lose()
        return run(*inputs)

    return checked


def warn_of_lost_gradients(source: str) -> None:
    """Warn that calls of the original have not recorded gradients with respect to the tensor at `source`."""
    from torchrlopt.compile.fallback import WARNINGS  # heavy

    WARNINGS.warn(_LOST_MEANWHILE, _LOST_MEANWHILE.format(source))


def is_differentiated(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a gradient with respect to an input may be requested, or a transform of `torch.func` is active.

    Looks for inputs in lists, tuples, sets, mappings, dataclasses and other containers that PyTorch's pytree
    knows.
    """
    if is_transformed():
        return True
    return torch.is_grad_enabled() and any(map(_requires_grad, (*args, *kwargs.values())))


def has_unknown_objects(args: Iterable[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an argument is, or holds, an object that `is_differentiated` does not look into."""
    return any(map(_is_unknown, (*args, *kwargs.values())))


def may_be_elsewhere(sources: Iterable[str]) -> bool:
    """Whether inputs of a graph come from places where `is_differentiated` does not look.

    Args:
        sources: where Dynamo found them, as expressions.
    """
    return not all(map(_IN_CONTAINERS.fullmatch, sources))


def _requires_grad(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.requires_grad
    return not isinstance(value, PLAIN) and any(map(_requires_grad, _parts(value) or ()))


def _is_unknown(value: Any) -> bool:
    if isinstance(value, (torch.Tensor, *PLAIN)):
        return False
    parts = _parts(value)
    return parts is None or any(map(_is_unknown, parts))


def _parts(value: Any) -> Sequence[Any] | None:
    """Return the contents of a container; None for any other object."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, Set):
        return list(value)
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    leaves = tree_leaves(value)
    return None if len(leaves) == 1 and leaves[0] is value else leaves
