"""Calls that are made for their side effects, not for their result: assertions, operators marked as impure.

Their result is unused, or using it is not the only purpose of the call. Each becomes an opaque node with one
more output, its *token*, which reads the token of the previous such call; the last token is an output of the
model. So no stage removes such a call as dead, and they stay in order. A token holds no data: lowering drops
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchrlopt.torch_private.operators import OpOverload, OpOverloadPacket, base_name, schema_of

_ASSERTIONS = {
    "_assert_async", "_functional_assert_async", "_assert_scalar", "_functional_assert_scalar",
    "_assert_tensor_metadata", "sym_constrain_range", "sym_constrain_range_for_size",
}  # fmt: skip


def _assert_with_words(condition: torch.Tensor) -> None:
    torch.ops.aten._assert_async.msg(condition, "Expected Tensor with single nonzero value, but got zero")


KEPT: dict[Any, Callable[..., Any]] = {torch.ops.aten._assert_async.default: _assert_with_words}
"""Decompositions into calls that torch does not remove as dead, as it does an assertion without a message.
The message is the one that the operator has by default."""


def has_effect(node: torch.fx.Node) -> bool:
    """Returns whether a call does more than compute its result.

    That is: operators that torch calls impure, and those that return nothing. Random numbers do not count,
    nor do writes to an argument, which a functional graph does not have.
    """
    if node.op != "call_function":
        return False
    target = node.target
    returns_nothing = isinstance(target, OpOverload) and not schema_of(target).returns
    return returns_nothing or node.is_impure(impure_random=False)


def effect_before_tracing(gm: torch.fx.GraphModule) -> str | None:
    """Name of an operator in Dynamo's graph that is called for its side effect; None if there is none.

    AOTAutograd drops the call of a custom operator that returns nothing and writes to no argument. The graph
    that is returned to the user still contains it, so we must not call it.
    """
    for node in gm.graph.nodes:
        target = node.target
        if isinstance(target, OpOverloadPacket) and "default" in target.overloads():
            target = target.default
        if not isinstance(target, OpOverload) or schema_of(target).returns:
            continue
        if not (schema_of(target).is_mutable or _is_assertion(target)):
            return str(target)
    return None


def is_assertion(node: torch.fx.Node) -> bool:
    """Returns whether a call does nothing while its condition holds."""
    return isinstance(node.target, OpOverload) and _is_assertion(node.target)


def _is_assertion(operator: OpOverload) -> bool:
    return operator.namespace == "aten" and base_name(operator) in _ASSERTIONS
