"""What we need from Dynamo and AOTAutograd: tracing to the inference graph, and facts about its inputs.

The private names of torch that the backend leans on are here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

from torchrlopt.errors import CaptureError

Compiler = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any] | None]


def trace(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    compile_inference: Compiler,
    on_training: Callable[[], None],
) -> Callable[..., Any]:
    """Trace Dynamo's graph to ATen and compile it.

    AOTAutograd handles mutated inputs, outputs that alias inputs, autocast and gradients.

    Args:
        gm: Dynamo's graph.
        example_inputs: real tensors and SymInts.
        compile_inference: given the functional ATen graph and its fake inputs, outside of any tracing mode
            and without gradients. Returns a boxed callable, or None for the graph unchanged.
        on_training: called instead where gradients are recorded; the graphs then stay unchanged.

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
            with _disable_current_modes(), torch._C._DisablePythonDispatcher(), torch.no_grad():
                return compile_inference(aten, fakes) or boxed(aten, fakes)
        except BaseException as error:
            raised.append(error)
            raise

    def training(aten: torch.fx.GraphModule, fakes: Sequence[Any]) -> Callable[..., Any]:
        on_training()
        return boxed(aten, fakes)

    try:
        compiler = aot_autograd(fw_compiler=training, bw_compiler=boxed, inference_compiler=inference)
        run: Callable[..., Any] = compiler(gm, example_inputs)
        return run
    except TorchDynamoException:  # how Dynamo asks for a restart
        raise
    except Exception as error:
        if error in raised:
            raise
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
    if any(node.target is torch._C._set_grad_enabled for node in gm.graph.nodes):
        return False
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs)


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


def skip_module_guards(guards: Sequence[Any]) -> list[bool]:
    """For `torch.compile(options={"guard_filter_fn": ...})`: nobody looks whether modules have changed.

    A look at each of 1,300 weights, whose memory no cache holds any more, takes milliseconds.
    """
    return list(torch.compiler.skip_guard_on_all_nn_modules_unsafe(guards))


def weights_as_attributes() -> AbstractContextManager[Any]:
    """While Dynamo traces in here, weights become attributes of its graph: no call passes them any more."""
    patch: AbstractContextManager[Any] = torch._dynamo.config.patch(prepare_freezing=True)
    return patch


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


def _is_unusual(tensor: torch.Tensor) -> bool:
    """True for tensors without data, and for subclasses that wrap others."""
    return isinstance(tensor, FakeTensor) or is_traceable_wrapper_subclass(tensor)
