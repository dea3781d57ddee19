"""Dynamo's guards of a compiled call, as a whole and without those that somebody else looks after.

What is private of torch here is used where it is as expected; where it is not, None says that nothing can be
told, and calls go through Dynamo as ever.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo import eval_frame

from torchrlopt import _C

_PLAIN = frozenset(
    {
        "TYPE_MATCH", "ID_MATCH", "EQUALS_MATCH", "TRUE_MATCH", "FALSE_MATCH", "NONE_MATCH", "TENSOR_MATCH",
        "DICT_CONTAINS", "DICT_LENGTH", "LENGTH_CHECK", "DIMENSION_DYNAMIC_MARKING_GUARD",
    }
)  # fmt: skip
"""Guards on one object alone: its class, itself, its value, what it holds, the facts of a tensor. The last is
on hints for compilations to come."""

State = bytes

EVAL_FRAME = vars(eval_frame)
"""The names of the module in which Dynamo keeps its stance, for `_C.known_call`."""


class Guards:
    """The guards of one compiled call.

    Args:
        wrapper: Dynamo's.
        functions: what the compiled code may call.
    """

    def __init__(self, wrapper: Any, functions: Sequence[Any]) -> None:
        self.wrapper = wrapper  # its root has to live as long as what is cloned from it
        self._functions = functions

    def are_of(self, function: Callable[..., Any]) -> bool:
        """Whether it is this function that is called where they hold."""
        return any(each is function for each in self._functions)

    @property
    def is_in_force(self) -> bool:
        """Whether Dynamo still goes by them: not after a reset, nor where an object of theirs has died."""
        return self.wrapper.cache_entry is not None

    def hold(self, scope: Mapping[str, Any]) -> bool:
        """Whether all of them hold for the arguments and free variables of a call."""
        return bool(self.wrapper.root.check(scope))

    def sources(self) -> frozenset[str]:
        """What they are on, as Python expressions; nothing where this torch does not tell."""
        try:
            return frozenset(node.get_source() for node in _nodes(self.wrapper.root))
        except (AttributeError, TypeError):
            return frozenset()

    def are_those(self, other: Guards) -> bool:
        """Whether these are the same ones."""
        return self.wrapper is other.wrapper

    def without(self, known: Collection[str]) -> Callable[[Mapping[str, Any]], bool] | None:
        """A check of all but the guards on values that are known to be unchanged; None where there is none.

        Args:
            known: these values, as Python expressions over arguments and free variables. A guard stays where
                it is about more than one value, or about a part of a value that is not among them.
        """
        root = self.wrapper.root
        try:
            kept = {node.get_source() for node in _nodes(root) if not _is_plain(node, known)}
            # What leads to a guard that stays has to stay itself.
            _keep_ways(root, kept)
            check: Callable[[Mapping[str, Any]], bool] = root.clone_manager(
                lambda node: node.get_source() in kept
            ).check
        except (AttributeError, TypeError):
            return None
        return check


def guards_of(
    function: types.FunctionType, scope: Mapping[str, Any], graph: Callable[..., Any]
) -> Guards | None:
    """The guards of the compilation of a function whose code calls a graph.

    There may be others for the same call, such as one for its sizes beside one for all sizes.

    Args:
        function: compiled by Dynamo.
        scope: arguments and free variables, for which they have to hold.
        graph: as Dynamo calls it.

    Returns:
        None where there are none, or this torch has none to show.
    """
    try:
        entries = eval_frame._debug_get_cache_entry_list(function.__code__)
        found = [Guards(entry.guard_manager, _called(entry.code, function)) for entry in entries]
        (guards,) = [each for each in found if each.is_in_force and each.are_of(graph) and each.hold(scope)]
    except (AttributeError, TypeError, ValueError):
        return None
    return guards


def _called(code: types.CodeType, function: types.FunctionType) -> list[Any]:
    """What compiled code finds under the names of globals, without Dynamo's wrappers around it."""
    found = [function.__globals__.get(name) for name in code.co_names]
    return [getattr(each, "_torchdynamo_orig_callable", each) for each in found]


def sources_of(gm: torch.fx.GraphModule) -> list[str] | None:
    """Where the inputs of Dynamo's graph come from, as expressions.

    Returns:
        None where that is not told, or where the graph switches gradients on or off.
    """
    if any(node.target is torch._C._set_grad_enabled for node in gm.graph.nodes):
        return None
    sources: list[str] = []
    for node in gm.graph.find_nodes(op="placeholder"):
        name = getattr(getattr(node, "_dynamo_source", None), "name", None)
        if not isinstance(name, str):
            return None
        sources.append(name)
    return sources


def dispatch_state() -> State | None:
    """What of this thread decides which kernels run: inference mode, tracers, modes and so on.

    Returns:
        None where C++ cannot see it in this PyTorch.
    """
    return _C.dispatch_keys() if _is_state_readable() else None


def _told_state() -> tuple[int, int]:
    return (
        torch._C._dispatch_tls_local_include_set().raw_repr(),
        torch._C._dispatch_tls_local_exclude_set().raw_repr(),
    )


@functools.cache
def _is_state_readable() -> bool:
    """Whether C++ sees in this PyTorch what changes of it; tried once."""
    found = []
    for is_on in (False, True):
        with torch.inference_mode(is_on):
            found.append((_told_state(), _C.dispatch_keys()))
    (told, read), (other_told, other_read) = found
    return read is not None and other_read is not None and (told != other_told) == (read != other_read)


def is_compiling_as_usual() -> bool:
    """Whether compiled code is to be used at all: `torch.compiler.set_stance` says otherwise.

    `_C.known_call` asks the same, of the same names.
    """
    stance = getattr(eval_frame, "_stance", None)
    return stance is not None and stance.stance == "default" and stance.backend is None


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in _children(node):
        yield from _nodes(child)


def _children(node: Any) -> list[Any]:
    children = list(node.get_child_managers())
    if isinstance(node, torch._C._dynamo.guards.DictGuardManager):
        children += [each for pair in node.get_key_value_managers().values() for each in pair if each]
    return children


def _is_plain(node: Any, known: Collection[str]) -> bool:
    """Whether the guards of this very node are on a value that is known, and on nothing else."""
    return node.get_source() in known and all(
        type(guard).__name__ in _PLAIN for guard in node.get_leaf_guards()
    )


def _keep_ways(node: Any, kept: set[str]) -> bool:
    """Add what leads to a node that is kept; whether this one is, or does."""
    ways = [_keep_ways(child, kept) for child in _children(node)]
    if any(ways):
        kept.add(node.get_source())
    return node.get_source() in kept
