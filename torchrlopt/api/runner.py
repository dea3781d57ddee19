"""`Runner`: runs the calls of an optimised module.

It chooses between the compiled code and the original, and holds the reports.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from torchrlopt.api.first_call import FirstCall
from torchrlopt.api.gate import Gate, NotCompiled
from torchrlopt.api.gradients import (
    RecordedError,
    has_unknown_objects,
    is_differentiated,
    may_be_elsewhere,
    warn_of_lost_gradients,
    watching,
    without_recording,
)
from torchrlopt.capture.autocast import autocast_state
from torchrlopt.errors import CaptureError, RlOptError
from torchrlopt.options import Options, Weights
from torchrlopt.report import Report, Status, Timing
from torchrlopt.torch_private.modes import is_traced, is_traced_by_compiler
from torchrlopt.torch_private.modules import is_training

if TYPE_CHECKING:
    from concurrent.futures import Future

    from torchrlopt.api.model_state import ModelState
    from torchrlopt.judge.own_calls import Trial
    from torchrlopt.judge.policy import Policy

_MOST_KEYS = 1000
_MOST_CHANGES = 2
"""How often code is compiled anew for a changed model before Dynamo's guards keep one code for each state."""
_ARGUMENTS = r"L\['(args|kwargs)'\]"
"""Where Dynamo finds the arguments of a call."""
_AT_LIMIT = (
    "compiled {} times, for as many kinds of calls: those of other kinds run the original from now on "
    "(torch._dynamo.config.recompile_limit)"
)
_ENOUGH_IN_VAIN = 2
"""How many graphs of a call that gain nothing let its later graphs alone, if they are no larger."""
_IN_VAIN = "earlier graphs of the call, no smaller than this one, gained nothing"
_NO_GRAPH = "Dynamo found no graph in the call, TORCH_LOGS=graph_breaks says why"


class Runner:
    """Compiles a model in its first call and runs its calls.

    Calls run without recording gradients, including those of the original if calls like the first one were
    found to be no faster. The original runs unchanged in training mode, if a gradient with respect to an
    input may be requested, and inside another trace.

    Args:
        original: the model.
        options: the user's choices.

    Attributes:
        original: the model.
        options: the user's choices.
        reports: one report per compiled graph, oldest first.
        example_inputs: that it was compiled for, as the user gave them; None if there were none.
    """

    def __init__(self, original: torch.nn.Module, options: Options) -> None:
        self.original = original
        self.options = options
        self.example_inputs: Any = None
        self._varied: set[bool] = set()
        self._num_changes = 0
        self._gate = Gate(waits=options.while_compiling == "wait")
        self._begin()

    def _begin(self) -> None:
        """Reset: nothing is compiled or known yet about the code that calls run."""
        from torchrlopt.api.model_state import ModelState  # heavy: the core

        self.reports: list[Report] = []
        self._num_codes = 0
        self._in_vain: list[int] = []
        kind = type(self.original)
        self._forward, self._code = kind.forward, inspect.getattr_static(kind, "forward")
        self._is_fresh = True
        self._compiled = _compiled(self.original, self.options, weakref.ref(self))
        self._first_call = FirstCall()
        self._until_first_graph = ExitStack()
        self._runs_original_for: set[tuple[Any, ...]] = set()
        self._gained_nothing_for: set[int] = set()
        self._untraceable: set[tuple[Any, ...]] = set()
        self._reads_elsewhere = self._loses_gradients = self._has_run_unrecorded = False
        self._has_refused = False  # a call that records gradients; the next one need not go to the gate
        self._trial: Trial | None = None
        # Last: until then, other threads find that the former state does not hold, and go to the gate.
        self._state: ModelState = ModelState(self.original)

    def _check_class(self) -> bool:
        """Reset if the class has another `forward` now: Dynamo assumes that methods of classes stay.

        Compares the static attribute, as a descriptor may return a new object on each access.

        Returns:
            Whether the code is that of the class; not if another thread still compiles the former one.
        """
        if inspect.getattr_static(type(self.original), "forward") is self._code:
            return True
        with self._gate.entered() as is_inside:
            if is_inside and inspect.getattr_static(type(self.original), "forward") is not self._code:
                self._begin()
            return is_inside

    def _check_state(self) -> None:
        """Reset if the model is another than the one that was compiled: guards on it were left out."""
        if not self._state.still_holds():
            self._num_changes += _MOST_CHANGES + 1 if self._state.is_volatile else 1
            self._begin()

    def skipped_guards(self, guards: Sequence[Any], model: str) -> list[bool]:
        """Return for each guard whether it need not be checked in every call.

        With frozen weights, that is every guard on the model, by the user's promise; otherwise those that the
        check of its state implies.

        Args:
            guards: as Dynamo passes them to a `guard_filter_fn`.
            model: where Dynamo finds the model, as an expression.
        """
        from torchrlopt.compile.own_weights import are_inside  # heavy

        if self.options.lowering.weights == "frozen":
            return are_inside(guards, model)
        if self._num_changes > _MOST_CHANGES:
            return [False] * len(guards)
        return self._state.are_implied(guards, model)

    @property
    def has_varying_sizes(self) -> bool:
        """Whether it has been compiled for inputs of more than one size."""
        return True in self._varied

    @property
    def report(self) -> Report:
        """What happened, over all graphs compiled so far."""
        if not self.reports:
            reason = "no graph has been compiled so far" if self._is_fresh else _NO_GRAPH
            return self._report(Status(fallback_reason=reason), num_graphs=0)
        merged = Report.merged(self.reports)
        from torchrlopt.torch_private.dynamo import recompile_limit  # heavy

        if self._num_codes < recompile_limit():
            return merged
        return dataclasses.replace(merged, notes=(*merged.notes, _AT_LIMIT.format(self._num_codes)))

    def wait(self, timeout: float | None = None) -> bool:
        """See `Report.wait`."""
        return self.report.wait(timeout)

    def describe(self) -> str:
        """Return what calls run, in a few words."""
        if self._is_fresh:
            return "optimised in its first call"
        report = self.report
        return f"optimised, {report.runs_in}" if report.kept == "rewritten" else "the original runs"

    def _report(self, status: Status, num_graphs: int = 1) -> Report:
        """Report on a call that was never compiled."""
        return Report(status, self.options.search.searcher, self.options.executor, num_graphs=num_graphs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what the original's `forward` computes."""
        # The compiler must see the model's own operators.
        if torch.compiler.is_compiling() and is_traced_by_compiler():
            return self.original.forward(*args, **kwargs)
        if type(self.original).forward is not self._forward and not self._check_class():
            return self.original.forward(*args, **kwargs)
        if not torch.is_grad_enabled() and self._has_gained_nothing(args, kwargs):
            return self.original.forward(*args, **kwargs)
        # A tracer must see the model's own operators.
        if is_training(self.original) or is_traced() or is_differentiated(args, kwargs):
            return self.original.forward(*args, **kwargs)
        # If the original has to run, its results may be differentiated as usual.
        is_recorded = torch.is_grad_enabled()
        if is_recorded and (self._loses_gradients or self._has_no_graph):
            return self.original.forward(*args, **kwargs)
        if self._untraceable and _kind(args, kwargs) in self._untraceable:
            return self.original.forward(*args, **kwargs)
        is_unclear = is_recorded and (self._reads_elsewhere or has_unknown_objects(args, kwargs))
        if self._keeps_original(args, kwargs):
            return self._call_original(args, kwargs, is_unclear)
        trial = self._trial
        if trial is not None and not is_unclear:
            if trial.takes(_kind(args, kwargs)):
                return self._call_alternating(trial, args, kwargs)
            if trial.is_given_up:
                self._trial = None
        return self._call_compiled(args, kwargs, is_unclear)

    def _call_original(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], is_unclear: bool) -> Any:
        """Call the original; gradients are off, as for the rewritten graph, unless it might refuse to run."""
        with torch.set_grad_enabled(is_unclear):
            return self.original.forward(*args, **kwargs)

    @property
    def _has_no_graph(self) -> bool:
        """Whether Dynamo has found nothing to compile so far."""
        return not (self._is_fresh or self.reports)

    def _has_gained(self) -> bool:
        """Whether any graph that was compiled so far runs rewritten; False if Dynamo found none."""
        return any(report.status.is_compiled for report in self.reports)

    def _is_in_vain(self, num_calls: int) -> bool:
        """Whether a later graph of a call is left alone: all others lost, and one of them is no smaller."""
        lost = self._in_vain
        return len(lost) >= max(_ENOUGH_IN_VAIN, len(self.reports)) and num_calls <= max(lost)

    def _has_gained_nothing(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether an equal call has run without a rewritten graph: the original needs no guards around it."""
        return bool(self._gained_nothing_for) and _key(args, kwargs) in self._gained_nothing_for

    def _keeps_original(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether the original has been found to be as fast for calls like this one."""
        return self._has_gained_nothing(args, kwargs) or (
            bool(self._runs_original_for) and _kind(args, kwargs) in self._runs_original_for
        )

    def _note_no_gain(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Let equal calls run the original without Dynamo's guards.

        If an attribute of the model then selects other code, that is not compiled any more.
        """
        key = _key(args, kwargs)
        if key is not None and len(self._gained_nothing_for) < _MOST_KEYS:  # more hardly come back
            self._gained_nothing_for.add(key)

    def _call_compiled(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], is_unclear: bool) -> Any:
        """Call the compiled code. If there is none, compile it, or do what `while_compiling` says."""
        try:
            return self._call_if_compiled(args, kwargs)
        except NotCompiled:
            pass
        with self._gate.entered() as is_inside:
            if is_inside:
                return self._call_again(args, kwargs, is_unclear)
        if self._gate.wait():
            return self._call_again(args, kwargs, is_unclear)
        self._has_run_unrecorded |= torch.is_grad_enabled() and not is_unclear
        return self._call_original(args, kwargs, is_unclear)

    def _call_again(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], is_unclear: bool) -> Any:
        """Call the compiled code, unless another thread has found out that the original has to run."""
        if self._untraceable and _kind(args, kwargs) in self._untraceable:
            return self.original.forward(*args, **kwargs)
        if self._keeps_original(args, kwargs):
            return self._call_original(args, kwargs, is_unclear)
        return self._call_compiled(args, kwargs, is_unclear)

    def _call_if_compiled(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the compiled code; inside the gate, compile it first if there is none.

        Raises:
            NotCompiled: outside of the gate; nothing of the call has run.
        """
        is_first = self._is_fresh and not (self._has_refused and torch.is_grad_enabled())
        try:
            with without_recording():
                if is_first or not self._state.still_holds():
                    if not self._gate.is_mine:
                        raise NotCompiled
                    self._check_state()
                    if self._is_fresh:
                        return self._call_first(args, kwargs)
                compiled = self._compiled
                outputs = compiled(*args, **kwargs)
            if not self._has_gained() and compiled is self._compiled:
                self._note_no_gain(args, kwargs)
            return outputs
        except RecordedError:  # nothing of the call has run
            if self._is_fresh:
                self._has_refused = True
                if self._gate.is_mine:
                    self._first_call = FirstCall()  # drop the record of this call: it holds its inputs
            return self.original.forward(*args, **kwargs)
        except Exception as error:
            from torchrlopt.torch_private.dynamo import TorchDynamoException  # heavy

            if not isinstance(error, TorchDynamoException):
                raise
            if self.options.on_error == "fallback":
                return self._call_untraceable(args, kwargs, error)
            inner = getattr(error, "inner_exception", None)
            if isinstance(inner, RlOptError):
                raise inner from None
            raise

    def _call_untraceable(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> Any:
        """Run a call that Dynamo cannot trace. If the call is wrong, the original raises its own error."""
        outputs = self.original.forward(*args, **kwargs)
        from torchrlopt.compile.fallback import keep_original  # heavy

        status = Status()
        keep_original(CaptureError("Dynamo cannot trace the model", got=str(error), is_bug=False), status)
        self.reports.append(self._report(status))
        self._untraceable.add(_kind(args, kwargs))
        return outputs

    def _call_first(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make a call that compiles; then time whole calls, if that is safe and decides something."""
        from torchrlopt.compile.background import BACKGROUND  # heavy

        with BACKGROUND.waits(), self._until_first_graph:
            self._until_first_graph.enter_context(_for_weights(self.options.lowering.weights))
            outputs = self._compiled(*args, **kwargs)
        self._is_fresh = False
        is_over = self._first_call.end(self.original)
        if not self.reports:
            from torchrlopt.compile.fallback import WARNINGS

            WARNINGS.warn(_NO_GRAPH, _NO_GRAPH)
        if not self._has_gained():
            self._note_no_gain(args, kwargs)
        elif self.options.timing.measure:
            try:
                settled = [each for report in self.reports for each in report.status.settled]
                if settled:
                    self._start_trial_after(settled, _kind(args, kwargs))
                elif is_over:
                    self._time_whole_call(args, kwargs)
                elif not (self.options.deterministic or torch.are_deterministic_algorithms_enabled()):
                    self._start_trial(args, kwargs)
            except Exception as error:
                if self.options.on_error == "raise":
                    raise
                self._give_up(error, _kind(args, kwargs))
        return outputs

    def _give_up(self, error: Exception, kind: tuple[Any, ...]) -> None:
        """Run the original for calls of a kind, since it is not known which of the two is faster."""
        from torchrlopt.compile.fallback import keep_original  # heavy

        self._runs_original_for.add(kind)
        for at, report in enumerate(self.reports):
            status = dataclasses.replace(report.status)  # other users of the graph continue with it
            keep_original(error, status)
            self.reports[at] = dataclasses.replace(report, status=status)
            self._save(self.reports[at])

    def _save(self, report: Report) -> None:
        """Save a changed report, if the user asked for files."""
        from torchrlopt.compile.backend import save_report  # heavy

        save_report(report, self.options.debug, self.options.on_error)

    def _time_whole_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Return to the original for calls like this one if they are not faster as a whole."""
        from torchrlopt.api import whole_call  # heavy

        (report,) = self.reports
        if report.measured_before_ms is None or whole_call.is_decided_by_graphs([report], self._policy):
            return
        is_faster, timing = whole_call.time_calls(
            self.original.forward, self, args, kwargs, report, self._policy
        )
        if not is_faster:
            self._use_original_for(_kind(args, kwargs), 1, timing)

    def _use_original_for(self, kind: tuple[Any, ...], num_reports: int, timing: Timing) -> None:
        """Run the original for calls of a kind from now on; the first reports get the reason."""
        from torchrlopt.api import whole_call  # heavy

        self._runs_original_for.add(kind)
        for at, report in enumerate(self.reports[:num_reports]):
            self.reports[at] = whole_call.with_original(report, timing, self._policy)
            self._save(self.reports[at])

    def _start_trial(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """After a call that must not be repeated: time later ones like it, if that decides something."""
        from torchrlopt.api import whole_call  # heavy
        from torchrlopt.judge.own_calls import Trial

        # Where Dynamo broke a graph, anything may happen between the graphs.
        is_cut = any(report.cut for report in self.reports)
        if is_cut and not whole_call.is_decided_by_graphs(self.reports, self._policy):
            self._trial = Trial(_kind(args, kwargs), len(self.reports), self._policy)

    def _start_trial_after(self, settled: Sequence[Future[None]], kind: tuple[Any, ...]) -> None:
        """Time whole calls once calls have chosen all executors, if that decides something."""
        living, others, num_reports = weakref.ref(self), iter(settled[1:]), len(self.reports)

        def begin(_: Future[None]) -> None:
            following, runner = next(others, None), living()
            if following is not None:
                following.add_done_callback(begin)
            elif runner is not None and runner._has_gained():
                from torchrlopt.api import whole_call  # heavy

                if not whole_call.is_decided_by_graphs(runner.reports[:num_reports], runner._policy):
                    runner._trial = Trial(kind, num_reports, runner._policy)

        from torchrlopt.judge.own_calls import Trial  # heavy

        settled[0].add_done_callback(begin)

    @property
    def _policy(self) -> Policy:
        from torchrlopt.judge.policy import Policy

        return Policy.of(self.options.timing)

    def _call_alternating(self, trial: Trial, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the original or the compiled code; the last call of the trial decides."""
        with torch.no_grad():
            outputs, verdict = trial.call(
                lambda: self.original.forward(*args, **kwargs),
                lambda: self._call_compiled(args, kwargs, is_unclear=False),
                (args, kwargs),
                lambda: len(self.reports),
            )
        if verdict is not None:
            self._trial = None
            if not verdict.is_faster:
                self._use_original_for(trial.kind, trial.num_reports, verdict.timing)
        return outputs


def _kind(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what determines the code that a call runs: autocast, sizes and types, flags and names."""
    return (autocast_state(), *map(_kind_of, args), *kwargs, *map(_kind_of, kwargs.values()))


def _kind_of(value: Any, kept: tuple[type, ...] = (bool, str)) -> Any:
    """Return what stands for a value; `kept` are the types of which the value itself counts."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype, value.device
    if isinstance(value, (list, tuple)):
        return type(value), *(_kind_of(each, kept) for each in value)
    if isinstance(value, Mapping):
        return type(value), *value, *(_kind_of(each, kept) for each in value.values())
    return value if isinstance(value, kept) else type(value)


def _key(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """Return a hash of what Dynamo may have specialised a call on; None if it has none.

    Sizes have no hash while somebody traces, and nested tensors have no sizes.
    """
    try:
        # Every call of a kept original comes here, and type() is much quicker than isinstance().
        parts = [(x.shape, x.dtype, x.device) if type(x) is torch.Tensor else _key_of(x) for x in args]
        if kwargs:
            parts += [*kwargs, *map(_key_of, kwargs.values())]
        return hash((autocast_state(), *parts))
    except (TypeError, RuntimeError):
        return None


def _key_of(value: Any) -> Any:
    """As `_kind_of`, with the values of numbers, on which the model's code may branch."""
    return _kind_of(value, (int, float, complex, type(None), str))


def _compiled(original: torch.nn.Module, options: Options, living: weakref.ref[Runner]) -> Callable[..., Any]:
    """Compile the original's `forward` by torch.compile with our backend; the model's hooks stay outside.

    Dynamo keeps every backend, to reset it, and its compiled code holds the backend: so the backend must hold
    neither the model nor the compiled code, or they would never be freed.
    """

    # Named after the registered backend: once one has compiled, Dynamo drops its weak references to the
    # weights. torch.utils.swap_tensors rejects tensors that have any.
    def rlopt(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        from torchrlopt.capture import aot  # heavy
        from torchrlopt.compile.backend import compile_graph  # heavy
        from torchrlopt.compile.own_weights import others, pin_attributes  # heavy

        runner, own_code = living(), code()
        assert runner is not None, "it is calling"
        assert own_code is not None, "it is being compiled"
        runner._varied.add(any(isinstance(each, torch.SymInt) for each in example_inputs))
        runner._first_call.note(aot.only_computes(own_code), example_inputs)
        read, is_start = others(gm, example_inputs, name), aot.is_start_of(own_code)
        runner._num_codes += is_start
        if is_start:
            runner._reads_elsewhere |= may_be_elsewhere(read)
        else:  # the code of a later graph uses other names for the model's parts
            own = set(map(id, runner.original.parameters()))
            read = {source: tensor for source, tensor in read.items() if id(tensor) not in own}
        if options.lowering.weights == "frozen":
            pin_attributes(gm, name)
            # The code of later graphs may serve several blocks, each of which passes its own weights.
            runner._until_first_graph.close()
        num_calls = sum(node.op.startswith("call_") for node in gm.graph.nodes)
        if not is_start and runner._is_in_vain(num_calls):
            run = gm.forward
            runner.reports.append(runner._report(Status(fallback_reason=_IN_VAIN)))
            runner._in_vain.append(num_calls)
        else:
            reports: list[Report] = []
            run = compile_graph(gm, example_inputs, options, reports.append, name)
            runner.reports.extend(reports)
            if not any(report.status.is_compiled for report in reports):
                runner._in_vain.append(num_calls)
        differentiable = next((source for source, tensor in read.items() if tensor.requires_grad), None)
        if differentiable is not None:
            if runner._has_run_unrecorded:
                warn_of_lost_gradients(differentiable)
            return watching(run, differentiable, None if is_start else lose_gradients)
        return run

    def lose_gradients() -> None:
        """Run the original in all later calls that record gradients."""
        runner = living()
        if runner is not None:
            runner._loses_gradients = True

    def reset() -> None:
        from torchrlopt.compile.backend import reset as forget  # heavy

        forget()

    rlopt.reset = reset  # type: ignore[attr-defined]  # torch._dynamo.reset() calls it

    def forward(*args: Any, **kwargs: Any) -> Any:
        return original.forward(*args, **kwargs)

    from torchrlopt.capture.trace import isolated  # heavy
    from torchrlopt.capture.whole import recurrent_modules  # heavy
    from torchrlopt.torch_private.dynamo import compiled, forget_backend, varying_sizes  # heavy

    own = isolated(forward)
    code = weakref.ref(own.__code__)
    weakref.finalize(own, forget_backend, rlopt).atexit = False
    cell = forward.__code__.co_freevars.index("original")
    name = f"L['model'].__closure__[{cell}].cell_contents"

    def kept(guards: Sequence[Any]) -> list[bool]:
        runner = living()
        assert runner is not None, "it is calling"
        return [not is_skipped for is_skipped in runner.skipped_guards(guards, name)]

    @contextlib.contextmanager
    def admission(frame: types.CodeType) -> Iterator[bool]:
        runner = living()
        assert runner is not None, "it is calling"
        if frame is code() and not runner._gate.is_mine:
            raise NotCompiled
        # Where a graph has ended, the call cannot begin again: if another thread compiles, its next part runs
        # as it is.
        with runner._gate.entered() as is_admitted, recurrent_modules():
            yield is_admitted

    call, let_sizes_vary = compiled(own, rlopt, kept, admission), varying_sizes(_ARGUMENTS)

    def run(*args: Any, **kwargs: Any) -> Any:
        if not has_unknown_objects(args, kwargs):
            return call(*args, **kwargs)
        # An object that is passed on from call to call, such as a cache, holds more in each. Dynamo would
        # compile anew for a second size of each input; by then it had compiled for the first size in vain.
        end = let_sizes_vary()
        try:
            return call(*args, **kwargs)
        finally:
            end()

    return run


def _for_weights(weights: Weights) -> AbstractContextManager[Any]:
    """Context of the first call until there is a graph: with frozen weights, they become attributes."""
    if weights != "frozen":
        return nullcontext()
    from torchrlopt.torch_private.dynamo import weights_as_attributes  # heavy

    return weights_as_attributes()
