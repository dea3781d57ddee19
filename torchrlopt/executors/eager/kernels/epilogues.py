"""Activations that a packed convolution or linear applies before it writes its result.

Some oneDNN computes as ATen does for every input. Its relu, hardtanh and hardsigmoid turn NaN into a number
and its exact gelu turns inf into NaN: these are fused only behind values that are known to be finite (see
`finiteness`), and taken apart again for a call that brings other values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.eager.kernels import packing
from torchrlopt.executors.lowering.fx_values import arguments, only_user

aten = torch.ops.aten


@dataclass(frozen=True)
class Epilogue:
    """An activation in oneDNN's words: its name, its numbers, its variant."""

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


# For finite operands only.
_PLAIN_IF_FINITE = {
    aten.relu.default: Epilogue("relu"),
    aten.hardsigmoid.default: Epilogue("hardsigmoid"),
}


def fused_activation(value: fx.Node, is_finite: bool = False) -> tuple[fx.Node, Epilogue]:
    """The activation that is the only reader of `value`, and the node that holds its result.

    Args:
        value: a result of a product or convolution.
        is_finite: whether `value` may be taken for finite.

    Returns:
        `(value, NONE)` when there is none that may be fused.
    """
    swish = _written_out_swish(value)
    if swish is not None:
        return swish, Epilogue("swish")
    user = only_user(value)
    if user is None or not isinstance(user.target, torch._ops.OpOverload) or user.args[:1] != (value,):
        return value, NONE
    epilogue = _PLAIN.get(user.target) or (_if_finite(user) if is_finite else None)
    if epilogue is not None:
        return user, epilogue
    if user.target is aten.leaky_relu.default:
        return user, Epilogue("leaky_relu", (float(arguments(user)["negative_slope"]),))
    if user.target is aten.gelu.default and arguments(user)["approximate"] == "tanh":
        return user, Epilogue("gelu", (), "tanh")
    return value, NONE


def _if_finite(user: fx.Node) -> Epilogue | None:
    """What this activation is in oneDNN's words, as long as its operand is finite."""
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
"""oneDNN's names of what is fused for finite operands only, and what computes it for every operand."""

#: Where the packed calls carry the name of their activation; its numbers and its variant follow.
_ATTR: dict[Any, int] = {
    packing.CONVOLUTION: 7,
    packing.CONVOLUTION_ADD: 10,
    packing.TRANSPOSED: 8,
    packing.LINEAR: 3,
}


def _assumes_finite(node: fx.Node) -> bool:
    if node.target not in _ATTR:
        return False
    name, _, algorithm = node.args[_ATTR[node.target] :]
    return name in _ACTIVATIONS and algorithm != "tanh"


def fused_if_finite(graph: fx.Graph) -> list[fx.Node]:
    """The calls of a graph that are right for finite operands only."""
    return [node for node in graph.nodes if _assumes_finite(node)]


def taken_apart(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of a graph that is right for every operand: such activations are calls of their own."""
    graph = copy.deepcopy(module.graph)
    for node in fused_if_finite(graph):
        at = _ATTR[node.target]
        name, scalars, _ = node.args[at:]
        none: tuple[Any, ...] = (
            (None, [], None) if node.target is packing.CONVOLUTION_ADD else ("none", [], "")
        )
        node.args = (*node.args[:at], *none)
        with graph.inserting_after(node):
            activation = graph.call_function(_ACTIVATIONS[str(name)])
        node.replace_all_uses_with(activation)
        activation.args = (node, *scalars)  # type: ignore[misc]
    return fx.GraphModule(module, graph)


def _written_out_swish(value: fx.Node) -> fx.Node | None:
    """The product of `x * sigmoid(x)` when these two are all that reads x."""
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
    """The sum that is the only reader of `value`, and its other operand; None when there is no such sum."""
    user = only_user(value)
    if user is None or user.target is not aten.add.Tensor or arguments(user)["alpha"] != 1:
        return None
    left, right = user.args[0], user.args[1]
    other = right if left is value else left
    return (user, other) if isinstance(other, fx.Node) and other is not value else None
