"""Loads and traces the models whose nodes are to be priced, and lowers the graphs that plans make of them."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchrlopt import _C
from torchrlopt.capture import Captured, aot, capture, whole_operators
from torchrlopt.capture.aten import device_of, reason_to_leave_alone, symbol_sizes
from torchrlopt.capture.sampling import generated_inputs
from torchrlopt.errors import CaptureError, ModelFormatError, OptionsError
from torchrlopt.executors import registry
from torchrlopt.executors.lowering.onnx_to_aten import lower_model
from torchrlopt.executors.registry import Lowered
from torchrlopt.onnx.files import load
from torchrlopt.onnx.program import Program
from torchrlopt.onnx.reader import read
from torchrlopt.onnx.writer import node_name, write
from torchrlopt.options import Options


@dataclasses.dataclass(frozen=True)
class Source:
    """One graph of a model, with the inputs it is run on.

    Attributes:
        program: as the reader gives it.
        captured: where it came from.
        inputs: real inputs of the captured graph, weights among them, in order.
        sizes: sizes of its symbols.
        device: where its tensors are.
    """

    program: Program
    captured: Captured
    inputs: list[Any]
    sizes: Mapping[str, int]
    device: torch.device

    def lower(self, graph: _C.Graph, executor: str) -> Lowered:
        """The callable of a graph that was made from `program.graph` by substitutions.

        Raises:
            LoweringError: the executor cannot run it.
        """
        model = write(dataclasses.replace(self.program, graph=graph))
        return registry.get(executor).lower(model, self.captured, Options(executor=executor))

    def node_ids(self, graph: _C.Graph) -> dict[str, int]:
        """Ids of the nodes by the names they have in the written model."""
        nodes = map(graph.node, graph.topological_order())
        return {node_name(node): int(node["id"]) for node in nodes}


def trace(model: torch.nn.Module | Callable[..., Any], inputs: Sequence[Any]) -> list[Source]:
    """The graphs of a model: one, or several where Dynamo breaks it.

    Args:
        model: a module in eval mode, or a function of tensors.
        inputs: its positional arguments.

    Raises:
        CaptureError: there is no inference graph.
        RlOptError: a graph cannot be captured or read.
    """
    sources: list[Source] = []

    def backend(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        def answer(aten: torch.fx.GraphModule, fakes: Sequence[Any]) -> None:
            static, mutated = aot.input_roles()
            real, reason = aot.real_inputs(examples, fakes)
            reason = reason or reason_to_leave_alone(aten)
            if reason is not None:
                raise CaptureError("the graph would be left alone", got=reason)
            captured = capture(aten, real, static)
            program = read(captured.model, captured.static_inputs | captured.constants.keys())
            real = [x.clone() if i in mutated else x for i, x in enumerate(real)]
            sources.append(Source(program, captured, real, symbol_sizes(aten, real), device_of(aten)))

        with whole_operators():
            aot.trace(gm, examples, answer, lambda: None)
        return gm.forward

    torch._dynamo.reset()
    try:
        with torch.no_grad():
            torch.compile(model, backend=backend)(*inputs)
    except torch._dynamo.exc.BackendCompilerFailed as error:
        raise error.inner_exception from None
    finally:
        torch._dynamo.reset()
    if not sources:
        raise CaptureError("the model has no inference graph", todo="call model.eval() first")
    return sources


def load_model(text: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A model by name.

    Args:
        text: the path of an .onnx file (inputs are made up from its types), or `package.module:callable` of
            a function without arguments that returns the module and the tuple of its inputs.

    Raises:
        OptionsError: the text is neither, or there is no such module or function.
        ModelFormatError: the file is malformed, or the function returned something else.
    """
    if text.endswith(".onnx"):
        if not Path(text).is_file():
            raise OptionsError("no such model", where=text, got="there is no such file")
        module = lower_model(load(Path(text)))
        return module, tuple(generated_inputs(module, seed=0))
    where, _, name = text.partition(":")
    if not where or not name:
        raise OptionsError("not a model", expected="a path that ends in .onnx, or module:callable", got=text)
    try:
        make = getattr(importlib.import_module(where), name)
    except (ImportError, AttributeError) as error:
        raise OptionsError("no such model", where=text, got=str(error)) from error
    made = make()
    if not isinstance(made, tuple) or len(made) != 2 or not callable(made[0]):
        raise ModelFormatError(
            "the function does not return a model", where=text, expected="(module, inputs)", got=type(made)
        )
    return made[0], tuple(made[1])
