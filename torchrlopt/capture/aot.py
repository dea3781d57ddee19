"""Uses Dynamo and AOTAutograd to trace the inference graph and to find facts about its inputs."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from torchrlopt.capture.effects import KEPT
from torchrlopt.capture.fast_paths import PARTS, DenseMasks
from torchrlopt.capture.whole import rearranged
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
"""Exceptions by which Dynamo controls its own flow, such as restarting; unlike its others, not failures."""

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
        on_training: called instead if gradients are recorded; the graphs then stay unchanged.
        on_data: called with the name of an operator whose result depends on data in its size, or is a number
            that does, so that no graph can be made; `gm` is returned unchanged.

    Returns:
        A callable with the signature of `gm`.

    Raises:
        CaptureError: AOTAutograd cannot trace the graph. Exceptions of `compile_inference` pass unchanged.
    """
    raised: list[BaseException] = []
    # Without tensors on a GPU there is nothing to change, and every call of PyTorch goes through a mode.
    masks = DenseMasks() if torch.cuda.is_initialized() else nullcontext()

    def inference(aten: torch.fx.GraphModule, fakes: Sequence[Any]) -> Callable[..., Any]:
        try:
            # Under AOTAutograd's fake mode, tensors that we make would hold no data. While the Python
            # dispatcher looks up every operator's decomposition first, graphs of many operators are slow.
            # torch functions are called and timed here: none may go through our function mode.
            with (
                without_dispatch_modes(),
                without_python_dispatcher(),
                torch.no_grad(),
                pop_function_mode() if isinstance(masks, DenseMasks) else nullcontext(),
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
            decompositions=PARTS | KEPT | rearranged(gm, example_inputs),
        )
        with masks:
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
    """Whether a gradient may be requested. Checking it first avoids tracing a backward graph.

    Also False if the graph switches gradients itself: AOTAutograd decides then.
    """
    if not torch.is_grad_enabled():
        return False
    if any(node.target is set_grad_enabled for node in gm.graph.nodes):
        return False
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs)


def input_roles() -> tuple[list[int], frozenset[int]]:
    """Return the positions of the weights, and of the inputs that the graph mutates (which are not weights).

    Call it inside `compile_inference`; it is about the current graph.
    """
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return [], frozenset()
    mutated = frozenset(metadata.mutated_inp_runtime_indices)
    return [i for i in metadata.static_input_indices if i not in mutated], mutated


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides, even if they overlap or leave gaps."""
    copied: torch.Tensor = clone_preserve_strides(tensor)
    return copied


def only_computes(code: types.CodeType) -> bool:
    """Whether a call of `code` is one graph, and does nothing but run it and return.

    False if Dynamo has split the call, since the code between the graphs may do anything, and if the call
    sets an attribute, a global or an element of a container, or draws from Python's random numbers. What the
    graph does to tensors is not considered.

    Call it inside a backend; it is about the current graph.
    """
    translator = current_translator()
    output = translator.output
    reason, effects = output.compile_subgraph_reason, output.side_effects
    if translator.f_code is not code or reason is None or reason.graph_break:
        return False
    if output.random_calls or effects.tensor_hooks:
        return False
    # Dynamo also counts an object that the call itself has made as modified.
    made = (AttributeMutationNew, ValueMutationNew)
    return not any(
        effects.is_modified(each)
        and not isinstance(each.mutation_type, made)
        and not _is_restored(each, effects.store_attr_mutations.get(each))
        for each in list(effects.id_to_variable.values())
    )


def _is_restored(variable: Any, changes: Mapping[str, Any] | None) -> bool:
    """Whether a call leaves an object as it was: each attribute that it set has its former constant again.

    All models of transformers 5 set and reset a context variable of theirs.
    """
    if changes is None:  # it is a list or the like, whose items were set; it may have no value
        return False
    known = getattr(getattr(variable, "value", None), "__dict__", None)
    if type(known) is not dict:
        return False
    return all(
        name in known
        and new.is_python_constant()
        and type(known[name]) in (bool, int, float, str, type(None))
        and (type(known[name]), repr(known[name]))
        == (type(new.as_python_constant()), repr(new.as_python_constant()))
        for name, new in changes.items()
    )


def cut_at(gm: torch.fx.GraphModule) -> str:
    """Say where in the user's program Dynamo broke the graph within the call; empty if it did not."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return ""
    frame = reason.user_stack[-1] if reason.user_stack else None
    place = f" at {Path(frame.filename).name}:{frame.lineno}" if frame is not None else ""
    return f"Dynamo ended the graph{place}, TORCH_LOGS=graph_breaks says why"


def is_start_of(code: types.CodeType) -> bool:
    """Whether the current graph is the first of a call of `code`, so that nothing has run before it."""
    return current_translator().output.root_tx.f_code is code


def lifted_weights() -> list[torch.Tensor]:
    """Return the weights that AOTAutograd has put before the inputs of Dynamo's graph, as its attributes.

    Call it inside `compile_inference`; it is about the current graph.
    """
    context = TracingContext.try_get()
    return list(context.params_flat or ()) if context is not None else []


def real_inputs(examples: Sequence[Any], fakes: Sequence[Any]) -> tuple[list[Any], str | None]:
    """Return the real inputs of the ATen graph, or the reason why there are none.

    Returns:
        Tensors, and ints for sizes, in the order of the ATen graph; and None, or the reason.
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
    """Return the type of the first input that holds no data or is a Tensor subclass; None if there is none.

    AOTAutograd's wrapper raises in the first call with a subclass that it does not know.
    """
    return next((type(x).__name__ for x in inputs if isinstance(x, torch.Tensor) and _is_unusual(x)), None)


def _is_unusual(tensor: torch.Tensor) -> bool:
    kind = type(tensor.data if isinstance(tensor, torch.nn.Parameter) else tensor)
    return kind is not torch.Tensor
