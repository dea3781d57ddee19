"""Calls sessions of runtimes that run ONNX models: converts arguments to feeds and fetches to outputs."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.util
import os
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir
import torch

from torchrlopt.errors import LoweringError, UnsupportedError
from torchrlopt.executors.isolation import verdicts
from torchrlopt.executors.isolation.task import Task, tried
from torchrlopt.executors.onnx_runtimes import conditioning
from torchrlopt.executors.onnx_runtimes.fetched_outputs import FetchedOutputs
from torchrlopt.executors.onnx_runtimes.first_run import PROBE_S, FirstRun, Request, memory_for
from torchrlopt.executors.onnx_runtimes.index_bounds import Bounds, are_within, bounds_of, out_of_range
from torchrlopt.executors.onnx_runtimes.last_digits import of_last_digits, refuse_last_digits
from torchrlopt.executors.onnx_runtimes.operator_probe import refused_kinds
from torchrlopt.executors.onnx_runtimes.plain_numbers import are_plain
from torchrlopt.executors.registry import Lowered, Refusals
from torchrlopt.executors.weights.half_precision import available_bytes
from torchrlopt.executors.weights.prologue_cache import PrologueCache
from torchrlopt.executors.weights.split_onnx import split_weights
from torchrlopt.executors.weights.static_part import static_inputs
from torchrlopt.onnx.older_opset import lower_opset
from torchrlopt.onnx.opsets import ATEN_DOMAIN, NATIVE
from torchrlopt.onnx.standard import standardise
from torchrlopt.torch_private.modes import without_dispatch_modes

if TYPE_CHECKING:
    from torchrlopt.capture.captured import Captured
    from torchrlopt.options import LoweringOptions


_CPU = torch.device("cpu")


def of_opaque(model: onnx_ir.Model) -> dict[onnx_ir.Node, str]:
    """The nodes that are ATen calls without an ONNX operator."""
    return {node: "operators that ONNX does not have" for node in model.graph if node.domain == ATEN_DOMAIN}


def refuse_opaque(model: onnx_ir.Model) -> None:
    """Raise LoweringError if there are any; the message names them."""
    opaque = of_opaque(model)
    if opaque:
        names = ", ".join(sorted({node.op_type for node in opaque}))
        raise LoweringError(next(iter(opaque.values())), got=names, is_bug=False)


def devices_of(captured: Captured) -> set[torch.device]:
    """All devices of tensors in the captured graph, except for scalars in CPU memory."""
    values = [node.meta.get("val") for node in captured.aten.graph.nodes]
    return {
        value.device
        for value in values
        if isinstance(value, torch.Tensor) and (value.dim() > 0 or value.device.type != "cpu")
    }


def refuse_elsewhere(captured: Captured) -> None:
    """Require that all tensors are in CPU memory.

    Raises:
        UnsupportedError: they are elsewhere.
    """
    elsewhere = {device.type for device in devices_of(captured)} - {"cpu"}
    if elsewhere:
        raise UnsupportedError("this executor runs on the CPU", got=", ".join(elsewhere))


def positions(captured: Captured) -> dict[str, int]:
    """The position of each argument of the captured graph."""
    placeholders = captured.aten.graph.find_nodes(op="placeholder")
    return {node.name: index for index, node in enumerate(placeholders)}


def fixed_inputs(captured: Captured, options: LoweringOptions) -> frozenset[str]:
    """The names of the inputs that hold weights, unless these are live, and of captured constants."""
    return static_inputs(captured, options) | captured.constants.keys()


def as_tensor(value: Any) -> torch.Tensor:
    """A feed; sizes are passed as ints."""
    return dense(value) if isinstance(value, torch.Tensor) else torch.tensor(int(value))


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor contiguous and with lazy negation resolved, as runtimes read it."""
    tensor = tensor.detach()
    return (tensor.resolve_neg() if tensor.is_neg() else tensor).contiguous()


def proto_without_weights(model: onnx_ir.Model, shapes: Mapping[str, Sequence[int]]) -> bytes:
    """The serialised model, with initializers of these names whose data comes from elsewhere.

    Args:
        model: the named values are graph inputs.
        shapes: of the initializers, by name.
    """
    import onnx

    proto = onnx_ir.to_proto(model)
    inputs = [value for value in proto.graph.input if value.name in shapes]
    for value in inputs:
        proto.graph.input.remove(value)
        tensor = proto.graph.initializer.add()
        tensor.name = value.name
        tensor.data_type = value.type.tensor_type.elem_type
        tensor.dims.extend(shapes[value.name])
        if 0 not in shapes[value.name]:
            tensor.data_location = onnx.TensorProto.EXTERNAL
            entry = tensor.external_data.add()
            entry.key, entry.value = "location", "weights are given in memory"
    data: bytes = proto.SerializeToString()
    return data


Session = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
"""Maps feeds to fetches, both in order."""

Opener = Callable[
    [onnx_ir.Model, Mapping[str, torch.Tensor], Sequence[str], Mapping[str, object]],
    Session,
]
"""Creates a session from a model, weights by name, the names of the feeds in order, and the user's settings.

Weights are contiguous and read in place.
"""


@dataclasses.dataclass(frozen=True)
class Runtime:
    """A runtime whose sessions run ONNX models on the CPU.

    Attributes:
        title: its display name.
        package: the Python package, which is also the name of our extra that installs it.
        open: creates a session.
        request: what `open` creates it from, apart from weights; takes a model, weights by name and settings.
        module: path of the file that runs in a separate process, see `run_task`. Its `run` creates a session
            from a request and calls it; its `probe` returns the runtime's objection to a model.
        refuses: the nodes that the runtime would not compute as PyTorch does, with reasons.
        raises_above: whether it raises if an index is too large, as PyTorch does.
    """

    title: str
    package: str
    open: Opener
    request: Callable[[onnx_ir.Model, Mapping[str, torch.Tensor], Mapping[str, object]], Request]
    module: Path
    refuses: Callable[[onnx_ir.Model], Mapping[onnx_ir.Node, str]] = lambda model: {}
    raises_above: bool = False

    def load(self) -> None:
        """Import the package.

        Raises:
            UnsupportedError: it is not installed, or broken.
        """
        try:
            importlib.import_module(self.package)
        except ModuleNotFoundError as error:
            raise UnsupportedError(
                f"{self.package} is not installed", todo=f"pip install 'torchrlopt[{self.package}]'"
            ) from error
        except Exception as error:  # such as a missing library, or one for another processor
            raise UnsupportedError(
                f"{self.package} cannot be imported", got=f"{type(error).__name__}: {error}"
            ) from error

    def not_as_pytorch(self, model: onnx_ir.Model, fixed: Collection[str]) -> dict[onnx_ir.Node, str]:
        """The nodes that it would compute differently or less accurately than PyTorch, with reasons.

        Args:
            model: not modified.
            fixed: see `fixed_inputs`.
        """
        inexact = conditioning.refused(model, self.package, fixed)
        return {**inexact, **out_of_range(model, self.raises_above), **self.refuses(model)}

    def refusals(
        self, model: onnx_ir.Model, fixed: Collection[str], is_stored: bool
    ) -> dict[onnx_ir.Node, str]:
        """See `Executor.refusals`.

        Args:
            model: not modified.
            fixed: see `fixed_inputs`.
            is_stored: whether to look up and store the runtime's answers on disk.
        """
        found = {**of_opaque(model), **of_last_digits(model), **self.not_as_pytorch(model, fixed)}
        if importlib.util.find_spec(self.package) is not None:
            found |= refused_kinds(
                model, found, self.title, functools.partial(self.probe, is_stored=is_stored)
            )
        return found

    def do(
        self, task: Task, doing: str, parts: Mapping[str, Any], data: bytes, is_stored: bool
    ) -> dict[str, Any]:
        """Run a task in a separate process unless its outcome is known; raises what `tried` does.

        Args:
            task: the task.
            doing: a description of it for messages.
            parts: what the answer depends on, JSON-serialisable.
            data: further data that it depends on.
            is_stored: whether to look up and store answers on disk.
        """
        version = importlib.metadata.version(self.package)
        known = {"runtime": self.title, "version": version, "what": task.what, **parts}
        key = verdicts.key_of(known, data)
        return tried(self.module, self.title, task, doing, key, is_stored)

    def probe(self, model: bytes, is_stored: bool) -> str | None:
        """The runtime's objection to a model of a few nodes; see `operator_probe.Probe`."""
        memory = memory_for(available_bytes())
        task = Task("probe", {}, {"model": np.frombuffer(model, np.uint8)}, PROBE_S, memory)
        refusal = self.do(task, "was asked for operators", {}, model, is_stored).get("refusal")
        return None if refusal is None else str(refusal)


class SessionExecutor:
    """Runs a model in sessions of a runtime on the CPU."""

    def __init__(self, runtime: Runtime) -> None:
        self.name = runtime.package
        self._runtime = runtime

    def refusals(self, model: onnx_ir.Model, captured: Captured, options: LoweringOptions) -> Refusals:
        """See `Executor.refusals`."""
        return self._runtime.refusals(model, fixed_inputs(captured, options), options.cache)

    def lower(self, model: onnx_ir.Model, captured: Captured | None, options: LoweringOptions) -> Lowered:
        """Build the callable; see `lower_to_session`."""
        return lower_to_session(model, captured, options, self._runtime)


def lower_to_session(
    model: onnx_ir.Model, captured: Captured | None, options: LoweringOptions, runtime: Runtime
) -> SessionCallable:
    """Build the callable of an executor that runs sessions; see `Executor.lower`.

    Raises:
        LoweringError: an operator is not an ONNX operator, or the runtime rejects the model.
        UnsupportedError: the model was read from a file, the package is not installed, tensors are not in CPU
            memory, the runtime cannot compute the model, or an output is not a tensor.
    """
    if captured is None:
        raise UnsupportedError(
            f"the {runtime.title} executor runs captured graphs", todo="open the file itself"
        )
    if importlib.util.find_spec(runtime.package) is None:
        runtime.load()  # raises an error that says what to do
    refuse_opaque(model)
    refuse_last_digits(model)
    refuse_elsewhere(captured)
    fixed = fixed_inputs(captured, options)
    for node, reason in runtime.not_as_pytorch(model, fixed).items():
        raise UnsupportedError(reason, where=str(node.name), got=node.op_type)
    standardise(model)
    if model.graph.opset_imports[""] > NATIVE:
        # Runtimes have kernels and fusions for a sigmoid and a product, but none for the newer operator.
        lower_opset(model, NATIVE)
    conditioning.make_stable(model, runtime.package, fixed)
    with without_dispatch_modes():
        return SessionCallable(model, captured, options, runtime, bounds_of(model, runtime.raises_above))


def _drop_unread(model: onnx_ir.Model, names: Collection[str]) -> None:
    """Remove unread inputs with these names: ONNX Runtime rejects values for them."""
    for value in list(model.graph.inputs):
        if value.name in names and not value.uses() and not value.is_graph_output():
            model.graph.inputs.remove(value)


class SessionCallable:
    """A lowered graph that runs in sessions of another runtime, one per set of weights.

    Opening one takes up to hundreds of milliseconds, so a new set of weights runs the original and gets its
    session when it is used again.

    Args:
        model: the model to run; weights are graph inputs.
        captured: defines names and order of the arguments.
        options: the user's options; with live weights, weights stay inputs.
        runtime: creates the sessions.
        bounds: bounds of the elements of inputs; outside them the original runs.
    """

    def __init__(
        self,
        model: onnx_ir.Model,
        captured: Captured,
        options: LoweringOptions,
        runtime: Runtime,
        bounds: Mapping[str, Bounds],
    ) -> None:
        position = positions(captured)
        is_static = static_inputs(captured, options)
        _drop_unread(model, is_static | captured.constants.keys())
        names = [str(value.name) for value in model.graph.inputs]
        self._model = model
        self._original = captured.aten
        self._runtime = runtime
        self._constants = {name: each for name, each in captured.constants.items() if name in names}
        self._settings = settings = options.executor_options or {}
        self._weight_names = [name for name in names if name in is_static]
        self._weights = [position[name] for name in self._weight_names]
        self._feed_names = [name for name in names if name in position and name not in is_static]
        self._feeds = [position[name] for name in self._feed_names]
        self._bounds = [bounds.get(name) for name in self._feed_names]
        self._weight_bounds = [bounds.get(name) for name in self._weight_names]
        self._outputs = FetchedOutputs(captured.aten, position)
        self._policy = options.weights
        self._cache = self._new_cache()
        # Sessions opened before others were dropped: the count must increase with each new session.
        self._num_before = 0
        # Runtimes silently fold expressions over weights even if one of them overflows.
        fixed = fixed_inputs(captured, options)
        is_composed = options.numerics == "real"
        self._check = split_weights(model.clone(), fixed, _CPU, exact=True) if is_composed else None
        self._first_run = FirstRun(
            lambda held: runtime.request(model, held, settings),
            functools.partial(runtime.do, is_stored=options.cache),
            any(not value.shape.is_static() for value in model.graph.inputs if value.shape is not None),
        )
        _CALLABLES.add(self)

    @property
    def num_evaluations(self) -> int:
        """See `registry.Lowered`."""
        return self._num_before + self._cache.num_evaluations

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Run on the inputs of the captured graph, in its order."""
        if not self._first_run.is_over and not self._may_open(args):
            return tuple(self._original(*args))
        opened = self._cache.get_unless_new([args[at] for at in self._weights])
        if opened is None:
            return tuple(self._original(*args))
        session, has_plain_weights = opened
        outputs = None
        if has_plain_weights:
            read = [args[at] for at in self._outputs.read]
            outputs = self._run(session, [args[at] for at in self._feeds], read)
        return tuple(self._original(*args)) if outputs is None else outputs

    def _run(self, session: Session, feeds: Sequence[Any], read: Sequence[Any]) -> tuple[Any, ...] | None:
        """The outputs of a call with an open session; None if the original must run on these feeds."""
        tensors = [as_tensor(value) for value in feeds]
        return self._outputs(session(tensors), read) if self._takes(tensors) else None

    def _takes(self, feeds: Sequence[torch.Tensor]) -> bool:
        """Whether the runtime computes the same as PyTorch for these feeds."""
        return are_plain(feeds) and are_within(feeds, self._bounds)

    def _may_open(self, args: Sequence[Any]) -> bool:
        """Try the graph on these arguments, see `FirstRun`; raises what it raises.

        Returns:
            Whether a session may be opened. On feeds that the runtime cannot take, nothing is tried.
        """
        feeds = [as_tensor(args[at]) for at in self._feeds]
        if not self._first_run.is_needed(feeds):
            return True
        if not self._takes(feeds):
            return False
        held = self._held([args[at] for at in self._weights])
        self._first_run.run(held, dict(zip(self._feed_names, feeds, strict=True)))
        return True

    def _held(self, weights: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        held = dict(zip(self._weight_names, weights, strict=True)) | self._constants
        return {name: dense(tensor) for name, tensor in held.items()}

    def _open(self, *weights: torch.Tensor) -> tuple[Session, bool]:
        """A session with these weights, and whether they allow its use: `plain_numbers`, `index_bounds`."""
        held = self._held(weights)
        if self._check is not None:
            self._check(held)
        self._runtime.load()
        session = self._runtime.open(self._model, held, self._feed_names, self._settings)
        _SESSIONS.add(session)
        own = [held[name] for name in self._weight_names]
        return session, are_plain(own) and are_within(own, self._weight_bounds)

    def leave_sessions(self) -> None:
        """Open new sessions in the next call."""
        self._num_before = self.num_evaluations
        self._cache = self._new_cache()

    def _new_cache(self) -> PrologueCache:
        """A cache that does not refer to us: in a cycle, sessions would live until garbage is collected."""
        living = weakref.ref(self)

        def open_session(*weights: torch.Tensor) -> tuple[Session, bool]:
            own = living()
            assert own is not None, "it is calling"
            return own._open(*weights)

        return PrologueCache(open_session, self._policy, is_expensive=True)


_CALLABLES: weakref.WeakSet[SessionCallable] = weakref.WeakSet()
_SESSIONS: weakref.WeakSet[Session] = weakref.WeakSet()
_LEFT: list[Session] = []


def _leave_sessions_of_the_parent() -> None:
    """Drop sessions in a fork without closing them, which would wait forever: a fork has one thread."""
    _LEFT.extend(_SESSIONS)
    for each in _CALLABLES:
        each.leave_sessions()


os.register_at_fork(after_in_child=_leave_sessions_of_the_parent)
