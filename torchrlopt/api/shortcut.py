"""Calls that go past Dynamo, where all that its guards ask is known to be as it was.

Dynamo evaluates a guard for every fact that its code hangs on, and collects every weight from the model, at
every call. A shortcut is learned from one such call: whichever guards are on the model's own modules and
weights are replaced by one look of `_C.ModuleWatch`; all others (on arguments, globals, other objects, modes)
are evaluated as Dynamo does it; then the compiled graph is called with the inputs that it had. Where anything
is not as it was, or cannot be told, the call goes through Dynamo, whose guards stay whole.

Guards do not say all that code hangs on: it also reads, at each call, what it only hands on, and writes to
objects that it finds anew. Calls of the first kind are not learned of
(`aot.returns_unguarded_values`); for the second, the object of each call is looked at (`aot.Setting`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import operator
import threading
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch

from torchrlopt import _C
from torchrlopt.api import results
from torchrlopt.api.places import Pick, is_same, picker, positions, value_of
from torchrlopt.api.watch import Watched, watched
from torchrlopt.capture import guards
from torchrlopt.capture.aot import Setting
from torchrlopt.capture.guards import Guards, State
from torchrlopt.compile.bound import BoundCompiled, BoundGraph
from torchrlopt.compile.compiled import RECORDING, Compiled

_MAX_KNOWN = 8  # as many as Dynamo compiles of one function
_MAX_PATIENCE = 1024  # calls

logger = logging.getLogger("torchrlopt")


class _NotLearnedError(Exception):
    """Why calls like this one go through Dynamo."""


class _Graph:
    """A compiled graph as Dynamo calls it.

    Args:
        run: the compiled graph.
        sources: where its inputs come from, as Python expressions.
        settings: what its code sets besides.
    """

    def __init__(self, run: Callable[..., Any], sources: Sequence[str], settings: Sequence[Setting]) -> None:
        self.run = run
        self.sources = sources
        self.settings = settings

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


def noted(
    gm: torch.fx.GraphModule, run: Callable[..., Any], settings: Sequence[Setting] = ()
) -> Callable[..., Any]:
    """The compiled graph of a call that does nothing but run it, so that a shortcut may be learned of it.

    Attributes that the call sets to constants are looked at instead of being set.
    It holds nothing else: Dynamo keeps it in a table of globals.
    """
    sources = guards.sources_of(gm)
    return run if sources is None else _Graph(run, sources, settings)


@contextlib.contextmanager
def recording() -> Iterator[Calls]:
    """What this thread runs inside."""
    before, calls = (_RECORDING.graphs, RECORDING.calls), Calls()
    _RECORDING.graphs, RECORDING.calls = calls.graphs, calls.compiled
    try:
        yield calls
    finally:
        _RECORDING.graphs, RECORDING.calls = before


class _Shortcut(NamedTuple):
    """One way past Dynamo. `_C.known_call` knows the fields up to `result` by their order.

    Attributes:
        wrapper: of Dynamo's guards, which tells whether they are in force.
        check: those of the guards that nobody else looks after.
        state: of the dispatcher, for which `check` is.
        are_set: whether attributes are what the code of the call would set; None where it sets none.
        pick: positions of what the call brings along; a function where it is not all positional.
        run: the compiled graph, or what AOTAutograd calls for it, of what the call brings along; None where
            the model is not as it was.
        result: what the call returns, of the outputs of the graph.
        guards: Dynamo's, all of them.
        kept: what `run` does not hold, where nobody asks for changes.
    """

    wrapper: Any
    check: Callable[[Mapping[str, Any]], bool]
    state: State
    are_set: Callable[[Mapping[str, Any]], bool] | None
    pick: Pick | tuple[int, ...]
    run: BoundGraph
    result: Callable[[Sequence[Any]], Any]
    guards: Guards
    kept: tuple[Any, ...]


class Shortcuts:
    """What is known of the calls of one compiled function; safe for threads.

    Args:
        function: of `*args` and `**kwargs`; Dynamo compiles it.
        model: what it calls.
        name: an expression for the model over the free variables of the function, which are in `L`.
        is_frozen: whether the model is not looked at.
    """

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
        self._told: set[str] = set()
        assert eval(name, {"L": self._free}) is model

    def forget(self) -> None:
        """Let go of everything."""
        self._known = ()

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call; NotImplemented where it has to go through Dynamo.

        Gradients are not recorded around it.
        """
        found = _C.known_call(self._known, self._free, guards.EVAL_FRAME, args, kwargs)
        if found is not ...:
            return found
        self._known = ()
        self._wait()
        return NotImplemented

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
        try:
            self._known = (*self._known, self._learned(args, kwargs, value, calls))
        except Exception as refusal:  # noqa: BLE001  # the call has its result, whatever else is wrong
            self._wait()
            reason = str(refusal) if isinstance(refusal, _NotLearnedError) else repr(refusal)
            if reason not in self._told:
                self._told.add(reason)
                kind = type(self._model).__name__
                logger.debug("calls of %s go through Dynamo: %s", kind, reason)

    def _held(self) -> frozenset[int]:
        """Identities of the weights, where nobody asks whether they are still there."""
        weights = chain(self._model.parameters(), self._model.buffers()) if self._is_frozen else ()
        return frozenset(map(id, weights))

    def _learned(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], value: Any, calls: Calls
    ) -> _Shortcut:
        """Raises _NotLearnedError."""
        state = guards.dispatch_state()
        if state is None:
            raise _NotLearnedError("the state of the dispatcher cannot be read in this PyTorch")
        if len(calls.graphs) != 1:
            raise _NotLearnedError("they are not one rewritten graph alone")
        ((graph, inputs, outputs),) = calls.graphs
        scope = {**self._free, "args": args, "kwargs": kwargs}
        names = self._function.__globals__
        if not _are_set(graph.settings, names, scope):
            raise _NotLearnedError("they set attributes to other values")
        if not all(isinstance(each, torch.Tensor) for each in outputs):
            raise _NotLearnedError("the graph returns something else than tensors")
        is_of_one_size = all(isinstance(each, torch.Tensor) for each in inputs)
        result = results.maker(value, outputs, set(map(id, inputs)), is_of_one_size)
        if result is None:
            raise _NotLearnedError("they return what is not made of the outputs of the graph alone")
        asked = guards.guards_of(self._function, scope, graph)
        if asked is None:
            raise _NotLearnedError("the guards of their code are not found")
        # First what the model is, then whether the guards hold for it, then whether it still is that.
        model = None if self._is_frozen else watched(self._model, self._name, asked.sources())
        if model is None and not self._is_frozen:
            raise _NotLearnedError("the model cannot be watched in this Python or this PyTorch")
        found = guards.guards_of(self._function, scope, graph)
        if found is None or not found.are_those(asked):
            raise _NotLearnedError("the model has changed meanwhile")
        held = self._held()
        places = _places(graph, inputs, args, kwargs, model, held, self._name)
        check = found.without(model.known if model is not None else frozenset())
        if check is None or not check(scope):
            raise _NotLearnedError("the guards of their code cannot be taken apart")
        if model is not None and not model.watch.is_unchanged():
            raise _NotLearnedError("the model has changed meanwhile")
        compiled, inputs, places = _straight(inputs, places, outputs, calls, held)
        watch = model.watch if model is not None else None
        template = _C.Template(
            [None if place is not None else each for each, place in zip(inputs, places, strict=True)]
        )
        varying = [at for at, place in enumerate(places) if place is not None]
        run = (
            BoundGraph(lambda given: graph.run(*given), template, watch)
            if compiled is None
            else BoundCompiled(compiled, template, varying, watch)
        )
        brought = [place for place in places if place is not None]
        positional = positions(brought)
        return _Shortcut(
            wrapper=found.wrapper,
            check=check,
            state=state,
            are_set=functools.partial(_are_set, graph.settings, names) if graph.settings else None,
            run=run,
            guards=found,
            kept=tuple(each for each, place in zip(inputs, places, strict=True) if place is None)
            if self._is_frozen
            else (),
            pick=picker(brought) if positional is None else positional,
            result=result,
        )


def _are_set(settings: Sequence[Setting], names: dict[str, Any], scope: Mapping[str, Any]) -> bool:
    """Whether attributes are what the code of a call would set, with these globals."""
    return all(setting.holds(scope, names) for setting in settings)


def _places(
    graph: _Graph,
    inputs: Sequence[Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    model: Watched | None,
    held: Collection[int],
    name: str,
) -> list[str | None]:
    """Where in the call each input of the graph is; None for a weight.

    Raises:
        _NotLearnedError: an input is neither.
    """
    found: list[str | None] = []
    for source, each in zip(graph.sources, inputs, strict=True):
        is_watched = model is not None and model.tensors.get(source) is each
        # Another place of the call may hold a weight of the model now, and something else the next time.
        is_held = id(each) in held and source.startswith(f"{name}.") and isinstance(each, torch.Tensor)
        if is_watched or is_held:
            found.append(None)
            continue
        try:
            is_it = is_same(value_of(source, args, kwargs), each)
        except (LookupError, AttributeError, TypeError):
            is_it = False
        if not is_it:
            raise _NotLearnedError(f"an input of their graph is {source}")
        found.append(source)
    return found


def _straight(
    inputs: tuple[Any, ...],
    places: list[str | None],
    outputs: Sequence[Any],
    calls: Calls,
    held: Collection[int],
) -> tuple[Compiled | None, tuple[Any, ...], list[str | None]]:
    """What is to be run, with its inputs and their places; None for the graph itself.

    That is what AOTAutograd calls, where AOTAutograd itself does nothing but hand on the very objects that it
    is given and gets, with the weights that it holds. It also turns autocast off, which must not be on.

    Args:
        inputs: of the graph.
        places: of the inputs, see `_places`.
        outputs: of the graph.
        calls: what has been run.
        held: identities of tensors that live as long as the model.
    """
    if len(calls.compiled) != 1 or torch._C._is_any_autocast_enabled():
        return None, inputs, places
    ((compiled, args, returned),) = calls.compiled
    hands_on = len(returned) == len(outputs) and all(map(operator.is_, returned, outputs))
    tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
    place_of = {id(each): place for each, place in zip(inputs, places, strict=True)}
    given = [each for each in args if isinstance(each, torch.Tensor)]
    is_complete = set(map(id, tensors)) <= set(map(id, given)) and all(
        id(each) in place_of or id(each) in held for each in given
    )
    # Sizes come in the order of the graph.
    sizes = [(each, place) for each, place in zip(inputs, places, strict=True) if type(each) is int]
    passed = [each for each in args if not isinstance(each, torch.Tensor)]
    if (
        not hands_on
        or not is_complete
        or len(set(map(id, tensors))) < len(tensors)
        or len(tensors) + len(sizes) < len(inputs)
        or passed != [size for size, _ in sizes]
    ):
        return None, inputs, places
    rest = iter(sizes)
    straight = [place_of.get(id(each)) if isinstance(each, torch.Tensor) else next(rest)[1] for each in args]
    return compiled, args, straight
