"""Corrects the strides of a traced graph's outputs, which a trace mistakes for dimensions of one element.

PyTorch's kernels and its fake tensors give such a dimension different strides after a view or a sum of a
transposed tensor. So a trace takes a transposed image of batch 1 for channels_last, and a convolution of it,
too, whose real result is contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

CORRECTED = "has_real_strides"
"""Key in `meta` of a node whose fake value has the strides of a run."""


def correct_output_strides(graph: fx.GraphModule, inputs: Callable[[], Sequence[Any]]) -> None:
    """Give doubtful outputs the strides that they have in a run. Most graphs have none and are not run."""
    (output,) = graph.graph.find_nodes(op="output")
    returned: Sequence[Any] = output.args[0]
    doubtful = [i for i, node in enumerate(returned) if isinstance(node, fx.Node) and _is_doubtful(node)]
    if not doubtful:
        return
    try:
        with torch.no_grad():
            results = graph(*inputs())
    except Exception:  # noqa: BLE001  # the user's operators may raise anything, and the check will report it
        return
    for index in doubtful:
        node, real = returned[index], results[index]
        if real.shape == node.meta["val"].shape:
            node.meta["val"] = node.meta["val"].as_strided(real.shape, real.stride())
            node.meta[CORRECTED] = True


def _is_doubtful(node: fx.Node) -> bool:
    """Whether it is computed as a static image or volume with a dimension of one element, not contiguous."""
    value = node.meta.get("val")
    return (
        isinstance(value, torch.Tensor)
        and value.dim() in (4, 5)
        and all(isinstance(number, int) for number in (*value.shape, *value.stride()))
        and 1 in value.shape
        and not value.is_contiguous()
    )
