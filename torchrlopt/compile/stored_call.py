"""Makes the content of a saved model: a call, traced, planned, lowered for eager PyTorch, packed, checked.

Dynamo's code knows how the arguments of a call become inputs of the graph, and its outputs the result. It is
run once, on copies of the arguments: which tensors come out where they went in is seen from their memory.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchrlopt.artefact import lowered
from torchrlopt.artefact.calls import Json
from torchrlopt.artefact.convention import Arguments, call_of, result_of
from torchrlopt.artefact.file import Tensors
from torchrlopt.artefact.graph import StoredGraph
from torchrlopt.capture import aot
from torchrlopt.capture.trace import Traced, isolated, refuse_training, trace
from torchrlopt.capture.whole import recurrent_modules
from torchrlopt.compile.contestant import planned_again
from torchrlopt.compile.recorded_calls import check_saved, lowered_as
from torchrlopt.errors import CaptureError, RlOptError, UnsupportedError
from torchrlopt.executors.lowering.onnx_to_aten import lower_captured
from torchrlopt.options import Options
from torchrlopt.report import Journal, PrecisionRecord
from torchrlopt.torch_private.dynamo import BackendCompilerFailed, TorchDynamoException, forget_backend
from torchrlopt.torch_private.modes import without_dispatch_modes


def stored_call(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Options,
    plans: Sequence[Mapping[str, Any]],
    journal: Journal,
    tensors: Tensors,
    precision: Sequence[PrecisionRecord] = (),
) -> Json:
    """Return the content of one graph of a saved model, see `artefact.module`.

    See `planned_again` about `plans`; `precision` is that of the graphs, see `Report.precision`.

    Raises:
        UnsupportedError: the call cannot be stored: it is not one graph, has side effects, writes to its
            inputs or weights, or takes or returns other things than tensors and constants.
        RlOptError: a stage failed, or the result is wrong.
    """
    refuse_training(model)
    arguments, given, args, kwargs = call_of(model.forward, args, kwargs)
    with journal.phase("trace"):
        call = _traced(model, given, args, kwargs)
    traced = call.traced
    job, onnx = planned_again(traced, options, plans, journal)
    with journal.phase("lower"), without_dispatch_modes(), torch.no_grad():
        weights = {name: traced.inputs[at] for at, name in enumerate(call.names) if at in traced.static}
        static = job.captured.static_inputs
        plain = lower_captured(onnx, job.captured)
        module, record = lowered_as(plain, static, precision)
        module = lowered.without_attributes(module, weights)
        places: dict[str, Json] = {name: {"tensor": tensors.add(held)} for name, held in weights.items()}
        places |= {call.names[at]: {"given": number} for at, number in call.places.items()}
        is_real = options.numerics == "real"
        content = {
            "arguments": arguments,
            "results": call.results,
            "lowered": lowered.as_lowered(module, places),
            "methods": lowered.requested(module),
            "is_real": is_real,
            "packed": lowered.packed(module, places, weights, is_real, tensors.add),
            "budgets": [],
        }
        if record is not None and isinstance(options.precision.error_metric, str):  # a function is not stored
            plain = lowered.without_attributes(plain, weights)  # the same ones, in the same order
            exact = lowered.as_lowered(plain, places)
            content["budgets"] = [{"max_error": record.max_error, "metric": record.metric, "exact": exact}]
    # What is checked is what loading makes of the content.
    Arguments(arguments)
    graph = StoredGraph(content["packed"], len(given), tensors.tensor)
    inverse = {number: at for at, number in call.places.items()}

    def run(*inputs: Any) -> tuple[Any, ...]:
        # A tensor that is no input of the graph is not read.
        return tuple(graph([inputs[inverse.get(number, 0)] for number in range(len(given))]))

    check_saved(traced, run, record, options, journal)
    return content


@dataclasses.dataclass(frozen=True)
class _Call:
    """A traced call.

    Attributes:
        traced: its graph; all inputs that the call does not pass are static.
        names: of the graph's inputs.
        places: for each input that the call passes, its number among the tensors of the call.
        results: what the call returns, see `convention.Results`.
    """

    traced: Traced
    names: tuple[str, ...]
    places: dict[int, int]
    results: Json


def _traced(
    model: torch.nn.Module, given: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> _Call:
    found: list[Traced] = []
    outputs: list[Any] = []
    own = isolated(model)
    code = weakref.ref(own.__code__)  # Dynamo's code, which dies with it, holds the backend

    def answer(traced: Traced) -> Callable[..., Any]:
        # Before it runs: what is refused has changed nothing.
        if traced.mutated:
            refuse("it writes to its own state or to its inputs")
        if traced.autocast:
            refuse("autocast is on")
        found.append(traced)

        def run(inputs: list[Any]) -> Any:
            results = traced.aten.forward(*inputs)
            inputs.clear()
            outputs.extend(results)
            return results[: len(results) - traced.num_added]

        run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd looks for it
        return run

    def refuse(reason: str) -> None:
        raise UnsupportedError("the model cannot be saved", got=reason)

    def backend(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        cut = aot.cut_at(gm)
        if cut or found:
            refuse(cut or "its call is several graphs")
        own_code = code()
        assert own_code is not None, "it is being compiled"
        if not aot.only_computes(own_code):
            refuse("its call does more than compute: it sets attributes, globals or elements of containers")
        return trace(gm, examples, answer, refuse)

    try:
        with torch.no_grad(), recurrent_modules():
            result = torch.compile(own, backend=backend, dynamic=False)(*args, **kwargs)
    except BackendCompilerFailed as error:
        if isinstance(error.inner_exception, RlOptError):
            raise error.inner_exception from None
        raise
    except TorchDynamoException as error:
        raise CaptureError("Dynamo cannot trace the model", got=str(error), is_bug=False) from error
    finally:
        forget_backend(backend)
    if not found:
        raise UnsupportedError("the model cannot be saved", got="Dynamo found no graph in the call")
    (traced,) = found
    numbers = {id(each): number for number, each in enumerate(given)}
    places = {at: numbers[id(x)] for at, x in enumerate(traced.inputs) if id(x) in numbers}
    if not all(isinstance(x, torch.Tensor) for x in traced.inputs):
        refuse("an input of its graph is no tensor")
    static = tuple(at for at in range(len(traced.inputs)) if at not in places)
    return _Call(
        dataclasses.replace(traced, static=static),
        tuple(node.name for node in traced.aten.graph.find_nodes(op="placeholder")),
        places,
        result_of(result, _place(outputs, given)),
    )


def _place(outputs: Sequence[Any], given: Sequence[torch.Tensor]) -> Callable[[torch.Tensor], Json]:
    """Return a function that finds a tensor among the outputs of the graph, or the tensors of the call."""
    known = {
        _memory(x): at for at, x in reversed([*enumerate([*outputs, *given])]) if isinstance(x, torch.Tensor)
    }

    def place(tensor: torch.Tensor) -> Json:
        at = known.get(_memory(tensor))
        if at is None:
            raise UnsupportedError(
                "the model cannot be saved",
                got="it returns a tensor that its graph does not compute, such as a weight",
            )
        return {"tensor": at}

    return place


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Which memory a tensor is, and how: two tensors that are alive and equal in this are one."""
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg())
