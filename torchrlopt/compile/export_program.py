"""Makes an ExportedProgram of a rewritten model: PyTorch operators only, weights included.

Export -> plan -> write -> lower -> fold -> check, consecutive lines of `rewritten_program`. Expressions over
weights are evaluated once, here: the saved program holds their results.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputSpec,
    TensorArgument,
)

from torchrlopt.capture.exported import Exported
from torchrlopt.compile.contestant import planned_again
from torchrlopt.compile.recorded_calls import check_saved, lowered_as
from torchrlopt.errors import LoweringError
from torchrlopt.executors.lowering.onnx_to_aten import lower_captured
from torchrlopt.executors.weights.overflow import refuse_overflows
from torchrlopt.executors.weights.split_fx import Split, split_prologue
from torchrlopt.executors.weights.widening import compute_in_float64
from torchrlopt.generated_code import checked
from torchrlopt.ops.recurrent import use_pytorchs
from torchrlopt.options import Options
from torchrlopt.report import Journal, PrecisionRecord
from torchrlopt.torch_private.tensors import FakeTensor


def rewritten_program(
    exported: Exported,
    plans: Sequence[Mapping[str, Any]],
    options: Options,
    journal: Journal,
    precision: Sequence[PrecisionRecord] = (),
) -> ExportedProgram:
    """Return the program of a rewritten model.

    See `planned_again` about `plans`; `precision` is that of the graphs, see `Report.precision`.

    Raises:
        RlOptError: a stage failed, or the result is wrong.
    """
    traced = exported.traced
    job, model = planned_again(traced, options, plans, journal)
    with journal.phase("lower"):
        module = lower_captured(model, job.captured)
        use_pytorchs(module.graph)
        module.recompile()
        module, record = lowered_as(module, job.captured.static_inputs, precision)
        if options.numerics == "real":
            compute_in_float64(module, job.captured.static_inputs)
        split = split_prologue(module, job.captured.static_inputs)
        if options.numerics == "real":
            refuse_overflows(split.prologue)
        with torch.no_grad():
            values = split.prologue.forward(*(traced.inputs[at] for at in split.weights))
        program, run = _program(exported, split, values)
    check_saved(traced, run, record, options, journal)
    return program


def _program(
    exported: Exported, split: Split, values: Sequence[torch.Tensor]
) -> tuple[ExportedProgram, Callable[..., tuple[Any, ...]]]:
    """Return the program of a lowered graph, and a callable over the traced graph's inputs for the check.

    All that the graph reads besides the inputs of the call becomes a buffer of the program: weights, results
    of expressions over weights, and constants.
    """
    old, graph = exported.program, fx.Graph()
    signature = old.graph_signature
    inside: dict[fx.Node, fx.Node] = {}
    fixed, given = _inputs_of(exported, split, values)
    state: dict[str, torch.Tensor] = {}
    specs: list[InputSpec] = []
    for node, tensor in fixed.items():
        target = f"frozen_{len(state)}"
        inside[node] = held = graph.placeholder(f"b_{target}")
        held.meta = {"val": _fake(node, tensor)}
        state[target] = tensor.detach().clone()
        specs.append(InputSpec(InputKind.BUFFER, TensorArgument(held.name), target, persistent=True))
    user = [place for place, spec in enumerate(signature.input_specs) if spec.kind is InputKind.USER_INPUT]
    sources = list(old.graph_module.graph.find_nodes(op="placeholder"))
    for place in user:
        copied = graph.placeholder(sources[place].name)
        copied.meta = {"val": sources[place].meta.get("val")}
        spec = signature.input_specs[place]  # the node's name may differ, as `input` is a Python builtin
        specs.append(dataclasses.replace(spec, arg=dataclasses.replace(spec.arg, name=copied.name)))
        if place in given:
            inside[given[place]] = copied
    for node in split.main.graph.nodes:
        if node.op == "call_function":
            inside[node] = graph.node_copy(node, inside.__getitem__)
            inside[node].meta = {"val": node.meta.get("val")}
    results = _results(old, split.main, inside)
    last = graph.output(tuple(results))
    last.meta = {"val": tuple(each.meta["val"] if isinstance(each, fx.Node) else each for each in results)}
    outputs = [
        OutputSpec(spec.kind, TensorArgument(each.name) if isinstance(each, fx.Node) else spec.arg, None)
        for spec, each in zip(signature.output_specs, results, strict=True)
    ]
    module = fx.GraphModule({}, checked(graph))
    program = ExportedProgram(
        root=module,
        graph=graph,
        graph_signature=ExportGraphSignature(specs, outputs),
        state_dict=dict(state),
        range_constraints=old.range_constraints,
        module_call_graph=[each for each in old.module_call_graph if each.fqn == ""],
        example_inputs=None,  # they are the user's own: do not save them in a file that may be shared
        constants={},
        verifiers=old.verifiers,
    )

    def run(*inputs: Any) -> tuple[Any, ...]:
        by_place = dict(zip(exported.inputs, inputs, strict=True))
        found = module.forward(*state.values(), *(by_place.get(place) for place in user))
        return tuple(each for each, node in zip(found, results, strict=True) if isinstance(node, fx.Node))

    return program, run


def _inputs_of(
    exported: Exported, split: Split, values: Sequence[torch.Tensor]
) -> tuple[dict[fx.Node, torch.Tensor], dict[int, fx.Node]]:
    """Map nodes of the main part to tensors that never change, and positions of a call's inputs to nodes."""
    traced, main = exported.traced, split.main
    placeholders = list(main.graph.find_nodes(op="placeholder"))
    own = dict(zip(placeholders, split.inputs, strict=False))
    fixed = {node: traced.inputs[at] for node, at in own.items() if at in traced.static}
    fixed |= dict(zip(placeholders[len(own) :], values, strict=True))
    fixed |= {node: _held(main, node) for node in main.graph.find_nodes(op="get_attr")}
    return fixed, {exported.inputs[at]: node for node, at in own.items() if node not in fixed}


def _results(old: ExportedProgram, main: fx.GraphModule, inside: Mapping[fx.Node, fx.Node]) -> list[Any]:
    """Return the program's outputs: the main part's results, interleaved with the old program's constants."""
    (before,), (after,) = (each.graph.find_nodes(op="output") for each in (old.graph_module, main))
    tensors = iter(after.args[0])
    return [inside[next(tensors)] if isinstance(each, fx.Node) else each for each in before.args[0]]


def _held(module: fx.GraphModule, node: fx.Node) -> torch.Tensor:
    """Return a constant of the graph.

    Raises:
        LoweringError: it is a graph itself.
    """
    held = operator.attrgetter(str(node.target))(module)
    if not isinstance(held, torch.Tensor):
        raise LoweringError("a graph with graphs inside cannot be saved", where=str(node.target))
    return held


def _fake(node: fx.Node, tensor: torch.Tensor) -> torch.Tensor:
    """Return the fake value of a node that stands for a tensor."""
    value = node.meta.get("val")
    if isinstance(value, FakeTensor):
        return value
    nodes = (each.meta.get("val") for each in node.graph.nodes)
    mode = next(each.fake_mode for each in nodes if isinstance(each, FakeTensor))
    return mode.from_tensor(tensor, static_shapes=True)
