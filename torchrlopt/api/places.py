"""Where in a call the inputs of a compiled graph are: arguments, items of containers, and sizes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

_POSITIONAL = re.compile(r"L\['args'\]\[(\d+)\]")
_FACTS = frozenset({"size", "stride", "storage_offset"})
"""What a tensor is asked for by a call without arguments: the sizes that vary."""

Pick = Callable[[tuple[Any, ...], Mapping[str, Any]], tuple[Any, ...]]


def value_of(source: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What is in that place of a call.

    Args:
        source: a place, as a Python expression of Dynamo's.
        args: of the call.
        kwargs: of the call.

    Raises:
        LookupError: the expression does more than look into arguments, or there is no such place.
    """
    if not _is_place(source):
        raise LookupError(source)
    (value,) = picker([source])(args, kwargs)
    return value


def is_same(found: Any, given: Any) -> bool:
    """Whether what is in a place is what a graph was given."""
    if isinstance(given, torch.Tensor):
        return found is given
    return type(found) is int and type(given) is int and found == given


def positions(sources: Sequence[str]) -> tuple[int, ...] | None:
    """The positions of these places; None where one is not a positional argument itself."""
    found = [_POSITIONAL.fullmatch(source) for source in sources]
    known = tuple(int(match[1]) for match in found if match is not None)
    return known if len(known) == len(sources) else None


def picker(sources: Sequence[str]) -> Pick:
    """Picks what is in these places, for each of which `value_of` has been asked."""
    items = "".join(f"{source}, " for source in sources)
    code = compile(f"lambda L: ({items})", "<places of a call>", "eval")
    pick: Callable[[Mapping[str, Any]], tuple[Any, ...]] = eval(code, {"__builtins__": _BUILTINS})
    return lambda args, kwargs: pick({"args": args, "kwargs": kwargs})


_BUILTINS = {"dict": dict, "list": list, "tuple": tuple}


def _is_place(source: str) -> bool:
    try:
        parsed = ast.parse(source, mode="eval").body
    except SyntaxError:
        return False
    return _is_in_call(parsed)


def _is_in_call(node: ast.expr) -> bool:
    """Whether an expression looks into arguments, and does nothing else."""
    match node:
        case ast.Subscript(ast.Name("L"), ast.Constant("args" | "kwargs")):
            return True
        case ast.Subscript(whole, ast.Constant(int() | str())):
            return _is_in_call(whole) or _is_items(whole)
        case ast.Call(ast.Attribute(whole, name), [], []):
            return name in _FACTS and _is_in_call(whole)
        case ast.Call(ast.Attribute(ast.Name("dict" | "list" | "tuple"), "__getitem__"), [whole, key], []):
            return _is_in_call(whole) and isinstance(key, ast.Constant)
        case ast.Attribute(whole, _):
            return _is_in_call(whole)
    return False


def _is_items(node: ast.expr) -> bool:
    """The values of a dict, one after the other."""
    match node:
        case ast.Call(
            ast.Name("list"), [ast.Call(ast.Attribute(ast.Name("dict"), "values"), [whole], [])], []
        ):
            return _is_in_call(whole)
    return False
