"""Finds the values of a graph that are finite if its inputs and weights are, and checks that those are.

Some fused kernels agree with ATen on finite operands only. They are used only if every operator before them
maps finite operands to finite results. (An overflow breaks this, but then the result of the original is not
finite either.) Weights are checked once per set, inputs in every call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.eager.guard import Guard
from torchrlopt.executors.eager.kernels import operators, packing
from torchrlopt.executors.lowering.fx_values import arguments, static_shape, tensor_of
from torchrlopt.executors.weights.split_fx import Split
from torchrlopt.ops.traits import MOVES, PRODUCTS
from torchrlopt.torch_private.operators import OpOverload, schema_of

aten = torch.ops.aten

# Besides moves and products, the operators that map finite operands to finite results. Quotients, powers,
# logarithms, roots and variances do not.
_SAFE = frozenset(
    {
        "add", "sub", "rsub", "mul", "neg", "abs", "maximum", "minimum", "where", "exp", "erf", "sin", "cos",
        "relu", "leaky_relu", "elu", "gelu", "silu", "sigmoid", "tanh", "hardtanh", "hardsigmoid",
        "hardswish", "clamp", "clamp_min", "clamp_max", "square", "_to_copy",
        "_softmax", "softmax", "_log_softmax", "log_softmax", "native_layer_norm", "layer_norm",
        "max_pool2d", "max_pool2d_with_indices", "avg_pool2d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d",
        "mean", "sum", "amax", "amin", "upsample_nearest2d", "upsample_bilinear2d",
    }
)  # fmt: skip
_PACKING = operators.PACKING | {packing.PACK_CONVOLUTION, packing.PACK_TRANSPOSED, packing.PACK_LINEAR}


def finite_nodes(graph: fx.Graph, static: Collection[fx.Node]) -> frozenset[fx.Node]:
    """The nodes that are finite as long as the placeholders and the nodes in `static` are.

    Args:
        graph: an ATen graph with `meta["val"]`.
        static: the nodes that `weights_sum` adds up.
    """
    found: set[fx.Node] = set()
    for node in graph.nodes:
        value = tensor_of(node)
        if value is not None and value.is_complex():
            continue  # `weights_sum` does not add these
        is_given = node.op == "placeholder" or node in static or _is_integral(node)
        if is_given or (_keeps_finite(node) and found.issuperset(node.all_input_nodes)):
            found.add(node)
    return frozenset(found)


def _is_integral(node: fx.Node) -> bool:
    value = tensor_of(node)
    return value is not None and not value.is_floating_point() and not value.is_complex()


def _keeps_finite(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    if getattr(node.target, "__name__", "") == "getitem":
        return True
    if not isinstance(node.target, OpOverload) or not node.all_input_nodes:
        return False
    name = schema_of(node.target).name.rpartition("::")[2]
    is_safe = name in _SAFE or node.target in MOVES or node.target in PRODUCTS
    if not is_safe or not all(_is_finite_number(value) for value in arguments(node).values()):
        return False
    shape = static_shape(node.all_input_nodes[0])
    # The mean of an empty tensor is NaN; its amax and amin are undefined.
    return name not in ("mean", "amax", "amin") or (shape is not None and 0 not in shape)


def _is_finite_number(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def weights_sum(graph: fx.Graph, static: Collection[fx.Node]) -> fx.Node | None:
    """Add calls that sum every static value that a call outside the prologue reads.

    The sum is finite only if all these values are.

    Args:
        graph: an ATen graph in which kernels have been selected.
        static: the nodes that are the same in every call.

    Returns:
        The sum, a float32 scalar; None if nothing static is read.
    """
    sources: list[fx.Node] = []
    for node in graph.nodes:
        if node not in static or not node.users:
            continue
        # The elements of a packed weight cannot be read, so sum the weight it was packed from.
        is_read = any(user not in static or user.target in _PACKING for user in node.users)
        value = tensor_of(node)
        if is_read and node.target not in _PACKING and value is not None and value.is_floating_point():
            sources.append(node)
    if not sources:
        return None
    number = sources[0].meta["val"].new_empty((), dtype=torch.float32)
    with graph.inserting_before(next(iter(graph.find_nodes(op="output")))):
        total = None
        for source in sources:
            part = graph.call_function(aten.sum.default, (source,), {"dtype": torch.float32})
            part.meta["val"] = number
            total = part if total is None else graph.call_function(aten.add.Tensor, (total, part))
            total.meta["val"] = number
    return total


def guard_of(split: Split, watched: Collection[str], total: fx.Node | None) -> Guard:
    """The guard of a main part.

    Args:
        split: the split graph; the sum of the weights is the last result of its prologue.
        watched: names of the inputs that must be finite.
        total: the sum of the weights; None if there is none.
    """
    names = [str(node.target) for node in split.main.graph.find_nodes(op="placeholder")]
    inputs = tuple(index for index, name in enumerate(names[: len(split.inputs)]) if name in watched)
    return Guard(inputs, None if total is None else len(names) - 1)


def with_answer(prologue: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Wrap the prologue so that its last result says whether the sum of all weights is finite.

    Args:
        prologue: returns that sum as its last result.
    """

    def answering(*weights: torch.Tensor) -> tuple[Any, ...]:
        *values, total = prologue(*weights)
        return (*values, math.isfinite(total.item()))

    return answering
