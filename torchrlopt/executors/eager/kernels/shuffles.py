"""Recognises channel shuffles: views and a permutation that interleave the channels of groups."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.lowering.fx_values import arguments, shape_key, tensor_of
from torchrlopt.ops.traits import RESHAPES

aten = torch.ops.aten

_COPIES = frozenset({aten.clone.default, aten.contiguous.default})


class Shuffle(NamedTuple):
    """Nodes that together form a channel shuffle.

    Attributes:
        image: the shuffled image.
        first: the view that splits its channels into groups.
        groups: number of groups.
    """

    image: fx.Node
    first: fx.Node
    groups: int


def shuffle_at(node: fx.Node) -> Shuffle | None:
    """The channel shuffle whose last view is this node.

    Args:
        node: of an ATen graph with `meta["val"]`, in which copies may have been dropped.
    """
    shape = shape_key(node)
    if node.target not in RESHAPES or shape is None or len(shape) != 4:
        return None
    turned = _copied(node.args[0])
    if not isinstance(turned, fx.Node) or not _swaps_groups(turned):
        return None
    grouped = turned.args[0]
    if not isinstance(grouped, fx.Node) or grouped.target not in RESHAPES:
        return None
    image, sizes = _copied(grouped.args[0]), shape_key(grouped)
    if not isinstance(image, fx.Node) or shape_key(image) != shape or sizes is None:
        return None
    groups, size = sizes[1:3]
    if not isinstance(groups, int) or not isinstance(size, int) or groups * size != shape[1] or groups == 0:
        return None
    if (sizes[0], *sizes[3:]) != (shape[0], *shape[2:]) or not indirect.are_for(tensor_of(node)):
        return None
    return Shuffle(image, grouped, groups)


def _copied(node: Any) -> Any:
    """The original of a copy; the node itself if it is not one."""
    while isinstance(node, fx.Node) and node.target in _COPIES:
        node = node.args[0]
    return node


def _swaps_groups(node: fx.Node) -> bool:
    """Whether a call swaps the second and the third of five axes."""
    if len(shape_key(node) or ()) != 5:
        return False
    if node.target is aten.permute.default:
        return [axis % 5 for axis in arguments(node)["dims"]] == [0, 2, 1, 3, 4]
    if node.target is aten.transpose.int:
        named = arguments(node)
        return {named["dim0"] % 5, named["dim1"] % 5} == {1, 2}
    return False
