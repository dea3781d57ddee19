"""Calls that go past Dynamo, where all that its guards ask is known to be as it was.

Dynamo evaluates a guard for every fact that its code hangs on, and collects every weight from the model, at
every call. A shortcut is learned from one such call: whichever guards are on the model's own modules and
weights are replaced by one look of `_C.ModuleWatch`; all others (on arguments, globals, other objects, modes)
are evaluated as Dynamo does it; then the compiled graph is called with the inputs that it had. Where anything
is not as it was, or cannot be told, the call goes through Dynamo, whose guards stay whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import re
import threading
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from torchrlopt import _C
from torchrlopt.api.watch import Watched, watched
from torchrlopt.capture import guards
from torchrlopt.capture.guards import Guards, State
from torchrlopt.compile.compiled import RECORDING, Compiled

_MAX_KNOWN = 8  # as many as Dynamo compiles of one function
_MAX_PATIENCE = 1024  # calls
_POSITIONAL = re.compile(r"L\['args'\]\[(\d+)\]")
_KEYWORD = re.compile(r"L\['kwargs'\]\['(\w+)'\]")


class _Graph:
    """A compiled graph as Dynamo calls it.

    Args:
        run: the compiled graph.
        sources: where its inputs come from, as Python expressions.
    """

    def __init__(self, run: Callable[..., Any], sources: Sequence[str]) -> None:
        self.run = run
        self.sources = sources

    def __call__(self, *inputs: Any) -> Any:
        """Run it; tell so where somebody asks."""
        outputs = self.run(*inputs)
        if _RECORDING.graphs is not None:
            _RECORDING.graphs.append((self, inputs, outputs))
        return outputs


@dataclasses.dataclass(eq=False)
class Calls:
    """What has been run in a call of the user's.

    Attributes:
        graphs: as Dynamo calls them, with their inputs and outputs.
        compiled: as AOTAutograd calls them, with their arguments and outputs.
    """

    graphs: list[tuple[_Graph, tuple[Any, ...], Any]] = dataclasses.field(default_factory=list)
    compiled: list[tuple[Compiled, tuple[Any, ...], Sequence[Any]]] = dataclasses.field(default_factory=list)


class _Recording(threading.local):
    graphs: list[tuple[_Graph, tuple[Any, ...], Any]] | None = None


_RECORDING = _Recording()


def noted(gm: torch.fx.GraphModule, run: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled graph of a call that does nothing but run it, so that a shortcut may be learned of it.

    It holds nothing else: Dynamo keeps it in a table of globals.
    """
    sources = guards.sources_of(gm)
    return run if sources is None else _Graph(run, sources)


@contextlib.contextmanager
def recording() -> Iterator[Calls]:
    """What this thread runs inside."""
    before, calls = (_RECORDING.graphs, RECORDING.calls), Calls()
    _RECORDING.graphs, RECORDING.calls = calls.graphs, calls.compiled
    try:
        yield calls
    finally:
        _RECORDING.graphs, RECORDING.calls = before


@dataclasses.dataclass(frozen=True, eq=False)
class _Shortcut:
    """One way past Dynamo.

    Attributes:
        guards: Dynamo's, all of them.
        check: those that nobody else looks after.
        state: of the dispatcher, for which `check` is.
        run: the compiled graph, or what AOTAutograd calls for it, called with a tuple.
        kept: what the template does not hold, where nobody asks for changes.
        watch: says whether the model is as it was; None where nobody asks.
        template: the inputs of what is run.
        pick: those of them that the call brings along.
        result: what the call returns, of the outputs of the graph.
    """

    guards: Guards
    check: Callable[[Mapping[str, Any]], bool]
    state: State
    run: Callable[[tuple[Any, ...]], Sequence[Any]]
    kept: tuple[Any, ...]
    watch: _C.ModuleWatch | None
    template: _C.Template
    pick: Callable[[tuple[Any, ...], Mapping[str, Any]], tuple[Any, ...]]
    result: Callable[[Sequence[Any]], Any]


class Shortcuts:
    """What is known of the calls of one compiled function; safe for threads.

    Args:
        function: of `*args` and `**kwargs`; Dynamo compiles it.
        model: what it calls.
        name: an expression for the model over the free variables of the function, which are in `L`.
        is_frozen: whether the model is not looked at.

    Attributes:
        missed: instead of a result: the call has to go through Dynamo.
    """

    missed: Any = object()

    def __init__(
        self, function: Callable[..., Any], model: torch.nn.Module, name: str, is_frozen: bool
    ) -> None:
        assert isinstance(function, types.FunctionType)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._free = {key: cell.cell_contents for key, cell in cells}
        self._function = function
        self._model, self._name, self._is_frozen = model, name, is_frozen
        self._known: tuple[_Shortcut, ...] = ()
        self._rest, self._patience = 0, 1
        assert eval(name, {"L": self._free}) is model

    def forget(self) -> None:
        """Let go of everything."""
        self._known = ()

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of a call, or `missed`. Gradients are not recorded around it."""
        if not self._known or not guards.is_compiling_as_usual():
            return self.missed
        scope = {**self._free, "args": args, "kwargs": kwargs}
        state = guards.dispatch_state()
        for known in self._known:
            if state != known.state or not known.guards.is_in_force or not known.check(scope):
                continue
            values = known.pick(args, kwargs)
            if known.watch is None:
                inputs: tuple[Any, ...] | None = known.template.filled(values)
            else:
                inputs = known.watch.fill(known.template, values)
            if inputs is None:  # the model has changed
                self._known = ()
                self._wait()
                return self.missed
            return known.result(known.run(inputs))
        return self.missed

    def _wait(self) -> None:
        """Learn of later calls: of what changes often, or cannot be learned of, not each time."""
        self._rest, self._patience = self._patience, min(2 * self._patience, _MAX_PATIENCE)

    def is_wanted(self) -> bool:
        """Whether the next call, which goes through Dynamo, is to be learned of."""
        if not guards.is_compiling_as_usual():
            return False
        state = guards.dispatch_state()
        if any(known.state != state or not known.guards.is_in_force for known in self._known):
            # Dynamo evaluates its guards in another state, and what is cloned of them shares that with them.
            self._known = ()
        if self._rest > 0:
            self._rest -= 1
            return False
        return len(self._known) < _MAX_KNOWN

    recording = staticmethod(recording)

    def learn(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], value: Any, calls: Calls) -> None:
        """Learn of a call.

        Args:
            args: of the call.
            kwargs: of the call.
            value: what it has returned.
            calls: the graphs that were run in it.
        """
        found = self._learned(args, kwargs, value, calls)
        if found is None:
            self._wait()
        else:
            self._known = (*self._known, found)

    def _held(self) -> frozenset[int]:
        """Identities of the weights, where nobody asks whether they are still there."""
        weights = chain(self._model.parameters(), self._model.buffers()) if self._is_frozen else ()
        return frozenset(map(id, weights))

    def _learned(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], value: Any, calls: Calls
    ) -> _Shortcut | None:
        if len(calls.graphs) != 1:
            return None
        ((graph, inputs, outputs),) = calls.graphs
        if not all(isinstance(each, torch.Tensor) for each in (*inputs, *outputs)):
            return None  # numbers among them vary with the inputs
        result = _of_outputs(value, outputs)
        # First what the model is, then whether the guards hold for it, then whether it still is that.
        model = None if self._is_frozen else watched(self._model, self._name)
        if result is None or (model is None and not self._is_frozen):
            return None
        scope = {**self._free, "args": args, "kwargs": kwargs}
        state = guards.dispatch_state()
        found = guards.guards_of(self._function, scope)
        places = _places(graph, inputs, args, kwargs, model)
        if found is None or places is None or not found.are_of(graph):
            return None
        check = found.without(model.known if model is not None else frozenset())
        if check is None or not check(scope) or (model is not None and not model.watch.is_unchanged()):
            return None
        run, inputs, places = _straight(graph, inputs, places, outputs, calls, self._held())
        return _Shortcut(
            guards=found,
            check=check,
            state=state,
            run=run,
            kept=tuple(each for each, place in zip(inputs, places, strict=True) if place is None)
            if self._is_frozen
            else (),
            watch=model.watch if model is not None else None,
            template=_C.Template(
                [None if place is not None else each for each, place in zip(inputs, places, strict=True)]
            ),
            pick=_picker([place for place in places if place is not None]),
            result=result,
        )


_Place = int | str
"""Of an argument: its position or its name."""


def _places(
    graph: _Graph,
    inputs: Sequence[Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    model: Watched | None,
) -> list[_Place | None] | None:
    """Which argument of the call each input of the graph is; None for a weight.

    None where an input is neither, such as an element of a list.
    """
    places: list[_Place | None] = []
    for source, each in zip(graph.sources, inputs, strict=True):
        positional, keyword = _POSITIONAL.fullmatch(source), _KEYWORD.fullmatch(source)
        place: _Place | None = None
        if positional is not None:
            place = int(positional[1])
            is_it = args[place] is each
        elif keyword is not None:
            place = keyword[1]
            is_it = kwargs[place] is each
        else:
            is_it = model is not None and model.tensors.get(source) is each
        if not is_it:
            return None
        places.append(place)
    return places


def _straight(
    graph: _Graph,
    inputs: tuple[Any, ...],
    places: list[_Place | None],
    outputs: Sequence[Any],
    calls: Calls,
    held: Collection[int],
) -> tuple[Callable[[tuple[Any, ...]], Sequence[Any]], tuple[Any, ...], list[_Place | None]]:
    """What is to be run, with its inputs and their places.

    That is what AOTAutograd calls, where AOTAutograd itself does nothing but hand on the very objects that it
    is given and gets, with the weights that it holds. It also turns autocast off, which must not be on.

    Args:
        graph: as Dynamo calls it.
        inputs: of the graph.
        places: of the inputs, see `_places`.
        outputs: of the graph.
        calls: what has been run.
        held: identities of tensors that live as long as the model.
    """
    place_of = {id(each): place for each, place in zip(inputs, places, strict=True)}
    if len(calls.compiled) == 1 and len(place_of) == len(inputs) and not torch._C._is_any_autocast_enabled():
        ((compiled, args, returned),) = calls.compiled
        hands_on = len(returned) == len(outputs) and all(map(operator.is_, returned, outputs))
        is_complete = place_of.keys() <= set(map(id, args)) and all(
            isinstance(each, torch.Tensor) for each in args
        )
        if hands_on and is_complete and all(id(each) in place_of or id(each) in held for each in args):
            straight = [place_of.get(id(each)) for each in args]
            return compiled.run, args, straight
    return lambda given: graph.run(*given), inputs, places


def _picker(
    places: Sequence[_Place],
) -> Callable[[tuple[Any, ...], Mapping[str, Any]], tuple[Any, ...]]:
    """Picks the arguments at these places."""
    positions = [place for place in places if isinstance(place, int)]
    if len(positions) < len(places):
        return lambda args, kwargs: tuple(
            args[place] if isinstance(place, int) else kwargs[place] for place in places
        )
    return lambda args, _: tuple([args[position] for position in positions])


def _of_outputs(
    value: Any, outputs: Sequence[Any], met: set[int] | None = None
) -> Callable[[Sequence[Any]], Any] | None:
    """A function that makes such a value of such outputs; None where they are not all that it is made of.

    Args:
        value: to be made.
        outputs: of a graph.
        met: identities of the containers so far. One that is met twice would become two.
    """
    met = set() if met is None else met
    if isinstance(value, torch.Tensor):
        at = next((at for at, output in enumerate(outputs) if output is value), None)
        return None if at is None else lambda outputs: outputs[at]
    if value is None or type(value) in (bool, str):
        return lambda _: value
    kind = type(value)
    if kind not in (tuple, list, dict):
        return None
    if id(value) in met:
        return None
    met.add(id(value))
    items = list(value.values() if kind is dict else value)
    if kind is not tuple and not any(isinstance(item, torch.Tensor) for item in items):
        return None  # it may be one that was there before, and is there still
    parts = [_of_outputs(item, outputs, met) for item in items]
    made: list[Callable[[Sequence[Any]], Any]] = [part for part in parts if part is not None]
    if len(made) < len(parts):
        return None
    if kind is dict:
        keys = list(value)
        return lambda outputs: {key: part(outputs) for key, part in zip(keys, made, strict=True)}
    return lambda outputs: kind(part(outputs) for part in made)
