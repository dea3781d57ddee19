"""What we need from Dynamo and AOTAutograd: tracing to the inference graph, and facts about its inputs."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from torchrlopt.capture.effects import KEPT
from torchrlopt.capture.fast_paths import PARTS, DenseMasks
from torchrlopt.capture.whole import REARRANGED
from torchrlopt.errors import CaptureError
from torchrlopt.torch_private.dynamo import (
    AttributeMutationNew,
    RestartAnalysis,
    SkipFrame,
    TracingContext,
    ValueMutationNew,
    aot_autograd,
    current_translator,
)
from torchrlopt.torch_private.modes import (
    pop_function_mode,
    without_dispatch_modes,
    without_python_dispatcher,
)
from torchrlopt.torch_private.operators import set_grad_enabled
from torchrlopt.torch_private.tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    clone_preserve_strides,
)

REQUESTS = (RestartAnalysis, SkipFrame)
"""How Dynamo is asked for something, such as to begin anew; no failure, as its other exceptions are."""

_AUTOCAST_DEVICES = ("cpu", "cuda")


Compiler = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any] | None]


def trace(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    compile_inference: Compiler,
    on_training: Callable[[], None],
    on_data: Callable[[str], None],
) -> Callable[..., Any]:
    """Trace Dynamo's graph to ATen and compile it.

    AOTAutograd handles mutated inputs, outputs that alias inputs, autocast and gradients.

    Args:
        gm: Dynamo's graph.
        example_inputs: real tensors and SymInts.
        compile_inference: given the functional ATen graph and its fake inputs, outside of any tracing mode
            and without gradients. Returns a boxed callable, or None for the graph unchanged.
        on_training: called instead where gradients are recorded; the graphs then stay unchanged.
        on_data: given the name of an operator whose result has another size, or is another number, for other
            data, so that no graph can be made; `gm` is returned unchanged.

    Returns:
        A callable with the signature of `gm`.

    Raises:
        CaptureError: AOTAutograd cannot trace the graph. What `compile_inference` raises passes unchanged.
    """
    raised: list[BaseException] = []

    def inference(aten: torch.fx.GraphModule, fakes: Sequence[Any]) -> Callable[..., Any]:
        try:
            # Under AOTAutograd's fake mode, tensors that we make would hold no data; while it looks for
            # every operator's decomposition in Python first, graphs of many operators are slowed down.
            # Functions of torch are called and timed there: none may go through our mode.
            with (
                without_dispatch_modes(),
                without_python_dispatcher(),
                torch.no_grad(),
                pop_function_mode(),
            ):
                return compile_inference(aten, fakes) or boxed(aten, fakes)
        except BaseException as error:
            raised.append(error)
            raise

    def training(aten: torch.fx.GraphModule, fakes: Sequence[Any]) -> Callable[..., Any]:
        on_training()
        return boxed(aten, fakes)

    try:
        compiler = aot_autograd(
            fw_compiler=training,
            bw_compiler=boxed,
            inference_compiler=inference,
            decompositions=PARTS | KEPT | REARRANGED,
        )
        with DenseMasks():
            run: Callable[..., Any] = compiler(gm, example_inputs)
        return run
    except REQUESTS:
        raise
    except Exception as error:
        if error in raised:
            raise
        if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
            on_data(str(error.func))
            return gm.forward
        raise CaptureError("AOTAutograd cannot trace the graph", got=repr(error)) from error


def boxed(aten: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    """The graph unchanged, in AOTAutograd's calling convention: a list of arguments, emptied here."""

    def run(args: list[Any]) -> Any:
        outputs = aten.forward(*args)
        args.clear()
        return outputs

    run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd looks for it
    return run


def records_gradients(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """True when a gradient may be asked for, which spares the tracing of a backward graph.

    False also where the graph switches gradients itself: AOTAutograd decides then.
    """
    if not torch.is_grad_enabled():
        return False
    if any(node.target is set_grad_enabled for node in gm.graph.nodes):
        return False
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs)


def autocast_state() -> tuple[str, ...]:
    """The autocast that is on now, such as "cpu bfloat16": one text for each device, none where it is off."""
    return tuple(
        f"{device} {str(torch.get_autocast_dtype(device)).removeprefix('torch.')}"
        for device in _AUTOCAST_DEVICES
        if torch.is_autocast_enabled(device)
    )


def under_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as the caller would run it: with the autocast that is on now.

    AOTAutograd turns it off while it compiles, as its graphs have the casts inside. Dynamo's graph has not.
    """
    devices = [device for device in _AUTOCAST_DEVICES if torch.is_autocast_enabled(device)]
    if not devices:
        return function

    def run(*args: Any) -> Any:
        before = [torch.is_autocast_enabled(device) for device in devices]
        for device in devices:
            torch.set_autocast_enabled(device, True)
        try:
            return function(*args)
        finally:
            for device, was_enabled in zip(devices, before, strict=True):
                torch.set_autocast_enabled(device, was_enabled)

    return run


def input_roles() -> tuple[list[int], frozenset[int]]:
    """Positions of the weights, and of the inputs that the graph mutates (which are no weights).

    Asked inside `compile_inference`, about the graph at hand.
    """
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return [], frozenset()
    mutated = frozenset(metadata.mutated_inp_runtime_indices)
    return [i for i in metadata.static_input_indices if i not in mutated], mutated


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, also where they overlap or leave gaps."""
    copied: torch.Tensor = clone_preserve_strides(tensor)
    return copied


def only_computes(code: types.CodeType) -> bool:
    """Whether a call of `code` is one graph, and does nothing but run it and return.

    False where Dynamo has cut the call, since what lies between the graphs may do anything, and where the
    call sets an attribute, a global, an element of a container, or draws from Python's random numbers. What
    the graph does to tensors is not asked.

    Asked inside a backend, about the graph at hand.
    """
    translator = current_translator()
    output = translator.output
    reason, effects = output.compile_subgraph_reason, output.side_effects
    if translator.f_code is not code or reason is None or reason.graph_break:
        return False
    if output.random_calls or effects.tensor_hooks:
        return False
    # An object that the call itself has made is modified, too, as far as Dynamo is concerned.
    made = (AttributeMutationNew, ValueMutationNew)
    return not any(
        effects.is_modified(each) and not isinstance(each.mutation_type, made)
        for each in list(effects.id_to_variable.values())
    )


def cut_at(gm: torch.fx.GraphModule) -> str:
    """Where Dynamo ended a graph before the call was over, in the user's program; empty where it did not."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return ""
    frame = reason.user_stack[-1] if reason.user_stack else None
    place = f" at {Path(frame.filename).name}:{frame.lineno}" if frame is not None else ""
    return f"Dynamo ended the graph{place}, TORCH_LOGS=graph_breaks says why"


def is_start_of(code: types.CodeType) -> bool:
    """Whether the graph at hand is the first of a call of `code`, before which nothing has run."""
    return current_translator().output.root_tx.f_code is code


def lifted_weights() -> list[torch.Tensor]:
    """The weights that AOTAutograd has put before the inputs of Dynamo's graph, whose attributes they are.

    Asked inside `compile_inference`, about the graph at hand.
    """
    context = TracingContext.try_get()
    return list(context.params_flat or ()) if context is not None else []


def real_inputs(examples: Sequence[Any], fakes: Sequence[Any]) -> tuple[list[Any], str | None]:
    """The real inputs of the ATen graph, or the reason why there are none.

    Args:
        examples: inputs of Dynamo's graph.
        fakes: inputs of the ATen graph.

    Returns:
        Tensors, and ints for sizes, in the order of the ATen graph; None or the reason.
    """
    if len(examples) != len(fakes):
        return [], "inputs that are mutated share memory, or the graph has side effects"
    inputs: list[Any] = []
    for example, fake in zip(examples, fakes, strict=True):
        if isinstance(example, torch.SymInt):
            if not example.node.has_hint():
                return [], "a size is known at run time only"
            inputs.append(int(example.node.hint))
        elif not isinstance(example, torch.Tensor) or _is_unusual(example):
            return [], f"an input is a {type(example).__name__}"
        elif not isinstance(fake, torch.Tensor) or (fake.dtype, fake.dim()) != (example.dtype, example.dim()):
            return [], "AOTAutograd rearranged the inputs"
        else:
            inputs.append(example)
    return inputs, None


def unusual(inputs: Sequence[Any]) -> str | None:
    """The type of the first input that holds no data or is of a subclass of Tensor; None where there is none.

    AOTAutograd's wrapper raises in the first call with a subclass that it does not know.
    """
    return next((type(x).__name__ for x in inputs if isinstance(x, torch.Tensor) and _is_unusual(x)), None)


def _is_unusual(tensor: torch.Tensor) -> bool:
    kind = type(tensor.data if isinstance(tensor, torch.nn.Parameter) else tensor)
    return kind is not torch.Tensor
