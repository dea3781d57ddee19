"""Evaluates the expressions over the weights of a file, which never change, in a subprocess with limits.

A plan leaves its arithmetic over weights (a folded BatchNorm, a concatenated kernel) in the graph as nodes.
Runtimes would fold them each time they load the file, and some runtimes run them in every call.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import onnx_ir
import torch
from onnx_ir.tensor_adapters import TorchTensor
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from torchrlopt.errors import LoweringError, UnsupportedError
from torchrlopt.executors.weights.split_onnx import lowered_prologue, readers, steps_of
from torchrlopt.executors.weights.static_part import Step, crossing, hoisted
from torchrlopt.limited import Limits, run_limited
from torchrlopt.onnx import files
from torchrlopt.onnx.opsets import STANDARD_DOMAINS
from torchrlopt.ops.onnx_types import tensor_of
from torchrlopt.ops.to_aten import CONVERTERS

LIMITS = Limits(seconds=300.0, memory_bytes=4 << 30)
"""Of the evaluation, beyond the memory of the weights."""

_COPIES = 8  # of the weights: file, message, tensors, the same in float64, results
_SLACK_BYTES = 4096  # of a result beyond the weights that it replaces: a broadcast bias is worth its bytes
_HEADER_BYTES = 1 << 20  # of the answer: names and shapes


def fold(model: onnx_ir.Model, path: Path, weight_bytes: int) -> bool:
    """Replace expressions over weights by their values, in place.

    An expression stays if its value is much larger than the weights in it, as for a broadcast, or if its size
    is not known.

    Returns:
        Whether anything was replaced.

    Raises:
        UnsupportedError: the values cannot be computed within `LIMITS`, or an operator has no converter.
    """
    wanted = _worth_folding(model.graph)
    if not wanted:
        return False
    names = [str(value.name) for value in wanted]
    limits = dataclasses.replace(
        LIMITS,
        memory_bytes=LIMITS.memory_bytes + _COPIES * weight_bytes,
        answer_bytes=_HEADER_BYTES + sum(map(_bytes_of, wanted)),
    )
    answer = run_limited(
        __name__, (str(path.absolute()), *names), b"", limits, "the evaluation of expressions over weights"
    )
    for value, tensor in zip(wanted, _decoded(answer, wanted), strict=True):
        _replace(model.graph, value, tensor)
    _remove_unread(model.graph)
    return True


def _weights(graph: onnx_ir.Graph) -> list[onnx_ir.Value]:
    """The floating point weights; one that is an input as well may be overridden by the caller."""
    return [
        value
        for value in graph.initializers.values()
        if value.dtype is not None and value.dtype.is_floating_point() and not value.is_graph_input()
    ]


def _worth_folding(graph: onnx_ir.Graph) -> list[onnx_ir.Value]:
    """The values that other nodes read, of expressions over weights, while they take no more room."""
    weights = _weights(graph)
    others = [value for value in graph.initializers.values() if not value.is_graph_input()]
    steps = [
        dataclasses.replace(step, is_repeatable=functools.partial(_is_evaluated, step))
        for step in steps_of(graph)
    ]
    found = hoisted(steps, weights, others)
    # A weight that another node reads as well, such as the body of a loop, stays: nothing replaces its bytes.
    nodes = {step.node for step in found}
    over: dict[onnx_ir.Value, frozenset[onnx_ir.Value]] = {
        value: frozenset((value,) if nodes.issuperset(readers(value)) else ()) for value in weights
    }
    for step in found:
        below = frozenset[onnx_ir.Value]().union(*(over.get(value, ()) for value in step.reads))
        over |= dict.fromkeys(step.gives, below)
    taken: list[onnx_ir.Value] = []
    used: frozenset[onnx_ir.Value] = frozenset()
    room = 0
    for value in crossing(found, readers):
        # Several expressions over one weight may replace it only once.
        more = sum(map(_bytes_of, over[value] - used)) + _SLACK_BYTES
        if _bytes_of(value) <= room + more:
            room += more - _bytes_of(value)
            used |= over[value]
            taken.append(value)
    return taken


def _is_evaluated(step: Step[onnx_ir.Node, onnx_ir.Value]) -> bool:
    """Whether a node can be evaluated, and need not stay: an output has to be computed by one."""
    node = step.node
    domain = "" if node.domain in STANDARD_DOMAINS else node.domain
    is_known = (domain, node.op_type) in CONVERTERS or node.op_type == "Constant"
    return step.is_repeatable() and is_known and not any(value.is_graph_output() for value in node.outputs)


def _bytes_of(value: onnx_ir.Value) -> int:
    """Size of a value; too large for anything if it is not known."""
    if value.shape is None or value.dtype is None:
        return sys.maxsize
    dims = [dim for dim in value.shape.dims if isinstance(dim, int)]
    return math.prod(dims) * value.dtype.bitwidth // 8 if len(dims) == len(value.shape) else sys.maxsize


def _decoded(answer: bytes, wanted: Sequence[onnx_ir.Value]) -> list[torch.Tensor]:
    """The tensors in an answer; raises UnsupportedError if they are not of the types that were asked for."""
    try:
        found = load_tensors(answer)
        tensors = [found[str(number)] for number in range(len(wanted))]
    except (SafetensorError, KeyError) as error:
        raise UnsupportedError("the evaluation gave no answer that makes sense", got=repr(error)) from error
    for value, tensor in zip(wanted, tensors, strict=True):
        own = TorchTensor(tensor)
        if own.dtype != value.dtype or own.shape != value.shape:
            raise UnsupportedError(
                "an expression over weights has another type than it was declared with",
                where=str(value.name),
                expected=f"{value.dtype} {value.shape}",
                got=f"{own.dtype} {own.shape}",
            )
    return tensors


def _replace(graph: onnx_ir.Graph, value: onnx_ir.Value, tensor: torch.Tensor) -> None:
    """Make a weight of a computed value; nodes that only it needs go later."""
    name = str(value.name)
    value.name = f"{name}.computed"
    weight = onnx_ir.Value(
        name=name, type=value.type, shape=value.shape, const_value=TorchTensor(tensor, name)
    )
    graph.initializers.add(weight)
    onnx_ir.convenience.replace_all_uses_with(value, weight)


def _remove_unread(graph: onnx_ir.Graph) -> None:
    """Remove nodes and weights that only computed the values that are weights now."""
    for node in reversed(list(graph)):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not (value.uses() or value.is_graph_output() or value.is_graph_input()):
            del graph.initializers[name]


def main(data: bytes, arguments: Sequence[str]) -> bytes:
    """Entry point of the subprocess: evaluate values of a file.

    The values are safetensors, named by their positions.
    """
    path, *names = arguments
    model = files.load(path)
    weights = {}
    for value in _weights(model.graph):
        assert value.const_value is not None, "the file was checked"
        weights[str(value.name)] = tensor_of(value.const_value)
        del model.graph.initializers[str(value.name)]
        value.const_value = None
        model.graph.inputs.append(value)
    compute = lowered_prologue(model, names, list(weights), torch.device("cpu"), exact=False)
    if compute is None:
        raise LoweringError("there is nothing to evaluate")
    results = compute(weights)
    return save_tensors({str(number): each.contiguous() for number, each in enumerate(results)})
