"""What a call of a saved model takes and returns, as JSON: containers of tensors and constants."""

from __future__ import annotations

import dataclasses
import inspect
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from torchrlopt.artefact.calls import DTYPES, Json, damaged, decoded, encoded, fields
from torchrlopt.errors import UnsupportedError
from torchrlopt.torch_private.tensors import clone_preserve_strides

_MISSING = object()
_MOST_DEPTH = 32
_MOST_REASONS = 8
"""In the error for a call that fits none."""


class Outputs(dict[str, Any]):
    """The fields of an object that a saved model returns, such as a `ModelOutput` of transformers.

    A field is an item by its name or by its position, and an attribute; one that was None is an attribute.
    """

    def __init__(self, items: Any, empty: Sequence[str] = ()) -> None:
        super().__init__(items)
        self._empty = frozenset(empty)

    def __getitem__(self, key: Any) -> Any:
        return tuple(self.values())[key] if isinstance(key, int | slice) else super().__getitem__(key)

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if not name.startswith("_") and name in self._empty:
            return None
        raise AttributeError(name)


# ---- to JSON


def call_of(
    forward: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Json, list[torch.Tensor], tuple[Any, ...], dict[str, Any]]:
    """Describe the arguments of a call.

    Args:
        forward: what is called.
        args: of the call.
        kwargs: of the call.

    Returns:
        The description; copies of the tensors among the arguments, none of which share memory; and the
        arguments with these copies in their places.

    Raises:
        UnsupportedError: an argument is neither tensor, constant nor container.
        TypeError: `forward` does not take such arguments.
    """
    bound = inspect.signature(forward).bind(*args, **kwargs)
    tensors: list[torch.Tensor] = []
    given: list[Json] = []
    positional: list[str] = []
    defaults: dict[str, Json] = {}
    takes_more = False
    kinds = inspect.Parameter
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is kinds.VAR_POSITIONAL:
            takes_more = True
            rest = tuple(_described(each, tensors, name) for each in bound.arguments.get(name, ()))
            given += [[f"*{at}", tree] for at, (tree, _) in enumerate(rest)]
            bound.arguments[name] = tuple(copy for _, copy in rest)
            continue
        if parameter.kind is kinds.VAR_KEYWORD:
            more = {
                key: _described(each, tensors, key) for key, each in bound.arguments.get(name, {}).items()
            }
            given += [[key, tree] for key, (tree, _) in more.items()]
            bound.arguments[name] = {key: copy for key, (_, copy) in more.items()}
            continue
        if parameter.kind is not kinds.KEYWORD_ONLY:
            positional.append(name)
        if parameter.default is not kinds.empty:
            defaults[name] = _default(parameter)
        if name in bound.arguments:
            tree, bound.arguments[name] = _described(bound.arguments[name], tensors, name)
            given.append([name, tree])
        else:
            given.append([name, defaults[name]])
    description = {
        "given": given,
        "positional": positional,
        "takes_more": takes_more,
        "defaults": defaults,
        "tensors": [_facts(each) for each in tensors],
    }
    return description, tensors, bound.args, bound.kwargs


def _default(parameter: inspect.Parameter) -> Json:
    tensors: list[torch.Tensor] = []
    try:
        tree, _ = _described(parameter.default, tensors, parameter.name)
    except UnsupportedError:
        tree = None
    return {"left out": True} if tree is None or tensors else tree  # no constant: it may be left out only


def _facts(tensor: torch.Tensor) -> Json:
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
    }


def _described(value: Any, tensors: list[torch.Tensor], where: str) -> tuple[Json, Any]:
    """Return the description of an argument, and the argument with copies of its tensors."""
    if isinstance(value, torch.Tensor):
        if (
            value.layout is not torch.strided
            or value.device.type != "cpu"
            or value.dtype not in DTYPES.values()
        ):
            raise UnsupportedError(
                "a saved model takes plain tensors on the CPU",
                where=where,
                got=f"{value.layout}, {value.device}, {value.dtype}",
            )
        tensors.append(clone_preserve_strides(value.detach()))
        return {"tensor": len(tensors) - 1}, tensors[-1]
    if type(value) in (list, tuple):
        parts = [_described(each, tensors, where) for each in value]
        return {type(value).__name__: [tree for tree, _ in parts]}, type(value)(copy for _, copy in parts)
    if type(value) is dict:
        _check_keys(value, where)
        items = {key: _described(each, tensors, where) for key, each in value.items()}
        tree = {"dict": [[key, tree] for key, (tree, _) in items.items()]}
        return tree, {key: copy for key, (_, copy) in items.items()}
    try:
        return {"constant": encoded(value)}, value
    except UnsupportedError as error:
        raise UnsupportedError(
            "a saved model takes tensors, numbers, texts, None, and lists, tuples and dicts of them",
            where=where,
            got=type(value).__name__,
        ) from error


def _check_keys(value: Mapping[Any, Any], where: str) -> None:
    if not all(type(key) in (str, int) for key in value):
        raise UnsupportedError("keys of a dict are neither texts nor numbers", where=where)


def result_of(value: Any, place: Callable[[torch.Tensor], Json]) -> Json:
    """Describe what a call returned.

    Args:
        value: the result.
        place: returns where a tensor in it comes from.

    Raises:
        UnsupportedError: it holds something else than tensors, constants and containers.
    """
    if isinstance(value, torch.Tensor):
        return place(value)
    if type(value) in (list, tuple, torch.Size):
        kind = "list" if type(value) is list else "tuple"
        return {kind: [result_of(each, place) for each in value]}
    names = getattr(type(value), "__match_args__", ()) if isinstance(value, tuple) else ()
    if names and len(names) == len(value):  # a named tuple of Python, or of torch.return_types
        return {"named": [[name, result_of(each, place)] for name, each in zip(names, value, strict=True)]}
    if type(value) is dict:
        _check_keys(value, "the result")
        return {"dict": [[key, result_of(each, place)] for key, each in value.items()]}
    if isinstance(value, Mapping) or dataclasses.is_dataclass(value):
        names = [each.name for each in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
        items = dict(value) if isinstance(value, Mapping) else {name: getattr(value, name) for name in names}
        _check_keys(items, "the result")
        found = [[str(key), result_of(each, place)] for key, each in items.items() if each is not None]
        return {"fields": found, "empty": [name for name in names if items.get(name) is None]}
    try:
        return {"constant": encoded(value)}
    except UnsupportedError as error:
        raise UnsupportedError(
            "a saved model returns tensors, numbers, texts, None, and containers of them",
            got=type(value).__name__,
            todo="with a language model, pass use_cache=False",
        ) from error


# ---- from JSON


class _Tensor(NamedTuple):
    number: int


class _Constant(NamedTuple):
    value: Any


class _Parts(NamedTuple):
    """A list, a tuple or a dict, by its type and its keys; of another object, the keys and names of Nones.

    The kind of a named tuple is a type that was made of its names.
    """

    kind: str | Callable[..., Any]
    keys: tuple[Any, ...]
    parts: tuple[Any, ...]
    empty: tuple[str, ...] = ()


_LEFT_OUT = _Constant(_MISSING)


def _tree(content: Json, kinds: Sequence[str], num_tensors: int, depth: int = 0) -> Any:
    """Read a description; `kinds` says what a leaf may be besides a constant."""
    if type(content) is not dict or not content or depth > _MOST_DEPTH:
        raise damaged("a description of a call is malformed", content)
    kind, inner = next(iter(content.items()))
    if kind == "constant" and len(content) == 1:
        return _Constant(decoded(inner))
    if kind == "left out" and len(content) == 1:
        return _LEFT_OUT
    if kind == "fields":
        items, empty = fields(content, fields=list, empty=list)
        if not all(type(name) is str for name in empty):
            raise damaged("names of fields are no texts", empty)
        keys, parts = _items(items, kinds, num_tensors, depth)
        return _Parts(kind, keys, parts, tuple(empty))
    if len(content) == 1:
        if kind in kinds and type(inner) is int and 0 <= inner < num_tensors:
            return _Tensor(inner)
        if kind in ("list", "tuple") and type(inner) is list:
            found = tuple(_tree(each, kinds, num_tensors, depth + 1) for each in inner)
            return _Parts(kind, tuple(range(len(found))), found)
        if kind in ("dict", "named") and type(inner) is list:
            keys, parts = _items(inner, kinds, num_tensors, depth)
            return _Parts(kind if kind == "dict" else _named(keys), keys, parts)
    raise damaged("a description of a call is malformed", content)


def _named(names: tuple[Any, ...]) -> Callable[..., Any]:
    """A type of named tuples; Python refuses what is no name, and names that begin with `_`."""
    if not all(type(name) is str for name in names):
        raise damaged("names of a tuple are no texts", names)
    try:
        return namedtuple("Outputs", names)
    except (ValueError, SyntaxError) as error:
        raise damaged("names of a tuple are no names", error) from error


def _items(
    content: list[Json], kinds: Sequence[str], num_tensors: int, depth: int
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    for each in content:
        if type(each) is not list or len(each) != 2 or type(each[0]) not in (str, int):
            raise damaged("an item of a dict is no key with a value", each)
    keys = tuple(key for key, _ in content)
    if len(set(keys)) < len(keys):
        raise damaged("a key of a dict comes twice", keys)
    return keys, tuple(_tree(each, kinds, num_tensors, depth + 1) for _, each in content)


class _Facts(NamedTuple):
    """What a tensor of a call has to be."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def dense_axes(self) -> tuple[int, ...]:
        """The axes whose strides matter."""
        return tuple(at for at, size in enumerate(self.shape) if size != 1)


class Arguments:
    """Matches the arguments of a call.

    Args:
        content: what `call_of` described; untrusted.

    Attributes:
        facts: of each tensor that a call passes.

    Raises:
        ModelFormatError: the content is malformed.
    """

    def __init__(self, content: Json) -> None:
        given, positional, self._takes_more, defaults, facts = fields(
            content, given=list, positional=list, takes_more=bool, defaults=dict, tensors=list
        )
        self.facts = [_read_facts(each) for each in facts]
        if not all(type(name) is str for name in positional):
            raise damaged("names of parameters are no texts", positional)
        names, trees = _items(given, ("tensor",), len(facts), 0)
        self._given = dict(zip(names, trees, strict=True))
        self._positional: list[str] = positional
        self._defaults = {name: _value(_tree(each, (), 0)) for name, each in defaults.items()}

    def match(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """Return the tensors of a call, with the strides that the graph reads.

        Raises:
            UnsupportedError: the call differs from the saved one in more than the values of tensors.
        """
        names = self._positional
        if len(args) > len(names):
            if not self._takes_more:
                raise _differs("the number of arguments", f"at most {len(names)}", len(args))
            names = names + [f"*{at}" for at in range(len(args) - len(names))]
        passed: dict[str, Any] = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name in passed:
                raise _differs(name, "one value", "two")
            passed[name] = value
        tensors: list[Any] = [None] * len(self.facts)
        for name, tree in self._given.items():
            value = passed.pop(name, _MISSING)
            if value is _MISSING:
                value = self._defaults.get(name, _MISSING)
                if value is _MISSING and tree is not _LEFT_OUT:
                    raise _differs(name, "an argument", "none")
            self._take(tree, value, tensors, name)
        if passed:
            raise _differs(next(iter(passed)), "no such argument", "one")
        return tensors

    def _take(self, tree: Any, value: Any, tensors: list[Any], name: str) -> None:
        kind = type(tree)
        if kind is _Tensor:
            tensors[tree.number] = self._checked(value, self.facts[tree.number], name)
        elif kind is _Constant:
            if type(value) is not type(tree.value) or repr(value) != repr(tree.value):
                expected = "to be left out" if tree is _LEFT_OUT else repr(tree.value)
                raise _differs(
                    name, expected, f"a {type(value).__name__}" if _is_large(value) else repr(value)
                )
        else:
            if type(value).__name__ != tree.kind or not isinstance(value, list | tuple | dict):
                raise _differs(name, f"a {tree.kind}", type(value).__name__)
            if len(value) != len(tree.keys):
                raise _differs(name, f"{len(tree.keys)} parts", len(value))
            for key, part in zip(tree.keys, tree.parts, strict=True):
                if isinstance(value, dict) and key not in value:
                    raise _differs(name, f"the key {key!r}", "none")
                self._take(part, value[key], tensors, f"{name}[{key!r}]")

    def _checked(self, value: Any, facts: _Facts, name: str) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            raise _differs(name, "a tensor", type(value).__name__)
        if value.shape != facts.shape or value.dtype is not facts.dtype or not value.is_cpu:
            raise _differs(
                name,
                f"{facts.dtype} {list(facts.shape)} on the CPU",
                f"{value.dtype} {list(value.shape)} on {value.device}",
            )
        if value.layout is not torch.strided:
            raise _differs(name, "a dense tensor", value.layout)
        if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            raise _differs(name, "a tensor that holds its numbers", type(value).__name__)
        stride = value.stride()
        if stride != facts.stride and any(stride[at] != facts.stride[at] for at in facts.dense_axes):
            return _restrided(value, facts)
        tensor: torch.Tensor = value
        return tensor


def _restrided(value: torch.Tensor, facts: _Facts) -> torch.Tensor:
    """A copy with other strides."""
    if 0 in facts.stride or not facts.shape:
        span = 1 + sum((size - 1) * step for size, step in zip(facts.shape, facts.stride, strict=True))
        made = torch.empty(span, dtype=facts.dtype, device="cpu").as_strided(facts.shape, facts.stride)
        once = tuple(slice(0, 1) if step == 0 else slice(None) for step in facts.stride)
        if not torch.equal(value[once].expand(facts.shape), value):
            raise _differs("a tensor", f"repeated elements, strides {facts.stride}", "others")
        made[once].copy_(value[once])
        return made
    made = torch.empty_strided(facts.shape, facts.stride, dtype=facts.dtype, device="cpu")
    made.copy_(value)
    return made


def _is_large(value: Any) -> bool:
    return isinstance(value, torch.Tensor | list | tuple | dict) or value is _MISSING


def _differs(where: str, expected: object, got: object) -> UnsupportedError:
    return UnsupportedError(
        "the call differs from the one that the model was saved for",
        where=where,
        expected=expected,
        got=got,
        todo="save the model for such inputs as well: torchrlopt.save(..., other_inputs=[...])",
    )


def none_fits(errors: Sequence[UnsupportedError]) -> UnsupportedError:
    """Return the error for a call that fits none of the saved ones.

    Args:
        errors: of `Arguments.match`, one for each of them.
    """
    if len(errors) == 1:
        return errors[0]
    reasons = [f"{each.where}: expected {each.expected}, got {each.got}" for each in errors]
    reasons = list(dict.fromkeys(reasons))
    more = [f"{len(reasons) - _MOST_REASONS} others"] if len(reasons) > _MOST_REASONS else []
    return UnsupportedError(
        "the call differs from all that the model was saved for",
        got=" | ".join([*reasons[:_MOST_REASONS], *more]),
        todo=errors[0].todo,
    )


def signature(value: Any) -> Any:
    """Return a key of arguments: calls of other tensors or constants have others, with few exceptions."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype
    if isinstance(value, list | tuple):
        return tuple(map(signature, value))
    if isinstance(value, dict):
        return tuple((key, signature(each)) for key, each in value.items())
    return value if isinstance(value, bool | int | float | str) else type(value)


def _read_facts(content: Json) -> _Facts:
    dtype, shape, stride = fields(content, dtype=str, shape=list, stride=list)
    if dtype not in DTYPES or len(shape) != len(stride):
        raise damaged("a tensor of a call has no type, sizes and strides", content)
    if not all(type(number) is int and 0 <= number < 1 << 48 for number in (*shape, *stride)):
        raise damaged("a tensor of a call has no sizes and strides", content)
    return _Facts(DTYPES[dtype], tuple(shape), tuple(stride))


def _value(tree: Any) -> Any:
    """The constant that a tree without tensors describes."""
    return _built(tree, [])


class Results:
    """Builds what a call returns.

    Args:
        content: what `result_of` described; untrusted.
        num_tensors: how many tensors there are to return.

    Raises:
        ModelFormatError: the content is malformed.
    """

    def __init__(self, content: Json, num_tensors: int) -> None:
        self._tree = _tree(content, ("tensor",), num_tensors)

    def build(self, tensors: Sequence[Any]) -> Any:
        """Return the result.

        Args:
            tensors: of the graph.
        """
        return _built(self._tree, tensors)


def _built(tree: Any, tensors: Sequence[Any]) -> Any:
    kind = type(tree)
    if kind is _Tensor:
        return tensors[tree.number]
    if kind is _Constant:
        return tree.value
    parts = [_built(each, tensors) for each in tree.parts]
    if tree.kind == "list":
        return parts
    if tree.kind == "tuple":
        return tuple(parts)
    if callable(tree.kind):
        return tree.kind(*parts)
    items = zip(tree.keys, parts, strict=True)
    return dict(items) if tree.kind == "dict" else Outputs(items, tree.empty)
