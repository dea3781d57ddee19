"""Activations that a packed convolution or linear applies before it writes its result.

Only those that oneDNN computes as ATen does for every input, NaN and infinities included. Its relu, hardtanh
and hardsigmoid turn NaN into a number and its exact gelu turns inf into NaN: these stay separate calls, which
the in-place pass makes cheap.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from torchrlopt.executors.fx_values import arguments, only_user

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


def fused_activation(value: fx.Node) -> tuple[fx.Node, Epilogue]:
    """The activation that is the only reader of `value`, and the node that holds its result.

    Returns:
        `(value, NONE)` when there is none that may be fused.
    """
    swish = _written_out_swish(value)
    if swish is not None:
        return swish, Epilogue("swish")
    user = only_user(value)
    if user is None or not isinstance(user.target, torch._ops.OpOverload) or user.args[:1] != (value,):
        return value, NONE
    epilogue = _PLAIN.get(user.target)
    if epilogue is not None:
        return user, epilogue
    if user.target is aten.leaky_relu.default:
        return user, Epilogue("leaky_relu", (float(arguments(user)["negative_slope"]),))
    if user.target is aten.gelu.default and arguments(user)["approximate"] == "tanh":
        return user, Epilogue("gelu", (), "tanh")
    return value, NONE


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
