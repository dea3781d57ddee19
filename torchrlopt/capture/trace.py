"""The entry point for every model: Dynamo's graph becomes a `Traced` inference graph.

The backend, `explain`, the profile, the baselines and the training all use it, so that all of them plan the
very graph that runs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from torchrlopt.capture import aot
from torchrlopt.capture.aten import content_key, device_of, reason_to_leave_alone
from torchrlopt.capture.autocast import autocast_state
from torchrlopt.capture.effects import effect_before_tracing
from torchrlopt.capture.real_strides import correct_output_strides
from torchrlopt.capture.sampling import sizes_of
from torchrlopt.capture.sharing import with_bases
from torchrlopt.capture.sources import input_names
from torchrlopt.capture.whole import recurrent_modules, whole_operators
from torchrlopt.errors import RlOptError, UnsupportedError
from torchrlopt.torch_private.dynamo import BackendCompilerFailed, forget_backend, forget_code
from torchrlopt.torch_private.modules import is_training

RECORDS_GRADIENTS = (
    "the graph records gradients: call the model under torch.no_grad() or torch.inference_mode()"
)
HANGS_ON_DATA = (
    "an operator turns data into a number or a size ({}): call .item() before it, and the graph ends there"
)
WRITES_TO_FROZEN = "the model writes to its own buffers: weights='frozen' is not for it"

ExampleInputs = Sequence[Any] | Mapping[str, Any] | torch.Tensor
"""Arguments of one call: positional ones, keyword ones by name, or one tensor."""


@dataclasses.dataclass(frozen=True)
class Traced:
    """One inference graph with the real inputs that it was traced for.

    Attributes:
        aten: the functional ATen graph that AOTAutograd passes to its inference compiler, with more outputs
            if some share memory; never changed.
        inputs: its inputs in order: tensors (weights among them), and ints for symbolic sizes.
        static: positions of the weights.
        mutated: positions of the inputs that AOTAutograd writes to after a call.
        num_lifted: how many of the first inputs are weights that Dynamo's graph holds as attributes, so that
            no call passes them.
        names: the user's names of the inputs, such as "encoder.weight"; empty if not known.
        autocast: the caller's autocast, see `autocast_state`. Its casts are in the ATen graph; even if
            there are none, as in a model that already has the dtype, the original spends time on the test.
        num_added: how many outputs at the end are not returned to the caller, see `sharing.with_bases`.
    """

    aten: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    static: tuple[int, ...]
    mutated: frozenset[int]
    num_lifted: int
    names: tuple[str, ...] = ()
    autocast: tuple[str, ...] = ()
    num_added: int = 0

    @functools.cached_property
    def content(self) -> str:
        """The content key of the graph, see `aten.content_key`, with the autocast of the caller."""
        added = [f"+{self.num_added}"] if self.num_added else []
        return " ".join([content_key(self.aten, self.static), *added, *self.autocast])

    @functools.cached_property
    def device(self) -> torch.device:
        """The device of the graph's tensors."""
        return device_of(self.aten)

    @functools.cached_property
    def sizes(self) -> dict[str, int]:
        """The sizes that the graph's symbols have for these inputs."""
        fakes = [node.meta.get("val") for node in self.aten.graph.find_nodes(op="placeholder")]
        return {str(symbol): size for symbol, size in sizes_of(fakes, self.inputs).items()}

    def own_inputs(self) -> list[Any]:
        """Return the inputs for one call, with fresh copies of those that it writes to."""
        return [aot.copy_of(x) if i in self.mutated else x for i, x in enumerate(self.inputs)]


def trace(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    answer: Callable[[Traced], Callable[..., Any] | None],
    leave: Callable[[str], None],
) -> Callable[..., Any]:
    """Trace one of Dynamo's graphs and compile it.

    Args:
        gm: Dynamo's graph; not changed.
        example_inputs: its inputs: real tensors and SymInts.
        answer: called with the traced graph, outside of any tracing mode and without gradients. Returns a
            boxed callable over the inputs of the ATen graph, or None for the graph unchanged.
        leave: called with the reason instead if the graph must not be rewritten.

    Returns:
        A callable with the signature of `gm`.

    Raises:
        CaptureError: AOTAutograd cannot trace the graph. Exceptions of `answer` pass unchanged.
    """
    if aot.records_gradients(gm, example_inputs):
        leave(RECORDS_GRADIENTS)
        return gm.forward
    kind = aot.unusual(example_inputs)
    if kind is not None:
        leave(f"an input is a {kind}")
        return gm.forward
    examples = list(example_inputs)
    autocast = autocast_state()  # AOTAutograd turns it off
    with ExitStack() as whole:
        whole.enter_context(whole_operators())

        def compile_inference(aten: torch.fx.GraphModule, fakes: Sequence[Any]) -> Callable[..., Any] | None:
            whole.close()  # other compilers that run from here on see PyTorch unmodified
            static, mutated = aot.input_roles()
            weights = aot.lifted_weights()
            inputs, reason = aot.real_inputs([*weights, *examples], fakes)
            reason = reason or reason_to_leave_alone(aten)
            if reason is None and any(i < len(weights) for i in mutated):
                reason = WRITES_TO_FROZEN
            effect = effect_before_tracing(gm)
            if reason is None and effect is not None:
                reason = f"the graph calls an operator for its effect ({effect})"
            if reason is not None:
                leave(reason)
                return None
            names = input_names(gm, len(weights))
            aten, num_added = with_bases(aten)
            traced = Traced(
                aten, tuple(inputs), tuple(static), mutated, len(weights), names, autocast, num_added
            )
            correct_output_strides(aten, traced.own_inputs)
            return answer(traced)

        try:
            return aot.trace(
                gm,
                examples,
                compile_inference,
                lambda: leave(RECORDS_GRADIENTS),
                lambda name: leave(HANGS_ON_DATA.format(name)),
            )
        finally:
            examples.clear()  # AOTAutograd may keep our functions, which must not keep the user's tensors


def visit(
    model: Callable[..., Any],
    example_inputs: ExampleInputs,
    answer: Callable[[Traced], None],
    leave: Callable[[str], None],
) -> None:
    """Call a module in eval mode, or a function, once, unchanged, and pass on every graph of that call.

    Args:
        model: the module or function.
        example_inputs: arguments of the call.
        answer: called with each graph.
        leave: called with the reason for each graph that would not be rewritten.

    Raises:
        UnsupportedError: the model is in training mode.
        RlOptError: a graph cannot be traced, or `answer` raised it.
    """
    refuse_training(model)

    def backend(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        trace(gm, examples, lambda traced: answer(traced), leave)  # None: the graph unchanged
        return gm.forward

    try:
        with torch.no_grad(), recurrent_modules():
            call(torch.compile(isolated(model), backend=backend), example_inputs)
    finally:
        forget_backend(backend)


def refuse_training(model: Callable[..., Any]) -> None:
    """Raises UnsupportedError for a module in training mode."""
    if is_training(model):
        raise UnsupportedError(
            "the model is in training mode", expected="a model for inference", todo="call model.eval() first"
        )


def call(function: Callable[..., Any], example_inputs: ExampleInputs) -> Any:
    """Call a compiled function; our own errors are unwrapped from Dynamo's."""
    try:
        if isinstance(example_inputs, Mapping):
            return function(**example_inputs)
        if isinstance(example_inputs, torch.Tensor):
            return function(example_inputs)
        return function(*example_inputs)
    except BackendCompilerFailed as error:
        if isinstance(error.inner_exception, RlOptError):
            raise error.inner_exception from None
        raise


_serial = itertools.count()


def isolated(model: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls the model and shares no Dynamo state with others.

    Dynamo counts recompilations per code object and gives up at 8, and it remembers by name and line which
    sizes have varied: so every model gets its own code object and name. Dynamo's compiled code is freed with
    the function.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        # A function with **kwargs may iterate over them in order. Dynamo guards that order only if the
        # compiled function itself reads it, and through `keys`, not by iterating over the dict.
        list(kwargs.keys())
        return model(*args, **kwargs)

    name = f"optimised_{next(_serial)}"
    code = run.__code__.replace(co_name=name, co_qualname=name)
    own = types.FunctionType(code, run.__globals__, name, None, run.__closure__)
    weakref.finalize(own, forget_code, code).atexit = False
    return own
