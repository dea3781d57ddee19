"""Recurrent layers: PyTorch's LSTM, GRU and RNN as the operators of the same names in ONNX.

PyTorch decomposes its own operators, `aten::lstm.input` and others, step by step when it traces. So a trace
(`capture/whole.py`) has `torchrlopt::recurrent` in their place, which computes the same on every device.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from torchrlopt.errors import UnsupportedError
from torchrlopt.ops.builder import GraphBuilder
from torchrlopt.ops.emitter import Emitter, aten
from torchrlopt.ops.onnx_types import Dim, value_dims, value_dtype
from torchrlopt.ops.shape import reshape
from torchrlopt.ops.to_aten import OpCall, Result, converts
from torchrlopt.ops.to_onnx import Target, require, static_int, translation
from torchrlopt.torch_private.operators import OpOverload

CELLS = {
    "lstm": torch.ops.aten.lstm.input,
    "gru": torch.ops.aten.gru.input,
    "rnn_tanh": torch.ops.aten.rnn_tanh.input,
    "rnn_relu": torch.ops.aten.rnn_relu.input,
}
"""PyTorch's operators by the names of the cells."""

_ONNX = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}

# Which of PyTorch's gates are ONNX's, in its order: of i, f, g, o for an LSTM, and of r, z, n for a GRU.
_GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_tanh": (0,), "rnn_relu": (0,)}

# ONNX's activations of each cell in one direction.
_ACTIVATIONS: dict[str, dict[tuple[str, ...], str]] = {
    "LSTM": {("Sigmoid", "Tanh", "Tanh"): "lstm"},
    "GRU": {("Sigmoid", "Tanh"): "gru"},
    "RNN": {("Tanh",): "rnn_tanh", ("Relu",): "rnn_relu"},
}


def _check(
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    cell: str,
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
) -> None:
    """Compare all sizes: PyTorch's kernels trust those of the weights.

    Raises:
        UnsupportedError: there is no such cell, or operands do not fit each other.
    """
    directions = 2 if bidirectional else 1
    count = num_layers * directions
    is_known = cell in CELLS and x.dim() == 3 and count > 0 and len(states) == (2 if cell == "lstm" else 1)
    if not is_known or any(each.dim() != 3 or each.shape[0] != count for each in states):
        raise UnsupportedError("a recurrent layer has other operands", got=f"{cell}, {len(states)} states")
    size, width = states[-1].shape[2], states[0].shape[2]  # of cells, and of what the layers return
    rows, expected = len(_GATES[cell]) * size, []
    for layer in range(num_layers):
        read = x.shape[2] if layer == 0 else directions * width
        part = [(rows, read), (rows, width), *[(rows,)] * (2 if has_biases else 0)]
        part += [(width, size)] if len(weights) > count * len(part) else []  # a projection
        expected += part * directions
    if [tuple(each.shape) for each in weights] != expected:
        got = [tuple(each.shape) for each in weights]
        raise UnsupportedError("the weights of a recurrent layer do not fit", expected=expected, got=got)


def _run(
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    cell: str,
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _check(x, states, weights, cell, has_biases, num_layers, bidirectional)
    # PyTorch's result is in the order of steps too, whichever axis is the first.
    steps = x.transpose(0, 1) if batch_first else x
    given = list(states) if cell == "lstm" else states[0]
    y, h, *c = CELLS[cell](steps, given, weights, has_biases, num_layers, 0.0, False, bidirectional, False)
    y = y.contiguous()
    return y.transpose(0, 1) if batch_first else y, h, c[0] if c else x.new_empty(0)


def _fake(
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    cell: str,
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _check(x, states, weights, cell, has_biases, num_layers, bidirectional)
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    y = x.new_empty(steps, batch, states[0].shape[2] * (2 if bidirectional else 1))
    last = [x.new_empty(num_layers * (2 if bidirectional else 1), batch, each.shape[2]) for each in states]
    return y.transpose(0, 1) if batch_first else y, last[0], last[1] if cell == "lstm" else x.new_empty(0)


_LIBRARY = torch.library.Library("torchrlopt", "FRAGMENT")
_LIBRARY.define(
    "recurrent(Tensor x, Tensor[] states, Tensor[] weights, str cell, bool has_biases, int num_layers,"
    " bool bidirectional, bool batch_first) -> (Tensor, Tensor, Tensor)"
)
_LIBRARY.impl("recurrent", _run, "CompositeExplicitAutograd")
torch.library.register_fake("torchrlopt::recurrent", _fake, lib=_LIBRARY)
RECURRENT: OpOverload = torch.ops.torchrlopt.recurrent.default
"""Layers of one of the `CELLS`; arguments as for PyTorch's operators, without dropout. `states` are the first
hidden state and, of an LSTM, the first cell. Returns the results, the last hidden states and the last cells,
which are empty without an LSTM."""


def per_layer(
    weights: Sequence[Any], has_biases: bool, num_layers: int, bidirectional: bool
) -> list[list[tuple[Any, Any, Any, Any]]]:
    """Return weights and biases (or None) of inputs and states, for each layer and direction."""
    count = 4 if has_biases else 2
    parts = [tuple(weights[at : at + count]) for at in range(0, len(weights), count)]
    padded = [part if has_biases else (*part, None, None) for part in parts]
    directions = 2 if bidirectional else 1
    return [padded[layer * directions : (layer + 1) * directions] for layer in range(num_layers)]


def use_pytorchs(graph: fx.Graph) -> None:
    """Call PyTorch's own operators instead of ours, in place, for programs that run without this package."""
    for node in graph.find_nodes(op="call_function", target=RECURRENT):
        x, states, weights, cell, has_biases, num_layers, bidirectional, batch_first = node.args
        given = states if cell == "lstm" else states[0]
        flags = (has_biases, num_layers, 0.0, False, bidirectional, batch_first)
        with graph.inserting_before(node):
            call = graph.call_function(CELLS[cell], (x, given, weights, *flags))
        call.meta = {**node.meta, "val": node.meta["val"][: len(states) + 1]}
        node.replace_all_uses_with(call)
        graph.erase_node(node)


# ---- to ONNX


@translation("torchrlopt.recurrent.default")
def _recurrent(
    g: GraphBuilder,
    target: Target,
    x: ir.Value,
    states: list[ir.Value],
    weights: list[ir.Value],
    cell: str,
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> list[ir.Value | None]:
    require(value_dtype(x) in (torch.float32, torch.float64, torch.float16), f"{cell} in {value_dtype(x)}")
    require(value_dims(states[0]) == value_dims(states[-1]), "an LSTM with projections")
    hidden, directions = static_int(value_dims(states[0])[2]), 2 if bidirectional else 1
    if batch_first:
        x = _swapped(g, x)
    steps, batch = value_dims(x)[:2]
    lasts: list[list[ir.Value]] = [[] for _ in states]
    for layer, given in enumerate(per_layer(weights, has_biases, num_layers, bidirectional)):
        first = [_part(g, state, layer * directions, directions) for state in states]
        operands = _onnx_weights(g, target, cell, hidden, given)
        y, *last = g.op_many(
            _ONNX[cell],
            [x, *operands, None, *first],
            [
                (target.dtype, (steps, directions, batch, hidden)),
                *((target.dtype, (directions, batch, hidden)) for _ in states),
            ],
            hidden_size=hidden,
            direction="bidirectional" if bidirectional else "forward",
            linear_before_reset=1 if cell == "gru" else None,
            activations=["Relu"] * directions if cell == "rnn_relu" else None,
        )
        if bidirectional:
            y = g.op("Transpose", y, dims=(steps, batch, 2, hidden), perm=[0, 2, 1, 3])
            x = reshape(g, target, y, (steps, batch, 2 * hidden))
        else:
            x = g.op("Squeeze", y, g.ints([1]), dims=(steps, batch, hidden))
        for all_layers, each in zip(lasts, last, strict=True):
            all_layers.append(each)
    joined = [_joined(g, each, (num_layers * directions, batch, hidden)) for each in lasts]
    results = [_swapped(g, x) if batch_first else x, *joined]
    return [value if i in target.used else None for i, value in enumerate((*results, None)[:3])]


def _swapped(g: GraphBuilder, x: ir.Value) -> ir.Value:
    first, second, *rest = value_dims(x)
    return g.op("Transpose", x, dims=(second, first, *rest), perm=[1, 0, 2])


def _part(g: GraphBuilder, state: ir.Value, first: int, count: int) -> ir.Value:
    """Returns the states of some layers and directions."""
    total, *dims = value_dims(state)
    if total == count:
        return state
    bounds = (g.ints([first]), g.ints([first + count]), g.ints([0]), g.ints([1]))
    return g.op("Slice", state, *bounds, dims=(count, *dims))


def _joined(g: GraphBuilder, values: Sequence[ir.Value], dims: tuple[Dim, ...]) -> ir.Value:
    return values[0] if len(values) == 1 else g.op("Concat", *values, dims=dims, axis=0)


def _onnx_weights(
    g: GraphBuilder, target: Target, cell: str, hidden: int, given: Sequence[Sequence[ir.Value | None]]
) -> list[ir.Value | None]:
    """Returns W [directions, gates * hidden, inputs], R and, unless there are no biases, B of a layer."""
    rows = len(_GATES[cell]) * hidden

    def ordered(weight: ir.Value) -> ir.Value:
        """[1, gates * hidden, ...], with the gates in ONNX's order."""
        rest = value_dims(weight)[1:]
        if rows != hidden:
            gates = reshape(g, target, weight, (len(_GATES[cell]), hidden, *rest))
            weight = g.op("Gather", gates, g.ints(_GATES[cell]), dims=value_dims(gates), axis=0)
        return reshape(g, target, weight, (1, rows, *rest))

    found: list[ir.Value | None] = []
    for at in (0, 1):
        parts = [ordered(_present(each[at])) for each in given]
        found.append(_joined(g, parts, (len(given), *value_dims(parts[0])[1:])))
    if given[0][2] is not None:
        biases = [
            g.op("Concat", *(ordered(_present(bias)) for bias in each[2:]), dims=(1, 2 * rows), axis=1)
            for each in given
        ]
        found.append(_joined(g, biases, (len(given), 2 * rows)))
    else:
        found.append(None)
    return found


def _present(value: ir.Value | None) -> ir.Value:
    assert value is not None
    return value


# ---- to PyTorch


@converts("LSTM", "GRU", "RNN")
def _lower(emitter: Emitter, call: OpCall) -> Result:
    direction = call.attr("direction", "forward")
    directions = call.choice("direction", "forward", {"forward": 1, "reverse": 1, "bidirectional": 2})
    cell = _cell_of(call, directions)
    x, w, r = call.x(0), call.x(1), call.x(2)
    hidden = call.attr("hidden_size", emitter.static_dim(r, 2))
    # The sum over the state of a GRU comes before the reset, as in PyTorch, or after it.
    if cell == "gru" and not call.attr("linear_before_reset", 0):
        raise call.unsupported("a reset before the product")
    if any(call.maybe(at) is not None for at in (4, 7)) or call.attr("input_forget", 0) or call.attr("clip"):
        raise call.unsupported("lengths, peepholes, input_forget or clip")
    if call.attr("layout", 0):
        raise call.unsupported("layout=1")
    biases = call.maybe_x(3)
    weights = [
        _torch_rows(emitter, cell, hidden, packed, index, rows)
        for index in range(directions)
        for packed, rows in ((w, 0), (r, 0), *(() if biases is None else ((biases, 0), (biases, 1))))
    ]
    if direction == "reverse":
        x = emitter.op(aten.flip.default, x, [0])
    states = [
        call.maybe_x(at) or _zeros(emitter, x, directions, hidden)
        for at in ((5, 6) if cell == "lstm" else (5,))
    ]
    made = emitter.op(RECURRENT, x, states, weights, cell, biases is not None, 1, directions == 2, False)
    y = emitter.op(operator.getitem, made, 0)
    if direction == "reverse":
        y = emitter.op(aten.flip.default, y, [0])
    steps, batch = (emitter.dim(y, axis) for axis in (0, 1))
    y = emitter.op(aten.reshape.default, y, [steps, batch, directions, hidden])
    results = [emitter.op(aten.permute.default, y, [0, 2, 1, 3])]
    results += [emitter.op(operator.getitem, made, index + 1) for index in range(len(states))]
    return tuple(results[: call.num_outputs])


def _cell_of(call: OpCall, directions: int) -> str:
    known = _ACTIVATIONS[call.op_type]
    default = next(iter(known))
    given = tuple(call.attr("activations", default * directions))
    if given != given[: len(default)] * directions or given[: len(default)] not in known:
        raise call.unsupported(f"activations={given}")
    if call.attr("activation_alpha") or call.attr("activation_beta"):
        raise call.unsupported("parameters of activations")
    return known[given[: len(default)]]


def _torch_rows(
    emitter: Emitter, cell: str, hidden: int, packed: fx.Node, direction: int, part: int
) -> fx.Node:
    """One direction of W, R, or a half of B, with the gates in PyTorch's order."""
    gates = _GATES[cell]
    chosen = emitter.op(aten.select.int, packed, 0, direction)
    rows = len(gates) * hidden
    if emitter.rank(packed) == 2:
        chosen = emitter.op(aten.slice.Tensor, chosen, 0, part * rows, (part + 1) * rows)
    if len(gates) == 1:
        return chosen
    parts = emitter.op(aten.reshape.default, chosen, [len(gates), hidden, *emitter.shape(chosen)[1:]])
    order = [gates.index(gate) for gate in range(len(gates))]
    picked = [emitter.op(aten.select.int, parts, 0, gate) for gate in order]
    return emitter.op(aten.cat.default, picked, 0)


def _zeros(emitter: Emitter, x: fx.Node, directions: int, hidden: int) -> fx.Node:
    sizes = [directions, emitter.dim(x, 1), hidden]
    options = {"dtype": emitter.dtype(x), "device": emitter.device}
    return emitter.op(aten.full.default, sizes, 0.0, **options)
