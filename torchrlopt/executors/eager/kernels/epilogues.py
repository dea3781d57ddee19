"""Activations that a packed convolution or linear applies before it writes its result.

Our own kernels (indirect.py) agree with ATen for every operand; the following applies to oneDNN's.

oneDNN computes sigmoid, tanh, silu, hardswish, leaky relu and the tanh form of gelu as ATen does, for every
operand. Four differ: its relu, hardtanh and hardsigmoid turn NaN into a number, and its exact gelu turns an
infinity into NaN. These four are fused only if the operand is known to be finite whenever inputs and weights
are (see `finiteness`). A call whose inputs or weights are not finite runs `taken_apart`, a copy of the graph
in which these activations are separate ATen calls.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.eager.kernels import packing
from torchrlopt.executors.lowering.fx_values import arguments, only_user, shape_key, tensor_of
from torchrlopt.generated_code import checked
from torchrlopt.torch_private.operators import OpOverload

aten = torch.ops.aten


@dataclass(frozen=True)
class Epilogue:
    """An activation, as passed to oneDNN.

    Attributes:
        attr: oneDNN's name for it.
        scalars: its parameters: a slope, or two bounds.
        algorithm: its variant; empty if there is only one.
    """

    attr: str = "none"
    scalars: tuple[float, ...] = ()
    algorithm: str = ""


NONE = Epilogue()

_PLAIN = {
    aten.sigmoid.default: Epilogue("sigmoid"),
    aten.tanh.default: Epilogue("tanh"),
    aten.silu.default: Epilogue("swish"),
    aten.hardswish.default: Epilogue("hardswish"),
}


# oneDNN agrees with ATen on finite operands only.
_PLAIN_IF_FINITE = {
    aten.relu.default: Epilogue("relu"),
    aten.hardsigmoid.default: Epilogue("hardsigmoid"),
}


def fused_activation(value: fx.Node, is_finite: bool = False) -> tuple[fx.Node, Epilogue]:
    """Find the activation that can be fused into the call that computes `value`.

    Args:
        value: the result of a product or a convolution.
        is_finite: whether `value` is finite as long as inputs and weights are.

    Returns:
        The node that holds the result of the activation, and the activation. `(value, NONE)` if the only
        reader of `value` is not an activation, or if it cannot be fused.
    """
    swish = _written_out_swish(value)
    if swish is not None:
        return swish, Epilogue("swish")
    user = only_user(value)
    if user is None or user.args[:1] != (value,):
        return value, NONE
    epilogue = activation_of_call(user, is_finite)
    return (value, NONE) if epilogue is None else (user, epilogue)


def activation_of_call(call: fx.Node, is_finite: bool = True) -> Epilogue | None:
    """The activation that a call computes; None if it is not a fusible activation.

    Args:
        call: any node.
        is_finite: whether to include activations on which oneDNN agrees with ATen for finite operands only.
    """
    if not isinstance(call.target, OpOverload):
        return None
    epilogue = _PLAIN.get(call.target) or (_if_finite(call) if is_finite else None)
    if epilogue is not None:
        return epilogue
    if call.target is aten.leaky_relu.default:
        return Epilogue("leaky_relu", (float(arguments(call)["negative_slope"]),))
    if call.target is aten.gelu.default and arguments(call)["approximate"] == "tanh":
        return Epilogue("gelu", (), "tanh")
    return None


def _if_finite(user: fx.Node) -> Epilogue | None:
    """The activation of a node, if oneDNN agrees with ATen on it for finite operands only."""
    if user.target in _PLAIN_IF_FINITE:
        return _PLAIN_IF_FINITE[user.target]
    if user.target is aten.gelu.default and arguments(user)["approximate"] == "none":
        return Epilogue("gelu", (), "none")
    bounds = None
    if user.target is aten.hardtanh.default:
        bounds = [arguments(user)[name] for name in ("min_val", "max_val")]
    elif user.target is aten.clamp.default:
        bounds = [arguments(user)[name] for name in ("min", "max")]
    if bounds is None or not all(isinstance(bound, int | float) for bound in bounds):
        return None
    return Epilogue("hardtanh", (float(bounds[0]), float(bounds[1])))


_ACTIVATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "relu": torch.relu_,
    "hardsigmoid": torch.nn.functional.hardsigmoid,
    "hardtanh": torch.clamp_,
    "gelu": torch.nn.functional.gelu,
}
"""Activations fused for finite operands only, by oneDNN's name: ATen's function, correct for any operand.

Two of them write to their operand, which nobody else reads.
"""

ATTR: dict[Any, int] = {
    packing.CONVOLUTION: 7,
    packing.CONVOLUTION_ADD: 10,
    packing.TRANSPOSED: 8,
    packing.LINEAR: 3,
}
"""Position of the activation's name among the arguments of a packed call; scalars and variant follow it."""


def _assumes_finite(node: fx.Node) -> bool:
    """True for a packed call whose activation agrees with ATen for finite operands only."""
    if node.target not in ATTR:
        return False
    name, _, algorithm = node.args[ATTR[node.target] :]
    return name in _ACTIVATIONS and algorithm != "tanh"


def fused_if_finite(graph: fx.Graph) -> list[fx.Node]:
    """The packed calls of a graph that agree with ATen for finite operands only."""
    return [node for node in graph.nodes if _assumes_finite(node)]


def taken_apart(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of a graph that agrees with ATen for every operand.

    In the copy, each activation that assumes finite operands is an ATen call after its packed call.
    """
    graph = copy.deepcopy(module.graph)
    for node in fused_if_finite(graph):
        at = ATTR[node.target]
        name, scalars, _ = node.args[at:]
        none: tuple[Any, ...] = (
            (None, [], None) if node.target is packing.CONVOLUTION_ADD else ("none", [], "")
        )
        node.args = (*node.args[:at], *none)
        with graph.inserting_after(node):
            activation = graph.call_function(_ACTIVATIONS[str(name)])
        node.replace_all_uses_with(activation)
        activation.args = (node, *scalars)  # type: ignore[misc]
    return fx.GraphModule(module, checked(graph))


def _written_out_swish(value: fx.Node) -> fx.Node | None:
    """The product node of `x * sigmoid(x)`, if `value` is x and has no other readers."""
    if len(value.users) != 2:
        return None
    for gate in value.users:
        if gate.target is not aten.sigmoid.default:
            continue
        product = only_user(gate)
        if product is None or product.target is not aten.mul.Tensor:
            continue
        if set(product.args) == {value, gate}:
            return product
    return None


def added_value(value: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The sum that is the only reader of `value`, and its other operand; None if there is no such sum."""
    user = only_user(value)
    if user is None or user.target is not aten.add.Tensor or arguments(user)["alpha"] != 1:
        return None
    left, right = user.args[0], user.args[1]
    other = right if left is value else left
    return (user, other) if isinstance(other, fx.Node) and other is not value else None


def added_like(value: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The same as `added_value`, for an operand of the same dtype, device and sizes: nothing is broadcast."""
    added = added_value(value)
    mine, other = tensor_of(value), None if added is None else tensor_of(added[1])
    if added is None or mine is None or other is None:
        return None
    is_like = mine.dtype == other.dtype and mine.device == other.device
    return added if is_like and shape_key(added[1]) == shape_key(value) else None
