"""Stores a lowered graph twice: as it was lowered, and as the eager executor's passes leave it.

The second form is what runs. Its packed weights fit one set of instructions and one version; elsewhere
`rebuilt` makes them anew from the first form.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from torchrlopt.artefact import calls
from torchrlopt.artefact.calls import Json, damaged, fields
from torchrlopt.artefact.functions import checked_of, function_of
from torchrlopt.artefact.graph import ReadTensor
from torchrlopt.errors import ModelFormatError, UnsupportedError
from torchrlopt.executors.eager.kernels.epilogues import taken_apart
from torchrlopt.executors.eager.kernels.sites import REQUESTED
from torchrlopt.executors.eager.passes import PASSES, Program, run_passes
from torchrlopt.executors.lowering.lazy_code import lazy_module
from torchrlopt.torch_private.modes import without_dispatch_modes
from torchrlopt.torch_private.tensors import FakeTensorMode

AddTensor = Callable[[torch.Tensor], int]
"""Stores a tensor and returns its number."""


def as_lowered(module: fx.GraphModule, given: Mapping[str, Json]) -> Json:
    """Return a freshly lowered graph as JSON.

    Args:
        module: an ATen graph.
        given: what each of its placeholders is, see `graph._Values`.

    Raises:
        UnsupportedError: it has parts that cannot be stored.
    """
    return _stored(module.graph, [given[str(node.target)] for node in _placeholders(module)])


def requested(module: fx.GraphModule) -> Json:
    """Return the kernels' methods that an error budget allows: `[number of the call, method]` of each."""
    calls = [node for node in module.graph.nodes if node.op not in ("placeholder", "output")]
    return [[at, node.meta[REQUESTED]] for at, node in enumerate(calls) if REQUESTED in node.meta]


def packed(
    module: fx.GraphModule,
    given: Mapping[str, Json],
    weights: Mapping[str, torch.Tensor],
    is_real: bool,
    add: AddTensor,
) -> Json:
    """Run the executor's passes on a lowered graph, evaluate what depends on weights only, and store it.

    Args:
        module: as for `as_lowered`, with `meta["val"]`; modified in place.
        given: as for `as_lowered`.
        weights: the placeholders that are the same in every call.
        is_real: whether rounding may differ from the original's.
        add: stores a tensor.

    Raises:
        UnsupportedError: it has parts that cannot be stored.
        WeightsError: a value computed from the weights overflows.
    """
    with without_dispatch_modes():
        program = Program(module, weights.keys(), is_real)
        run_passes(program, PASSES)
    split = program.parts
    names = [str(node.target) for node in _placeholders(module)]
    values = [given[names[at]] for at in split.inputs]
    results, is_finite = _evaluated(
        split.prologue, [weights[names[at]] for at in split.weights], program, add
    )
    values += results
    guard = program.guard
    run, apart, watched = (program.gathered or split.main).graph, [], []
    if guard is not None and not is_finite:
        run = taken_apart(split.main).graph
    elif guard is not None:
        apart = [_stored(taken_apart(split.main).graph, values)]
        watched = [given[names[split.inputs[at]]]["given"] for at in guard.inputs]
    return {"run": _stored(run, values), "apart": apart, "watched": watched}


def _evaluated(
    prologue: fx.GraphModule, weights: Sequence[torch.Tensor], program: Program, add: AddTensor
) -> tuple[list[Json], bool]:
    """Return the results of a prologue, stored, and whether the weights are finite."""
    interpreter = fx.Interpreter(prologue, garbage_collect_values=False)
    with torch.inference_mode(False), torch.no_grad():
        interpreter.run(*(weight.detach() for weight in weights))
    nodes = list(prologue.graph.output_node().args[0])  # type: ignore[arg-type]
    env = interpreter.env
    is_finite = True
    if program.guard is not None and program.guard.weights is not None:
        is_finite = math.isfinite(env[nodes[-1]].item())
    return [_result(node, env, add) for node in nodes], is_finite


def _result(node: fx.Node, env: Mapping[fx.Node, Any], add: AddTensor) -> Json:
    """A tensor, or the call that packs one where the packed form is oneDNN's own and cannot be stored."""
    value = env[node]
    if not value.is_mkldnn:
        return {"tensor": add(value)}
    sources = node.all_input_nodes
    numbers = {source: at for at, source in enumerate(sources)}
    call = calls.written_call(node, numbers)
    values = [{"tensor": add(env[source])} for source in sources]
    return {"packed": {"values": values, "calls": [call], "outputs": [{"v": len(sources)}]}}


def _stored(graph: fx.Graph, values: Sequence[Json]) -> Json:
    placeholders = graph.find_nodes(op="placeholder")
    return {
        "values": list(values),
        **calls.written(graph, {node: at for at, node in enumerate(placeholders)}),
    }


def _placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return list(module.graph.find_nodes(op="placeholder"))


def without_attributes(module: fx.GraphModule, weights: dict[str, torch.Tensor]) -> fx.GraphModule:
    """Turn the constants that a lowered graph holds into placeholders, and add them to its weights.

    Raises:
        UnsupportedError: it holds a graph.
    """
    graph = module.graph
    found: dict[str, fx.Node] = {}
    for node in graph.find_nodes(op="get_attr"):
        target = str(node.target)
        held = operator.attrgetter(target)(module)
        if not isinstance(held, torch.Tensor):
            raise UnsupportedError("a saved model cannot hold a graph within its graph", where=target)
        if target not in found:
            name = f"constant_{len(found)}"
            last = _placeholders(module)
            first = next(iter(graph.nodes))
            with graph.inserting_after(last[-1]) if last else graph.inserting_before(first):
                found[target] = graph.placeholder(name)
            found[target].meta = dict(node.meta)
            weights[name] = held
        node.replace_all_uses_with(found[target])
        graph.erase_node(node)
    return lazy_module(torch.nn.Module(), graph)


# ---- on another machine


def rebuilt(
    lowered: Json, methods: Json, facts: Sequence[Any], is_real: bool, tensor: ReadTensor
) -> tuple[Json, list[torch.Tensor]]:
    """Run the passes again on a graph that `as_lowered` stored.

    Args:
        lowered: untrusted.
        methods: what `requested` returned; untrusted.
        facts: type, sizes and strides of the tensors of a call.
        is_real: as for `packed`.
        tensor: reads the weights.

    Returns:
        What `packed` returns, and the tensors that it refers to.

    Raises:
        ModelFormatError: the content is malformed.
    """
    made: list[torch.Tensor] = []

    def add(value: torch.Tensor) -> int:
        made.append(value)
        return len(made) - 1

    try:
        module, given, weights = _module(lowered, dict(methods), facts, tensor, add)
        return packed(module, given, weights, is_real, add), made
    except ModelFormatError:
        raise
    except Exception as error:  # of any operator, on sizes that the file chose
        raise damaged("its graph cannot be built", error) from error


def _module(
    lowered: Json, methods: Mapping[int, Any], facts: Sequence[Any], tensor: ReadTensor, add: AddTensor
) -> tuple[fx.GraphModule, dict[str, Json], dict[str, torch.Tensor]]:
    """Return the module, and the arguments `given` and `weights` of `packed`."""
    values, listed, outputs = fields(lowered, values=list, calls=list, outputs=list)
    graph, mode = fx.Graph(), FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    nodes: list[fx.Node] = []
    given: dict[str, Json] = {}
    weights: dict[str, torch.Tensor] = {}
    for at, value in enumerate(values):
        name = f"value_{at}"
        node = graph.placeholder(name)
        if set(value) == {"given"}:
            fact = facts[value["given"]]
            with mode:
                node.meta["val"] = torch.empty_strided(fact.shape, fact.stride, dtype=fact.dtype)
            given[name] = value
        else:
            weights[name] = tensor(value.get("tensor"))
            node.meta["val"] = mode.from_tensor(weights[name], static_shapes=True)
            given[name] = {"tensor": add(weights[name])}
        nodes.append(node)
    for at, call in enumerate(listed):
        nodes.append(_node(graph, call, nodes, mode))
        if at in methods:
            nodes[-1].meta[REQUESTED] = methods[at]  # a kernel that does not have it takes another
    graph.output(tuple(calls.filled(each, nodes) for each in calls.decoded(outputs, len(nodes))))
    return lazy_module(torch.nn.Module(), graph), given, weights


def _node(graph: fx.Graph, call: Json, nodes: Sequence[Any], mode: FakeTensorMode) -> fx.Node:
    name, positional, named = call
    function = function_of(name)
    args = tuple(calls.filled(each, nodes) for each in calls.decoded(positional, len(nodes)))
    keywords = {key: calls.filled(calls.decoded(value, len(nodes)), nodes) for key, value in named.items()}
    if not all(key.isidentifier() for key in keywords):
        raise damaged("a keyword is no name", list(keywords))
    node = graph.call_function(function, args, keywords)
    with mode:
        node.meta["val"] = checked_of(name)(
            *fx.map_arg(args, lambda each: each.meta["val"]),
            **fx.map_arg(keywords, lambda each: each.meta["val"]),
        )
    return node
