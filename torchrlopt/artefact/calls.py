"""A graph as a list of calls in JSON, and such a list as a callable.

Values are numbered: the inputs first, then the result of each call. A call is `[name, arguments, keywords]`.
Lists, texts, numbers, booleans and None among the arguments are those of JSON; `{"v": 3}` is a value, and the
other objects of one key are below. Running the list looks nothing up by name: that is done once, on loading.
"""

from __future__ import annotations

import functools
import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from torchrlopt.artefact import operators
from torchrlopt.artefact.functions import checked_of, name_of
from torchrlopt.errors import ModelFormatError, UnsupportedError
from torchrlopt.executors.eager.kernels.sequence import Program, RunSequence

Json = Any
_SEQUENCE = "kernel.sequence"
_MOST_DEPTH = 8
"""Of lists within lists among arguments."""
_MOST_ELEMENTS = 1 << 31
"""A call that names the sizes of its result makes fewer."""

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
        torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
    )
}  # fmt: skip
_CONSTANTS: dict[str, Mapping[str, Any]] = {
    "dtype": DTYPES,
    "layout": {"strided": torch.strided},
    "memory_format": {
        str(each).removeprefix("torch."): each
        for each in (
            torch.contiguous_format,
            torch.preserve_format,
            torch.channels_last,
            torch.channels_last_3d,
        )
    },
    "device": {"cpu": torch.device("cpu")},
    "float": {"inf": math.inf, "-inf": -math.inf, "nan": math.nan},
}
_TYPES = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}


# ---- to JSON


def written(graph: fx.Graph, numbers: Mapping[fx.Node, int]) -> dict[str, Json]:
    """Return the calls of a graph.

    Args:
        graph: with its weights as placeholders.
        numbers: the inputs of the list of calls: the placeholders of the graph, numbered from 0.

    Raises:
        UnsupportedError: a call or an argument cannot be stored.
    """
    known = dict(numbers)
    calls = []
    outputs: Json = None
    for node in graph.nodes:
        if node.op == "output":
            outputs = [_encoded(each, known) for each in node.args[0]]
        elif node not in known:
            calls.append(written_call(node, known))
            known[node] = len(known)
    return {"calls": calls, "outputs": outputs}


def written_call(node: fx.Node, known: Mapping[fx.Node, int]) -> Json:
    """Return one call; `known` numbers the values that it reads."""
    if isinstance(node.target, RunSequence):
        program = json.loads(node.target.program.text())
        return [_SEQUENCE, [program, *_encoded(list(node.args), known)], {}]
    name = name_of(node.op, node.target)
    named = {key: _encoded(value, known) for key, value in node.kwargs.items()}
    return [name, _encoded(list(node.args), known), named]


def encoded(value: Any) -> Json:
    """Return a constant argument as JSON.

    Raises:
        UnsupportedError: it cannot be stored.
    """
    return _encoded(value, {})


def _encoded(value: Any, known: Mapping[fx.Node, int]) -> Json:
    if isinstance(value, fx.Node):
        return {"v": known[value]}
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, list):
        return [_encoded(each, known) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [_encoded(each, known) for each in value]}
    if isinstance(value, slice):
        return {"slice": [_encoded(each, known) for each in (value.start, value.stop, value.step)]}
    kind = "device" if isinstance(value, torch.device) else _TYPES.get(type(value))
    name = str(value).removeprefix("torch.")
    if kind is not None and name in _CONSTANTS[kind]:
        return {kind: name}
    raise UnsupportedError("a saved model cannot hold this argument", got=f"{type(value).__name__} {value!r}")


# ---- from JSON


class Value(NamedTuple):
    """The number of a value."""

    number: int


def decoded(value: Json, num_values: int = 0, depth: int = 0) -> Any:
    """Return an argument that `encoded` wrote, with `Value` in place of values.

    Args:
        value: untrusted.
        num_values: how many values there are to refer to.
        depth: how deep it is nested.

    Raises:
        ModelFormatError: it is malformed.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth > _MOST_DEPTH:
        raise damaged("arguments are nested too deep")
    if type(value) is list:
        return [decoded(each, num_values, depth + 1) for each in value]
    if type(value) is not dict or len(value) != 1:
        raise damaged("an argument of no known kind", value)
    ((kind, inner),) = value.items()
    if kind == "v":
        if type(inner) is not int or not 0 <= inner < num_values:
            raise damaged("a call reads a value that does not exist", inner)
        return Value(inner)
    if kind in ("tuple", "slice") and type(inner) is list:
        items = [decoded(each, num_values, depth + 1) for each in inner]
        if kind == "tuple":
            return tuple(items)
        if len(items) == 3:
            return slice(*items)
    elif isinstance(inner, str) and inner in _CONSTANTS.get(kind, ()):
        return _CONSTANTS[kind][inner]
    raise damaged("an argument of no known kind", value)


def damaged(what: str, got: Any = None) -> ModelFormatError:
    """Return the error for a file that `save` did not write."""
    return ModelFormatError(
        f"the file is damaged: {what}", got=None if got is None else str(got)[:80], is_bug=False
    )


class _Step(NamedTuple):
    """A call: `values[result] = function(*pick(values))`, after which some values are no longer needed."""

    function: Callable[..., Any]
    pick: Callable[[list[Any]], Sequence[Any]]
    result: int
    dead: tuple[int, ...]


class Calls:
    """Runs a list of calls.

    Args:
        content: what `written` returned; untrusted.
        inputs: the inputs by number, None for those that each call passes.

    Raises:
        ModelFormatError: the content is malformed.
        LoweringError: this processor lacks a kernel.
    """

    def __init__(self, content: Json, inputs: Sequence[Any]) -> None:
        calls, outputs = fields(content, calls=list, outputs=list)
        self._given = [at for at, value in enumerate(inputs) if value is None]
        self._values: list[Any] = [*inputs, *[None] * len(calls)]
        made = [self._decoded(call, len(inputs) + at) for at, call in enumerate(calls)]
        results = decoded(outputs, len(self._values))
        if not all(each is None or type(each) in (Value, bool, int, float) for each in results):
            raise damaged("an output is neither a value nor a number")
        last = {number: at for at, (_, used, _) in enumerate(made) for number in used}
        kept = {each.number for each in results if type(each) is Value} | set(range(len(inputs)))
        dead: list[list[int]] = [[] for _ in made]
        for number, at in last.items():
            if number not in kept:
                dead[at].append(number)
        self._steps = [
            _Step(*self._step(function, args), len(inputs) + at, tuple(dead[at]))
            for at, (function, _, args) in enumerate(made)
        ]
        self._pick = self._picker(tuple(results))

    def __call__(self, given: Sequence[Any]) -> Sequence[Any]:
        """Run.

        Args:
            given: the inputs that were None, in order.
        """
        values = self._values.copy()
        for at, value in zip(self._given, given, strict=True):
            values[at] = value
        for function, pick, result, dead in self._steps:
            values[result] = function(*pick(values))
            for at in dead:
                values[at] = None
        return self._pick(values)

    def _decoded(self, call: Json, num_values: int) -> tuple[Callable[..., Any], set[int], tuple[Any, ...]]:
        """Return what a call runs, the values that it reads, and its arguments."""
        if type(call) is not list or len(call) != 3 or type(call[1]) is not list or type(call[2]) is not dict:
            raise damaged("a call has no name, arguments and keywords")
        name, positional, named = call
        if name == _SEQUENCE:
            program, *positional = positional or [None]
            function: Callable[..., Any] = _sequence(program, len(positional))
        else:
            function = checked_of(name)
        args = tuple(decoded(positional, num_values))
        _check_sizes(name, args)
        keywords = {key: decoded(value, num_values) for key, value in named.items()}
        if any(map(_values_in, keywords.values())):
            count, names = len(args), tuple(keywords)
            args, function = (*args, *keywords.values()), _with_names(function, count, names)
        elif keywords:
            function = functools.partial(function, **keywords)
        return function, _values_in(args), args

    def _step(
        self, function: Callable[..., Any], args: tuple[Any, ...]
    ) -> tuple[Callable[..., Any], Callable[[list[Any]], Sequence[Any]]]:
        return function, self._picker(args)

    def _picker(self, args: tuple[Any, ...]) -> Callable[[list[Any]], Sequence[Any]]:
        """Return a function from all values to the arguments of a call.

        Constants become values of their own, so that one call of C picks all arguments.
        """
        if any(_values_in(each) for each in args if type(each) is not Value):
            return lambda values: [filled(each, values) for each in args]
        numbers = [each.number if type(each) is Value else self._constant(each) for each in args]
        if len(numbers) > 1:
            return operator.itemgetter(*numbers)
        first = numbers[0] if numbers else 0
        return operator.itemgetter(slice(first, first + len(numbers)))

    def _constant(self, value: Any) -> int:
        self._values.append(value)
        return len(self._values) - 1


def fields(content: Json, /, **types: type) -> list[Any]:
    """Return the fields of an object of a file.

    Args:
        content: untrusted.
        **types: the fields that it must have, and no others, with their types.

    Raises:
        ModelFormatError: a field is missing or of another type.
    """
    if type(content) is not dict or content.keys() != types.keys():
        raise damaged("an object has other fields", content)
    for name, kind in types.items():
        if type(content[name]) is not kind:
            raise damaged(f"{name} is of another type", content[name])
    return [content[name] for name in types]


def _check_sizes(name: str, args: tuple[Any, ...]) -> None:
    """Raises ModelFormatError if a call names sizes of more elements than it may make."""
    if name.split(".")[1] not in operators.SIZED:
        return
    sizes = next((each for each in args if isinstance(each, list | tuple) and type(each) is not Value), args)
    if math.prod(max(each, 1) for each in sizes if type(each) is int) >= _MOST_ELEMENTS:
        raise damaged("a call makes a tensor that is too large", sizes)


def _sequence(program: Json, num_operands: int) -> RunSequence:
    """Build the sequence of kernels that `Program.text` describes.

    Raises:
        ModelFormatError: it is malformed.
        LoweringError: this processor has no kernels.
    """
    try:
        num_inputs, instructions, outputs = program
        if num_inputs != num_operands:
            raise damaged("a sequence of kernels is for other operands", num_inputs)
        return RunSequence(Program.of(json.dumps([num_inputs, instructions, outputs])))
    except (ValueError, TypeError, IndexError, RuntimeError, OverflowError) as error:
        raise damaged("a sequence of kernels is malformed", error) from error


def _with_names(
    function: Callable[..., Any], num_positional: int, names: tuple[str, ...]
) -> Callable[..., Any]:
    """Return the function with its last arguments passed by name."""

    def call(*args: Any) -> Any:
        return function(*args[:num_positional], **dict(zip(names, args[num_positional:], strict=True)))

    return call


def _values_in(argument: Any) -> set[int]:
    """The numbers of the values in an argument."""
    if type(argument) is Value:
        return {argument.number}
    if isinstance(argument, slice):
        argument = [argument.start, argument.stop, argument.step]
    if type(argument) in (list, tuple):
        return set().union(*map(_values_in, argument))
    return set()


def filled(argument: Any, values: Sequence[Any]) -> Any:
    """The argument with values in place of their numbers."""
    if type(argument) is Value:
        return values[argument.number]
    if type(argument) is list:
        return [filled(each, values) for each in argument]
    if type(argument) is tuple:
        return tuple(filled(each, values) for each in argument)
    if isinstance(argument, slice):
        return slice(*(filled(each, values) for each in (argument.start, argument.stop, argument.step)))
    return argument
