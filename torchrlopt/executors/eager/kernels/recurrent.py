"""CPU recurrent layers with our own kernel (csrc/kernels/recurrent.h)."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any, cast

import torch
from torch import fx

from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.operators import PACK_RECURRENT, RECURRENT_LAYER
from torchrlopt.executors.lowering.fx_values import ORIGIN, arguments, shape_key, static_shape, tensor_of
from torchrlopt.ops.recurrent import CELLS, RECURRENT, per_layer

aten = torch.ops.aten

_ZEROS = (aten.zeros.default, aten.full.default, aten.zeros_like.default, aten.new_zeros.default)


def select_recurrent(graph: fx.Graph, static: Collection[fx.Node]) -> None:
    """Replace recurrent layers whose weights are the same in every call by our kernel; see `selection`."""
    for node in graph.find_nodes(op="call_function", target=RECURRENT):
        named = arguments(node)
        operands = (named["x"], *named["states"], *named["weights"])
        is_taken = all(indirect.are_for(tensor_of(each), torch.float32) for each in operands)
        if is_taken and all(each in static for each in named["weights"]) and _has_kernel(named):
            _rewrite(graph, node, named)


def _has_kernel(named: dict[str, Any]) -> bool:
    """Whether there is a kernel for the sizes of all layers; none for projections and empty inputs."""
    if len(set(map(shape_key, named["states"]))) > 1:
        return False
    if 0 in (shape_key(named["x"]) or ()):
        return False
    try:
        for shape in map(static_shape, named["weights"][:2]):
            assert shape is not None
            _C.kernel_recurrent_size(indirect.LSTM, max(shape), shape[1], 1)
    except ValueError:
        return False
    return True


def _rewrite(graph: fx.Graph, node: fx.Node, named: dict[str, Any]) -> None:
    cell, directions = list(CELLS).index(named["cell"]), 2 if named["bidirectional"] else 1

    def call(target: Any, *args: Any) -> fx.Node:
        made = graph.call_function(target, args)
        fakes: tuple[Any, ...] = fx.map_arg(args, lambda each: each.meta["val"])
        with mode:
            made.meta["val"] = target(*fakes)
        if ORIGIN in node.meta:
            made.meta[ORIGIN] = node.meta[ORIGIN]
        return made

    x = named["x"]
    mode = x.meta["val"].fake_mode
    hidden = cast(tuple[int, ...], static_shape(named["weights"][1]))[1]  # `_has_kernel` has looked at it
    layers = per_layer(named["weights"], named["has_biases"], named["num_layers"], named["bidirectional"])
    lasts: list[list[fx.Node]] = [[], []]
    with graph.inserting_before(node):
        if named["batch_first"]:
            x = call(aten.transpose.int, x, 0, 1)
        for layer, weights in enumerate(layers):
            flat = [each for part in weights for each in part if each is not None]
            packed = call(PACK_RECURRENT, flat, cell, directions)
            first = [_part(call, state, layer * directions, directions) for state in named["states"]]
            made = call(RECURRENT_LAYER, x, packed, *[*first, None][:2], cell, hidden, directions)
            x = call(operator.getitem, made, 0)
            for index, last in enumerate(lasts[: len(first)]):
                last.append(call(operator.getitem, made, index + 1))
        results = [call(aten.transpose.int, x, 0, 1) if named["batch_first"] else x]
        results += [each[0] if len(each) == 1 else call(aten.cat.default, each) for each in lasts if each]
    for user in list(node.users):  # calls of getitem; nobody reads the cells of what has none
        index = cast(int, user.args[1])
        if index < len(results):
            user.replace_all_uses_with(results[index])
        graph.erase_node(user)
    graph.erase_node(node)


def _part(call: Any, state: fx.Node, first: int, count: int) -> fx.Node | None:
    """The first states of a layer; None for zeros."""
    if state.target in _ZEROS and (state.target is not aten.full.default or state.args[1] == 0):
        return None
    if state.meta["val"].shape[0] == count:
        return state
    part: fx.Node = call(aten.slice.Tensor, state, 0, first, first + count)
    return part
